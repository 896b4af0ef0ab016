"""What the worker tests share: a desk over a memory store, leases from it, and a recorder that writes to it at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import psutil

from postroom import Inbox
from postroom.desk import Desk
from postroom.errors import CheckpointConflict, LeaseLost, OutcomeInvalid
from postroom.model import Beat, Checkpoint, JsonText, Lease, Outcome
from postroom.settings import Settings
from postroom.stores.memory import MemoryStore
from postroom.stores.port import ClaimRequest
from postroom.verbs import Answer
from postroom.worker.recorder import HaltSignal

SHORT = Settings(lease_seconds=1.0, heartbeat_seconds=0.2, poll_seconds=0.05, rescue_seconds=0.1)


class DeskRecorder:
    """A run's record that keeps nothing to itself: each word is a heartbeat of its own."""

    def __init__(self, desk: Desk, lease: Lease) -> None:
        self.halt = HaltSignal(asyncio.get_running_loop())
        self.outputs: list[Any] = []
        self.progresses: list[tuple[int, int | None]] = []
        self.usages: list[Mapping[str, float]] = []
        self.starts = 0
        self.emitted = asyncio.Event()
        self._desk = desk
        self._lease = lease

    async def clear_to_start(self) -> None:
        self.starts += 1
        self.halt.check()

    async def checkpoint(self, checkpoint: Checkpoint) -> None:
        job = self._lease.job
        answer = (await self._desk.heartbeat([Beat(job.job_id, job.epoch, checkpoints=(checkpoint,))]))[0]
        errors = {"lease_lost": LeaseLost, "invalid": OutcomeInvalid}
        if answer.status in errors:
            raise errors[answer.status](answer.detail or "")
        if answer.status == "conflict":
            raise CheckpointConflict(answer.detail or "", key=checkpoint.key)

    def progress(self, done: int, total: int | None) -> None:
        self.progresses.append((done, total))

    def emit(self, data: JsonText) -> None:
        from postroom.jsontext import decode

        self.outputs.append(decode(data))
        self.emitted.set()

    def usage(self, amounts: Mapping[str, float]) -> None:
        self.usages.append(amounts)

    async def first_output(self) -> Any:
        await asyncio.wait_for(self.emitted.wait(), 20)
        return self.outputs[0]


@dataclass
class Bench:
    """A desk, and jobs on it."""

    desk: Desk
    inbox: Inbox
    settings: Settings
    worker: str = "w1"
    leases: list[Lease] = field(default_factory=list)

    async def lease(self, kind: str, content: Any = None, *, items: Any = None, **options: Any) -> Lease:
        """Submit a job and claim it."""
        await self.inbox.submit(kind, content, items=items, **options)
        return await self.claim(kind)

    async def claim(self, kind: str) -> Lease:
        request = ClaimRequest(self.worker, (kind,), lease_seconds=self.settings.lease_seconds)
        (lease,) = (await self.desk.claim(request, wait_seconds=20)).leases
        self.leases.append(lease)
        return lease

    def recorder(self, lease: Lease) -> DeskRecorder:
        return DeskRecorder(self.desk, lease)

    async def settle(self, outcome: Outcome) -> Answer:
        return (await self.desk.settle([outcome]))[0]


@asynccontextmanager
async def bench(settings: Settings = SHORT) -> AsyncIterator[Bench]:
    desk = Desk(MemoryStore(), replace(settings, backoff_base_seconds=0.0))
    inbox = Inbox.over(desk, settings)
    async with inbox:
        yield Bench(desk, inbox, settings)


def is_alive(pid: int) -> bool:
    """False also for one that is dead and only not reaped yet."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


async def until(condition: Callable[[], Any], *, seconds: float = 20.0) -> None:
    """Wait until something that no event tells of is so: the state of a foreign process."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"not so within {seconds:g} s")
        await asyncio.sleep(0.01)
