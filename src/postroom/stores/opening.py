"""``open_store(url)``: the one place that knows all stores. Each is imported only when its URL is asked for."""

from __future__ import annotations

from typing import Any

from postroom.errors import SettingsInvalid
from postroom.settings import masked
from postroom.stores.port import Store


def open_store(url: str, **options: Any) -> Store:
    """The store that a URL names, not opened yet (``await store.open()``).

    Args:
        url: ``memory://`` or ``sqlite:///path`` (three slashes and a path from here, four and one from the root).
        options: what the store's class takes beside its place: ``clock``, ``overtake_seconds``, ``fair_by``.
    Raises:
        SettingsInvalid: no store of ours has such a URL; the message says which have.
    """
    scheme, separator, place = url.partition("://")
    match scheme.lower() if separator else "":
        case "memory" if not place:
            from postroom.stores.memory import MemoryStore

            return MemoryStore(**options)
        case "sqlite" if len(place) > 1 and place.startswith("/"):
            from postroom.stores.sqlite.store import SqliteStore

            return SqliteStore(url, **options)
        case "http" | "https":
            raise SettingsInvalid(
                f"{masked(url)} is a postroom service and not a store: open it by Inbox(url)"
            )
    raise SettingsInvalid(
        f"no store has the URL {masked(url)!r}: use memory://, sqlite:///path or the http:// of a service"
    )
