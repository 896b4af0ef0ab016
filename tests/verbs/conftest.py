"""The roads on which the verbs are spoken: a desk over each store, and over HTTP to a service. One suite for all.

Time is a clock that only tests move. Chores are done by a *house* desk over the same store, as a service's caretaker
does them: over HTTP there is nobody else who could.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from postroom.api.bodies import IN_THREAD_BYTES
from postroom.api.service import Service
from postroom.desk import Desk
from postroom.drafting import Drafting
from postroom.inbox import Inbox
from postroom.model import (
    Beat,
    Checkpoint,
    CheckpointKind,
    Draft,
    ErrorInfo,
    Lease,
    Outcome,
    OutcomeKind,
    WorkerInfo,
)
from postroom.settings import Settings
from postroom.stores.memory import MemoryStore
from postroom.stores.port import ClaimRequest, Query, Store
from postroom.stores.remote import RemoteDesk
from postroom.stores.sqlite.store import SqliteStore
from postroom.testing import ManualClock
from postroom.verbs import Answer, Verbs
from postroom.views import JobView
from tests.api.live import LiveService, live_service

SETTINGS = Settings(store="memory://", port=0, poll_seconds=60.0, backoff_base_seconds=2.0)
"""A poll comes once a minute: whoever waits is woken by a hint, or the test does not end."""

NOBODY = "0" * 32

TICK = 0.125
"""Between two submissions, so that their ids are in order; exact in floats of today's seconds."""


@dataclass
class World:
    """The verbs under test, and short words for what most tests do first."""

    verbs: Verbs
    store: Store
    clock: ManualClock
    drafting: Drafting = field(default_factory=lambda: Drafting(SETTINGS))

    def __post_init__(self) -> None:
        self.house = self.new_house()

    def new_house(self) -> Desk:
        """Another desk over the same store: what a restarted process has."""
        return Desk(self.store, SETTINGS, jitter=lambda: 1.0)

    # ---- callers

    def draft(
        self, kind: str = "note", *, key: str | None = None, owner: str = "local", **fields: Any
    ) -> Draft:
        if "items" not in fields:
            fields = {"content": "hello", **fields}
        self.clock.advance(TICK)
        return self.drafting.draft(
            {"kind": kind, **fields}, now=self.clock(), owner=owner, idempotency_key=key
        )

    async def submit(self, kind: str = "note", **fields: Any) -> str:
        [receipt] = await self.verbs.submit([self.draft(kind, **fields)])
        assert not isinstance(receipt, Exception), receipt
        return receipt.job_id

    async def job(self, job_id: str) -> JobView:
        return await self.verbs.get(job_id)

    async def state(self, job_id: str) -> str:
        return (await self.verbs.get(job_id)).state

    async def events(self, job_id: str) -> list[str]:
        return [str(line.event) for line in await self.verbs.journal(job_id)]

    async def states(self, *job_ids: str) -> list[str]:
        return [str(await self.state(job_id)) for job_id in job_ids]

    async def found(self, **query: Any) -> list[str]:
        return [job.job_id for job in (await self.verbs.find(Query(**query))).jobs]

    # ---- workers

    async def claim(
        self, *kinds: str, worker: str = "w1", wait_seconds: float = 0.0, **asked: Any
    ) -> list[Lease]:
        request = ClaimRequest(worker, kinds or ("note",), **asked)
        return list((await self.verbs.claim(request, wait_seconds=wait_seconds)).leases)

    async def start(self, kind: str = "note", **fields: Any) -> Lease:
        """Submit a job and claim it. There must be no other one in line."""
        job_id = await self.submit(kind, **fields)
        [lease] = await self.claim(kind)
        assert lease.job.job_id == job_id
        return lease

    async def beat(self, lease: Lease, **fields: Any) -> Answer:
        [answer] = await self.verbs.heartbeat([beat(lease, **fields)])
        return answer

    async def settle(self, lease: Lease, kind: OutcomeKind, **fields: Any) -> Answer:
        [answer] = await self.verbs.settle([outcome(lease, kind, **fields)])
        return answer

    async def succeed(self, lease: Lease, result: str | None = '"done"', **fields: Any) -> None:
        answer = await self.settle(lease, OutcomeKind.SUCCEEDED, result=result, **fields)
        assert answer.status == "ok", answer

    async def fail(
        self, lease: Lease, message: str = "no luck", *, code: str = "Broken", permanent: bool = True
    ) -> None:
        error = ErrorInfo(code, message, None, permanent)
        answer = await self.settle(lease, OutcomeKind.FAILED, error=error)
        assert answer.status == "ok", answer

    async def dead(self, kind: str = "note", message: str = "no luck", **fields: Any) -> str:
        """A new dead letter."""
        lease = await self.start(kind, **fields)
        await self.fail(lease, message)
        return lease.job.job_id

    async def attend(self, worker: str = "w1", *kinds: str, queues: tuple[str, ...] = ("default",)) -> None:
        """Let a worker be seen, by everybody and now: who looked within the last second looks again."""
        now = self.verbs.now()
        await self.verbs.attend(WorkerInfo(worker, kinds or ("note",), queues, 4, "host", 1, now, now))
        self.clock.advance(1.0)


