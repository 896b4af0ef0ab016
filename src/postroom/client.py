"""The one synchronous object: `Client` for scripts, notebooks and web frameworks without an event loop.

It is thin over `postroom.inbox.Inbox`, which runs in an event loop of the client's own, in a thread of its own. So it
works over every store and over HTTP, and every name means what it means there.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401  # registers its own end, which must come after ours
import threading
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar

from postroom.errors import PostroomError
from postroom.inbox import Inbox
from postroom.model import Line, State
from postroom.stores.port import DeadLetterGroup, Stats
from postroom.verbs import Receipt, WorkerView
from postroom.views import ItemView, JobPage, JobView

T = TypeVar("T")

_open: set[Client] = set()
"""Clients whose loop runs: a script that ends without `close` must not end in the middle of what their tasks do."""


def _close_all() -> None:
    for client in list(_open):
        client._close_at_exit()


# Not atexit: by then no pool takes work any more, and closing a store needs one. These are called last in, first out.
threading._register_atexit(_close_all)  # type: ignore[attr-defined]


class Client:
    """An inbox for code that is not asynchronous. Safe to use from several threads.

    ``with Client(...) as client`` (or `close`) lets go of the store and ends the thread.

    Args:
        url: ``http(s)://host:port`` of a service, ``sqlite:///path``, ``memory://``; else POSTROOM_STORE, else
            ``sqlite:///postroom.db``.
        key: access key of that service; else POSTROOM_KEY.
    """

    def __init__(self, url: str | None = None, *, key: str | None = None) -> None:
        self._inbox = Inbox(url, key=key)
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Where it looks."""
        return self._inbox.url

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the store. The client opens again at its next use; can be called twice."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
            _open.discard(self)
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._inbox.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()

    def _close_at_exit(self) -> None:
        """As `close`, where its thread is there to do it: not after a fork."""
        if self._thread is not None and self._thread.is_alive():
            self.close()

    # ---- submitting

    def submit(
        self,
        kind: str = "assistant",
        content: Any = None,
        *,
        items: Sequence[Any] | None = None,
        item_keys: Sequence[str] | None = None,
        idempotency_key: str | None = None,
        **options: Any,
    ) -> JobView:
        """Accept one job; see `Inbox.submit`."""
        return self._run(
            self._inbox.submit(
                kind, content, items=items, item_keys=item_keys, idempotency_key=idempotency_key, **options
            )
        )

    def submit_many(self, jobs: Iterable[Mapping[str, Any]]) -> list[Receipt | PostroomError]:
        """Accept many jobs; an answer for each, in order: a receipt, or the error that refused it."""
        return self._run(self._inbox.submit_many(list(jobs)))

    # ---- looking

    def get(self, job_id: str) -> JobView:
        """The job as it stands."""
        return self._run(self._inbox.get(job_id))

    def find(
        self,
        *,
        state: State | str | Sequence[str] | None = None,
        kind: str | None = None,
        sender: str | None = None,
        topic: str | None = None,
        queue: str | None = None,
        since: datetime | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> JobPage:
        """Jobs, newest first, without results."""
        return self._run(
            self._inbox.find(
                state=state,
                kind=kind,
                sender=sender,
                topic=topic,
                queue=queue,
                since=since,
                limit=limit,
                cursor=cursor,
            )
        )

    def items(self, job_id: str) -> Iterator[ItemView]:
        """The job's items in order, also while it runs."""
        return self._iterate(self._inbox.items(job_id))

    def result(self, job_id: str) -> Any:
        """The whole result, however large."""
        return self._run(self._inbox.result(job_id))

    def wait(self, job_id: str, *, timeout_seconds: float | None = None) -> JobView:
        """The job once it ended, in whatever way.

        Raises:
            WaitTimedOut: it has not after that long; it goes on.
        """
        return self._run(self._inbox.wait(job_id, timeout_seconds=timeout_seconds))

    def follow(self, job_id: str, *, after: int = -1) -> Iterator[Line]:
        """The job's journal from after line ``after``, as it is written; ends when the job has ended."""
        return self._iterate(self._inbox.follow(job_id, after=after))

    # ---- acting

    def cancel(self, job_id: str, reason: str | None = None) -> JobView:
        """Cancel a queued job, or ask a running one to stop."""
        return self._run(self._inbox.cancel(job_id, reason))

    def replay(self, job_id: str) -> JobView:
        """Queue a failed or cancelled job again."""
        return self._run(self._inbox.replay(job_id))

    def dead_letters(
        self, *, since: datetime | None = None, kind: str | None = None
    ) -> list[DeadLetterGroup]:
        """Failed jobs in groups of the same cause, largest first."""
        return self._run(self._inbox.dead_letters(since=since, kind=kind))

    def replay_dead(self, job_ids: Sequence[str] = (), **group: Any) -> int:
        """Replay dead letters by id or by group; how many were accepted. See `Inbox.replay_dead`."""
        return self._run(self._inbox.replay_dead(job_ids, **group))

    def stats(self) -> Stats:
        """Counts by state and a picture of the last hour."""
        return self._run(self._inbox.stats())

    def workers(self) -> list[WorkerView]:
        """Live workers and what they run."""
        return self._run(self._inbox.workers())

    # ---- the loop beneath

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something in the loop and wait for it; an interrupted wait ends the work too."""
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._running_loop())
        except BaseException:
            work.close()
            raise
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _iterate(self, stream: AsyncIterator[T]) -> Iterator[T]:
        loop = self._running_loop()
        try:
            while True:
                try:
                    yield self._run(_next(stream))
                except StopAsyncIteration:
                    return
        finally:
            if self._loop is loop:  # else it was closed meanwhile, and its streams with it
                self._run(_close(stream))

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_serve, args=(self._loop,), name="postroom-client", daemon=True
                )
                self._thread.start()
                _open.add(self)
            elif self._thread is threading.current_thread():
                raise RuntimeError(
                    "a client cannot be used inside its own event loop: use postroom.Inbox there"
                )
            return self._loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _next(stream: AsyncIterator[T]) -> T:
    return await anext(stream)


async def _close(stream: AsyncIterator[Any]) -> None:
    close = getattr(stream, "aclose", None)
    if close is not None:
        await close()
