"""What a caller asks for, checked field by field and made into a `Draft`: one way for Python, HTTP and command line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

from postroom.errors import DraftInvalid, Problem, TooLarge
from postroom.jsontext import JsonRefused, encode
from postroom.model import (
    DEFAULT_OWNER,
    MOST_ATTEMPTS,
    MOST_SECONDS,
    Draft,
    JsonText,
    Payload,
    Priority,
    digest,
    evolve,
    new_job_id,
)
from postroom.plaintext import is_label, is_plain
from postroom.settings import Settings
from postroom.views import parse_time

OPTIONS = frozenset(
    "sender topic priority queue run_at expires_at max_attempts timeout_seconds stall_timeout_seconds "
    "allow_failed_items params metadata".split()
)
"""What may be said beside kind and content or items."""

LATER = {
    "dedupe_key": "sharing one live job is not built yet; an Idempotency-Key keeps a repeat from making a second job",
    "gates": "gates are not built yet",
    "callback_url": "call-backs are not built yet; follow the job's events or wait for it",
}
"""Fields of the contract that this version refuses by name instead of ignoring them."""

MAX_NOTES_BYTES = 64 * 1024
MAX_ITEMS = 200_000
LAST_MOMENT = 253_402_300_799.0
"""The last second of the year 9999. Its last microsecond, often said for never, becomes year 10000 as a float."""
MAX_KEY_CHARS = 200


class Drafting:
    """Makes drafts under one set of limits."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def draft(
        self,
        fields: Mapping[str, Any],
        *,
        now: float,
        owner: str = DEFAULT_OWNER,
        actor: str | None = None,
        idempotency_key: str | None = None,
        path: str = "",
    ) -> Draft:
        """Check one job's fields (contract, section 2) and make the draft.

        Args:
            fields: ``kind``, ``content`` or ``items`` with ``item_keys``, and the `OPTIONS`.
            now: the store's clock; ids carry it, and ``expires_at`` must lie after it.
            owner: whose job it is.
            actor: who is named in the journal; the owner unless given.
            idempotency_key: the same owner, key and body give the first job again.
            path: put before the names in problems (``jobs[3].``).
        Raises:
            DraftInvalid: one problem per wrong field; nothing is made.
            TooLarge: content or an item over its limit.
        """
        check = _Check(path)
        for name in () if fields.keys() <= _FIELDS else fields.keys() - _FIELDS:
            check.add(
                name, LATER.get(name, f"unknown field; known are {', '.join(sorted(_SHAPE | OPTIONS))}")
            )
        payload, total, has_items = self._payload(fields, check)
        sets: dict[str, Any] = {}
        for name, value in fields.items():
            if value is not None and name in _CHECKS:
                sets[name] = _CHECKS[name](check, name, value)
        expires_at = sets.get("expires_at")
        if expires_at is not None and expires_at <= now:
            check.add("expires_at", "lies in the past")
        run_at = sets.get("run_at")
        if expires_at is not None and run_at is not None and expires_at <= run_at:
            check.add("expires_at", "is not after run_at: the job could never start")
        kind = check.label("kind", "assistant" if fields.get("kind") is None else fields["kind"])
        if idempotency_key is not None and not _is_key(idempotency_key):
            check.add("Idempotency-Key", "1 to 255 characters, none of them a control character")
        check.finish()
        draft = evolve(
            _PLAIN,
            job_id=new_job_id(now),
            kind=kind,
            payload=payload,
            total=total,
            has_items=has_items,
            owner=owner,
            actor=actor or owner,
            **sets,
        )
        if idempotency_key is None:
            return draft
        return evolve(draft, idempotency_key=idempotency_key, body_digest=body_digest(draft))

    def _payload(self, fields: Mapping[str, Any], check: _Check) -> tuple[Payload, int, bool]:
        content, items = fields.get("content"), fields.get("items")
        if (content is None) == (items is None):
            both = (
                "give content or items, not both"
                if content is not None
                else "give content (any JSON value but null) or items"
            )
            check.add("content", both)
            return Payload("null"), 1, False
        if items is None:
            if fields.get("item_keys") is not None:
                check.add("item_keys", "goes with items")
            return Payload(self._item(content, "content", check)), 1, False
        if not isinstance(items, list | tuple) or not 0 < len(items) <= MAX_ITEMS:
            check.add(
                "items",
                f"a list of 1 to {MAX_ITEMS} values"
                + ("" if not isinstance(items, list | tuple) else f", found {len(items)}"),
            )
            return Payload("[]"), 1, True
        texts = [self._item(item, f"items[{index}]", check) for index, item in enumerate(items)]
        return (
            Payload("[" + ",".join(texts) + "]", _keys(fields.get("item_keys"), len(items), check)),
            len(items),
            True,
        )

    def _item(self, value: Any, name: str, check: _Check) -> JsonText:
        try:
            text = encode(value)
        except JsonRefused as error:
            check.add(name, str(error))
            return "null"
        limit = self._settings.max_item_bytes
        if len(text) * 4 > limit:
            size = len(text.encode())
            if size > limit:
                raise TooLarge(check.path + name, limit=limit, size=size, setting="POSTROOM_MAX_ITEM_BYTES")
        return text


