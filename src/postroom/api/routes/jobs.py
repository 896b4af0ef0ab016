"""`/jobs`: submit, look, wait, cancel, replay."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from postroom.api import schemas
from postroom.api.answers import json_answer, retry_after, text_answer
from postroom.api.bodies import Refused, beside, read_entries, read_model, read_object
from postroom.api.problems import problem
from postroom.api.queries import (
    CURSOR,
    LIMIT,
    NO_PARAMS,
    SINCE,
    STATE,
    Param,
    Params,
    label,
    one_of,
    preferred_wait,
    sent_key,
)
from postroom.api.service import Presence, Service, service_of
from postroom.errors import DraftInvalid, JobNotFound, PostroomError, Problem, StoreError
from postroom.model import Draft, State
from postroom.stores.port import Query
from postroom.verbs import Receipt
from postroom.views import JobView
from postroom.wire import payload_to_json

router = APIRouter(tags=["jobs"])

MAX_BATCH = 10_000
BULK = 5_000
"""Jobs of a batch that are written in one transaction."""


# ---- submitting


@router.post(
    "/jobs", **schemas.documented(schemas.Submission, 202, schemas.Accepted, 200, schemas.Job, submits=True)
)
async def submit_job(request: Request) -> Response:
    """Accept a job, durably. With `Prefer: wait=N` the answer is held back until the job ends."""
    service = service_of(request)
    NO_PARAMS.read(request)
    seconds = preferred_wait(request)
    key = sent_key(request)
    fields, size = await read_object(request, service.body_bytes)
    receipt = await accept(service, fields, size, key)
    headers = receipt_headers(receipt)
    view = await _awaited(service, request, receipt.job_id, seconds)
    if view is None:
        shown = {"job_id": receipt.job_id, "state": str(receipt.state)}
        return json_answer(shown, 202, {**headers, "Retry-After": "1"})
    if view.is_final:
        return json_answer(view.to_json(), 200, headers)
    return json_answer(
        {"job_id": view.job_id, "state": str(view.state)}, 202, headers | await live(service, view)
    )


async def _awaited(service: Service, request: Request, job_id: str, seconds: float) -> JobView | None:
    """The job that was just accepted, held back for; None where nobody asked for that, or where it cannot be read:
    whoever is told of an error then would take the job for refused, and submit it again."""
    if seconds <= 0:
        return None
    try:
        return await hold(service, request, job_id, seconds)
    except PostroomError:
        return None


async def accept(service: Service, fields: dict[str, Any], size: int, key: str | None) -> Receipt:
    """Submit one job from outside.

    Raises:
        DraftInvalid, TooLarge, DuplicateJob, StoreError
    """
    verbs = await service.verbs()
    draft = await beside(size, _draft, service, fields, verbs.now(), key, "")
    receipt = (await verbs.submit([draft]))[0]
    if isinstance(receipt, PostroomError):
        raise receipt
    return receipt


def receipt_headers(receipt: Receipt) -> dict[str, str]:
    headers = {"Location": f"/jobs/{receipt.job_id}"}
    return headers | {"Idempotency-Replayed": "true"} if receipt.is_replayed else headers


def _draft(service: Service, fields: dict[str, Any], now: float, key: str | None, path: str) -> Draft:
    return service.drafting.draft(fields, now=now, idempotency_key=key, path=path)


@router.post("/jobs/batch", **schemas.documented(schemas.Batch, 200, schemas.BatchAnswers, submits=True))
async def submit_batch(request: Request) -> Response:
    """Accept many jobs, each whole or not at all; a status for each, in order."""
    service = service_of(request)
    NO_PARAMS.read(request)
    key = sent_key(request)
    entries, size = await read_entries(request, service.body_bytes, "jobs", MAX_BATCH)
    verbs = await service.verbs()
    drafts = await beside(size, _drafts, service, entries, verbs.now(), key)
    answers: list[dict[str, Any]] = [{}] * len(drafts)
    good = [(index, draft) for index, draft in enumerate(drafts) if isinstance(draft, Draft)]
    for index, refused in enumerate(drafts):
        if isinstance(refused, PostroomError):
            answers[index] = problem(refused)
    for start in range(0, len(good), BULK):
        chunk = good[start : start + BULK]
        for (index, _), receipt in zip(chunk, await _submitted(service, [d for _, d in chunk]), strict=True):
            answers[index] = _entry_answer(receipt)
    return json_answer({"answers": answers})


async def _submitted(service: Service, drafts: Sequence[Draft]) -> Sequence[Receipt | PostroomError]:
    """Receipts; where the store fails, its error for each: what was accepted before must still be told."""
    try:
        return await (await service.verbs()).submit(drafts)
    except StoreError as error:
        return [error] * len(drafts)


def _drafts(
    service: Service, entries: Sequence[Any], now: float, key: str | None
) -> list[Draft | PostroomError]:
    return [_entry_draft(service, entry, index, now, key) for index, entry in enumerate(entries)]


def _entry_draft(
    service: Service, entry: Any, index: int, now: float, key: str | None
) -> Draft | PostroomError:
    """The draft of one entry. Its key is its own ``idempotency_key``, else the batch's with its place."""
    path = f"jobs[{index}]"
    if isinstance(entry, Refused):
        where = f"{path}.{entry.problem.path}" if entry.problem.path else path
        return DraftInvalid([Problem(where, entry.problem.message)])
    if not isinstance(entry, dict):
        return DraftInvalid([Problem(path, "an object")])
    own = entry.pop("idempotency_key", None)
    if own is not None and not isinstance(own, str):
        return DraftInvalid([Problem(f"{path}.idempotency_key", "text of 1 to 255 characters")])
    if own is None and key is not None:
        own = f"{key}:{index}"
    try:
        return _draft(service, entry, now, own, f"{path}.")
    except PostroomError as error:
        return error


