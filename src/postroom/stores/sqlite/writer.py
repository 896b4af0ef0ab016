"""Whatever waits to be written is written by one thread in one transaction and made durable by one sync.

A sync costs the same for one change and for a thousand. So while a transaction is being written, the requests of all
callers gather, and the next one takes them together (group commit). One request whose rows SQLite refuses harms no
other: the group is rolled back and each of its requests is tried alone.

A lone caller who asks one thing after the other is served without the thread (see `solo`).

Every request is answered after the commit that holds it, or fails and has left nothing. One that has not been begun
within `PATIENCE_SECONDS`, because another process holds the file or the disk stands still, is withdrawn.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import apsw

from postroom.errors import StoreError, StoreUnavailable
from postroom.model import Change, State
from postroom.stores.port import WORK, Claimed, ClaimRequest, Submission, Submitted
from postroom.stores.sqlite.book import Book
from postroom.stores.sqlite.checkpoint import Checkpoint
from postroom.stores.sqlite.connections import as_ours
from postroom.stores.sqlite.ledger import Ledger
from postroom.stores.sqlite.solo import Solo
from postroom.stores.sqlite.standstill import Standstill
from postroom.stores.sqlite.turnstile import Turnstile
from postroom.stores.sqlite.wakeups import Wakeups
from postroom.stores.sqlite.yielding import patiently

Answer = TypeVar("Answer")

PATIENCE_SECONDS = 4.0
"""How long a request waits for its transaction to begin: what is refused at all is refused within five seconds."""
GROUP_MOST = 10_000
"""Jobs, changes and other acts that one transaction takes at most."""


@dataclass(eq=False)
class Request:
    """Something to write, and who waits for it.

    ``submissions``, ``changes``, ``claims``: one of them. ``act``: anything else, given the book. None of them: it only
    wakes the thread, and is answered once all before it are.
    """

    submissions: Sequence[Submission] = ()
    changes: Sequence[Change] = ()
    claim: ClaimRequest | None = None
    act: Callable[[Book], Any] | None = None
    loop: asyncio.AbstractEventLoop | None = None
    future: asyncio.Future[Any] | None = None
    answer: Any = None
    error: BaseException | None = None
    due: float = field(default_factory=lambda: time.monotonic() + PATIENCE_SECONDS)
    _ticket: list[None] = field(default_factory=lambda: [None])

    def take(self) -> bool:
        """Begin it or withdraw it: True for the first who asks, so that it is never both."""
        try:
            self._ticket.pop()
        except IndexError:
            return False
        return True

    @property
    def is_empty(self) -> bool:
        """Whether it asks for nothing to be written."""
        return not (self.submissions or self.changes or self.claim or self.act)

    @property
    def weight(self) -> int:
        claimed = self.claim.limit if self.claim is not None else 0
        return len(self.submissions) + len(self.changes) + claimed + 1


@dataclass
class Counts:
    """What the writer has done, for tests and figures."""

    transactions: int = 0
    requests: int = 0
    by_caller: int = 0
    """Transactions that a lone caller wrote where it stood."""


class Writer:
    """Takes requests from any event loop, and answers there.

    Args:
        book: the writing connection; the writer closes it at its end.
        ledger: writes into the book's transactions.
        turnstile: the queue of the processes that write to this file.
        groups: False gives each request a transaction of its own: the control of what grouping gains.
        standstill: told of each transaction, and of what else keeps requests waiting.
        wakeups: told what was written.
    """

    def __init__(
        self,
        book: Book,
        ledger: Ledger,
        turnstile: Turnstile,
        *,
        standstill: Standstill,
        wakeups: Wakeups,
        groups: bool = True,
    ) -> None:
        self._book = book
        self._ledger = ledger
        self._turnstile = turnstile
        self._standstill = standstill
        self._wakeups = wakeups
        self._most = GROUP_MOST if groups else 1
        self._queue: SimpleQueue[Request | None] = SimpleQueue()
        self._carried: Request | None = None
        self._is_closing = False
        self._lock = threading.Lock()
        """Held by whoever uses the book."""
        self._solo = Solo()
        self._checkpoint = Checkpoint(book.path, book.connection)
        self._claimed_last = 0
        self.counts = Counts()
        self._thread = threading.Thread(target=self._run, name="postroom-sqlite-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def submit(self, submissions: Sequence[Submission]) -> list[Submitted]:
        """Insert jobs."""
        answers: list[Submitted] = await self._ask(Request(submissions=submissions))
        return answers

    async def commit(self, changes: Sequence[Change]) -> list[bool]:
        """Write changes."""
        answers: list[bool] = await self._ask(Request(changes=changes))
        return answers

    async def claim(self, request: ClaimRequest) -> Claimed:
        """Claim jobs."""
        answer: Claimed = await self._ask(Request(claim=request))
        return answer

    async def act(self, act: Callable[[Book], Answer]) -> Answer:
        """Run something else in a transaction."""
        answer: Answer = await self._ask(Request(act=act))
        return answer

    async def _ask(self, request: Request) -> Any:
        if self._is_closing:
            raise StoreUnavailable(f"{self._book.path} is closed")
        arrivals = self._solo.arrive()
        if self._solo.is_likely(self._likely_weight(request)):
            await asyncio.sleep(0)  # lets others in: those that come now are written together
            if arrivals == self._solo.arrivals and self._write_here(request):
                return request.answer
        loop = asyncio.get_running_loop()
        request.loop, request.future = loop, loop.create_future()
        self._queue.put(request)
        try:
            return await patiently(request.future, PATIENCE_SECONDS, lambda: self._withdraw(request))
        except asyncio.CancelledError:
            request.take()  # not begun yet: it never will be
            raise

    def _likely_weight(self, request: Request) -> int:
        """The weight of a request; of a claim, which asks for all that there is, that of what the last one gave."""
        return min(request.weight, self._claimed_last + 1) if request.claim is not None else request.weight

    def _write_here(self, request: Request) -> bool:
        """Write a request in the caller's own thread; False, and nothing was written, where that needs a wait."""
        if not self._queue.empty() or not self._lock.acquire(blocking=False):
            return False
        try:
            began = time.monotonic()
            try:
                with self._standstill.noted():
                    self._transact([request], due=began, is_careful=False)
            except (StoreError, apsw.Error):
                return False  # the thread tries again, and knows what to do with what it meets
            self.counts.by_caller += 1
            if self._checkpoint.is_due():
                self._queue.put(Request())  # wakes the thread, which will see that it is due
            self._after([request], self._solo.arrivals, began)
        finally:
            self._lock.release()
        if request.error is not None:
            raise request.error
        return True

    def _after(self, group: Sequence[Request], arrivals: int, began: float) -> None:
        """What follows a transaction, written or not."""
        self._solo.note(len(group), arrivals, time.monotonic() - began)
        if self._wakeups.is_heard():
            self._wakeups.tell(_topics(group))

    def _withdraw(self, request: Request) -> None:
        """In the caller's loop: give up on a request that was not begun."""
        if request.take() and request.future is not None and not request.future.done():
            busy = f"{self._book.path} is busy: nothing was written within {PATIENCE_SECONDS:g} s. Try again"
            request.future.set_exception(StoreUnavailable(busy))

    async def close(self) -> None:
        """Write what was accepted, then end the thread."""
        if self._is_closing:
            return
        self._is_closing = True
        if self._thread.is_alive():
            loop = asyncio.get_running_loop()
            ended = Request(loop=loop, future=loop.create_future())
            self._queue.put(ended)
            self._queue.put(None)
            assert ended.future is not None
            try:
                await ended.future
            except StoreError:  # the file is not to be had: what was accepted was told so
                pass
            self._thread.join()

    # ---- in the thread

    def _run(self) -> None:
        while (group := self._gather()) is not None:
            with self._lock:
                self._write_group([request for request in group if not request.is_empty])
                is_due = self._checkpoint.is_due()
            _deliver(group)
            if is_due:
                with self._standstill.noted():  # what waits for the thread waits for this
                    self._checkpoint.move(self._lock)
        self._checkpoint.close()
        self._book.connection.close()

    def _write_group(self, group: list[Request]) -> None:
        if group:
            began, arrivals = time.monotonic(), self._solo.arrivals
            with self._standstill.noted():
                self._perform(group)
            self._after(group, arrivals, began)

    def _gather(self) -> list[Request] | None:
        """The requests that wait, at least one; None at the end."""
        first = self._carried or self._queue.get()
        self._carried = None
        if first is None:
            return None
        group, weight = [first], first.weight
        while weight < self._most:
            try:
                request = self._queue.get_nowait()
            except Empty:
                break
            if request is None:
                self._queue.put(None)
                break
            if weight + request.weight > self._most:
                self._carried = request
                break
            group.append(request)
            weight += request.weight
        return group

    def _perform(self, group: list[Request]) -> None:
        """Write a group together; where that fails, each of its requests alone."""
        group = [request for request in group if request.take()]
        if not group:
            return
        try:
            self._transact(group, due=min(request.due for request in group), is_careful=False)
        except StoreError as error:  # the file is not to be had: it would not be for each alone
            _fail(group, error)
        except apsw.BusyError as error:
            _fail(group, as_ours(error, self._book.path))
        except Exception:  # noqa: BLE001  # whatever one of them did, the others are tried without it
            for request in group:
                self._perform_alone(request)

    def _perform_alone(self, request: Request) -> None:
        try:
            self._transact([request], due=request.due, is_careful=True)
        except apsw.Error as error:
            request.error = as_ours(error, self._book.path)
        except Exception as error:  # noqa: BLE001  # the caller is told, and the writer goes on
            request.error = error

    def _transact(self, group: Sequence[Request], *, due: float, is_careful: bool) -> None:
        if not self._turnstile.enter(due):
            raise StoreUnavailable(
                f"{self._book.path} is being written by another process that does not finish: nothing was written. "
                "Try again"
            )
        try:
            self._book.begin(due - time.monotonic())
            self._apply(group, is_careful=is_careful)
            self._book.commit()
        except BaseException:
            self._book.rollback()
            raise
        finally:
            self._turnstile.leave()
        self.counts.transactions += 1
        self.counts.requests += len(group)
        for request in group:
            if request.claim is not None:
                self._complete(request)

    def _complete(self, request: Request) -> None:
        """Read what the jobs of a committed claim work on. A failure here is this request's alone: all is written."""
        self._claimed_last = len(request.answer.jobs)
        try:
            request.answer = self._ledger.lease(request.answer)
        except apsw.Error as error:
            request.error = as_ours(error, self._book.path)
        except Exception as error:  # noqa: BLE001  # raised, it would have the whole group written once more
            request.error = error

    def _apply(self, group: Sequence[Request], *, is_careful: bool) -> None:
        """Requests of one group are at the same time: they are ordered so that rows of a kind are written together."""
        submits = [request for request in group if request.submissions]
        if submits:
            submitted = self._ledger.submit(
                [s for r in submits for s in r.submissions], is_careful=is_careful
            )
            _share_out(submits, submitted, lambda request: len(request.submissions))
        commits = [request for request in group if request.changes]
        if commits:
            written = self._ledger.commit([c for r in commits for c in r.changes])
            _share_out(commits, written, lambda request: len(request.changes))
        for request in group:
            if request.act is not None:
                request.answer = request.act(self._book)
            elif request.claim is not None:
                request.answer = self._ledger.claim(request.claim)


