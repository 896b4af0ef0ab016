"""`/dead-letters`: failed jobs in groups, and replaying them."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from postroom.api import schemas
from postroom.api.answers import json_answer
from postroom.api.bodies import read_model
from postroom.api.queries import NO_PARAMS, SINCE, Params, label, moment
from postroom.api.service import service_of
from postroom.errors import DraftInvalid, Problem
from postroom.verbs import ReplayRequest
from postroom.wire import group_to_json

router = APIRouter(prefix="/dead-letters", tags=["dead letters"])

_GROUPS = Params(SINCE, label("kind", "Only of this kind."))


@router.get("", **schemas.documented(None, 200, schemas.DeadLetterGroups, params=_GROUPS))
async def list_dead_letters(request: Request) -> Response:
    """Failed jobs in groups of the same cause, largest first."""
    asked = _GROUPS.read(request)
    since = asked["since"].timestamp() if asked["since"] else None
    groups = await (await service_of(request).verbs()).dead_letters(since=since, kind=asked["kind"])
    return json_answer({"groups": [group_to_json(group) for group in groups]})


@router.post("/replay", **schemas.documented(schemas.ReplayBody, 202, schemas.Replayed, finds=True))
async def replay_dead_letters(request: Request) -> Response:
    """Replay dead letters by id or by group: canaries first, at most so many a second, and once however often asked."""
    service = service_of(request)
    NO_PARAMS.read(request)
    body = await read_model(request, service.body_bytes, schemas.ReplayBody)
    try:
        since = None if body.since is None else moment(body.since).timestamp()
    except ValueError as error:
        raise DraftInvalid([Problem("since", str(error))]) from None
    asked = ReplayRequest(
        tuple(body.job_ids or ()), body.kind, body.code, body.message, since, body.canary, body.per_second
    )
    replayed = await (await service.verbs()).replay_dead(asked)
    return json_answer({"replayed": replayed}, 202)