def _entry_answer(receipt: Receipt | PostroomError) -> dict[str, Any]:
    if isinstance(receipt, PostroomError):
        return problem(receipt)
    shown = {"status": 202, "job_id": receipt.job_id, "state": str(receipt.state)}
    return {**shown, "replayed": True} if receipt.is_replayed else shown


# ---- looking

_LIST = Params(
    STATE,
    label("kind", "Only this kind; may be given several times.", many=True),
    label("sender", "Only from this sender."),
    label("topic", "Only of this topic."),
    label("queue", "Only in this queue."),
    SINCE,
    Param(
        "order",
        one_of("newest", "oldest"),
        "Which come first.",
        {"type": "string", "enum": ["newest", "oldest"], "default": "newest"},
        "newest",
    ),
    LIMIT,
    CURSOR,
)


@router.get("/jobs", **schemas.documented(None, 200, schemas.JobList, params=_LIST))
async def list_jobs(request: Request) -> Response:
    """Jobs, newest first, without their results."""
    asked = _LIST.read(request)
    query = Query(
        states=tuple(map(State, asked["state"])),
        kinds=tuple(asked["kind"]),
        sender=asked["sender"],
        topic=asked["topic"],
        queue=asked["queue"],
        since=asked["since"].timestamp() if asked["since"] else None,
        limit=asked["limit"],
        cursor=asked["cursor"],
        oldest_first=asked["order"] == "oldest",
    )
    page = await (await service_of(request).verbs()).find(query)
    return json_answer({"items": [view.to_json() for view in page.jobs], "next_cursor": page.next_cursor})


def known_id(job_id: str) -> str:
    """An id as ids are; anything else is no job of ours, and no store is asked for it.

    Raises:
        JobNotFound
    """
    if len(job_id) != 32 or not job_id.isascii() or job_id.strip("0123456789abcdef"):
        raise JobNotFound(job_id[:64])
    return job_id


@router.get(
    "/jobs/{job_id}", **schemas.documented(None, 200, schemas.Job, 202, schemas.Job, finds=True, waits=True)
)
async def get_job(request: Request, job_id: str) -> Response:
    """The job as it stands.

    With `Prefer: wait=N` the answer is held back until it ends: 200, or 202 where it has not by then.
    """
    service = service_of(request)
    NO_PARAMS.read(request)
    seconds = preferred_wait(request)
    known_id(job_id)
    if seconds > 0:
        view = await hold(service, request, job_id, seconds)
        status = 200 if view.is_final else 202
    else:
        view = await (await service.verbs()).get(job_id)
        status = 200
    return json_answer(view.to_json(), status, await live(service, view))


