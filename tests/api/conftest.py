"""An app in this process over a memory store whose clock is the test's, and clients of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from postroom.api.app import create_app
from postroom.desk import Desk
from postroom.doors.inbox.routes import router as inbox_door
from postroom.inbox import Inbox
from postroom.settings import Settings
from postroom.stores.memory import MemoryStore
from postroom.testing import ManualClock
from tests.api.live import LiveService, live_service

BASE = "http://127.0.0.1:8000"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def settings() -> Settings:
    return Settings(store="memory://", poll_seconds=0.05)


@pytest.fixture
def desk(clock: ManualClock, settings: Settings) -> Desk:
    return Desk(MemoryStore(clock=clock), settings, jitter=lambda: 1.0)


@pytest.fixture
def app(desk: Desk, settings: Settings) -> FastAPI:
    return create_app(Inbox.over(desk, settings), settings, doors=(inbox_door,))


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url=BASE) as client:
        yield client


@pytest.fixture
def live() -> Iterator[LiveService]:
    with live_service() as live:
        yield live


class Caller:
    """Short words for what most tests do first."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.client = client

    async def submit(self, **fields: Any) -> str:
        if "items" not in fields:
            fields = {"content": "hello", **fields}
        answer = await self.client.post("/jobs", json={"kind": "note", **fields})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["job_id"])

    async def claim(self, *kinds: str, **fields: Any) -> list[dict[str, Any]]:
        asked = {"worker": "w1", "kinds": list(kinds) or ["note"], **fields}
        answer = await self.client.post("/leases/claim", json=asked)
        assert answer.status_code == 200, answer.text
        leases: list[dict[str, Any]] = answer.json()["leases"]
        return leases

    async def start(self, **fields: Any) -> dict[str, Any]:
        """Submit a job and claim it."""
        await self.submit(**fields)
        [lease] = await self.claim(fields.get("kind", "note"))
        return lease

    async def beat(self, *beats: dict[str, Any]) -> list[dict[str, Any]]:
        answer = await self.client.post("/leases/heartbeat", json={"beats": list(beats)})
        assert answer.status_code == 200, answer.text
        answers: list[dict[str, Any]] = answer.json()["answers"]
        return answers

    async def settle(self, *outcomes: dict[str, Any]) -> list[dict[str, Any]]:
        answer = await self.client.post("/leases/settle", json={"outcomes": list(outcomes)})
        assert answer.status_code == 200, answer.text
        answers: list[dict[str, Any]] = answer.json()["answers"]
        return answers

    async def succeed(self, lease: dict[str, Any], result: Any = "done") -> None:
        outcome = {**held(lease), "outcome": "succeeded", "result": result}
        [answer] = await self.settle(outcome)
        assert answer["status"] == "ok", answer

    async def fail(
        self, lease: dict[str, Any], code: str = "ValueError", message: str = "no", **error: Any
    ) -> None:
        told = {"code": code, "message": message, "permanent": True, **error}
        [answer] = await self.settle({**held(lease), "outcome": "failed", "error": told})
        assert answer["status"] == "ok", answer

    async def job(self, job_id: str) -> dict[str, Any]:
        job: dict[str, Any] = (await self.client.get(f"/jobs/{job_id}")).json()
        return job


def held(lease: dict[str, Any]) -> dict[str, Any]:
    """What every write of a worker names."""
    return {"job_id": lease["job_id"], "epoch": lease["epoch"]}


@pytest.fixture
def caller(client: httpx2.AsyncClient) -> Caller:
    return Caller(client)
