"""Waiting for a thread from an event loop that never rests.

A loop with callbacks always ready lets go of the interpreter lock only for the instant in which it polls its sockets,
and takes it back before another thread has woken up; measured, the thread then waits for seconds. (The interpreter's
own remedy, a forced switch after five milliseconds, does not apply: each brief release starts that time anew.) So
while somebody waits for a thread of ours, a tick makes the loop sleep for an instant now and then. The same tick looks
for waits that took too long, so that a wait needs no timer of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

TICK_SECONDS = 0.001
SLEEP_SECONDS = 0.00005
TICKS_PER_LOOK = 100


class _Waits:
    """The waits of one loop, each with the instant at which it takes too long."""

    def __init__(self) -> None:
        self._ticks = 0
        self._is_ticking = False
        self.due: dict[asyncio.Future[Any], tuple[float, Callable[[], None]]] = {}

    def begin_ticking(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._is_ticking:
            self._is_ticking = True
            loop.call_later(TICK_SECONDS, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self.due:
            self._is_ticking = False
            return
        time.sleep(SLEEP_SECONDS)
        self._ticks += 1
        if self._ticks % TICKS_PER_LOOK == 0:
            now = time.monotonic()
            for at, give_up in list(self.due.values()):
                if at <= now:
                    give_up()
        loop.call_later(TICK_SECONDS, self._tick, loop)


_waits: WeakKeyDictionary[asyncio.AbstractEventLoop, _Waits] = WeakKeyDictionary()


async def patiently(
    future: asyncio.Future[Any],
    patience_seconds: float = float("inf"),
    give_up: Callable[[], None] = lambda: None,
) -> Any:
    """The result of a future that a thread will set.

    Args:
        patience_seconds: after so long (to a tenth of a second) ``give_up`` is called, again and again.
        give_up: ends the future, if it can still be ended.
    """
    loop = future.get_loop()
    waits = _waits.get(loop)
    if waits is None:
        waits = _waits[loop] = _Waits()
    waits.due[future] = (time.monotonic() + patience_seconds, give_up)
    waits.begin_ticking(loop)
    try:
        return await future
    finally:
        del waits.due[future]
