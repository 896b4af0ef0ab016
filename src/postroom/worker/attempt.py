"""One handler, once: prepare, run, name the outcome.

A run can end in many ways, and what each is worth is decided elsewhere (`postroom.lifecycle`); here it only gets its
name. A job of items calls the handler per item, keeps each result before the slot goes on, and lets one item's error
harm no other; a job with content, and a whole handler, is one call.

The same code runs in the worker's process and in an isolated child; it writes and is told through a
`postroom.worker.recorder.Recorder`.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import Counter, deque
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from postroom.errors import CheckpointConflict, LeaseLost, OutcomeInvalid, PermanentError, RetryLater
from postroom.handlers import Handler
from postroom.jsontext import JsonRefused, encode
from postroom.model import Checkpoint, CheckpointKind, ErrorInfo, JsonText, Lease, Outcome, OutcomeKind
from postroom.settings import Settings
from postroom.wire import MAX_HOLD_SECONDS, MAX_REASON_CHARS
from postroom.worker import threads
from postroom.worker.context import Assignment, Run
from postroom.worker.raised import NoException, leaves, out_of_group, was_raised_by_code
from postroom.worker.recorder import Halt, HaltSignal, Recorder, RunCancelled
from postroom.worker.threads import Threads

CANCEL_GRACE_SECONDS = 1.0
"""Between telling an async handler that its job is cancelled (``run.cancelled``) and cancelling its task."""

MAX_TRACEBACK_BYTES = 4096
MAX_MESSAGE_CHARS = 2000

_HERE = (__file__, threads.__file__)


async def run_attempt(
    lease: Lease,
    handler: Handler,
    recorder: Recorder,
    *,
    settings: Settings,
    log: logging.Logger,
    threads: Threads | None = None,
    deadline: float | None = None,
) -> Outcome:
    """Run the handler of a lease to its end, and name how it ended. Raises nothing that a handler can cause.

    Args:
        lease: the job, its payload, and what earlier runs kept.
        handler: of the job's kind.
        recorder: where checkpoints and news go, and where a reason to end comes from.
        settings: the limits of what is kept.
        log: gets one line where something is odd; ids only.
        threads: where plain functions run; own ones for this run unless given.
        deadline: what `Run.deadline` says.
    """
    own = Threads() if threads is None else None
    try:
        assignment = Assignment(
            lease,
            recorder,
            settings,
            threads or own or Threads(),
            is_async=handler.is_async,
            deadline=deadline,
        )
        return await _Attempt(assignment, handler, log).run()
    finally:
        if own is not None:
            own.close()


class _Attempt:
    """One run on its way to an outcome."""

    def __init__(self, assignment: Assignment, handler: Handler, log: logging.Logger) -> None:
        self._assignment = assignment
        self._job = assignment.job
        self._handler = handler
        self._is_async = assignment.is_async
        self._recorder = assignment.recorder
        self._halt: HaltSignal = assignment.recorder.halt
        self.log = log
        self._calls: set[asyncio.Task[Any]] = set()

    async def run(self) -> Outcome:
        if self._is_async:
            self._halt.subscribe(self._on_halt)
        try:
            await self._recorder.clear_to_start()
            if self._handler.is_whole:
                return await self._run_whole()
            if self._job.has_items:
                return await _Items(self._assignment, self).run()
            value = await self.call(self._content(), Run(self._assignment, "0"))
            return self._succeeded(self._assignment.encode(value, "the result"))
        except LeaseLost:
            return self.halted(Halt.LOST)
        except RunCancelled as ended:
            return self.halted(self._halt.reason or ended.reason)
        except RetryLater as hold:
            return self.held(hold.after_seconds, hold.reason)
        except Exception as error:  # noqa: BLE001 - around a handler: whatever it raised is its outcome
            return self.failed(error_info(error))
        finally:
            if self._is_async:
                self._halt.unsubscribe(self._on_halt)

    def _content(self) -> Any:
        try:
            return self._assignment.body
        except ValueError as error:
            raise PermanentError(f"the content cannot be read: {error}", code="undecodable") from None

    async def _run_whole(self) -> Outcome:
        self._content()
        value = await self.call(Run(self._assignment))
        if not self._job.has_items:
            return self._succeeded(self._assignment.encode(value, "the result"))
        keys = self._assignment.keys
        if not isinstance(value, list | tuple) or len(value) != len(keys):
            found = f"{len(value)}" if isinstance(value, list | tuple) else type(value).__name__
            raise PermanentError(
                f"a whole handler over {len(keys)} items returns a list of as many results, in order; found {found}"
            )
        ended = ended_items(self._assignment.lease)
        checkpoints = tuple(
            Checkpoint(
                CheckpointKind.ITEM, key, value=self._assignment.encode(result, f"the result of item {key!r}")
            )
            for key, result in zip(keys, value, strict=True)
            if key not in ended
        )
        return self._outcome(OutcomeKind.SUCCEEDED, checkpoints=checkpoints)

    async def call(self, *args: Any) -> Any:
        """Call the handler, where it belongs.

        Raises:
            RunCancelled: it was made to end.
            Exception: what the handler raised.
        """
        if not self._is_async:
            return await self._call_in_thread(args)
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        try:
            return await self._handler.function(*args)
        except asyncio.CancelledError:
            if self._halt.reason is None:
                if task.cancelling():
                    raise
                raise RuntimeError("the handler let a CancelledError pass that nobody sent to it") from None
            while task.cancelling():
                task.uncancel()
            raise RunCancelled(self._halt.reason) from None
        except SystemExit as error:
            raise RuntimeError(f"the handler called sys.exit({error.code!r})") from None
        except BaseExceptionGroup as group:
            raise out_of_group(group) from None
        except Exception:
            raise
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | GeneratorExit) and not was_raised_by_code(error):
                raise
            raise NoException(error) from None
        finally:
            self._calls.discard(task)

    async def _call_in_thread(self, args: tuple[Any, ...]) -> Any:
        try:
            return await self._assignment.threads.run(self._handler.function, *args)
        except SystemExit as error:
            raise RuntimeError(f"the handler called sys.exit({error.code!r})") from None
        except BaseExceptionGroup as group:
            raise out_of_group(group) from None
        except (Exception, asyncio.CancelledError):
            raise
        except BaseException as error:  # noqa: BLE001 - around a handler: see `NoException`
            raise NoException(error) from None

    # ---- being told to end

    def _on_halt(self, reason: Halt) -> None:
        if reason is Halt.CANCELLED:
            self._assignment.loop.call_later(CANCEL_GRACE_SECONDS, self._cancel_calls)
        else:
            self._cancel_calls()

    def _cancel_calls(self) -> None:
        """Cancel the tasks that are inside the handler now; a task between two calls looks at the signal itself."""
        for task in self._calls:
            task.cancel()

    # ---- naming the outcome

    def _outcome(self, kind: OutcomeKind, **fields: Any) -> Outcome:
        return Outcome(self._job.job_id, self._job.epoch, kind, **fields)

    def _succeeded(self, result: JsonText) -> Outcome:
        return Outcome(self._job.job_id, self._job.epoch, OutcomeKind.SUCCEEDED, result)

    def failed(self, error: ErrorInfo, checkpoints: Sequence[Checkpoint] = ()) -> Outcome:
        return self._outcome(OutcomeKind.FAILED, error=error, checkpoints=tuple(checkpoints))

    def held(self, after_seconds: float, reason: str, checkpoints: Sequence[Checkpoint] = ()) -> Outcome:
        seconds = min(after_seconds, MAX_HOLD_SECONDS) if 0 <= after_seconds < float("inf") else None
        return self._outcome(
            OutcomeKind.HELD,
            after_seconds=seconds,
            reason=_clean(reason, MAX_REASON_CHARS),
            checkpoints=tuple(checkpoints),
        )

    def halted(self, reason: Halt, checkpoints: Sequence[Checkpoint] = ()) -> Outcome:
        return halted_outcome(self._assignment.lease, reason, checkpoints, self._handler)


class _Items:
    """The items of one job: each pending one is run, kept, and harms no other."""

    def __init__(self, assignment: Assignment, attempt: _Attempt) -> None:
        self._assignment = assignment
        self._attempt = attempt
        self._recorder = assignment.recorder
        self._errors: dict[str, ErrorInfo] = {}
        self._hold: RetryLater | None = None
        self._halt: Halt | None = None

    async def run(self) -> Outcome:
        pending = self._pending()
        slots = min(self._attempt._handler.item_concurrency, len(pending))
        if slots <= 1:
            await self._work(pending)
        else:
            async with asyncio.TaskGroup() as group:
                for _ in range(slots):
                    group.create_task(self._work(pending))
        return self._name()

    def _pending(self) -> deque[tuple[str, Any]]:
        """Keys and inputs of the items that have not ended, in order."""
        inputs = self._attempt._content()
        ended = ended_items(self._assignment.lease)
        keys = self._assignment.keys
        return deque((key, item) for key, item in zip(keys, inputs, strict=True) if key not in ended)

    async def _work(self, pending: deque[tuple[str, Any]]) -> None:
        """One slot: an item after the other, until none is left or something says stop."""
        while pending and self._hold is None and self._halt is None:
            key, item = pending.popleft()
            try:
                await self._recorder.clear_to_start()
                await self._run_one(key, item)
            except RunCancelled as ended:
                self._stop(ended.reason)
            except LeaseLost:
                self._stop(Halt.LOST)

    def _stop(self, reason: Halt) -> None:
        if self._halt is not Halt.LOST:
            self._halt = reason

    async def _run_one(self, key: str, item: Any) -> None:
        run = Run(self._assignment, key)
        try:
            value = await self._attempt.call(item, run)
            text = self._assignment.encode(value, f"the result of item {key!r}")
        except RetryLater as hold:
            if self._hold is None or hold.after_seconds > self._hold.after_seconds:
                self._hold = hold
        except (RunCancelled, LeaseLost):
            raise
        except Exception as error:  # noqa: BLE001 - around a handler: whatever it raised is the item's error
            await self._keep_error(key, error_info(error), run)
        else:
            await self._keep(Checkpoint(CheckpointKind.ITEM, key, value=text, usage=run.usage_text()))

    async def _keep_error(self, key: str, error: ErrorInfo, run: Run) -> None:
        if error.is_permanent:
            text = self._error_text(error)
            await self._keep(Checkpoint(CheckpointKind.ITEM, key, error=text, usage=run.usage_text()))
        else:
            self._errors[key] = error

    async def _keep(self, checkpoint: Checkpoint) -> None:
        try:
            await self._recorder.checkpoint(checkpoint)
        except CheckpointConflict:  # the item has ended already, by a value that stands
            self._attempt.log.warning(
                "job %s: %r was kept before, by another", self._assignment.job.job_id, checkpoint.key
            )
        except OutcomeInvalid as refused:
            self._errors[checkpoint.key] = error_info(refused)

    def _name(self) -> Outcome:
        errors = self._error_checkpoints()
        halt = self._assignment.recorder.halt.reason or self._halt
        if self._halt is not None and halt is not None:
            return self._attempt.halted(halt, errors)
        if self._hold is not None:
            return self._attempt.held(self._hold.after_seconds, self._hold.reason, errors)
        if errors:
            total = self._assignment.job.total
            message = f"{len(errors)} of {total} items failed and can be tried again"
            codes = sorted({error.code for error in self._errors.values()})[:20]
            return self._attempt.failed(ErrorInfo("items_failed", message, {"codes": codes}), errors)
        return self._attempt._outcome(OutcomeKind.SUCCEEDED)

    def _error_checkpoints(self) -> list[Checkpoint]:
        return [
            Checkpoint(CheckpointKind.ITEM, key, error=self._error_text(error), is_final=False)
            for key, error in self._errors.items()
        ]

    def _error_text(self, error: ErrorInfo) -> JsonText:
        job = self._assignment.job
        shown = {"code": error.code, "message": error.message, "detail": error.detail}
        return encode({**shown, "epoch": job.epoch, "attempt": job.attempts})


def ended_items(lease: Lease) -> frozenset[str]:
    """The keys of the items that need not run: they have a result, or failed for good in this life."""
    return frozenset(c.key for c in lease.checkpoints if c.kind is CheckpointKind.ITEM and c.is_final)


def halted_outcome(
    lease: Lease, reason: Halt, checkpoints: Sequence[Checkpoint] = (), handler: Handler | None = None
) -> Outcome:
    """The outcome of a run that was made to end. For a lost lease it is never sent."""
    job_id, epoch, kept = lease.job.job_id, lease.job.epoch, tuple(checkpoints)
    match reason:
        case Halt.CANCELLED:
            return Outcome(job_id, epoch, OutcomeKind.CANCELLED, checkpoints=kept)
        case Halt.RELEASED | Halt.LOST:
            why = "worker drains" if reason is Halt.RELEASED else "lease lost"
            return Outcome(job_id, epoch, OutcomeKind.RELEASED, checkpoints=kept, reason=why)
        case Halt.TIMEOUT | Halt.STALLED:
            error = limit_error(lease, reason, handler)
            return Outcome(job_id, epoch, OutcomeKind.FAILED, checkpoints=kept, error=error)


def limit_error(lease: Lease, reason: Halt, handler: Handler | None = None) -> ErrorInfo:
    """The error of a run that was past one of its time limits."""
    name = "timeout_seconds" if reason is Halt.TIMEOUT else "stall_timeout_seconds"
    seconds = getattr(lease.job, name)
    if seconds is None and handler is not None:
        seconds = getattr(handler.limits, name)
    shown = name if seconds is None else f"{name} ({seconds:g} s)"
    if reason is Halt.TIMEOUT:
        return ErrorInfo("timeout", f"the run took longer than {shown}")
    return ErrorInfo("stalled", f"the run made no progress for {shown}")


def error_info(error: BaseException) -> ErrorInfo:
    """An exception as it is reported: its class's name, its message, and the last frames of its traceback."""
    if isinstance(error, PermanentError):
        return ErrorInfo(
            _clean(error.code, 100) or "permanent", _clean(error.message), _json(error.detail), True
        )
    if isinstance(error, NoException):
        error = error.raised
    if isinstance(error, BaseExceptionGroup):
        return _group_info(error)
    detail = {"traceback": short_traceback(error.__traceback__)}
    return ErrorInfo(_clean(type(error).__name__, 100), _clean(str(error)), detail)


