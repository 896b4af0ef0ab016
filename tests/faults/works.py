"""Handlers that leave a trace in a file whatever happens to their process, and some that are a trouble to it.

Each line of the trace is one write to a file opened for appending, so that it is whole, in order, and there also after
the process was killed right after it.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import re
import signal
import time
from typing import Any

from postroom import Inbox

inbox = Inbox()

if "FAULTS_TRACE" in os.environ:  # in a worker; in a child of it the variable is there already
    os.environ.setdefault("FAULTS_WORKER", str(os.getpid()))


def trace(event: str, run: Any, **more: Any) -> None:
    line = {
        "event": event,
        "job": run.job_id,
        "epoch": run.epoch,
        "pid": os.getpid(),
        "at": time.time(),
        **more,
    }
    file = os.open(os.environ["FAULTS_TRACE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, json.dumps(line).encode() + b"\n")
    os.close(file)


@inbox.handler("steady", item_concurrency=3)
async def steady(item: Any, run: Any) -> Any:
    """Takes as long as the job's parameters say; the result tells by which epoch it was made."""
    trace("start", run, item=item)
    await asyncio.sleep(run.params["seconds"])
    trace("end", run, item=item)
    return {"item": item, "epoch": run.epoch, "pid": os.getpid()}


@inbox.handler("apart", isolation="process", item_concurrency=2)
async def apart(item: Any, run: Any) -> Any:
    """The same in a child from the first run on."""
    return await steady(item, run)


@inbox.handler("deadly")
async def deadly(item: Any, run: Any) -> Any:
    """Kills the process that it runs in."""
    trace("start", run)
    os.kill(os.getpid(), signal.SIGKILL)


@inbox.handler("murderous")
async def murderous(item: Any, run: Any) -> Any:
    """Kills its worker, also out of a child."""
    trace("start", run)
    os.kill(int(os.environ["FAULTS_WORKER"]), signal.SIGKILL)
    await asyncio.sleep(60)


@inbox.handler("busy")
async def busy(item: Any, run: Any) -> Any:
    """Blocks the worker's event loop."""
    trace("start", run)
    end = time.monotonic() + float(item)
    while time.monotonic() < end:
        pass
    trace("end", run)
    return os.getpid()


@inbox.handler("busy-plain")
def busy_plain(item: Any, run: Any) -> Any:
    """Keeps a thread of the worker busy."""
    trace("start", run)
    end = time.monotonic() + float(item)
    while time.monotonic() < end:
        pass
    trace("end", run)
    return os.getpid()


@inbox.handler("locked")
def locked(item: Any, run: Any) -> Any:
    """Holds the interpreter's lock in one single call: no thread of this process runs meanwhile."""
    trace("start", run)
    assert not re.match(r"(a+)+$", "a" * int(item) + "b")
    trace("end", run)
    return os.getpid()


@inbox.handler("frozen")
def frozen(item: Any, run: Any) -> Any:
    """Calls into a library that does not let go of the interpreter's lock."""
    trace("start", run)
    ctypes.PyDLL(None).usleep(int(float(item) * 1e6))
    trace("end", run)
    return os.getpid()


@inbox.handler("note")
async def note(item: Any, run: Any) -> Any:
    trace("start", run)
    await asyncio.sleep(run.params.get("seconds", 0.0))
    return os.getpid()


def letters_for(seconds: float) -> int:
    """How many letters keep ``locked`` busy for so long at least, on this machine."""
    letters = 18
    while True:
        began = time.perf_counter()
        re.match(r"(a+)+$", "a" * letters + "b")
        took = time.perf_counter() - began
        if took > 0.1:
            break
        letters += 1
    while took < seconds:
        letters, took = letters + 1, took * 2
    return letters
