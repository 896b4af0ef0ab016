"""Query parameters and preferences: read by name, refused by name, and described for OpenAPI from the same place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl

from fastapi import Request

from postroom.errors import DraftInvalid, Problem
from postroom.model import State
from postroom.plaintext import UNSAFE, is_label
from postroom.views import parse_time

MAX_LIMIT = 500
DEFAULT_LIMIT = 50
MAX_WAIT_SECONDS = 60.0


@dataclass(frozen=True)
class Param:
    """A query parameter.

    Attributes:
        read: makes the value of the text; raises ValueError with what is wanted.
        schema: of the text, for OpenAPI.
        many: may be given several times; the value is a list.
    """

    name: str
    read: Callable[[str], Any]
    help: str
    schema: Mapping[str, Any]
    default: Any = None
    many: bool = False


class Params:
    """The query parameters of one address."""

    def __init__(self, *params: Param) -> None:
        self._params = {param.name: param for param in params}

    def read(self, request: Request) -> dict[str, Any]:
        """Every parameter's value.

        Raises:
            DraftInvalid: one problem per unknown, repeated or wrong parameter.
        """
        values = {p.name: [] if p.many else p.default for p in self._params.values()}
        if not request.scope["query_string"]:
            return values
        wrong: list[Problem] = []
        seen: set[str] = set()
        for name, text in self._pairs(request):
            param = self._params.get(name)
            if param is None:
                known = ", ".join(self._params) or "none"
                wrong.append(Problem(name[:80], f"unknown query parameter; known are {known}"))
            elif name in seen and not param.many:
                wrong.append(Problem(name, "given twice"))
            else:
                seen.add(name)
                self._take(param, text, values, wrong)
        if wrong:
            raise DraftInvalid(wrong)
        return values

    def _pairs(self, request: Request) -> list[tuple[str, str]]:
        try:
            query = request.scope["query_string"].decode("ascii")
            return parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=1000)
        except ValueError:
            raise DraftInvalid(
                [Problem("", "the query is not valid UTF-8, or has too many fields")]
            ) from None

    def _take(self, param: Param, text: str, values: dict[str, Any], wrong: list[Problem]) -> None:
        try:
            value = param.read(text)
        except ValueError as error:
            wrong.append(Problem(param.name, str(error)))
            return
        if param.many:
            values[param.name].append(value)
        else:
            values[param.name] = value

    def openapi(self) -> list[dict[str, Any]]:
        """The parameters as OpenAPI describes them."""
        return [
            {
                "name": p.name,
                "in": "query",
                "required": False,
                "description": p.help,
                "schema": {"type": "array", "items": dict(p.schema)} if p.many else dict(p.schema),
            }
            for p in self._params.values()
        ]


NO_PARAMS = Params()


# ---- readers of text


def clean_text(text: str) -> str:
    """Plain text of 1 to 200 characters, as labels are."""
    if not is_label(text):
        raise ValueError("text of 1 to 200 printable characters")
    return text


def cursor_text(text: str) -> str:
    if not 0 < len(text) <= 1000 or not text.isascii() or not text.isprintable():
        raise ValueError("not one that a listing gave")
    return text


def moment(text: str) -> datetime:
    try:
        return parse_time(text)
    except ValueError:
        raise ValueError(
            "a time as RFC 3339 with an offset, such as 2026-01-31T08:00:00Z (a + must be sent as %2B)"
        ) from None


def whole(low: int, high: int) -> Callable[[str], int]:
    """A reader of whole numbers within bounds."""

    def read(text: str) -> int:
        digits = text.removeprefix("-")
        if not digits.isascii() or not digits.isdecimal() or len(digits) > 18 or not low <= int(text) <= high:
            raise ValueError(f"a whole number from {low} to {high}, found {text[:40]!r}")
        return int(text)

    return read


def one_of(*words: str) -> Callable[[str], str]:
    """A reader of one of some words, which names them all where it is none."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"one of {', '.join(words)}, found {text[:40]!r}")
        return text

    return read


# ---- parameters that several addresses have

_LABEL = {"type": "string", "minLength": 1, "maxLength": 200, "pattern": f"^[^{UNSAFE}]*$"}

LIMIT = Param(
    "limit",
    whole(1, MAX_LIMIT),
    f"How many, at most {MAX_LIMIT}.",
    {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT},
    DEFAULT_LIMIT,
)
CURSOR = Param(
    "cursor",
    cursor_text,
    "`next_cursor` of the part before.",
    {"type": "string", "minLength": 1, "maxLength": 1000, "pattern": "^[ -~]+$"},
)
STATE = Param(
    "state",
    one_of(*State),
    "Only jobs in this state; may be given several times.",
    {"type": "string", "enum": [str(state) for state in State]},
    many=True,
)
SINCE = Param(
    "since", moment, "Only from this time on (RFC 3339).", {"type": "string", "format": "date-time"}
)


def label(name: str, help: str, *, many: bool = False) -> Param:
    """A parameter that filters by a label."""
    return Param(name, clean_text, help, _LABEL, many=many)


# ---- preferences


def preferred_wait(request: Request) -> float:
    """``Prefer: wait=N``: how long the answer may be held back, in seconds; 0 without it, and never above 60.

    Raises:
        DraftInvalid: N is no number of seconds.
    """
    for preference in ",".join(request.headers.getlist("prefer")).split(","):
        name, _, value = preference.partition(";")[0].partition("=")
        if name.strip().lower() == "wait":
            return min(_wait(value.strip().strip('"')), MAX_WAIT_SECONDS)
    return 0.0


def _wait(text: str) -> float:
    try:
        seconds = float(text) if text.isascii() else -1.0
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise DraftInvalid([Problem("Prefer", "wait= takes seconds, such as wait=10")])
    return seconds


def sent_key(request: Request) -> str | None:
    """The ``Idempotency-Key`` of the request.

    Raises:
        DraftInvalid: sent twice, or not valid UTF-8.
    """
    sent = request.headers.getlist("idempotency-key")
    if not sent:
        return None
    try:
        key = sent[0].encode("latin-1").decode()
    except UnicodeDecodeError:
        raise DraftInvalid([Problem("Idempotency-Key", "not valid UTF-8")]) from None
    if len(sent) > 1:
        raise DraftInvalid([Problem("Idempotency-Key", "sent twice")])
    return key