async def live(service: Service, view: JobView) -> dict[str, str]:
    """When to ask again for a job that has not ended."""
    if view.is_final:
        return {}
    now = (await service.verbs()).now()
    return {"Retry-After": retry_after(view.created_at.timestamp(), now)}


async def hold(service: Service, request: Request, job_id: str, seconds: float) -> JobView:
    """The job once it ended, or as it stands after so long, or when the one who asked is gone."""
    verbs = await service.verbs()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    with verbs.watch(job_id) as watch:
        async with Presence(request, service) as presence:
            while True:
                view = await verbs.get(job_id)
                left = min(deadline - loop.time(), service.settings.poll_seconds)
                if view.is_final or left <= 0 or presence.is_over:
                    return view
                await presence.wait(watch, left)


_ITEMS = Params(LIMIT, CURSOR)


@router.get(
    "/jobs/{job_id}/items", **schemas.documented(None, 200, schemas.ItemList, params=_ITEMS, finds=True)
)
async def list_items(request: Request, job_id: str) -> Response:
    """The job's items in order, also while it runs."""
    asked = _ITEMS.read(request)
    verbs = await service_of(request).verbs()
    page = await verbs.items(known_id(job_id), cursor=asked["cursor"], limit=asked["limit"])
    return json_answer({"items": [item.to_json() for item in page.items], "next_cursor": page.next_cursor})


@router.get("/jobs/{job_id}/payload", **schemas.documented(None, 200, schemas.Payload, finds=True))
async def get_payload(request: Request, job_id: str) -> Response:
    """What the job was submitted with: its content, or its items' inputs with their keys."""
    NO_PARAMS.read(request)
    verbs = await service_of(request).verbs()
    payload = await verbs.payload(known_id(job_id))
    return text_answer(await beside(len(payload.body), payload_to_json, payload))


@router.get(
    "/jobs/{job_id}/result", **schemas.documented(None, 200, schemas.AnyJson, finds=True, refuses=True)
)
async def get_result(request: Request, job_id: str) -> Response:
    """The whole result, streamed; 409 while there is none."""
    NO_PARAMS.read(request)
    pieces = (await service_of(request).verbs()).result(known_id(job_id))
    first = await anext(pieces)  # raises what must become another status
    return StreamingResponse(
        _encoded(first, pieces), media_type="application/json", headers={"Cache-Control": "no-store"}
    )


async def _encoded(first: str, rest: AsyncIterator[str]) -> AsyncIterator[bytes]:
    yield first.encode()
    async for piece in rest:
        yield piece.encode()


# ---- acting


@router.post(
    "/jobs/{job_id}/cancel",
    **schemas.documented(schemas.CancelBody, 202, schemas.Accepted, finds=True, refuses=True),
)
async def cancel_job(request: Request, job_id: str) -> Response:
    """Cancel a queued job, or ask a running one to stop."""
    service = service_of(request)
    NO_PARAMS.read(request)
    body = await read_model(request, service.body_bytes, schemas.CancelBody, may_be_empty=True)
    view = await (await service.verbs()).cancel(known_id(job_id), reason=body.reason)
    return json_answer({"job_id": view.job_id, "state": str(view.state)}, 202)


@router.post(
    "/jobs/{job_id}/replay",
    **schemas.documented(schemas.EmptyBody, 202, schemas.Accepted, finds=True, refuses=True),
)
async def replay_job(request: Request, job_id: str) -> Response:
    """Queue a failed or cancelled job again: a new life, what succeeded is kept."""
    service = service_of(request)
    NO_PARAMS.read(request)
    await read_model(request, service.body_bytes, schemas.EmptyBody, may_be_empty=True)
    view = await (await service.verbs()).replay(known_id(job_id))
    return json_answer({"job_id": view.job_id, "state": str(view.state)}, 202)
