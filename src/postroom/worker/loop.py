"""A worker: it claims jobs into free slots, runs them, settles how they ended, and drains when it is told to.

The loop only dispatches. What a run does is `attempt`, how its news travel is `heartbeat`, how its end is recorded is
`settling`, what is done on a timer is `caretaker`. Claiming and settling go on side by side: while the outcomes of one
batch are on their way to the disk, the next batch is claimed.

A slot is taken from the claim until the handler really ended, also where its run was given up before that: a thread
cannot be killed, and two handlers must not share what one slot was made for.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

from postroom import __version__
from postroom.errors import HandlerInvalid, PostroomError
from postroom.handlers import Handler, Registry
from postroom.inbox import Inbox
from postroom.model import ErrorInfo, Lease, Outcome, OutcomeKind, WorkerInfo
from postroom.stores.port import WORK, Claimed, ClaimRequest, Watch
from postroom.verbs import Verbs
from postroom.worker.attempt import error_info, halted_outcome, run_attempt
from postroom.worker.caretaker import Caretaker
from postroom.worker.guardian import Guardian
from postroom.worker.heartbeat import Heartbeat, Record, StoreState, pause_seconds
from postroom.worker.recorder import Halt
from postroom.worker.reference import HandlerReference, for_handler
from postroom.worker.settling import Settler
from postroom.worker.threads import Threads

log = logging.getLogger("postroom.worker")

ATTEND_SECONDS = 10.0
"""How often a worker says that it lives."""

ABORT_GRACE_SECONDS = 5.0
"""How long a handler that was cancelled may take to end before its run is given up."""

HASTE_SECONDS = 0.3
"""The same for a worker that must end now; twice that is what settling may take then."""

SETTLE_SECONDS = 10.0
"""How long a worker that ends tries to hand over its last outcomes."""

REMOTE_WAIT_SECONDS = 2.0
"""How long a claim waits at a service for the first job; a worker that drains waits for it to come back."""

ALONE_HOLD_SECONDS = 1.0
"""How long a job waits that is to run alone after all, since no child could load its handler."""

ALONE_WAIT_SECONDS = 60.0
"""How long a job that crashed its worker waits for the others to end, where it cannot run in a child."""


def new_identity() -> str:
    """A name that no other worker has, and this one never again: host, process and eight random digits."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


@asynccontextmanager
async def running_worker(
    inbox: Inbox, registry: Registry, *, queues: Sequence[str] = ("default",), concurrency: int | None = None
) -> AsyncIterator[Worker]:
    """A worker that runs while the block does, and drains at its end."""
    worker = Worker(inbox, registry, queues=queues, concurrency=concurrency)
    await worker.start()
    try:
        yield worker
    finally:
        await worker.drain()


