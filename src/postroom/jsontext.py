"""JSON values to text and back, with what may not pass: NaN, lone surrogates, NUL, absurd depth, integers past 64 bits.

Values travel and are kept as text. What is refused here would come back different, or not at all, from one of the
stores: PostgreSQL has no NUL, no UTF-8 has lone surrogates, other languages read integers past 64 bits as floats.
"""

from __future__ import annotations

import json
import re
from typing import Any

MAX_DEPTH = 100
_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1
_NUL = "\\u0000"
_LONG = re.compile(r"[0-9][0-9]{18}")  # written so that it is looked for quickly
_ODD_KEY = re.compile(r'[0-9el]":')
"""The end of a key that may not have been text: a number, true, false or null."""
_HUGE = re.compile(r"[0-9][eE]\+?[0-9]{3}")

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class JsonRefused(ValueError):
    """The value or text cannot be kept as JSON; the message says why and where, without quoting it.

    ``path`` is where inside the value, where that is known.
    """

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path


def encode(value: Any) -> str:
    """The value as JSON text, compact, non-ASCII as it is.

    Raises:
        JsonRefused: it cannot be kept (see the module).
    """
    if type(value) is int and _INT_MIN <= value <= _INT_MAX:
        return str(value)
    try:
        text = _encode(value)
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError:
        raise JsonRefused("text with a lone surrogate is not valid Unicode") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise JsonRefused(_reason(error)) from None
    if (
        text.count("[") + text.count("{") > MAX_DEPTH
        or _NUL in text
        or _LONG.search(text)
        or ('":' in text and _ODD_KEY.search(text))
    ):
        _check(value, "", 0)
    return text


def decode(text: str) -> Any:
    """The value of text that `encode` made."""
    return json.loads(text)


def decode_strict(data: bytes | str) -> Any:
    """Parse JSON from outside: as `encode` refuses, and also keys that appear twice in one object.

    Raises:
        JsonRefused: not JSON, not UTF-8, or with something that may not pass.
    """
    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_constant)
        text.encode()
    except UnicodeDecodeError as error:
        raise JsonRefused(f"not valid UTF-8 at byte {error.start}") from None
    except UnicodeEncodeError:
        raise JsonRefused("text with a lone surrogate is not valid Unicode") from None
    except RecursionError:
        raise JsonRefused(f"nested deeper than {MAX_DEPTH} levels") from None
    except json.JSONDecodeError as error:
        raise JsonRefused(
            f"not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from None
    except JsonRefused:
        raise
    except ValueError:  # Python itself gives up on integers of thousands of digits
        raise JsonRefused("integers past 64 bits are not kept; send it as text") from None
    if (
        text.count("[") + text.count("{") > MAX_DEPTH
        or "\\u" in text
        or _LONG.search(text)
        or _HUGE.search(text)
    ):
        _check(value, "", 0)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise JsonRefused(f"the key {key[:80]!r} appears twice in one object")
            seen.add(key)
    return made


def _constant(name: str) -> Any:
    raise JsonRefused(f"{name} is not JSON")


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError) or "Circular" in str(error):
        return f"nested deeper than {MAX_DEPTH} levels"
    if isinstance(error, TypeError):
        return f"not a JSON value: {error}"
    if "not JSON compliant" in str(error):
        return "NaN and infinities are not JSON"
    if "integer string conversion" in str(error):  # Python itself gives up on thousands of digits
        return "integers past 64 bits are not kept; send it as text"
    return str(error)


def _check(value: Any, path: str, depth: int) -> None:
    if depth >= MAX_DEPTH and isinstance(value, dict | list | tuple):
        raise JsonRefused(f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, str):
        _check_text(value, path)
    elif isinstance(value, bool) or value is None:
        return
    elif isinstance(value, int):
        if not _INT_MIN <= value <= _INT_MAX:
            raise JsonRefused("integers past 64 bits are not kept; send it as text", path)
    elif isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise JsonRefused("a number too large for a 64-bit float", path)
    elif isinstance(value, dict):
        _check_keys(value, path)
        for key, inner in value.items():
            _check_text(str(key), path)
            _check(inner, f"{path}.{str(key)[:40]}" if path else str(key)[:40], depth + 1)
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            _check(inner, f"{path}[{index}]", depth + 1)


def _check_keys(value: dict[Any, Any], path: str) -> None:
    """Keys that are no text are kept as JSON spells them (1 as "1"), as long as that is nobody else's key."""
    if all(isinstance(key, str) for key in value):
        return
    seen = set()
    for key in value:
        name = key if isinstance(key, str) else json.dumps(key)
        if name in seen:
            raise JsonRefused("two keys, one of them no text, are one in JSON", path)
        seen.add(name)


def _check_text(text: str, path: str) -> None:
    if "\x00" in text:
        raise JsonRefused("text with a NUL character cannot be kept by every store", path)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise JsonRefused("text with a lone surrogate is not valid Unicode", path) from None
