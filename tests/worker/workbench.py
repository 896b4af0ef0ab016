"""What the worker tests share: short settings, a desk whose store can go away, and ways to wait for an end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from postroom import Inbox
from postroom.desk import Desk
from postroom.errors import StoreUnavailable
from postroom.settings import Settings
from postroom.views import JobView

SETTINGS = Settings(
    store="memory://",
    lease_seconds=20.0,
    heartbeat_seconds=0.05,
    poll_seconds=0.05,
    rescue_seconds=0.05,
    backoff_base_seconds=0.01,
    drain_seconds=5.0,
    concurrency=4,
)


class WeakDesk(Desk):
    """A desk whose verbs for workers can be cut off, each for itself, as by a store that went away.

    `calls` counts the calls that came, answered or not.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.cut: set[str] = set()
        self.calls = {"claim": 0, "heartbeat": 0, "settle": 0, "sweep": 0}

    def _arrive(self, verb: str) -> None:
        self.calls[verb] += 1
        if verb in self.cut:
            raise StoreUnavailable("cut off by the test")

    async def claim(self, *args: Any, **options: Any) -> Any:
        self._arrive("claim")
        return await super().claim(*args, **options)

    async def heartbeat(self, *args: Any, **options: Any) -> Any:
        self._arrive("heartbeat")
        return await super().heartbeat(*args, **options)

    async def settle(self, *args: Any, **options: Any) -> Any:
        self._arrive("settle")
        return await super().settle(*args, **options)

    async def sweep(self) -> Any:
        self._arrive("sweep")
        return await super().sweep()


async def until(truth: Callable[[], Any], *, seconds: float = 10.0) -> None:
    """Wait until something is so; what it waits for has no signal of its own."""
    async with asyncio.timeout(seconds):
        while not truth():
            await asyncio.sleep(0.005)


async def ended(inbox: Inbox, job_id: str, *, seconds: float = 20.0) -> JobView:
    return await inbox.wait(job_id, timeout_seconds=seconds)


async def run_to_end(inbox: Inbox, kind: str, content: Any = None, **fields: Any) -> JobView:
    """Submit one job, work until it ended, and give it as it then stands."""
    job = await inbox.submit(kind, content, **fields)
    async with inbox.worker():
        return await ended(inbox, job.job_id)


async def events(inbox: Inbox, job_id: str) -> list[str]:
    return [str(line.event) async for line in inbox.follow(job_id)]
