"""What Python callers hand over beside a job's own fields: checked by name, before it goes anywhere.

Each function gives the value back, or raises `DraftInvalid` naming the argument, so that a slip is not a TypeError
from somewhere inside, or a wait that never ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, NoReturn

from postroom.errors import DraftInvalid, Problem


def _refuse(name: str, wanted: str, value: Any) -> NoReturn:
    raise DraftInvalid([Problem(name, f"{wanted}, found {repr(value)[:80]}")])


def text(name: str, value: Any) -> str:
    """Some text."""
    return value if isinstance(value, str) else _refuse(name, "text", value)


def text_or_none(name: str, value: Any) -> str | None:
    """Some text, or nothing."""
    return None if value is None else text(name, value)


def texts(name: str, value: Iterable[Any]) -> tuple[str, ...]:
    """Several texts; one alone is refused, since its letters would be taken for them."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        _refuse(name, "a list of texts", value)
    return tuple(text(name, each) for each in value)


def whole(name: str, value: Any, low: int, high: int) -> int:
    """A whole number within bounds."""
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
        return value
    _refuse(name, f"a whole number from {low} to {high}", value)


def seconds(name: str, value: Any) -> float | None:
    """A duration, or nothing."""
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool) and value == value:
        return value
    _refuse(name, "seconds, fractions allowed", value)


def moment(name: str, value: Any) -> float | None:
    """An aware datetime as seconds since the epoch, or nothing."""
    if value is None:
        return None
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.timestamp()
    _refuse(name, "an aware datetime, such as datetime.now(UTC) - timedelta(hours=1)", value)
