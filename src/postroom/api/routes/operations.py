"""`/workers`, `/stats`, `/health`: what operators and their tools read."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response

from postroom import __version__
from postroom.api import schemas
from postroom.api.answers import json_answer
from postroom.api.bodies import read_model
from postroom.api.queries import NO_PARAMS
from postroom.api.service import service_of
from postroom.errors import StoreError
from postroom.model import WorkerInfo
from postroom.verbs import Health, Verbs
from postroom.wire import health_to_json, stats_to_json, worker_to_json

router = APIRouter(tags=["operations"])

HEALTH_SECONDS = 5.0
"""A store that has not answered by then is in trouble."""


@router.get("/stats", **schemas.documented(None, 200, schemas.Stats))
async def read_stats(request: Request) -> Response:
    """Counts by state, and a picture of the last hour."""
    NO_PARAMS.read(request)
    return json_answer(stats_to_json(await (await service_of(request).verbs()).stats()))


@router.get("/health", **schemas.documented(None, 200, schemas.Health, 503, schemas.Health))
async def read_health(request: Request) -> Response:
    """Whether the inbox can take and give work (a write proves it, every few seconds): 200, or 503."""
    NO_PARAMS.read(request)
    verbs = await service_of(request).verbs()
    health = await _health(verbs)
    is_ok = health.status == "ok"
    headers = {} if is_ok else {"Retry-After": "1"}
    return json_answer(health_to_json(health, verbs.now()), 200 if is_ok else 503, headers)


async def _health(verbs: Verbs) -> Health:
    try:
        async with asyncio.timeout(HEALTH_SECONDS):
            return await verbs.health()
    except (TimeoutError, StoreError) as error:
        reason = str(error) or f"the store has not answered within {HEALTH_SECONDS:g} s"
        return Health("unavailable", verbs.url.partition(":")[0], "unknown", None, __version__, reason)


@router.get("/workers", **schemas.documented(None, 200, schemas.WorkerList))
async def list_workers(request: Request) -> Response:
    """Live workers and the jobs that they run."""
    NO_PARAMS.read(request)
    views = await (await service_of(request).verbs()).workers()
    return json_answer({"items": [worker_to_json(view) for view in views], "next_cursor": None})


@router.post("/workers", **schemas.documented(schemas.WorkerBody, 204, None))
async def attend(request: Request) -> Response:
    """A worker introduces itself, at its start and every few seconds. One that only claims is listed too."""
    service = service_of(request)
    NO_PARAMS.read(request)
    body = await read_model(request, service.body_bytes, schemas.WorkerBody)
    now = (await service.verbs()).now()
    await service.attend(
        WorkerInfo(
            worker=body.worker,
            kinds=tuple(body.kinds),
            queues=tuple(body.queues),
            concurrency=body.concurrency,
            host=body.host,
            pid=body.pid,
            started_at=now - body.up_seconds,
            seen_at=now,
            version=body.version,
        )
    )
    return Response(status_code=204)


@router.delete("/workers/{worker:path}", **schemas.documented(None, 204, None))
async def leave(request: Request, worker: str) -> Response:
    """A worker says goodbye; it holds no lease any more. For one that is not known nothing is to be done."""
    NO_PARAMS.read(request)
    await service_of(request).leave(worker[:200])
    return Response(status_code=204)
