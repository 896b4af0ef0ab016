"""One command, one event loop, one inbox: opened at the start, closed at the end however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from postroom.inbox import Inbox
    from postroom.stores.port import Store

T = TypeVar("T")


def with_inbox(
    store: str | None,
    use: Callable[[Inbox], Awaitable[T]],
    *,
    makes_store: bool = False,
    only_here: str | None = None,
    **overrides: Any,
) -> T:
    """Open the inbox that the flags and settings name, use it, close it.

    Args:
        store: the flag ``--store``.
        use: what the command does.
        makes_store: True for commands that may begin a new store; the others refuse a file that does not exist.
        only_here: the name of a command that needs the store itself and cannot do with a service.
        overrides: more flags by setting name.
    """
    from postroom.wiring import require_store

    inbox = _inbox({"store": store, **overrides}, only_here)
    if not makes_store:
        require_store(inbox.url)

    async def run() -> T:
        async with inbox:
            return await use(inbox)

    return asyncio.run(run())


def on_store(store: str | None, use: Callable[[Store], Awaitable[T]], *, command: str) -> T:
    """Do something with the store itself, before it is opened."""
    from postroom.inbox import open_verbs

    inbox = _inbox({"store": store}, command)

    async def run() -> T:
        from postroom.desk import Desk

        desk = open_verbs(inbox.url, inbox.settings)
        assert isinstance(desk, Desk)
        return await use(desk.store)

    return asyncio.run(run())


def _inbox(overrides: dict[str, Any], only_here: str | None) -> Inbox:
    from postroom.cli.failures import refuse
    from postroom.cli.output import warn
    from postroom.settings import masked
    from postroom.wiring import open_inbox

    inbox = open_inbox(overrides)
    for warning in inbox.settings.warnings:
        warn(warning)
    if only_here is not None and inbox.url.startswith(("http://", "https://")):
        refuse(f"{only_here} works on the store itself: run it where the service at {masked(inbox.url)} runs")
    if inbox.url.startswith("memory:"):
        refuse(
            "a memory store lives and ends with one process, and this command ends at once: use sqlite:///postroom.db"
        )
    return inbox