class Worker:
    """One worker, from `start` to `drain`; all methods belong to one event loop.

    Args:
        inbox: whose jobs it works on.
        registry: the handlers, and so the kinds that it takes.
        queues: where it looks for work.
        concurrency: jobs at once; POSTROOM_CONCURRENCY unless given.

    Attributes:
        identity: new at every start.
    """

    def __init__(
        self,
        inbox: Inbox,
        registry: Registry,
        *,
        queues: Sequence[str] = ("default",),
        concurrency: int | None = None,
    ) -> None:
        self.inbox = inbox
        self.settings = inbox.settings
        self.registry = registry
        self.queues = tuple(queues)
        self.concurrency = concurrency or inbox.settings.concurrency
        self.identity = new_identity()
        self._running: dict[Record, asyncio.Task[None]] = {}
        self._in_child: set[Record] = set()
        self._alone: set[Record] = set()
        self._references: dict[str, HandlerReference | None] = {}
        self._unloadable: set[str] = set()
        self._handing_over: set[asyncio.Task[None]] = set()
        self._is_draining = False
        self._nap: asyncio.Timeout | None = None
        self._ending: asyncio.Task[None] | None = None
        self._next_limit_at = float("inf")
        self._limit_timer: asyncio.TimerHandle | None = None

    @property
    def lingering(self) -> int:
        """Runs that were given up and whose handlers go on. A process that ends with one of them must not wait for it:
        ``asyncio.run`` would, for an async handler that ignores its cancellation."""
        return sum(record.is_given_up for record in self._running)

    # ---- starting and ending

    async def start(self) -> None:
        """Introduce itself and begin to claim.

        Raises:
            HandlerInvalid: a handler with isolation='process' cannot be found again by a child.
            StoreError: the store cannot be opened.
        """
        self._loop = asyncio.get_running_loop()
        self._check_handlers()
        self._verbs: Verbs = await self.inbox.verbs()
        self._freed = asyncio.Event()
        self._hurry = asyncio.Event()
        self._ended = asyncio.Event()
        self._threads = Threads()
        self._state = StoreState(log, self.identity)
        self._info = self._introduction()
        await self._verbs.attend(self._info)
        self._guardian = Guardian(self._verbs.url, self.settings)
        if not self._verbs.url.startswith("memory:") or any(
            h.isolation == "process" for h in self._handlers()
        ):
            self._guardian.start()
        self._settler = Settler(
            self._verbs, state=self._state, log=log, on_settled=self._let_go, on_progress=self._freed.set
        )
        self._settler.start()
        self._beats = self._heartbeat()
        self._beats.start(f"postroom-heartbeat-{self.identity}")
        self._claiming = self._loop.create_task(self._claim_for_ever())
        log.info(
            "worker %s started: %d slots, kinds %s",
            self.identity,
            self.concurrency,
            ", ".join(self._info.kinds),
        )

    def _handlers(self) -> list[Handler]:
        handlers = (self.registry.get(kind) for kind in self.registry.kinds())
        return [handler for handler in handlers if handler is not None]

    def _check_handlers(self) -> None:
        for handler in self._handlers():
            if handler.isolation == "process" and self._reference(handler) is None:
                raise HandlerInvalid(
                    f"the handler of kind {handler.kind!r} has isolation='process', and a child could not find it: "
                    "define it (or its inbox) at the top of a module"
                )

    def _reference(self, handler: Handler) -> HandlerReference | None:
        """Where a child finds the handler, None where it cannot."""
        if handler.kind not in self._references:
            self._references[handler.kind] = for_handler(handler, self.settings.app)
        return self._references[handler.kind]

    def _introduction(self) -> WorkerInfo:
        now = self._verbs.now()
        return WorkerInfo(
            self.identity,
            self.registry.kinds(),
            self.queues,
            self.concurrency,
            socket.gethostname(),
            os.getpid(),
            now,
            now,
            not self._verbs.is_remote,
            __version__,
        )

    def _heartbeat(self) -> Heartbeat:
        caretaker = Caretaker(
            self._verbs, self.settings, is_fresh=lambda: self._beats.is_fresh(), state=self._state, log=log
        )
        return Heartbeat(
            self._verbs,
            self.settings,
            guardian=self._guardian,
            state=self._state,
            log=log,
            chores=(caretaker.run, self._attend_for_ever),
        )

    async def _attend_for_ever(self) -> None:
        """Say that this worker lives; in the heartbeat's loop, which no handler blocks."""
        while True:
            await asyncio.sleep(ATTEND_SECONDS)
            try:
                await self._verbs.attend(self._info)
                self._state.worked("attend")
            except Exception as error:  # noqa: BLE001 - around a background loop: it is said, and tried again
                self._state.failed("attend", error)

    async def run_until_stopped(self) -> None:
        """Start, and return once somebody let it drain (or stop) and it has. Cancelled, it stops at once."""
        await self.start()
        try:
            await self._ended.wait()
        except asyncio.CancelledError:
            await self.stop_now()
            raise
        if self._ending is not None:
            await self._ending

    async def drain(self) -> None:
        """Claim no more, let the runs end for ``drain_seconds``, hand the rest back at once, uncharged; then return."""
        self._begin_to_end()
        assert self._ending is not None
        await asyncio.shield(self._ending)

    async def stop_now(self) -> None:
        """As `drain`, and without waiting: hand back within a second what can be, and return."""
        self._begin_to_end()
        self._hurry.set()
        assert self._ending is not None
        await asyncio.shield(self._ending)

    def _begin_to_end(self) -> None:
        if self._ending is None:
            self._is_draining = True
            self._freed.set()
            if self._nap is not None:
                self._nap.reschedule(0.0)
            self._ending = self._loop.create_task(self._end())

    async def _end(self) -> None:
        log.info("worker %s drains: %d runs", self.identity, len(self._running))
        try:
            await self._until_idle(self.settings.drain_seconds)
            if self._tasks():
                await self._hand_back_runs()
            await self._end_claiming()
            is_hasty = self._hurry.is_set()
            unsettled = await self._settler.close(2 * HASTE_SECONDS if is_hasty else SETTLE_SECONDS)
            await self._beats.stop()
            await self._leave(unsettled)
            await self._threads.run(self._guardian.stop)
        finally:
            self._threads.close()
            if self._limit_timer is not None:
                self._limit_timer.cancel()
            self._ended.set()
        log.info("worker %s ended", self.identity)

    async def _until_idle(self, seconds: float) -> None:
        """Wait until no run is left but those given up; so long at most, and not at all in a hurry."""
        deadline = monotonic() + seconds
        hurry = self._loop.create_task(self._hurry.wait())
        try:
            while (runs := self._tasks()) and not self._hurry.is_set() and monotonic() < deadline:
                waits = {*runs, hurry}
                await asyncio.wait(
                    waits, timeout=max(0.0, deadline - monotonic()), return_when=asyncio.FIRST_COMPLETED
                )
        finally:
            hurry.cancel()

    def _tasks(self) -> list[asyncio.Task[None]]:
        """The runs whose end is still awaited."""
        return [task for record, task in self._running.items() if not record.is_given_up]

    async def _hand_back_runs(self) -> None:
        """End the runs that are left; those that do not end are given up, and their jobs handed back all the same."""
        log.info("worker %s hands back %d runs", self.identity, len(self._running))
        for record in list(self._running):
            self._halt(record, Halt.RELEASED)
        await self._until_idle(ABORT_GRACE_SECONDS)
        for record in self._in_child & self._running.keys():
            self._running[record].cancel()
        if runs := self._tasks():
            await asyncio.wait(runs, timeout=HASTE_SECONDS)
        for record in list(self._running):
            self._give_up(record)
        if self._handing_over:
            await asyncio.wait(self._handing_over, timeout=HASTE_SECONDS)

    async def _end_claiming(self) -> None:
        """A claim in the air must land, or its leases would be lost; in a hurry it had its time."""
        if self._hurry.is_set():
            self._claiming.cancel()
        await asyncio.gather(self._claiming, return_exceptions=True)

    async def _leave(self, unsettled: int) -> None:
        if unsettled:
            return
        try:
            await self._verbs.leave(self.identity)
        except PostroomError as error:
            log.warning("worker %s could not say that it ends: %s", self.identity, error)

    # ---- claiming

    async def _claim_for_ever(self) -> None:
        """Claim into free slots until told to drain. Whatever goes wrong, it goes on: a worker that beats and never
        claims looks alive."""
        self._claim_failures = 0
        while not self._is_draining:
            try:
                with self._verbs.watch(WORK) as watch:
                    while not self._is_draining:
                        await self._claim_once(watch)
            except PostroomError as error:
                await self._claim_failed(error)
            except Exception as error:
                log.exception("worker %s: a claim failed", self.identity)
                await self._claim_failed(error)

    async def _claim_failed(self, error: Exception) -> None:
        self._state.failed("claim", error)
        self._claim_failures += 1
        await self._pause(pause_seconds(self._claim_failures))

    async def _claim_once(self, watch: Watch) -> None:
        """Claim once there is a free slot, and start what was claimed; wait where there is no more for now."""
        free = self._free_slots()
        if free <= 0:
            self._freed.clear()
            await self._freed.wait()
            return
        asked_at = monotonic()
        claimed = await self._claim(free)
        self._claim_failures = 0
        self._state.worked("claim")
        self._take_up(claimed, asked_at)
        if len(claimed.leases) < min(free, 1000):
            await self._wait_for_work(claimed, watch, asked_at)

    async def _claim(self, free: int) -> Claimed:
        request = ClaimRequest(
            self.identity, self._info.kinds, self.queues, min(free, 1000), self.settings.lease_seconds
        )
        return await self._verbs.claim(
            request, wait_seconds=REMOTE_WAIT_SECONDS if self._verbs.is_remote else 0.0
        )

    def _free_slots(self) -> int:
        """Slots that no handler holds; fewer where outcomes pile up that the store has not taken yet."""
        if self._alone:
            return 0
        running = len(self._running)
        return min(self.concurrency - running, 2 * self.concurrency - running - self._settler.unsettled)

    async def _wait_for_work(self, claimed: Claimed, watch: Watch, asked_at: float) -> None:
        """Nothing more is due now: wait for a hint, the next due time, or a poll, whichever comes first."""
        poll = self.settings.poll_seconds
        if self._verbs.is_remote:
            if claimed.leases:
                await asyncio.sleep(0)  # lets what was claimed start: making a request holds the loop
            else:
                await self._pause(poll - (monotonic() - asked_at))
            return
        due = claimed.next_due_at
        seconds = poll if due is None else min(poll, max(due - claimed.now, 0.001))
        await self._unless_draining(watch.wait(seconds))

    async def _pause(self, seconds: float) -> None:
        if seconds > 0:
            await self._unless_draining(asyncio.sleep(seconds))

    async def _unless_draining(self, wait: Coroutine[Any, Any, Any]) -> None:
        """Wait for this, or until told to drain."""
        try:
            async with asyncio.timeout(0.0 if self._is_draining else None) as self._nap:
                await wait
        except TimeoutError:
            pass
        finally:
            self._nap = None

    # ---- running

    def _take_up(self, claimed: Claimed, asked_at: float) -> None:
        """Start what was claimed; hand it back where this worker drains by now."""
        if not claimed.leases:
            return
        self._guardian.hold(claimed.leases)
        for lease in claimed.leases:
            handler = self.registry.get(lease.job.kind)
            if handler is None or self._is_draining:
                why = "worker drains" if handler is not None else "no handler for this kind in this worker"
                record = Record(lease, handler or _NOBODY, self._beats, loop=self._loop, at=asked_at)
                self._beats.add(record)
                self._settler.put(record, _released(lease, why))
                continue
            record = Record(lease, handler, self._beats, loop=self._loop, at=asked_at)
            self._beats.add(record)
            self._running[record] = self._loop.create_task(self._work(record))
            self._watch_limits(record)

    async def _work(self, record: Record) -> None:
        """One run, from the claim to the hand-over of its outcome; the slot is free when this returns."""
        try:
            outcome = await self._outcome(record)
            if record.halt.reason is Halt.LOST:
                log.warning("job %s epoch %d: the lease is lost, the run ended", record.job_id, record.epoch)
                self._let_go(record)
            elif record.is_given_up:
                log.warning(
                    "job %s epoch %d: the run that was given up has ended", record.job_id, record.epoch
                )
            else:
                await self._hand_over(record, outcome)
        finally:
            del self._running[record]
            self._freed.set()

    async def _outcome(self, record: Record) -> Outcome:
        """Run the handler where it belongs, and name how it ended."""
        log.debug("job %s epoch %d: started", record.job_id, record.epoch)
        job, handler = record.job, record.handler
        try:
            if handler.isolation == "none" and not job.crashes_in_row and handler.is_async:
                return await self._run_here(record)
            return await self._run_apart(record)
        except asyncio.CancelledError:
            if record.halt.reason is None:
                raise
            return halted_outcome(record.lease, record.halt.reason, (), handler)
        except Exception as error:
            log.exception("job %s epoch %d: the run broke", record.job_id, record.epoch)
            return Outcome(job.job_id, job.epoch, OutcomeKind.FAILED, error=error_info(error))

    async def _run_here(self, record: Record) -> Outcome:
        return await run_attempt(
            record.lease,
            record.handler,
            record,
            settings=self.settings,
            log=log,
            threads=self._threads,
            deadline=None if record.deadline == float("inf") else record.deadline,
        )

    async def _run_apart(self, record: Record) -> Outcome:
        """Run what must not share this process, or what runs in a thread of it."""
        job, handler = record.job, record.handler
        has_limits = job.timeout_seconds is not None or job.stall_timeout_seconds is not None
        needs_child = handler.isolation == "process" or bool(job.crashes_in_row)
        needs_to_be_stopped = has_limits and not handler.can_be_stopped
        if not needs_child and not needs_to_be_stopped:
            return await self._run_here(record)
        may_run_alone = handler.isolation != "process" and not needs_to_be_stopped
        if may_run_alone and handler.kind in self._unloadable:
            return await self._run_alone(record)
        reference = self._reference(handler)
        if reference is not None:
            return await self._run_in_child(record, reference, may_run_alone=may_run_alone)
        if needs_to_be_stopped:
            return Outcome(job.job_id, job.epoch, OutcomeKind.FAILED, error=_unenforceable(handler))
        return await self._run_alone(record)

    async def _run_in_child(
        self, record: Record, reference: HandlerReference, *, may_run_alone: bool
    ) -> Outcome:
        from postroom.worker.isolation import NOT_STARTED_HOLD_SECONDS, HandlerNotLoaded, run_in_child

        self._in_child.add(record)
        try:
            return await run_in_child(
                record.lease,
                record.handler,
                record,
                settings=self.settings,
                reference=reference,
                guardian=self._guardian,
                deadline=None if record.deadline == float("inf") else record.deadline,
            )
        except HandlerNotLoaded as error:
            self._tell_not_loaded(record, error, error.trace)
            seconds = ALONE_HOLD_SECONDS if may_run_alone else NOT_STARTED_HOLD_SECONDS
            reason = f"its process could not load the handler: {error}"
            return Outcome(
                record.job_id, record.epoch, OutcomeKind.HELD, after_seconds=seconds, reason=reason
            )
        finally:
            self._in_child.discard(record)

    def _tell_not_loaded(self, record: Record, why: object, trace: str) -> None:
        """Say it once per kind, with what helps."""
        kind = record.handler.kind
        level = logging.INFO if kind in self._unloadable else logging.ERROR
        self._unloadable.add(kind)
        if level == logging.INFO:
            log.info("job %s epoch %d: no child could load its handler", record.job_id, record.epoch)
            return
        log.error(
            "a child process cannot load the handler of kind %r: %s. It imports the handler's module (or runs the "
            'script again) to find it: let what starts work stand below `if __name__ == "__main__":`, and the '
            "module be there as it was when this worker started. Jobs that crashed a worker run alone in this process "
            "meanwhile; those that only a child may run wait.\n%s",
            kind,
            why,
            trace,
        )

    async def _run_alone(self, record: Record) -> Outcome:
        """Run a job that crashed its worker, once the others have ended: it must not take them with it again."""
        self._alone.add(record)
        try:
            deadline = monotonic() + ALONE_WAIT_SECONDS
            while (others := self._before(record)) and monotonic() < deadline and record.halt.reason is None:
                tasks = {self._running[other] for other in others}
                await asyncio.wait(tasks, timeout=min(1.0, deadline - monotonic()))
            log.info("job %s epoch %d: runs alone, since it crashed before", record.job_id, record.epoch)
            return await self._run_here(record)
        finally:
            self._alone.discard(record)

    def _before(self, record: Record) -> list[Record]:
        """The runs that must end before this one may run alone: all, but of those that also wait only the earlier."""
        runs = list(self._running)
        earlier = set(runs[: runs.index(record)])
        return [
            r
            for r in runs
            if not r.is_given_up and r is not record and (r not in self._alone or r in earlier)
        ]

    def _let_go(self, record: Record) -> None:
        """The run is over for the store: it is not beaten for any more."""
        self._beats.discard(record)
        self._guardian.let_go(record.job_id, record.epoch)

    # ---- ending runs before their time

    def _watch_limits(self, record: Record) -> None:
        """Have the limits looked at when this run's are over at the latest; one timer serves all runs."""
        due = min(record.deadline, record.moved_at + record.stall_seconds)
        if due < self._next_limit_at:
            self._look_at_limits(due)

    def _look_at_limits(self, at: float) -> None:
        if self._limit_timer is not None:
            self._limit_timer.cancel()
        self._next_limit_at = at
        self._limit_timer = None
        if at != float("inf"):
            self._limit_timer = self._loop.call_later(max(0.0, at - monotonic()), self._check_limits)

    def _check_limits(self) -> None:
        now, due = monotonic(), float("inf")
        for record in list(self._running):
            if record.has_ended or record.is_given_up or record.halt.reason in _OVER:
                continue
            stalls_at = record.moved_at + record.stall_seconds
            if now >= record.deadline:
                self._halt(record, Halt.TIMEOUT)
            elif now >= stalls_at:
                self._halt(record, Halt.STALLED)
            else:
                due = min(due, record.deadline, stalls_at)
        self._look_at_limits(due)

    def _halt(self, record: Record, reason: Halt) -> None:
        """Tell a run to end; one that cannot be made to is given up."""
        log.info("job %s epoch %d: made to end (%s)", record.job_id, record.epoch, reason)
        record.halt.set(reason)
        if record in self._in_child:
            return
        if record.handler.is_async:
            self._loop.call_later(ABORT_GRACE_SECONDS, self._give_up, record)
        else:
            self._give_up(record)

    def _give_up(self, record: Record) -> None:
        """Settle a run whose handler goes on: nothing can end it, and nothing more is taken from it."""
        if record not in self._running or record.has_ended or record.is_closed or record.halt.reason is None:
            return
        record.is_given_up = True
        log.warning(
            "job %s epoch %d: given up (%s); its handler cannot be stopped and keeps its slot until it returns",
            record.job_id,
            record.epoch,
            record.halt.reason,
        )
        outcome = halted_outcome(record.lease, record.halt.reason, (), record.handler)
        task = self._loop.create_task(self._hand_over(record, outcome))
        self._handing_over.add(task)
        task.add_done_callback(self._handing_over.discard)

    async def _hand_over(self, record: Record, outcome: Outcome) -> None:
        self._settler.put(record, await record.finish(outcome))


_OVER = (Halt.TIMEOUT, Halt.STALLED, Halt.RELEASED, Halt.LOST)


async def _nobody(run: Any) -> None:
    """Stands in for the handler of a job that is handed back unrun."""


_NOBODY = Handler("", _nobody, is_whole=True)


def _released(lease: Lease, reason: str) -> Outcome:
    return Outcome(lease.job.job_id, lease.job.epoch, OutcomeKind.RELEASED, reason=reason)


def _unenforceable(handler: Handler) -> ErrorInfo:
    return ErrorInfo(
        "limit_unenforceable",
        f"the job sets a time limit, and the handler of kind {handler.kind!r} is a plain function in a thread, which "
        "cannot be stopped; make it async, or define it at the top of a module so that it can run in a child",
        is_permanent=True,
    )
