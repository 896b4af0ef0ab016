"""Heartbeats: a thread with an event loop of its own that speaks for all runs of a worker.

A handler may block the worker's event loop for as long as it likes: the thread beats on. All runs share one call:
every heartbeat interval for all of them; at once for those that have a checkpoint to keep (whatever gathers while one
call is in the air goes with the next); within a second for those with other news. The thread is the only writer of
beats, so a run never races with itself.

What was sent and not answered stays as it was, under the same number, until an answer comes: the store knows a repeat
by it, so output and usage are never added twice.

Three threads touch a record: the worker's loop (which owns it), this one, and a handler's. News are handed over through
deques, whose ends are safe; who may take them is settled under the one lock of the `Heartbeat`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any, Protocol

from postroom.errors import CheckpointConflict, LeaseLost, OutcomeInvalid, PostroomError
from postroom.handlers import Handler
from postroom.model import Beat, Checkpoint, Job, JsonText, Lease, Outcome
from postroom.settings import Settings
from postroom.verbs import Answer, Verbs
from postroom.worker.recorder import Halt, HaltSignal

BATCH = 1000
"""Beats in one call."""

NEWS_SECONDS = 1.0
"""Output, usage and progress wait this long at most; less where the run's stall limit is short."""

MAX_OUTPUT = 2000
"""Pieces of output in one beat."""

MAX_OUTPUT_CHARS = 2**20
"""Characters of output in one beat, but for a piece that is longer by itself."""

MAX_WAITING_OUTPUT = 20_000
MAX_WAITING_CHARS = 2**26
"""Pieces and characters of output that wait for the store; what comes beyond is dropped, and the log says so."""

BACKOFF_SECONDS = 2.0
"""Longest pause between tries while the store is away."""

Settled = tuple["asyncio.Future[None]", Exception | None]


class Pinged(Protocol):
    """Who is told that the worker can still run its own code."""

    def ping(self) -> None: ...


class StoreState:
    """Whether the store can be reached, said once per change; shared by all of a worker that speak to it.

    It is away from the first failed call until each kind of call that failed has worked again.
    """

    def __init__(self, log: logging.Logger, worker: str) -> None:
        self._log = log
        self._worker = worker
        self._lock = threading.Lock()
        self._failing: set[str] = set()

    def failed(self, call: str, error: BaseException) -> None:
        """A call of this kind failed."""
        with self._lock:
            is_news = not self._failing
            self._failing.add(call)
        if is_news:
            self._log.warning(
                "worker %s: the store cannot be reached; runs go on, and it is tried again: %s: %s",
                self._worker,
                type(error).__name__,
                error,
            )

    def worked(self, call: str) -> None:
        """A call of this kind succeeded."""
        if not self._failing:
            return
        with self._lock:
            was_away = bool(self._failing)
            self._failing.discard(call)
            is_news = was_away and not self._failing
        if is_news:
            self._log.warning("worker %s: the store is back", self._worker)


def pause_seconds(failures: int, cap_seconds: float = BACKOFF_SECONDS) -> float:
    """How long to wait before the next try: from 0.05 s, doubling, with half of it drawn, so that workers spread."""
    return min(0.05 * 2.0 ** min(failures, 16), cap_seconds) * random.uniform(0.5, 1.0)


