"""What a job's ``params`` may say, checked before any model is asked: a misspelt option costs money at night."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from postroom.errors import PermanentError

Check = Callable[[Any], Any]
"""Returns the value to use, or raises ValueError saying what was expected."""


def read(kind: str, params: Mapping[str, Any] | None, known: Mapping[str, Check]) -> dict[str, Any]:
    """The checked params; those that were not given are absent.

    Raises:
        PermanentError: an unknown param, or a wrong value (``invalid_params``); names the known ones.
    """
    checked: dict[str, Any] = {}
    for name, value in (params or {}).items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean `{near[0]}`?)" if near else ""
            raise invalid(f"`{name}` is no param of {kind}{hint}; known: {', '.join(sorted(known))}")
        try:
            checked[name] = known[name](value)
        except ValueError as error:
            raise invalid(f"param `{name}` of {kind}: {error}") from None
    return checked


def invalid(message: str) -> PermanentError:
    """The error for params that cannot be used."""
    return PermanentError(message, code="invalid_params")


def whole(minimum: int, maximum: int) -> Check:
    """A whole number within bounds."""

    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise ValueError(f"expected a whole number from {minimum} to {maximum}")
        return value

    return check


def number(minimum: float, maximum: float) -> Check:
    """A number within bounds."""

    def check(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not minimum <= value <= maximum:
            raise ValueError(f"expected a number from {minimum:g} to {maximum:g}")
        return float(value)

    return check


def text(max_chars: int = 4000) -> Check:
    """A text that is not empty."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or not value.strip() or len(value) > max_chars:
            raise ValueError(f"expected a text of 1 to {max_chars} characters")
        return value

    return check


def choice(*allowed: str) -> Check:
    """One of a few words."""

    def check(value: Any) -> str:
        if value not in allowed:
            raise ValueError(f"expected one of {', '.join(allowed)}")
        return str(value)

    return check


def texts(max_count: int = 200, max_chars: int = 2000) -> Check:
    """A list of texts."""
    one = text(max_chars)

    def check(value: Any) -> list[str]:
        if not isinstance(value, list) or not 1 <= len(value) <= max_count:
            raise ValueError(f"expected a list of 1 to {max_count} texts")
        return [one(entry) for entry in value]

    return check


def mapping(check_value: Check, max_count: int = 200) -> Check:
    """An object whose values all pass a check."""

    def check(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict) or not 1 <= len(value) <= max_count:
            raise ValueError(f"expected an object with 1 to {max_count} entries")
        checked = {}
        for name, entry in value.items():
            try:
                checked[name] = check_value(entry)
            except ValueError as error:
                raise ValueError(f"`{name}`: {error}") from None
        return checked

    return check


def format_of_answer(value: Any) -> str:
    """``text`` for people, ``object`` for programs."""
    return str(choice("text", "object")(value))
