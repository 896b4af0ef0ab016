"""Every error as a problem document (RFC 9457), from one table: error -> status.

An error of ours has a ``type`` of its own, so that a client can tell two 409s apart; what is plain HTTP (an unknown
address, a method that does not exist) is ``about:blank``, as the RFC says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from postroom import errors
from postroom.errors import DraftInvalid, PostroomError, Problem
from postroom.views import format_time

MEDIA_TYPE = "application/problem+json"
TYPE = "urn:postroom:problem:"
RETRY_SECONDS = 1

STATUSES: Mapping[type[PostroomError], int] = {
    errors.JobNotFound: 404,
    errors.JobPurged: 410,
    errors.TransitionRefused: 409,
    errors.LeaseLost: 409,
    errors.CheckpointConflict: 409,
    errors.DuplicateJob: 409,
    errors.ResultMissing: 409,
    errors.DraftInvalid: 422,
    errors.OutcomeInvalid: 422,
    errors.TooLarge: 413,
    errors.WaitTimedOut: 504,
    errors.HandlerMissing: 500,
    errors.HandlerInvalid: 500,
    errors.SettingsInvalid: 500,
    errors.AccessRefused: 403,
    errors.StoreUnavailable: 503,
    errors.StoreFull: 507,
    errors.StoreDamaged: 500,
    errors.StoreUnsuitable: 500,
    errors.SchemaOutOfDate: 500,
    errors.StoreError: 500,
    errors.PostroomError: 500,
}
"""The whole table. An error that is not in it is answered as its nearest base that is."""

INTERNAL = "the service failed to answer this; nothing is half-written, and its log says more"

_SLUGS: Mapping[type[PostroomError], str] = {
    kind: "".join("-" + c.lower() if c.isupper() else c for c in kind.__name__)[1:] for kind in STATUSES
}
_TITLES: Mapping[type[PostroomError], str] = {
    kind: slug.replace("-", " ").capitalize() for kind, slug in _SLUGS.items()
}


def problem(error: PostroomError) -> dict[str, Any]:
    """The problem document of an error: what it is, and what helps."""
    kind = next(base for base in type(error).__mro__ if base in STATUSES)
    status = STATUSES[kind]
    shown: dict[str, Any] = {
        "type": TYPE + _SLUGS[kind],
        "title": _TITLES[kind],
        "status": status,
        "detail": str(error) or INTERNAL,
    }
    for name in ("job_id", "state", "key", "limit", "size", "what"):
        value = getattr(error, name, None)
        if value is not None and value != "":
            shown[name] = value if isinstance(value, int) else str(value)
    if isinstance(error, errors.JobPurged):
        shown["purged_at"] = format_time(error.purged_at)
    if isinstance(error, errors.TooLarge):
        shown["size"] = error.size
    if isinstance(error, DraftInvalid):
        shown["errors"] = [{"path": p.path, "message": p.message} for p in error.problems]
    return shown


def http_problem(status: int, detail: str | None = None) -> dict[str, Any]:
    """The problem document of what is plain HTTP."""
    title = HTTPStatus(status).phrase
    return {"type": "about:blank", "title": title, "status": status, "detail": detail or title}


def answer(document: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    """The response that carries a problem document."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    sent = dict(headers or {})
    if document["status"] in (503, 507):
        sent.setdefault("Retry-After", str(RETRY_SECONDS))
    content = text.encode("utf-8", "replace")
    return Response(content, document["status"], sent, MEDIA_TYPE)


def rows() -> list[tuple[str, int, str]]:
    """(error, status, type) of the whole table, for the reference."""
    return [(kind.__name__, status, TYPE + _SLUGS[kind]) for kind, status in STATUSES.items()]


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, PostroomError)
    return answer(problem(error))


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.scope["path"][:200]
    details = {
        404: f"there is nothing at {path}; /docs lists what there is",
        405: f"{request.method[:20]} is not possible at {path}",
    }
    said = error.detail if error.detail != HTTPStatus(error.status_code).phrase else None
    return answer(http_problem(error.status_code, said or details.get(error.status_code)), error.headers)


async def _on_shape(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = [Problem(".".join(map(str, e["loc"][1:])), str(e["msg"])) for e in error.errors()]
    return answer(problem(DraftInvalid(found)))


async def _on_gone(request: Request, error: Exception) -> Response:
    """The client went away in the middle of its request: nobody reads this."""
    return answer(http_problem(400, "the request ended before it was whole"))


async def _on_bug(request: Request, error: Exception) -> Response:
    """Says nothing of what went wrong inside; the server logs the traceback."""
    return answer(http_problem(500, INTERNAL))


def install(app: FastAPI) -> None:
    """Let every error of the app be answered as a problem document."""
    app.add_exception_handler(PostroomError, _on_error)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(RequestValidationError, _on_shape)
    app.add_exception_handler(ClientDisconnect, _on_gone)
    app.add_exception_handler(Exception, _on_bug)
