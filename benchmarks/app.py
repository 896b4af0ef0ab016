"""The handlers that the benchmarks run: nothing, a call of one second, and one that says when it began."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from postroom import Inbox

inbox = Inbox()


@inbox.handler("noop")
async def noop(item: Any, run: Any) -> int:
    """As little as a handler can do and still have a result."""
    return int(item) + 1


@inbox.handler("call")
async def call(item: Any, run: Any) -> int:
    """A model call that takes a second."""
    await asyncio.sleep(1.0)
    return int(item)


@inbox.handler("stamp")
async def stamp(item: Any, run: Any) -> float:
    """The instant at which the handler began, on the clock that all processes of a machine share."""
    return time.monotonic()


def _mark(path: str) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"{os.getpid()} {time.monotonic()}\n")


@inbox.handler("hang")
async def hang(item: Any, run: Any) -> None:
    """Says which process runs it, and stays."""
    _mark(str(item))
    await asyncio.sleep(3600)
