"""What a run writes through and is told through, whoever carries it to the store.

In the worker's process that is the run's record (`postroom.worker.heartbeat`); inside an isolated child it is a proxy
that speaks to that record through a pipe. `postroom.worker.attempt` and `postroom.worker.context` know only this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Protocol

from postroom.errors import HandlerSignal
from postroom.model import Checkpoint, JsonText


class Halt(StrEnum):
    """Why a run must end before its handler is done."""

    CANCELLED = "cancelled"
    """Somebody asked for it: the handler is told first, and gets a grace."""
    RELEASED = "released"
    """The worker ends and gives the job back."""
    STALLED = "stalled"
    """No new item, step, output or larger progress for ``stall_timeout_seconds``."""
    TIMEOUT = "timeout"
    """The whole run took longer than ``timeout_seconds``."""
    LOST = "lost"
    """The lease went to another worker, or the job ended elsewhere: nothing more may be written."""


_WEIGHT = {
    Halt.CANCELLED: 1,
    Halt.RELEASED: 2,
    Halt.STALLED: 3,
    Halt.TIMEOUT: 3,
    Halt.LOST: 4,
}


class RunCancelled(HandlerSignal):
    """Raised out of ``run.step`` and the like once the run must end: let it pass, and clean up on the way."""

    def __init__(self, reason: Halt = Halt.CANCELLED) -> None:
        super().__init__(f"the run must end: {reason}")
        self.reason = reason


class HaltSignal:
    """Tells a run that it must end, and why. Set from any thread; heard in the event loop that it was made for.

    A reason gives way only to a weightier one: a run that is being cancelled may still time out, and a lost lease
    overrules everything.
    """

    __slots__ = ("_callbacks", "_loop", "reason")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._callbacks: tuple[Callable[[Halt], None], ...] = ()
        self.reason: Halt | None = None

    def set(self, reason: Halt) -> None:
        """Let the run end for this reason, unless a weightier one stands. Safe from any thread."""
        if self.reason is not None and _WEIGHT[self.reason] >= _WEIGHT[reason]:
            return
        self.reason = reason
        try:
            self._loop.call_soon_threadsafe(self._tell, reason)
        except RuntimeError:  # the loop is closed: nobody is left to be told
            return

    def subscribe(self, callback: Callable[[Halt], None]) -> None:
        """Call back with each reason as it comes, in the loop; soon, where one stands already. Only from the loop."""
        self._callbacks = (*self._callbacks, callback)
        if self.reason is not None:
            self._loop.call_soon(callback, self.reason)

    def unsubscribe(self, callback: Callable[[Halt], None]) -> None:
        """Stop calling back; nothing where it was not subscribed. Only from the loop."""
        if self._callbacks:
            self._callbacks = tuple([each for each in self._callbacks if each != callback])

    def _tell(self, reason: Halt) -> None:
        for callback in self._callbacks:
            callback(reason)

    def check(self) -> None:
        """Raises:
        RunCancelled: the run must end.
        """
        if self.reason is not None:
            raise RunCancelled(self.reason)


class Recorder(Protocol):
    """The way of a run's news to the store, and of the store's answers to the run."""

    @property
    def halt(self) -> HaltSignal:
        """Set when the run must end."""

    async def clear_to_start(self) -> None:
        """Return when a new item or step may start; at once, as a rule.

        It waits while the lease is in doubt: while the last accepted heartbeat is older than the lease less two
        heartbeat intervals.

        Raises:
            RunCancelled: the run must end: nothing new starts.
        """

    async def checkpoint(self, checkpoint: Checkpoint) -> None:
        """Keep a value; it is durable when this returns. Also while a cancel is asked for: done work is kept.

        Raises:
            LeaseLost: the job is no longer ours: stop, write nothing more.
            CheckpointConflict: another value stands under that key.
            OutcomeInvalid: the job has no such item.
        """

    def progress(self, done: int, total: int | None) -> None:
        """Note how far the run is; sent with one of the next beats."""

    def emit(self, data: JsonText) -> None:
        """Note output; sent in order with one of the next beats."""

    def usage(self, amounts: Mapping[str, float]) -> None:
        """Note what was used, to be added up; sent with one of the next beats."""