class Record:
    """One run in this worker: what it wrote and was told; implements `postroom.worker.recorder.Recorder`.

    Made and owned by the worker's loop; ``checkpoint`` and ``clear_to_start`` are awaited there, the rest of the
    recorder may be used from any thread.

    Attributes:
        job: the row as this worker saw it last.
        deadline: when ``timeout_seconds`` is over, on the monotonic clock.
        moved_at: the last sign of progress, on the same clock.
        beaten_at: when the last beat that was accepted was sent (or the claim).
        is_closed: nothing more is written for this run.
    """

    __slots__ = (
        "_beats",
        "_checkpoints",
        "_clearing",
        "_doubt",
        "_dropped",
        "_has_moved",
        "_is_dirty",
        "_is_ended",
        "_is_flying",
        "_is_split",
        "_landing",
        "_limits",
        "_loop",
        "_output",
        "_output_chars",
        "_progress",
        "_seq",
        "_usage",
        "_waiters",
        "_window",
        "beaten_at",
        "deadline",
        "epoch",
        "halt",
        "handler",
        "is_closed",
        "is_given_up",
        "job",
        "job_id",
        "lease",
        "moved_at",
        "stall_seconds",
    )

    def __init__(
        self, lease: Lease, handler: Handler, beats: Heartbeat, *, loop: asyncio.AbstractEventLoop, at: float
    ) -> None:
        job, limits = lease.job, handler.limits
        self.lease = lease
        self.job = job
        self.job_id = job.job_id
        self.epoch = job.epoch
        self.handler = handler
        self.halt = HaltSignal(loop)
        self.beaten_at = at
        self.moved_at = at
        timeout = limits.timeout_seconds if job.timeout_seconds is None else job.timeout_seconds
        self.deadline = float("inf") if timeout is None else at + timeout
        stall = (
            limits.stall_timeout_seconds if job.stall_timeout_seconds is None else job.stall_timeout_seconds
        )
        self.stall_seconds = beats.stall_seconds if stall is None else stall
        self.is_closed = False
        self.is_given_up = False
        self._beats = beats
        self._loop = loop
        self._limits = handler.own_limits
        self._window = beats.window_seconds(job)
        self._seq = 0
        self._doubt: Beat | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._progress: tuple[int, int | None] | None = None
        self._output: deque[JsonText] = deque()
        self._output_chars = 0
        self._usage: deque[Mapping[str, float]] = deque()
        self._checkpoints: deque[tuple[Checkpoint, asyncio.Future[None]]] = deque()
        self._clearing: deque[asyncio.Future[None]] = deque()
        self._dropped = 0
        self._has_moved = False
        self._is_dirty = False
        self._is_ended = False
        self._is_flying = False
        self._is_split = False
        self._landing: asyncio.Future[None] | None = None

    # ---- what a run writes through

    async def clear_to_start(self) -> None:
        """See `Recorder`."""
        while True:
            self.halt.check()
            if self.is_closed:
                raise LeaseLost(f"job {self.job_id} is not ours any more")
            if monotonic() - self.beaten_at < self._window:
                return
            await self._next_beat()

    async def _next_beat(self) -> None:
        """Wait until a beat was accepted, or the run must end."""
        future = self._loop.create_future()

        def wake(_: Halt) -> None:
            if not future.done():
                future.set_result(None)

        self._clearing.append(future)
        self.halt.subscribe(wake)
        try:
            self._beats.request(self)
            await future
        finally:
            self.halt.unsubscribe(wake)

    async def checkpoint(self, checkpoint: Checkpoint) -> None:
        """See `Recorder`."""
        if self._is_ended or self.is_closed or self.halt.reason is Halt.LOST:
            raise LeaseLost(f"job {self.job_id} is not ours any more, or its run has ended")
        future = self._loop.create_future()
        self._checkpoints.append((checkpoint, future))
        self._beats.request(self)
        await future
        self.moved_at = monotonic()

    def progress(self, done: int, total: int | None) -> None:
        """See `Recorder`."""
        before = self._progress
        self._progress = (done, total)
        if before is None or done > before[0]:
            self.moved_at = monotonic()
            self._has_moved = True
            self._note()

    def emit(self, data: JsonText) -> None:
        """See `Recorder`."""
        with self._beats.lock:
            waiting = len(self._output)
            has_room = waiting < MAX_WAITING_OUTPUT and self._output_chars < MAX_WAITING_CHARS
            if has_room:
                self._output.append(data)
                self._output_chars += len(data)
        self.moved_at = monotonic()
        if not has_room:
            self._dropped += 1
            if self._dropped == 1:
                self._beats.log.warning(
                    "job %s: output is dropped: it comes faster than the store takes it", self.job_id
                )
            return
        if waiting == MAX_OUTPUT:
            self._beats.request(self)
        self._note()

    def usage(self, amounts: Mapping[str, float]) -> None:
        """See `Recorder`."""
        self._usage.append(dict(amounts))
        self._note()

    def _note(self) -> None:
        if not self._is_dirty:
            self._is_dirty = True
            self._beats.note(self)

    @property
    def has_ended(self) -> bool:
        """True once the handler ended, or its run was given up: nothing more is taken from it."""
        return self._is_ended

    @property
    def news_seconds(self) -> float:
        """How long this run's news may wait."""
        return min(NEWS_SECONDS, self.stall_seconds / 4)

    # ---- the beat: only the heartbeat's thread

    def beat(self) -> Beat:
        """The next beat, with all that has gathered; or again the one that nobody answered."""
        if self._doubt is not None:
            return self._doubt
        self._seq += 1
        self._is_dirty = False
        done, total = (None, None) if self.job.has_items else self._progress or (None, None)
        moved, self._has_moved = self._has_moved, False
        checkpoints: tuple[Checkpoint, ...] = ()
        output: tuple[JsonText, ...] = ()
        usage: Mapping[str, float] | None = None
        with self._beats.lock:
            if not self._is_ended:
                taken = self._take_checkpoints()
                checkpoints = tuple(checkpoint for checkpoint, _ in taken)
                self._waiters = [future for _, future in taken]
                output = self._take_output()
                usage = _sum(_take(self._usage))
                self._is_flying = bool(checkpoints or output or usage or moved)
        if self._output:
            self._beats.request(self)
        beat = Beat(
            self.job_id,
            self.epoch,
            done,
            total,
            checkpoints,
            output,
            usage,
            self._limits,
            self._seq,
            moved=moved,
        )
        if self._is_flying:
            self._doubt = beat
        return beat

    def _take_output(self) -> tuple[JsonText, ...]:
        taken: list[JsonText] = []
        chars = 0
        while self._output and len(taken) < MAX_OUTPUT and chars < MAX_OUTPUT_CHARS:
            taken.append(self._output.popleft())
            chars += len(taken[-1])
        self._output_chars -= chars
        return tuple(taken)

    def _take_checkpoints(self) -> Sequence[tuple[Checkpoint, asyncio.Future[None]]]:
        return _take(self._checkpoints, 1 if self._is_split else None)

    def answered(self, beat: Beat, answer: Answer, sent_at: float) -> list[Settled]:
        """Take the answer to a beat; who is to be told what."""
        if answer.status in ("ok", "cancel_requested"):
            self.beaten_at = sent_at
            if answer.job is not None:
                self.job = answer.job
            told: list[Settled] = [(future, None) for future in (*self._waiters, *_take(self._clearing))]
            if answer.status == "cancel_requested":
                self.halt.set(Halt.CANCELLED)
            self._is_split = self._is_split and bool(self._checkpoints)
            if self._is_split:
                self._beats.request(self)
            return told + self._land()
        if answer.status == "lease_lost":
            return self.lose(answer.detail)
        return self._refused(beat, answer)

    def _refused(self, beat: Beat, answer: Answer) -> list[Settled]:
        """The beat does not fit and nothing of it was written: find out one by one which checkpoint it was."""
        waiting = list(zip(beat.checkpoints, self._waiters, strict=True))
        told: list[Settled] = []
        if len(waiting) == 1:
            told.append((waiting[0][1], _refusal(answer, waiting[0][0].key)))
            waiting = []
        elif not waiting:
            self._beats.log.error("job %s: a heartbeat was refused: %s", self.job_id, answer.detail)
            return self._land()
        self._is_split = True
        with self._beats.lock:
            self._checkpoints.extendleft(reversed(waiting))
            self._output.extendleft(reversed(beat.output))
            self._output_chars += sum(map(len, beat.output))
            if beat.usage:
                self._usage.appendleft(beat.usage)
        self._beats.request(self)
        return told + self._land()

    def _land(self) -> list[Settled]:
        self._doubt = None
        self._waiters = []
        with self._beats.lock:
            self._is_flying = False
            landing = self._landing
        return [] if landing is None else [(landing, None)]

    def lose(self, detail: str | None = None) -> list[Settled]:
        """The lease is not ours any more: write nothing, and let everybody who waits know."""
        self.is_closed = True
        self.halt.set(Halt.LOST)
        lost = LeaseLost(detail or f"job {self.job_id} is not ours any more")
        queued = [future for _, future in _take(self._checkpoints)]
        waiters = (*self._waiters, *queued, *_take(self._clearing))
        return [(future, lost) for future in waiters] + self._land()

    # ---- the end: only the worker's loop

    async def finish(self, outcome: Outcome) -> Outcome:
        """The run ended: its outcome, with all that was not sent before. Nothing is taken from the handler any more.

        Output that is too much to go with an outcome goes ahead of it, in beats.
        """
        while len(self._output) > MAX_OUTPUT and self.halt.reason is None and not self.is_closed:
            await self._next_beat()
        with self._beats.lock:
            self._is_ended = True
            if self._is_flying:
                self._landing = self._loop.create_future()
        if self._landing is not None:
            await self._landing
        if not (self._checkpoints or self._output or self._usage or self._limits):
            return outcome
        left = _take(self._checkpoints)
        for _, future in left:
            if not future.done():
                future.set_exception(LeaseLost("the run has ended; this goes with its outcome"))
                future.exception()
        return replace(
            outcome,
            checkpoints=(*outcome.checkpoints, *(checkpoint for checkpoint, _ in left)),
            output=_take(self._output),
            usage=_sum(_take(self._usage)),
            limits=self._limits,
        )