_SHAPE = frozenset({"kind", "content", "items", "item_keys"})
_FIELDS = _SHAPE | OPTIONS
_PLAIN = Draft("", "", Payload("null"))


def body_digest(draft: Draft) -> str:
    """The digest of what was asked, whatever the order of its keys and however it was spelled: a default that is said
    is the default, and one instant in two zones is one. So the same call in Python and over HTTP is the same body."""
    said = [repr(value) for value in _digested(draft)]
    texts = (draft.payload.body, draft.params, draft.metadata)
    return digest(*said, *map(_canonical, texts), *(draft.payload.keys or ()))


_digested = attrgetter(
    *"kind has_items sender topic priority queue run_at expires_at max_attempts timeout_seconds "
    "stall_timeout_seconds allow_failed_items".split()
)


def _canonical(text: JsonText) -> JsonText:
    """The text with the keys of its objects in order."""
    if "{" not in text or text == "{}":
        return text
    return json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def _is_key(key: Any) -> bool:
    return isinstance(key, str) and 0 < len(key) <= 255 and is_plain(key)


def _keys(keys: Any, count: int, check: _Check) -> tuple[str, ...] | None:
    if keys is None:
        return None
    if not isinstance(keys, list | tuple) or len(keys) != count:
        check.add("item_keys", f"a list as long as items ({count})")
        return None
    seen: set[str] = set()
    for index, key in enumerate(keys):
        if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY_CHARS or not is_plain(key):
            check.add(f"item_keys[{index}]", f"text of 1 to {MAX_KEY_CHARS} printable characters")
            return None
        if key in seen:
            check.add(f"item_keys[{index}]", f"the key {key!r} appears twice")
            return None
        seen.add(key)
    return tuple(keys)


class _Check:
    """Collects problems, so that a caller learns of all wrong fields at once."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.problems: list[Problem] = []

    def add(self, name: str, message: str) -> None:
        self.problems.append(Problem(self.path + name, message))

    def finish(self) -> None:
        if self.problems:
            raise DraftInvalid(self.problems)

    def label(self, name: str, value: Any) -> str:
        if type(value) is str and value.isascii() and value.isprintable() and 0 < len(value) <= 200:
            return value
        if not is_label(value):
            self.add(name, "text of 1 to 200 printable characters")
            return "invalid"
        return str(value)

    def priority(self, name: str, value: Any) -> Priority:
        try:
            return Priority(value)
        except ValueError:
            self.add(name, f"one of {', '.join(Priority)}, found {str(value)[:40]!r}")
            return Priority.NORMAL

    def moment(self, name: str, value: Any) -> float | None:
        if isinstance(value, str):
            try:
                value = parse_time(value)
            except ValueError:
                self.add(name, "a time as RFC 3339 with an offset, such as 2026-01-31T08:00:00Z")
                return None
        if not isinstance(value, datetime) or value.tzinfo is None:
            self.add(name, "a time with an offset (RFC 3339 text, or an aware datetime)")
            return None
        try:
            return min(value.astimezone(UTC).timestamp(), LAST_MOMENT)
        except OverflowError:
            self.add(name, "a time within the calendar, whatever its offset")
            return None

    def seconds(self, name: str, value: Any) -> float | None:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < MOST_SECONDS:
            self.add(name, "seconds above 0, fractions allowed")
            return None
        return float(value)

    def attempts(self, name: str, value: Any) -> int | None:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_ATTEMPTS:
            self.add(name, f"a whole number from 1 to {MOST_ATTEMPTS}")
            return None
        return value

    def allowance(self, name: str, value: Any) -> float | None:
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not 0 <= value < 10**9
            or (value > 1 and value != int(value))
        ):
            self.add(name, "a whole number of items, or a share from 0 to below 1")
            return None
        return float(value)

    def notes(self, name: str, value: Any) -> JsonText:
        if not isinstance(value, dict) or not all(isinstance(k, str) for k in value):
            self.add(name, "an object")
            return "{}"
        try:
            text = encode(value)
        except JsonRefused as error:
            self.add(name, str(error))
            return "{}"
        size = len(text.encode())
        if size > MAX_NOTES_BYTES:
            raise TooLarge(self.path + name, limit=MAX_NOTES_BYTES, size=size)
        return text


_CHECKS = {
    "sender": _Check.label,
    "topic": _Check.label,
    "queue": _Check.label,
    "priority": _Check.priority,
    "run_at": _Check.moment,
    "expires_at": _Check.moment,
    "max_attempts": _Check.attempts,
    "timeout_seconds": _Check.seconds,
    "stall_timeout_seconds": _Check.seconds,
    "allow_failed_items": _Check.allowance,
    "params": _Check.notes,
    "metadata": _Check.notes,
}


def numbered_keys(total: int) -> Iterable[str]:
    """The keys of items that the caller did not name."""
    return map(str, range(total))