def _topics(group: Sequence[Request]) -> set[str]:
    """What a group that was written is news for."""
    topics: set[str] = set()
    for request in group:
        if request.error is not None or request.answer is None:
            continue
        if request.submissions:
            topics.add(WORK)
            topics.update(submitted.job_id for submitted in request.answer if submitted.is_new)
        elif request.changes:
            written = [c for c, answer in zip(request.changes, request.answer, strict=True) if answer]
            topics.update(change.job.job_id for change in written)
            if any(change.job.state is State.QUEUED for change in written):
                topics.add(WORK)
        elif request.claim is not None:
            topics.update(lease.job.job_id for lease in request.answer.leases)
    return topics


def _share_out(requests: Sequence[Request], answers: list[Any], size: Callable[[Request], int]) -> None:
    start = 0
    for request in requests:
        end = start + size(request)
        request.answer = answers[start:end]
        start = end


def _fail(group: Sequence[Request], error: StoreError) -> None:
    for request in group:
        request.error = error


def _deliver(group: Sequence[Request]) -> None:
    """Answer every request in its own loop, one wake-up for each loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Request]] = {}
    for request in group:
        if request.loop is not None:
            by_loop.setdefault(request.loop, []).append(request)
    for loop, requests in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, requests)
        except RuntimeError:  # the loop was closed: nobody waits there any more
            continue


def _settle(requests: Sequence[Request]) -> None:
    for request in requests:
        future = request.future
        if future is None or future.done():
            continue
        if request.error is not None:
            future.set_exception(request.error)
        else:
            future.set_result(request.answer)
