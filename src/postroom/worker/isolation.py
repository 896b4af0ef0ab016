"""Running a handler in a child process that can be killed, with all that it starts.

The child (`postroom.worker.child`) has a session and a process group of its own and runs the same attempt that the
worker would. Its recorder speaks to the worker's through a pair of sockets, so the worker stays the only one who writes
to the store: a checkpoint is acknowledged to the child once the store has it. A child that blocks, dies or eats all
memory harms no other run.

Ending one is a matter of steps: the reason is told, and a handler that looks at ``run.cancelled`` (or is async) ends by
itself; then SIGTERM to the group; then SIGKILL. `run_in_child` returns only when nobody of the group is left, so that
"cancelled" means that nothing goes on.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Coroutine
from typing import Any

from postroom.handlers import Handler
from postroom.model import Lease, Outcome, OutcomeKind
from postroom.settings import Settings
from postroom.worker import child
from postroom.worker.attempt import halted_outcome
from postroom.worker.channel import (
    Channel,
    Message,
    checkpoint_from_json,
    error_to_json,
    lease_to_json,
    outcome_from_json,
)
from postroom.worker.guard import MARK, group_is_gone, kill_marked, signal_group
from postroom.worker.guardian import Guardian, import_path, plain_settings
from postroom.worker.recorder import Halt, Recorder
from postroom.worker.reference import HandlerReference

log = logging.getLogger("postroom.worker")

HALT_GRACE_SECONDS = 2.0
"""Between telling a run why it must end and SIGTERM."""
TERM_GRACE_SECONDS = 1.0
"""Between SIGTERM and SIGKILL."""
HASTY_GRACE_SECONDS = 0.2
"""The same where the lease is lost or the worker ends at once."""
EXIT_GRACE_SECONDS = 1.0
"""For a child that is done and has only to end."""
NOT_STARTED_HOLD_SECONDS = 30.0
"""How long a job waits whose child could not be started or could not find the handler."""


class HandlerNotLoaded(Exception):
    """The child could not find the handler: importing its module failed there, or it is not in it any more.

    Attributes:
        trace: the child's traceback.
    """

    def __init__(self, why: str, trace: str) -> None:
        super().__init__(why)
        self.trace = trace


_numbers = itertools.count(1)
_token = secrets.token_hex(8)


async def run_in_child(
    lease: Lease,
    handler: Handler,
    recorder: Recorder,
    *,
    settings: Settings,
    reference: HandlerReference,
    guardian: Guardian | None = None,
    deadline: float | None = None,
) -> Outcome:
    """Run the handler of a lease in a child of its own; when this returns or raises, the child's group is gone.

    Call it in a thread that lives as long as the worker: the kernel kills a child when the thread that started it ends.

    Args:
        lease: the job, its payload, and what earlier runs kept.
        handler: of the job's kind.
        recorder: the run's record in this process.
        settings: the worker's.
        reference: where the child finds the handler.
        guardian: watches over the group in case this process is killed.
        deadline: what `Run.deadline` says.
    Returns:
        What the attempt in the child came to; ``crashed`` with ``signal N`` or ``process gone`` where it died; for a
        run that had to be killed, what its halt reason means; a hold where the child could not start.
    Raises:
        HandlerNotLoaded: the child could not find the handler.
        CancelledError: this task was cancelled; the child was killed first.
    """
    run = _ChildRun(lease, handler, recorder, guardian)
    try:
        run.start(_task(lease, settings, reference, deadline))
    except OSError as error:
        log.warning("job %s: its child could not be started: %s", lease.job.job_id, error)
        return _hold(lease, f"its process could not be started: {error.strerror}")
    try:
        return await run.outcome()
    except asyncio.CancelledError:
        run.is_hasty = True
        raise
    finally:
        await _see_through(run.end())


def _task(lease: Lease, settings: Settings, reference: HandlerReference, deadline: float | None) -> Message:
    """What the child is told first."""
    return {
        "path": import_path(),
        "argv": sys.argv,
        "settings": plain_settings(settings),
        "reference": reference.to_json(),
        "log_level": log.getEffectiveLevel(),
        "deadline": deadline,
        "lease": lease_to_json(lease),
    }


def _hold(lease: Lease, reason: str) -> Outcome:
    kind, after = OutcomeKind.HELD, NOT_STARTED_HOLD_SECONDS
    return Outcome(lease.job.job_id, lease.job.epoch, kind, after_seconds=after, reason=reason)


async def _see_through(work: Coroutine[Any, Any, None]) -> None:
    """Await something to its end even if this task is cancelled meanwhile; the cancellation is passed on after."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled


