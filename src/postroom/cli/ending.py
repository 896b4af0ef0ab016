"""How a long-running command ends: the first SIGTERM or Ctrl-C drains, the second ends it within a second."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from postroom.cli.failures import DONE
from postroom.cli.output import tell

SIGNALS = (signal.SIGTERM, signal.SIGINT)
HURRIED = 1
"""The exit code of a process that was told twice."""


class Stops:
    """What this process was told by signals, inside its event loop.

    Args:
        supervisor: the reading end of a pipe whose other end a supervisor holds; its death is a first signal.

    Attributes:
        drain: set by the first signal.
        now: set by the second.
    """

    def __init__(self, supervisor: int | None = None) -> None:
        self.drain = asyncio.Event()
        self.now = asyncio.Event()
        self._supervisor = supervisor

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        for number in SIGNALS:
            self._loop.add_signal_handler(number, self._told)
        if self._supervisor is not None:
            self._loop.add_reader(self._supervisor, self._orphaned)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._supervisor is not None:
            self._loop.remove_reader(self._supervisor)
        for number in SIGNALS:
            self._loop.remove_signal_handler(number)

    def _told(self) -> None:
        if self.drain.is_set():
            self.now.set()
        self.drain.set()

    def _orphaned(self) -> None:
        assert self._supervisor is not None
        self._loop.remove_reader(self._supervisor)
        os.close(self._supervisor)
        self._supervisor = None
        self.drain.set()


async def begun(stops: Stops, start: Callable[[], Awaitable[None]]) -> bool:
    """Start something; False where this process was told to end before that was done, which a store that does not
    answer can put off for long. Then it is cancelled, and there is nothing to drain."""
    starting = asyncio.ensure_future(start())
    told = asyncio.ensure_future(stops.drain.wait())
    try:
        await asyncio.wait({starting, told}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait({starting})
        if starting.cancelled():
            return False
        await starting
        return True
    finally:
        told.cancel()


async def drained(
    stops: Stops, drain: Callable[[], Awaitable[None]], stop_now: Callable[[], Awaitable[None]]
) -> int:
    """Let something drain, or end it at once when told a second time; the exit code."""
    draining = asyncio.ensure_future(drain())
    hurry = asyncio.ensure_future(stops.now.wait())
    try:
        await asyncio.wait({draining, hurry}, return_when=asyncio.FIRST_COMPLETED)
        if draining.done():
            await draining
            return DONE
        tell("postroom: handing back what is still running")
        await stop_now()
        await draining
        return HURRIED
    finally:
        hurry.cancel()