def beat(lease: Lease, **fields: Any) -> Beat:
    return Beat(lease.job.job_id, lease.job.epoch, **fields)


def outcome(lease: Lease, kind: OutcomeKind = OutcomeKind.SUCCEEDED, **fields: Any) -> Outcome:
    if kind is OutcomeKind.SUCCEEDED and not lease.job.has_items:
        fields.setdefault("result", '"done"')
    return Outcome(lease.job.job_id, lease.job.epoch, kind, **fields)


def item(key: str, value: str) -> Checkpoint:
    return Checkpoint(CheckpointKind.ITEM, key, value=value)


def item_error(key: str, *, is_final: bool = True) -> Checkpoint:
    return Checkpoint(CheckpointKind.ITEM, key, error='{"code":"Bad","message":"no"}', is_final=is_final)


def step(name: str, value: str, input_digest: str = "d") -> Checkpoint:
    return Checkpoint(CheckpointKind.STEP, name, value=value, input_digest=input_digest)


MakeStore = Callable[[Path, ManualClock], Store]

STORES: dict[str, MakeStore] = {
    "memory": lambda folder, clock: MemoryStore(clock=clock),
    "sqlite": lambda folder, clock: SqliteStore(f"sqlite:///{folder / 'inbox.db'}", clock=clock),
}
ROADS = [*STORES, "http"]


def warm_up(url: str) -> None:
    """Let the service start its thread for large bodies, which stays as long as the service."""
    large, says = b"[" + b" " * IN_THREAD_BYTES + b"]", {"Content-Type": "application/json"}
    assert httpx2.post(f"{url}/jobs", content=large, headers=says).status_code == 422


@pytest.fixture(scope="module")
def live() -> Iterator[LiveService]:
    """One service for many tests, each of which gives it an inbox of its own."""
    with live_service(SETTINGS, threads=1) as live:
        warm_up(live.url)
        yield live


@pytest.fixture(params=ROADS)
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    clock = ManualClock()
    store = STORES.get(request.param, STORES["memory"])(tmp_path, clock)
    desk = Desk(store, SETTINGS, jitter=lambda: 1.0)
    async with AsyncExitStack() as stack:
        verbs: Verbs = desk
        if request.param == "http":
            live: LiveService = request.getfixturevalue("live")
            live.app.state.service = Service(Inbox.over(desk, SETTINGS), SETTINGS)
            verbs = RemoteDesk(live.url, SETTINGS)
        await verbs.open()
        stack.push_async_callback(verbs.close)
        yield World(verbs, store, clock)
