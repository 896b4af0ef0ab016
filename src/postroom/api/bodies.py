"""Reading what was sent: within its size, as strict JSON, and a large one without holding up the others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from postroom.errors import DraftInvalid, Problem, TooLarge
from postroom.jsontext import JsonRefused, decode_strict, encode

IN_THREAD_BYTES = 64 * 1024
"""Bodies above this are worked on in a thread."""

Model = TypeVar("Model", bound=BaseModel)
Answer = TypeVar("Answer")


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body.

    Raises:
        TooLarge: over the limit: as declared, before anything is read; else as soon as it is.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > limit:
        raise TooLarge("the body", limit=limit, size=int(declared[:20]), setting="POSTROOM_MAX_BODY_BYTES")
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > limit:
            raise TooLarge("the body", limit=limit, size=None, setting="POSTROOM_MAX_BODY_BYTES")
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


async def beside(size: int, work: Callable[..., Answer], *args: Any) -> Answer:
    """Do work on a body: here where the body is small, in a thread where it is large."""
    if size <= IN_THREAD_BYTES:
        return work(*args)
    return await asyncio.to_thread(work, *args)


async def read_object(
    request: Request, limit: int, *, may_be_empty: bool = False
) -> tuple[dict[str, Any], int]:
    """The JSON object of the body, and the body's size.

    Raises:
        TooLarge: see `read_body`.
        DraftInvalid: not JSON as it may be, or no object.
    """
    body = await read_body(request, limit)
    if may_be_empty and not body:
        return {}, 0
    return await beside(len(body), _object, body), len(body)


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = decode_strict(body)
    except JsonRefused as error:
        raise DraftInvalid([_where(error)]) from None
    if not isinstance(value, dict):
        raise DraftInvalid("the body: a JSON object")
    return value


def _where(error: JsonRefused) -> Problem:
    """A key may be what is wrong, so the path may hold what no answer can."""
    path = error.path.encode("utf-8", "replace").decode()
    message = str(error).removeprefix(f"{error.path}: ")
    return Problem(path, message if path else f"the body: {message}")


async def read_model(
    request: Request, limit: int, model: type[Model], *, may_be_empty: bool = False
) -> Model:
    """The body as a model: for what is not asked for a thousand times a second.

    Raises:
        TooLarge, DraftInvalid: one problem per wrong field.
    """
    value, _ = await read_object(request, limit, may_be_empty=may_be_empty)
    try:
        return model.model_validate(value, strict=True)
    except ValidationError as error:
        found = [Problem(_path(e["loc"]), _message(e)) for e in error.errors(include_url=False)]
        raise DraftInvalid(found) from None


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path


def _message(error: Any) -> str:
    return "unknown field" if error["type"] == "extra_forbidden" else str(error["msg"])


async def read_entries(request: Request, limit: int, name: str, most: int) -> tuple[list[Any], int]:
    """The entries of ``{"<name>": [...]}``, and the body's size. One that may not pass is a `Refused` in its place.

    Raises:
        TooLarge: see `read_body`.
        DraftInvalid: the body as a whole is not of that shape.
    """
    body = await read_body(request, limit)
    value = await beside(len(body), _entries_object, body)
    for unknown in value.keys() - {name}:
        raise DraftInvalid([Problem(unknown[:80], f"unknown field; known is {name}")])
    entries = value.get(name)
    if not isinstance(entries, list):
        raise DraftInvalid([Problem(name, "a list")])
    if len(entries) > most:
        raise DraftInvalid([Problem(name, f"at most {most} entries, found {len(entries)}")])
    return entries, len(body)


class Refused:
    """An entry of a batch whose JSON may not pass, and where and why: it harms no other entry."""

    def __init__(self, problem: Problem, entry: Any) -> None:
        self.problem = problem
        self.entry = entry


class _Doubled(dict[str, Any]):
    """An object in which a key appeared twice."""


def _entries_object(body: bytes) -> dict[str, Any]:
    try:
        value = decode_strict(body)
    except JsonRefused as error:
        value = _leniently(body, error)
    if not isinstance(value, dict) or isinstance(value, _Doubled):
        raise DraftInvalid("the body: a JSON object, each key once")
    return value


def _leniently(body: bytes, refusal: JsonRefused) -> Any:
    """The body again, so that what must not pass is refused entry by entry; what is no JSON at all is refused whole."""
    try:
        value = json.loads(body.decode(), object_pairs_hook=_pairs)
    except (ValueError, RecursionError):
        raise DraftInvalid([_where(refusal)]) from None
    if isinstance(value, dict):
        for name, entries in value.items():
            if isinstance(entries, list):
                value[name] = [_sifted(entry) for entry in entries]
    return value


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    return made if len(made) == len(pairs) else _Doubled(made)


def _sifted(entry: Any) -> Any:
    try:
        encode(entry)
    except JsonRefused as error:
        return Refused(_where(error), entry)
    doubled = Problem("", "a key appears twice in one object")
    return Refused(doubled, entry) if _has_doubled(entry) else entry


def _has_doubled(value: Any) -> bool:
    if isinstance(value, dict):
        return isinstance(value, _Doubled) or any(map(_has_doubled, value.values()))
    return isinstance(value, list) and any(map(_has_doubled, value))
