"""What all routes share: the inbox, the settings, and whether the service is about to end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from fastapi import Request

from postroom.drafting import Drafting
from postroom.inbox import Inbox
from postroom.model import WorkerInfo
from postroom.settings import Settings
from postroom.stores.port import Watch
from postroom.verbs import Verbs
from postroom.wire import Sizes

ATTEND_SECONDS = 10.0
"""How often a worker's claims are written down as a sign of life."""

MAX_REMEMBERED = 10_000


class Stopping:
    """Whether the service is about to end; waited for in any event loop, told from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_set = False
        self._waiters: set[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = set()

    def is_set(self) -> bool:
        return self._is_set

    def clear(self) -> None:
        """The service begins (again)."""
        self._is_set = False

    def set(self) -> None:
        """The service is about to end: wake all who wait."""
        with self._lock:
            self._is_set = True
            waiters, self._waiters = self._waiters, set()
        for loop, future in waiters:
            try:
                loop.call_soon_threadsafe(_finish, future)
            except RuntimeError:  # that loop has ended, and who waited in it
                continue

    async def wait(self) -> None:
        loop = asyncio.get_running_loop()
        entry = (loop, loop.create_future())
        with self._lock:
            if self._is_set:
                return
            self._waiters.add(entry)
        try:
            await entry[1]
        finally:
            with self._lock:
                self._waiters.discard(entry)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Service:
    """One running service over an inbox.

    Attributes:
        comment_seconds: how long an event stream is silent at most.
        body_bytes: the largest body; ``lease_body_bytes`` that of a worker's writes, which carry results too.
    """

    def __init__(self, inbox: Inbox, settings: Settings) -> None:
        self.inbox = inbox
        self.settings = settings
        self.drafting = Drafting(settings)
        self.sizes = Sizes.of(settings)
        self.body_bytes = settings.max_body_bytes
        self.lease_body_bytes = settings.max_body_bytes + settings.max_result_bytes
        self.comment_seconds = 15.0
        self.stopping = Stopping()
        self._workers: OrderedDict[str, tuple[float, WorkerInfo]] = OrderedDict()

    async def verbs(self) -> Verbs:
        return await self.inbox.verbs()

    def stop(self) -> None:
        """End what is held back: long polls answer now, and event streams are closed. Safe to call twice."""
        self.stopping.set()

    # ---- workers that are seen by their claims

    async def seen(self, worker: str, kinds: tuple[str, ...], queues: tuple[str, ...], host: str) -> None:
        """A worker claimed: register it, or refresh what it said of itself, every few seconds."""
        at, info = self._workers.get(worker, (float("-inf"), None))
        now = time.monotonic()
        is_same = info is not None and (info.kinds, info.queues) == (kinds, queues)
        if is_same and now - at < ATTEND_SECONDS:
            return
        verbs = await self.verbs()
        clock = verbs.now()
        if info is None:
            info = WorkerInfo(worker, kinds, queues, 1, host, 0, clock, clock)
        await self.attend(replace(info, kinds=kinds, queues=queues, seen_at=clock))

    async def attend(self, info: WorkerInfo) -> None:
        """A worker introduced itself."""
        await (await self.verbs()).attend(info)
        self._workers[info.worker] = (time.monotonic(), info)
        self._workers.move_to_end(info.worker)
        while len(self._workers) > MAX_REMEMBERED:
            self._workers.popitem(last=False)

    async def leave(self, worker: str) -> None:
        """A worker said goodbye."""
        self._workers.pop(worker, None)
        await (await self.verbs()).leave(worker)


def service_of(request: Request) -> Service:
    """The service that a request came to."""
    service: Service = request.app.state.service
    return service


async def first_of(work: Awaitable[Any], *others: asyncio.Task[Any]) -> None:
    """Wait until the work or one of the others is done; the work is cancelled where it is not."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task, *others}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _end(task)


async def _end(task: asyncio.Future[Any]) -> None:
    if task.done():
        return
    task.cancel()
    await asyncio.wait({task})


class Presence:
    """Held open while an answer is held back: knows whether the one who asked is still there.

    Nothing else may call ``receive`` meanwhile; the body must have been read.
    """

    def __init__(self, request: Request, service: Service) -> None:
        self._request = request
        self._service = service
        self.is_gone = False

    async def __aenter__(self) -> Self:
        self._gone = asyncio.create_task(self._listen())
        self._stop = asyncio.create_task(self._service.stopping.wait())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await _end(self._gone)
        await _end(self._stop)

    async def _listen(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
        self.is_gone = True

    @property
    def is_over(self) -> bool:
        """True once it makes no sense to hold the answer back any longer."""
        return self.is_gone or self._service.stopping.is_set()

    async def wait(self, watch: Watch, seconds: float) -> None:
        """Wait for a hint, or until it is over, at most so long."""
        await first_of(watch.wait(seconds), self._gone, self._stop)