class _ChildRun:
    """One child, from its start until nobody of its group is left."""

    def __init__(self, lease: Lease, handler: Handler, recorder: Recorder, guardian: Guardian | None) -> None:
        self.is_hasty = False
        self._lease = lease
        self._handler = handler
        self._recorder = recorder
        self._guardian = guardian
        self._loop = asyncio.get_running_loop()
        self._outcome: asyncio.Future[Outcome] = self._loop.create_future()
        self._given_up: asyncio.Future[Halt] = self._loop.create_future()
        self._requests: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._mark = f"{guardian.token if guardian is not None else _token}.{next(_numbers)}."

    def start(self, task: Message) -> None:
        """Start the process and send it its task.

        Raises:
            OSError: the system has no room for it.
        """
        ours, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                [sys.executable, child.__file__, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env={**os.environ, MARK: self._mark},
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        try:
            self._death = _Death(self._process, self._loop)
        except OSError:
            self._process.kill()
            self._process.wait()
            ours.close()
            raise
        if self._guardian is not None:
            self._guardian.watch_group(self._process.pid)
        self._channel = Channel(ours, self._hear, lambda: None)
        self._channel.start()
        self._channel.send(task)

    # ---- while it runs

    async def outcome(self) -> Outcome:
        """How the run ended: the child said so, or it died, or it did not end when told to."""
        self._recorder.halt.subscribe(self._on_halt)
        try:
            waits: set[asyncio.Future[Any]] = {self._outcome, self._death.future, self._given_up}
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            self._channel.pump()  # what it said last may still lie in the socket
            if self._given_up.done() and not self._outcome.done():
                return halted_outcome(self._lease, self._given_up.result(), (), self._handler)
            if self._requests:
                # Bounded, since the store may be away: the record keeps what it could not send.
                await asyncio.wait(self._requests, timeout=EXIT_GRACE_SECONDS)
            if self._outcome.done():
                return self._outcome.result()
            return self._crashed(self._death.future.result())
        finally:
            self._recorder.halt.unsubscribe(self._on_halt)

    def _crashed(self, status: int) -> Outcome:
        job = self._lease.job
        reason = f"signal {-status}" if status < 0 else "process gone"
        log.warning(
            "job %s: its child ended by %s", job.job_id, reason if status < 0 else f"exit code {status}"
        )
        return Outcome(job.job_id, job.epoch, OutcomeKind.CRASHED, reason=reason)

    def _on_halt(self, reason: Halt) -> None:
        """Pass the reason on; the child has a grace to end by itself."""
        self._channel.send({"do": "halt", "reason": reason})
        if self._timer is not None:
            self._timer.cancel()
        self.is_hasty = reason is Halt.LOST
        grace = HASTY_GRACE_SECONDS if self.is_hasty else HALT_GRACE_SECONDS
        self._timer = self._loop.call_later(grace, self._give_up, reason)

    def _give_up(self, reason: Halt) -> None:
        if not self._given_up.done():
            self._given_up.set_result(reason)

    def _hear(self, message: Message) -> None:
        match message["do"]:
            case "progress":
                self._recorder.progress(message["done"], message["total"])
            case "emit":
                self._recorder.emit(message["data"])
            case "usage":
                self._recorder.usage(message["amounts"])
            case "outcome":
                self._set_outcome(outcome_from_json(message["outcome"]))
            case "not_loaded":
                if not self._outcome.done():
                    self._outcome.set_exception(HandlerNotLoaded(message["why"], message["trace"]))
            case _:
                request = self._loop.create_task(self._answer(message))
                self._requests.add(request)
                request.add_done_callback(self._requests.discard)

    def _set_outcome(self, outcome: Outcome) -> None:
        if not self._outcome.done():
            self._outcome.set_result(outcome)

    async def _answer(self, message: Message) -> None:
        """Let the record do what the child asked for, and tell it when that is done."""
        answer: Message = {"do": "answer", "number": message["number"]}
        try:
            if message["do"] == "checkpoint":
                await self._recorder.checkpoint(checkpoint_from_json(message["checkpoint"]))
            else:
                await self._recorder.clear_to_start()
        except Exception as error:  # noqa: BLE001  it is raised again on the other side
            answer["error"] = error_to_json(error)
        self._channel.send(answer)

    # ---- the end

    async def end(self) -> None:
        """Make sure that nobody of the child's group is left, by force where a grace was not enough."""
        if self._timer is not None:
            self._timer.cancel()
        was_killed = not await self._ends_by_itself()
        signal_group(
            self._process.pid, signal.SIGKILL
        )  # its number is nobody else's: the child is not reaped yet
        status = await self._death.future
        self._process.wait()
        await _gone(self._process.pid)
        if was_killed or status != 0:
            kill_marked(self._mark)  # those that left the group
        if self._guardian is not None:
            self._guardian.forget_group(self._process.pid)
        for request in list(self._requests):
            request.cancel()
        self._channel.close()

    async def _ends_by_itself(self) -> bool:
        if self._outcome.done() and await self._death.within(EXIT_GRACE_SECONDS):
            return True
        if self._death.future.done():
            return True
        signal_group(self._process.pid, signal.SIGTERM)
        grace = HASTY_GRACE_SECONDS if self.is_hasty else TERM_GRACE_SECONDS
        await self._death.within(grace)
        return False


class _Death:
    """Tells when a process died, without reaping it: until then its number is nobody else's.

    Where the system has no descriptors for processes, it is asked again and again, and reaped.

    Attributes:
        future: the exit status as `subprocess` has it, below 0 for signals.
    """

    def __init__(self, process: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[int] = loop.create_future()
        self._process = process
        self._loop = loop
        if sys.platform == "linux":
            self._descriptor = os.pidfd_open(process.pid)
            loop.add_reader(self._descriptor, self._died)
        else:
            self._poll()

    def _died(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self.future.set_result(self._status())

    def _status(self) -> int:
        try:
            told = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:  # somebody reaped it: this process ignores SIGCHLD, or waits for any child
            return 255
        assert told is not None
        return told.si_status if told.si_code == os.CLD_EXITED else -told.si_status

    def _poll(self) -> None:
        status = self._process.poll()
        if status is None:
            self._loop.call_later(0.02, self._poll)
        else:
            self.future.set_result(status)

    async def within(self, seconds: float) -> bool:
        """Wait so long at most; True if it is dead then."""
        await asyncio.wait({self.future}, timeout=seconds)
        return self.future.done()


async def _gone(group: int) -> None:
    """Wait until nobody is left in a group that was killed; the kernel takes its time with a process that does I/O."""
    waits = 0
    while not group_is_gone(group):
        waits += 1
        if waits % 500 == 0:
            log.warning("process group %s was killed and still has members", group)
        await asyncio.sleep(min(0.001 * waits, 0.02))
