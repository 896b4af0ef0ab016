"""Waiting for a thread from an event loop that never rests.

A loop with callbacks always ready lets go of the interpreter lock only for the instant in which it polls its sockets,
and takes it back before another thread has woken up; measured, the thread then waits for seconds. (The interpreter's
own remedy, a forced switch after five milliseconds, does not apply: each brief release starts that time anew.) So
whoever waits for a thread of ours for more than a millisecond makes the loop sleep for an instant now and then.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any
from weakref import WeakKeyDictionary

EVERY_SECONDS = 0.001
SLEEP_SECONDS = 0.00005

_waits: WeakKeyDictionary[asyncio.AbstractEventLoop, list[Any]] = WeakKeyDictionary()
"""By loop: how many wait there, and the timer."""


async def patiently(future: asyncio.Future[Any]) -> Any:
    """The result of a future that a thread will set."""
    loop = future.get_loop()
    wait = _waits.get(loop)
    if wait is None:
        wait = _waits[loop] = [0, None]
    wait[0] += 1
    if wait[1] is None:
        wait[1] = loop.call_later(EVERY_SECONDS, _give_way, loop, wait)
    try:
        return await future
    finally:
        wait[0] -= 1


def _give_way(loop: asyncio.AbstractEventLoop, wait: list[Any]) -> None:
    if wait[0] == 0:
        wait[1] = None
        return
    time.sleep(SLEEP_SECONDS)
    wait[1] = loop.call_later(EVERY_SECONDS, _give_way, loop, wait)
