"""Threads for plain functions: as many as are busy, kept for the next call, never in the way of a process that ends.

The standard pool joins its threads when the interpreter exits, so one handler that hangs would keep a worker from ever
ending; these are daemons. How many there can be is bounded by the worker's slots, so no call waits for a thread.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

_Call = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[[], Any]]


class Threads:
    """Runs plain functions for one event loop.

    Args:
        name: begins the name of each thread.
    """

    def __init__(self, name: str = "postroom-handler") -> None:
        self._name = name
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._count = 0
        self._is_closed = False

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """What the function returns or raises. Cancelling the wait does not stop the function: nothing can."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()
        with self._lock:
            if self._is_closed:
                raise RuntimeError("these threads are closed")
            needs_thread = self._idle == 0
            if needs_thread:
                self._count += 1
            else:
                self._idle -= 1
        if needs_thread:
            name = f"{self._name}-{self._count}"
            threading.Thread(target=self._serve, name=name, daemon=True).start()
        self._calls.put((loop, future, lambda: context.run(function, *args)))
        return await future

    def close(self) -> None:
        """Let idle threads end now, and busy ones when their function returns."""
        with self._lock:
            self._is_closed = True
            for _ in range(self._count):
                self._calls.put(None)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            loop, future, function = call
            value, error = None, None
            try:
                value = function()
            except BaseException as raised:  # noqa: BLE001 - a handler's: it belongs to the one who waits
                error = _as_error(raised)
            with self._lock:
                self._idle += 1
            try:
                loop.call_soon_threadsafe(_resolve, future, value, error)
            except RuntimeError:  # the loop was closed under the call: nobody waits any more
                pass
            del call, function, future, value, error


def _as_error(raised: BaseException) -> BaseException:
    """What can be set on a future and means there what it meant here: StopIteration cannot be set, a CancelledError
    would look like the waiting task's own, a KeyboardInterrupt would end the loop, a GeneratorExit seem a close."""
    if isinstance(raised, StopIteration | asyncio.CancelledError | KeyboardInterrupt | GeneratorExit):
        error = RuntimeError(f"the function raised {type(raised).__name__}")
        error.__cause__ = raised
        return error
    return raised


def _resolve(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)