class Heartbeat:
    """The thread. `start`, `stop`, `add` and `discard` belong to the worker's loop.

    Args:
        verbs: safe to be called from several loops.
        settings: lease and heartbeat interval.
        guardian: pinged as long as this thread runs.
        state: told whether the store can be reached.
        log: where the odd is said.
        chores: run in this thread's loop beside the beats, until the end; each is a coroutine function.
    """

    def __init__(
        self,
        verbs: Verbs,
        settings: Settings,
        *,
        guardian: Pinged | None,
        state: StoreState,
        log: logging.Logger,
        chores: Sequence[Callable[[], Awaitable[None]]] = (),
    ) -> None:
        self.lock = threading.Lock()
        self.log = log
        self.stall_seconds = settings.stall_timeout_seconds
        self.interval_seconds = settings.beat_seconds
        self._lease_seconds = settings.lease_seconds
        self._verbs = verbs
        self._guardian = guardian
        self._state = state
        self._chores = list(chores)
        self._records: set[Record] = set()
        self._urgent: deque[Record] = deque()
        self._dirty: deque[Record] = deque()
        self._gathered: dict[Record, None] = {}
        self._owner: asyncio.AbstractEventLoop | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._has_started = threading.Event()
        self._is_woken = False
        self._is_stopping = False
        self._failures = 0
        self._next_beat_at = 0.0
        self._next_news_at = float("inf")
        self._retry_at = 0.0
        self._beaten_at = monotonic()

    def window_seconds(self, job: Job) -> float:
        """How old the last accepted beat of a run may be for a new item to start."""
        lease = job.lease_seconds or self._lease_seconds
        return max(lease - 2 * self.interval_seconds, lease / 4)

    # ---- the worker's loop

    def start(self, name: str) -> None:
        """Start beating."""
        self._owner = asyncio.get_running_loop()
        self._ended = self._owner.create_future()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._has_started.wait()

    async def stop(self) -> None:
        """End the thread; whatever still waits for it is told that its lease is lost."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._is_stopping = True
        self._is_woken = False
        self._wake_up()
        await self._ended
        thread.join()
        for record in list(self._records):
            _tell_all(record.lose("the worker ended"))

    def add(self, record: Record) -> None:
        """Beat for this run from now on."""
        self._records.add(record)

    def discard(self, record: Record) -> None:
        """The run is over: no more beats."""
        record.is_closed = True
        self._records.discard(record)

    # ---- any thread

    def request(self, record: Record) -> None:
        """This run has something that must be sent at once."""
        self._urgent.append(record)
        self._wake_up()

    def note(self, record: Record) -> None:
        """This run has news that can wait a little."""
        self._dirty.append(record)
        self._wake_up()

    def _wake_up(self) -> None:
        if self._is_woken or self._loop is None:
            return
        self._is_woken = True
        try:
            self._loop.call_soon_threadsafe(self._wake.set)
        except RuntimeError:  # the thread ended; `stop` tells those who wait
            pass

    # ---- the thread

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except Exception:
            self.log.exception("the heartbeat thread ended")
        finally:
            self._has_started.set()
            self._in_owner(_tell_all, [(self._ended, None)])

    async def _main(self) -> None:
        self._wake = asyncio.Event()
        self._sending = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._next_beat_at = monotonic() + self.interval_seconds
        self._has_started.set()
        tasks = [asyncio.ensure_future(chore()) for chore in self._chores]
        tasks.append(asyncio.ensure_future(self._ping_for_ever()))
        try:
            while not self._is_stopping:
                try:
                    await self._beat_when_due()
                except Exception as error:
                    self.log.exception("a heartbeat could not be made")
                    self._state.failed("heartbeat", error)
                    await asyncio.sleep(pause_seconds(1))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _ping_for_ever(self) -> None:
        """Not tied to the beats: a store that hangs is no reason to think that the worker does."""
        every = min(self.interval_seconds, self._lease_seconds / 12)
        while self._guardian is not None:
            self._guardian.ping()
            await asyncio.sleep(every)

    async def _beat_when_due(self) -> None:
        """Wait until something is due, and send it."""
        try:
            await asyncio.wait_for(self._wake.wait(), max(0.0, self._due_at() - monotonic()))
        except TimeoutError:
            pass
        self._is_woken = False
        self._wake.clear()
        now = monotonic()
        for record in _take(self._dirty):
            self._next_news_at = min(self._next_news_at, now + record.news_seconds)
            self._gathered[record] = None
        if now >= self._due_at():
            await self._send_due()

    def _due_at(self) -> float:
        due = 0.0 if self._urgent else min(self._next_beat_at, self._next_news_at)
        return max(due, self._retry_at)

    async def _send_due(self) -> None:
        """Send what is due; after a failure all is sent again together, a little later."""
        async with self._sending:
            now = monotonic()
            is_round = now >= self._next_beat_at
            records = self._due_records(is_round, now)
            for start in range(0, len(records), BATCH):
                if not await self._send(records[start : start + BATCH]):
                    self._failures += 1
                    self._next_beat_at = self._retry_at = monotonic() + pause_seconds(
                        self._failures, min(BACKOFF_SECONDS, self.interval_seconds)
                    )
                    return
            self._failures = 0
            if is_round:
                self._beaten_at = now
                self._next_beat_at = now + self.interval_seconds

    def _due_records(self, is_round: bool, now: float) -> list[Record]:
        due = dict.fromkeys(_take(self._urgent))
        if is_round or now >= self._next_news_at:
            due.update(self._gathered)
            self._gathered.clear()
            self._next_news_at = float("inf")
        if is_round:
            due.update(dict.fromkeys(list(self._records)))
        return [record for record in due if not record.is_closed]

    async def _send(self, records: Sequence[Record]) -> bool:
        """One call for these runs; False where it failed and must be made again."""
        beats = [record.beat() for record in records]
        known = known_rows(records)
        sent_at = monotonic()
        try:
            answers = await self._verbs.heartbeat(beats, known=known, is_trusted=True)
        except PostroomError as error:
            self._state.failed("heartbeat", error)
            return False
        except Exception as error:
            if len(records) > 1:  # one of them may break the call, and must not cost the others their leases
                middle = len(records) // 2
                return await self._send(records[:middle]) and await self._send(records[middle:])
            self.log.exception("job %s: a heartbeat failed", records[0].job_id)
            if not isinstance(error, TypeError | ValueError | ArithmeticError):
                self._state.failed("heartbeat", error)
                return False
            refused = f"it could not be sent: {type(error).__name__}"
            answers = [Answer(records[0].job_id, records[0].epoch, "invalid", detail=refused)]
        self._state.worked("heartbeat")
        told: list[Settled] = []
        for record, beat, answer in zip(records, beats, answers, strict=True):
            told += record.answered(beat, answer, sent_at)
        if told:
            self._in_owner(_tell_all, told)
        return True

    async def is_fresh(self) -> bool:
        """True where the runs of this worker were beaten for lately; beats for them first where they were not.

        Asked before a sweep, so that a process that was frozen does not rescue its own runs. Only in the thread's loop.
        """
        if self._records and monotonic() - self._beaten_at > 2 * self.interval_seconds:
            self._next_beat_at = self._retry_at = 0.0
            await self._send_due()
            return monotonic() - self._beaten_at <= 2 * self.interval_seconds
        return True

    def _in_owner(self, function: Callable[..., None], *args: Any) -> None:
        try:
            if self._owner is not None:
                self._owner.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the worker's loop is closed: nobody waits any more
            pass


def known_rows(records: Iterable[Record]) -> dict[str, Job]:
    """The rows of these runs as seen last; of two runs of one job (the earlier lost its lease) the newer row."""
    rows: dict[str, Job] = {}
    for record in records:
        other = rows.get(record.job_id)
        if other is None or other.version < record.job.version:
            rows[record.job_id] = record.job
    return rows


def _take(queue: deque[Any], limit: int | None = None) -> tuple[Any, ...]:
    """Take what has gathered, the oldest first; others may add at the same time."""
    count = len(queue) if limit is None else min(limit, len(queue))
    return tuple([queue.popleft() for _ in range(count)]) if count else ()


def _sum(amounts: Iterable[Mapping[str, float]]) -> Mapping[str, float] | None:
    sums: dict[str, float] = {}
    for each in amounts:
        for name, amount in each.items():
            sums[name] = sums.get(name, 0) + amount
    return sums or None


def _refusal(answer: Answer, key: str) -> Exception:
    detail = answer.detail or f"the checkpoint {key!r} was refused"
    return CheckpointConflict(detail, key=key) if answer.status == "conflict" else OutcomeInvalid(detail)


def _tell_all(told: Iterable[Settled]) -> None:
    for future, error in told:
        if future.done():
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