def _group_info(group: BaseExceptionGroup[BaseException]) -> ErrorInfo:
    """A group, by the name of what is in it where that is of one kind; the message tells each, the same ones once."""
    errors = leaves(group)
    names = sorted({type(error).__name__ for error in errors})
    is_one_kind = len(names) == 1
    told = Counter(str(e) if is_one_kind else f"{type(e).__name__}: {e}" for e in errors)
    message = "; ".join(text if n == 1 else f"{text} ({n} times)" for text, n in told.items())
    detail = {"traceback": short_traceback(errors[0].__traceback__ or group.__traceback__)}
    return ErrorInfo(_clean(names[0] if is_one_kind else type(group).__name__, 100), _clean(message), detail)


def short_traceback(trace: TracebackType | None) -> str:
    """The last frames in at most `MAX_TRACEBACK_BYTES`: places and lines of code, never values."""
    frames = [frame for frame in traceback.extract_tb(trace) if not frame.filename.startswith(_HERE)]
    text = ""
    for frame in reversed(frames):
        shown = "".join(traceback.format_list([frame]))
        if len((shown + text).encode("utf-8", "replace")) > MAX_TRACEBACK_BYTES:
            break
        text = shown + text
    return _clean(text, MAX_TRACEBACK_BYTES)


def _json(detail: Any) -> Any:
    """The detail where it is a JSON value, else its text."""
    if detail is None:
        return None
    try:
        encode(detail)
    except JsonRefused:
        return _clean(str(detail))
    return detail


def _clean(text: str, limit: int = MAX_MESSAGE_CHARS) -> str:
    """Text that every store can keep, cut at a length."""
    text = str(text)[:limit].replace("\x00", "\ufffd")
    return text.encode("utf-8", "replace").decode()
