"""`/jobs/{id}/events` and `/journal`: a job's journal as it is written, as server-sent events or as JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from postroom.api import schemas
from postroom.api.answers import json_answer
from postroom.api.queries import LIMIT, Param, Params, preferred_wait, whole
from postroom.api.routes.jobs import known_id
from postroom.api.service import Presence, Service, first_of, service_of
from postroom.errors import DraftInvalid, PostroomError, Problem
from postroom.model import Line
from postroom.verbs import Verbs
from postroom.views import line_to_json

router = APIRouter(tags=["jobs"])

PAGE = 500
QUIET_SECONDS = 5.0
"""How rarely a stream looks by itself where nothing happens; hints make it sooner."""

_AFTER = Param(
    "after",
    whole(-1, 2**53),
    "Only lines with a larger number.",
    {"type": "integer", "minimum": -1, "maximum": 2**53, "default": -1},
)
_EVENTS = Params(_AFTER)
_JOURNAL = Params(_AFTER, LIMIT)


@router.get(
    "/jobs/{job_id}/events", **schemas.documented(None, 200, schemas.EventStream, params=_EVENTS, finds=True)
)
async def follow_job(request: Request, job_id: str) -> Response:
    """The journal as server-sent events: `id` is the line's number, resumed by `Last-Event-ID`.

    A comment is sent every 15 seconds. The stream is closed after the event that ended the job; where that was seen
    already, the answer is 204, which tells a browser not to connect again.
    """
    service = service_of(request)
    after = _last_event_id(request, _EVENTS.read(request)["after"])
    verbs = await service.verbs()
    lines = await verbs.journal(known_id(job_id), after=after, limit=PAGE)
    if not lines and after >= 0:
        last = await _last_line(verbs, job_id, after)
        if last.to_state.is_final:
            return Response(status_code=204)
        after = min(after, last.n)
    stream = _stream(service, verbs, job_id, after, lines)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(stream, media_type="text/event-stream", headers=headers)


def _last_event_id(request: Request, after: int | None) -> int:
    """Where to go on: the header that a browser sends by itself wins over the address it was given first."""
    sent = request.headers.get("last-event-id")
    if not sent:
        return -1 if after is None else after
    try:
        return int(_AFTER.read(sent))
    except ValueError as error:
        raise DraftInvalid([Problem("Last-Event-ID", str(error))]) from None


async def _last_line(verbs: Verbs, job_id: str, after: int) -> Line:
    """The last line of a journal that ends at ``after`` or before; every job has one.

    Looked for by halves, since the numbers have no gaps: it may be long, and every follower that comes back asks.
    """
    [last] = await verbs.journal(job_id, limit=1)
    there, middle = after, after - 1
    while there - last.n > 0:
        lines = await verbs.journal(job_id, after=middle, limit=1)
        if lines:
            last = lines[0]
        else:
            there = middle
        middle = (last.n + there) // 2
    return last


async def _stream(
    service: Service, verbs: Verbs, job_id: str, after: int, lines: list[Line]
) -> AsyncIterator[str]:
    loop = asyncio.get_running_loop()
    stop = asyncio.create_task(service.stopping.wait())
    try:
        with verbs.watch(job_id) as watch:
            said_at, pause = loop.time(), service.settings.poll_seconds
            while True:
                if lines:
                    yield "".join(map(_event, lines))
                    after, said_at, pause = lines[-1].n, loop.time(), service.settings.poll_seconds
                    if lines[-1].to_state.is_final and not await verbs.journal(job_id, after=after, limit=1):
                        return
                else:
                    until_comment = said_at + service.comment_seconds - loop.time()
                    if until_comment <= 0:
                        yield ": still here\n\n"
                        said_at, until_comment = loop.time(), service.comment_seconds
                    await first_of(watch.wait(min(pause, until_comment)), stop)
                    if stop.done():
                        return
                    pause = min(pause * 2, QUIET_SECONDS)
                lines = await verbs.journal(job_id, after=after, limit=PAGE)
    except PostroomError:
        return  # the store is away, or the job is: the client comes back with its Last-Event-ID and is told
    finally:
        stop.cancel()
        await asyncio.wait({stop})


def _event(line: Line) -> str:
    data = json.dumps(line_to_json(line), ensure_ascii=False, separators=(",", ":"))
    return f"id: {line.n}\nevent: {line.event}\ndata: {data}\n\n"


@router.get(
    "/jobs/{job_id}/journal",
    **schemas.documented(None, 200, schemas.JournalPage, params=_JOURNAL, finds=True, waits=True),
)
async def read_journal(request: Request, job_id: str) -> Response:
    """The journal as JSON. With `Prefer: wait=N` the answer is held back until there is a line to give."""
    service = service_of(request)
    asked = _JOURNAL.read(request)
    seconds = preferred_wait(request)
    after = -1 if asked["after"] is None else asked["after"]
    lines = await _held_lines(service, request, known_id(job_id), after, asked["limit"], seconds)
    shown = [line_to_json(line) for line in lines]
    return json_answer({"items": shown, "next_cursor": None})


async def _held_lines(
    service: Service, request: Request, job_id: str, after: int, limit: int, seconds: float
) -> list[Line]:
    verbs = await service.verbs()
    if seconds <= 0:
        return await verbs.journal(job_id, after=after, limit=limit)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    with verbs.watch(job_id) as watch:
        async with Presence(request, service) as presence:
            while True:
                lines = await verbs.journal(job_id, after=after, limit=limit)
                left = min(deadline - loop.time(), service.settings.poll_seconds)
                if lines or left <= 0 or presence.is_over:
                    return lines
                await presence.wait(watch, left)
