"""What a handler may touch: its run.

Steps are matched by name and input, never by position: the key of a step's checkpoint is its name and a digest of its
arguments (and, in a handler that is called per item, of the item's key). So a loop may use one name with many inputs,
the order of steps may change between versions of a handler, and a step whose input changed is made anew.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from functools import cached_property
from typing import Any

from postroom.errors import LeaseLost, PermanentError
from postroom.jsontext import JsonRefused, decode, encode
from postroom.model import Checkpoint, CheckpointKind, JsonText, Lease, digest
from postroom.settings import Settings
from postroom.wire import MAX_USAGE_NAMES
from postroom.worker.recorder import Recorder
from postroom.worker.threads import Threads

MAX_STEP_NAME_CHARS = 200
MAX_AMOUNT = 2**53
"""The largest number that a run reports: larger ones are not the same in every store and language."""

_UNREAD = object()
_WITHIN_ITSELF = "step {!r} was called within itself, with the same arguments"


class _Making:
    """A step that a thread makes now; others that ask for the same wait for it."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.future: Future[JsonText] = Future()


class Assignment:
    """What a lease is for, read once and shared by all calls of the handler.

    Args:
        lease: the job, its payload, and what earlier runs kept.
        recorder: where the run's news go.
        settings: the limits of what is kept.
        threads: where plain functions run.
        is_async: whether the handler runs in the event loop.
        deadline: see `Run.deadline`.
    """

    def __init__(
        self,
        lease: Lease,
        recorder: Recorder,
        settings: Settings,
        threads: Threads,
        *,
        is_async: bool,
        deadline: float | None = None,
    ) -> None:
        self.lease = lease
        self.job = lease.job
        self.recorder = recorder
        self.settings = settings
        self.threads = threads
        self.is_async = is_async
        self.deadline = deadline
        self.loop = asyncio.get_running_loop()
        self._body: Any = _UNREAD
        self.flying: dict[str, tuple[asyncio.Task[Any] | None, asyncio.Future[JsonText]]] = {}
        self.making: dict[str, _Making] = {}
        self.lock = threading.Lock()
        self.usage_names: set[str] = set()

    @property
    def body(self) -> Any:
        """The content, or the list of item inputs."""
        if self._body is _UNREAD:
            self._body = decode(self.lease.payload.body)
        return self._body

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The keys of the items, in order; one for content."""
        if not self.job.has_items:
            return ("0",)
        return self.lease.payload.keys or tuple(map(str, range(len(self.body))))

    @cached_property
    def params(self) -> Mapping[str, Any]:
        params: Mapping[str, Any] = decode(self.job.params)
        return params

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        metadata: Mapping[str, Any] = decode(self.job.metadata)
        return metadata

    @cached_property
    def steps(self) -> dict[str, JsonText]:
        """What steps gave, of earlier runs and of this one, by key."""
        kept = (c for c in self.lease.checkpoints if c.kind is CheckpointKind.STEP)
        return {c.key: c.value for c in kept if c.value is not None}

    @cached_property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        return _RunLog(logging.getLogger("postroom.run"), {"job_id": self.job.job_id})

    def encode(self, value: Any, what: str) -> JsonText:
        """A value as it will be kept.

        Raises:
            PermanentError: it is not JSON (``not_serialisable``) or larger than MAX_RESULT_BYTES (``too_large``).
        """
        try:
            text = encode(value)
        except JsonRefused as refused:
            raise PermanentError(f"{what} cannot be kept: {refused}", code="not_serialisable") from None
        limit = self.settings.max_result_bytes
        if len(text) * 4 > limit:
            size = len(text.encode())
            if size > limit:
                message = f"{what} may have {limit} bytes at most, found {size}; the limit is set by MAX_RESULT_BYTES"
                raise PermanentError(message, code="too_large")
        return text


class Run:
    """What a handler is told about its run, and what it can do with it.

    Everything here may be used from the handler's own thread or task, and from those it starts.
    """

    def __init__(self, assignment: Assignment, item_key: str | None = None) -> None:
        self._assignment = assignment
        self._item_key = item_key
        self._usage: dict[str, float] | None = None

    @property
    def job_id(self) -> str:
        return self._assignment.job.job_id

    @property
    def epoch(self) -> int:
        """The number of the lease under which this run writes."""
        return self._assignment.job.epoch

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1; crashes, interruptions and holds do not count."""
        return self._assignment.job.attempts

    @property
    def life(self) -> int:
        """1 plus the number of replays."""
        return self._assignment.job.life

    @property
    def kind(self) -> str:
        return self._assignment.job.kind

    @property
    def topic(self) -> str:
        return self._assignment.job.topic

    @property
    def sender(self) -> str:
        return self._assignment.job.sender

    @property
    def items(self) -> list[Any] | None:
        """The inputs of all items in order; None for a job with content."""
        items: list[Any] | None = self._assignment.body if self._assignment.job.has_items else None
        return items

    @property
    def content(self) -> Any:
        """The content; None for a job of items."""
        return None if self._assignment.job.has_items else self._assignment.body

    @property
    def params(self) -> Mapping[str, Any]:
        """The caller's options for the handler."""
        return self._assignment.params

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The caller's own notes."""
        return self._assignment.metadata

    @property
    def cancelled(self) -> bool:
        """True once the run must end: it was cancelled, its time is over, its worker ends, or the lease is lost.

        An async handler is cancelled soon after; a plain one should look here now and then, and return or raise.
        """
        return self._assignment.recorder.halt.reason is not None

    @property
    def deadline(self) -> float | None:
        """When the run will be ended, on ``time.monotonic()`` and so on the event loop's clock; None: no limit."""
        return self._assignment.deadline

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose lines name the job."""
        return self._assignment.log

    # ---- telling

    def progress(self, done: int, total: int | None = None) -> None:
        """Say how far the run is; returns at once. In a job of items those that ended are counted instead.

        Without a ``total`` above 1 there is one piece, which is done when the run succeeds: it only counts as a sign of
        life.
        """
        self._assignment.recorder.progress(_count(done), None if total is None else _count(total))

    def emit(self, data: Any) -> None:
        """Give out a JSON value to those who follow the job; returns at once.

        Raises:
            PermanentError: it is not a JSON value, or too large.
        """
        self._assignment.recorder.emit(self._assignment.encode(data, "what was emitted"))

    def usage(self, **amounts: float) -> None:
        """Add to what was used (``tokens_in=…``): for the item, and summed for the job.

        Raises:
            ValueError: an amount is no finite number, or above 2**53; or one run has more than 1,000 names.
        """
        plain = {name: _plain(name, amount) for name, amount in amounts.items()}
        names = self._assignment.usage_names
        names.update(plain)
        if len(names) > MAX_USAGE_NAMES:
            raise ValueError(f"the usage of one run has {MAX_USAGE_NAMES} names at most")
        sums = self._usage = dict(self._usage or {})
        for name, amount in plain.items():
            sums[name] = sums.get(name, 0) + amount
        self._assignment.recorder.usage(plain)

    def usage_text(self) -> JsonText | None:
        """What this call used, as it is kept beside an item's result."""
        return json.dumps(self._usage) if self._usage else None

    def effect_key(self, name: str) -> str:
        """A key for an effect outside (a mail, a payment): the same over all runs and lives, another for each item.

        It is ``job:item:name``, in a whole handler ``job:name``, with a colon in an item's key or a name as ``%3A`` and
        a percent sign as ``%25``.
        """
        parts = [name] if self._item_key is None else [self._item_key, name]
        return ":".join([self.job_id, *(part.replace("%", "%25").replace(":", "%3A") for part in parts)])

    # ---- steps

    def step(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        """What the function gives, made once: kept under the step's name and arguments for later runs.

        Awaited in an async handler, plain in others. The value comes back as JSON reads it, the first time as well
        (a tuple as a list). In an async handler a plain function runs in a thread.

        Raises:
            PermanentError: arguments or value are not JSON, or the value is too large.
            RunCancelled: the run must end; the function was not called.
        """
        if self._assignment.is_async:
            return self._step(name, function, args)
        return self._step_in_thread(name, function, args)

    async def _step(self, name: str, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        key, input_digest = self._step_key(name, args)
        assignment = self._assignment
        kept = assignment.steps.get(key)
        if kept is not None:
            return decode(kept)
        task = asyncio.current_task()
        if key in assignment.flying:
            maker, other = assignment.flying[key]
            if maker is task:
                raise RuntimeError(_WITHIN_ITSELF.format(name))
            return decode(await asyncio.shield(other))
        future: asyncio.Future[JsonText] = assignment.loop.create_future()
        assignment.flying[key] = task, future
        try:
            await assignment.recorder.clear_to_start()
            value = await _call(function, args, assignment.threads)
            text = await self._keep(name, key, input_digest, value)
        except BaseException as error:
            _pass_on(future, error)
            raise
        finally:
            del assignment.flying[key]
        future.set_result(text)
        return decode(text)

    def _step_in_thread(self, name: str, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        key, input_digest = self._step_key(name, args)
        making, is_ours = self._take_up(name, key)
        if not is_ours:
            return decode(making.future.result())
        try:
            text = self._make_in_thread(name, key, input_digest, function, args)
        except BaseException as error:
            making.future.set_exception(error)
            raise
        finally:
            with self._assignment.lock:
                del self._assignment.making[key]
        making.future.set_result(text)
        return decode(text)

    def _take_up(self, name: str, key: str) -> tuple[_Making, bool]:
        """The making of a step, by this thread or by the one that came first; a kept one is made already."""
        assignment = self._assignment
        with assignment.lock:
            kept = assignment.steps.get(key)
            if kept is not None:
                made = _Making()
                made.future.set_result(kept)
                return made, False
            other = assignment.making.get(key)
            if other is None:
                assignment.making[key] = ours = _Making()
                return ours, True
        if other.thread == threading.get_ident():
            raise RuntimeError(_WITHIN_ITSELF.format(name))
        return other, False

    def _make_in_thread(
        self, name: str, key: str, input_digest: str, function: Callable[..., Any], args: tuple[Any, ...]
    ) -> JsonText:
        self._in_loop(self._assignment.recorder.clear_to_start())
        value = function(*args)
        if inspect.iscoroutine(value):
            value = asyncio.run(value)
        text: JsonText = self._in_loop(self._keep(name, key, input_digest, value))
        return text

    async def _keep(self, name: str, key: str, input_digest: str, value: Any) -> JsonText:
        text = self._assignment.encode(value, f"the value of step {name!r}")
        checkpoint = Checkpoint(CheckpointKind.STEP, key, value=text, input_digest=input_digest)
        await self._assignment.recorder.checkpoint(checkpoint)
        self._assignment.steps[key] = text
        return text

    def _step_key(self, name: str, args: tuple[Any, ...]) -> tuple[str, str]:
        """The key of a step's checkpoint, and the digest of its input."""
        if not 0 < len(name) <= MAX_STEP_NAME_CHARS:
            raise PermanentError(
                f"a step's name has 1 to {MAX_STEP_NAME_CHARS} characters, found {len(name)}"
            )
        try:
            encode(args)
            text = json.dumps(args, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        except (JsonRefused, TypeError) as refused:
            message = (
                f"step {name!r} is matched by name and input, so its arguments must be JSON values: {refused}"
            )
            raise PermanentError(message, code="not_serialisable") from None
        input_digest = digest(self._item_key, text)
        return f"{name}#{input_digest}", input_digest

    def _in_loop(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Let the worker's loop do something, and wait for it here, in the handler's thread."""
        if asyncio._get_running_loop() is self._assignment.loop:
            call.close()
            raise RuntimeError(
                "a plain handler's step was called in the worker's event loop, which it would block"
            )
        try:
            return asyncio.run_coroutine_threadsafe(call, self._assignment.loop).result()
        except RuntimeError as error:
            call.close()
            if self._assignment.loop.is_closed():
                raise LeaseLost("the worker ended and this run was given back: write nothing more") from error
            raise


class _RunLog(logging.LoggerAdapter[logging.Logger]):
    """Puts the job's id before each message."""

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        extra = self.extra or {}
        return f"job {extra.get('job_id')}: {msg}", kwargs


def _count(number: int) -> int:
    """A count that every store can keep."""
    return max(-MAX_AMOUNT, min(int(number), MAX_AMOUNT))


def _plain(name: str, amount: float) -> float:
    """An amount as JSON has numbers: what a Decimal or a number of numpy says, too.

    Raises:
        ValueError: it is none, or out of bounds; so that no sum of such amounts can be.
    """
    try:
        plain = amount if type(amount) in (int, float) else amount.__float__()
    except (AttributeError, TypeError, ValueError, OverflowError):
        plain = float("nan")
    if not -MAX_AMOUNT <= plain <= MAX_AMOUNT:
        raise ValueError(f"usage is a finite number, at most {MAX_AMOUNT}, got {name}={amount!r}"[:200])
    return plain


async def _call(function: Callable[..., Any], args: tuple[Any, ...], threads: Threads) -> Any:
    value = await (function(*args) if inspect.iscoroutinefunction(function) else threads.run(function, *args))
    return await value if inspect.isawaitable(value) else value


def _pass_on(future: asyncio.Future[JsonText], error: BaseException) -> None:
    """Give a step's error to those who wait for the same step; nobody may."""
    if isinstance(error, asyncio.CancelledError):
        future.cancel()
        return
    future.set_exception(error)
    future.exception()
