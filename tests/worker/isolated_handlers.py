"""Handlers that tests run in children: well-behaved ones, and all the ways of being ended."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from typing import Any

from postroom import Inbox, PermanentError, RetryLater
from postroom.settings import Settings

inbox = Inbox("memory://", settings=Settings())

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]


@inbox.handler("shout", isolation="process")
def shout(item: Any, run: Any) -> Any:
    return {"said": str(item).upper(), "pid": os.getpid(), "group": os.getpgid(0), "session": os.getsid(0)}


@inbox.handler("shout-async", isolation="process", item_concurrency=4)
async def shout_async(item: Any, run: Any) -> Any:
    await asyncio.sleep(0)
    return str(item).upper()


@inbox.handler("news", whole=True, isolation="process")
def news(run: Any) -> Any:
    run.progress(1, 3)
    run.emit({"token": "a"})
    run.emit({"token": "b"})
    run.usage(tokens_out=7)
    value = run.step("add", lambda a, b: a + b, 1, 2)
    run.progress(3, 3)
    return value


@inbox.handler("permanent", isolation="process")
def permanent(item: Any, run: Any) -> Any:
    raise PermanentError("no such thing", code="nothing_there", detail={"asked": item})


@inbox.handler("broken", isolation="process")
def broken(item: Any, run: Any) -> Any:
    raise KeyError("missing")


@inbox.handler("later", isolation="process")
def later(item: Any, run: Any) -> Any:
    raise RetryLater(12.5, "provider is down")


@inbox.handler("busy", isolation="process")
def busy(item: Any, run: Any) -> Any:
    run.emit({"pid": os.getpid()})
    while True:
        pass


@inbox.handler("busy-async", isolation="process")
async def busy_async(item: Any, run: Any) -> Any:
    """Blocks the child's event loop, so that nothing but the kernel can end it."""
    run.emit({"pid": os.getpid()})
    while True:
        pass


@inbox.handler("stubborn", isolation="process")
async def stubborn(item: Any, run: Any) -> Any:
    """Holds the interpreter's lock and takes no hint."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    run.emit({"pid": os.getpid()})
    return bool(re.match(r"(a+)+$", "a" * 40 + "b"))


@inbox.handler("patient", isolation="process")
def patient(item: Any, run: Any) -> Any:
    """Looks whether it should end, and takes care of its things."""
    run.emit({"pid": os.getpid()})
    while not run.cancelled:
        time.sleep(0.01)  # a plain handler can only look now and then
    raise RetryLater(1.0, "cleaned up")


@inbox.handler("tidy-async", isolation="process")
async def tidy_async(item: Any, run: Any) -> Any:
    run.emit({"pid": os.getpid()})
    try:
        await asyncio.Event().wait()
    finally:
        run.emit({"cleaned": True})


@inbox.handler("family", isolation="process")
def family(item: Any, run: Any) -> Any:
    """Starts others: in its group, in a group of their own, in a session of their own, and one whose parent is gone."""
    grandchild = subprocess.Popen(SLEEPER)
    own_group = subprocess.Popen(SLEEPER, process_group=0)
    own_session = subprocess.Popen(SLEEPER, start_new_session=True)
    orphan = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL).pid)"
    made = subprocess.run([sys.executable, "-c", orphan, *SLEEPER], stdout=subprocess.PIPE, check=True)
    pids = [os.getpid(), grandchild.pid, own_group.pid, own_session.pid, int(made.stdout)]
    run.emit({"pids": pids})
    if item == "return":
        return pids
    while True:
        time.sleep(60)


@inbox.handler("killed", isolation="process")
def killed(item: Any, run: Any) -> Any:
    os.kill(os.getpid(), int(item))
    time.sleep(60)


@inbox.handler("exits", isolation="process")
def exits(item: Any, run: Any) -> Any:
    os._exit(3)


@inbox.handler("keeps-then-dies", isolation="process")
def keeps_then_dies(item: Any, run: Any) -> Any:
    if item == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return item


@inbox.handler("looks-around", isolation="process")
def looks_around(item: Any, run: Any) -> Any:
    """What the child got from its worker."""
    files = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            files[name] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the listing itself
    inherited = subprocess.run(
        [sys.executable, "-c", "import os; print(len(os.listdir('/proc/self/fd')))"],
        capture_output=True,
        text=True,
        check=True,
        close_fds=False,
    )
    return {
        "files": files,
        "inherited": int(inherited.stdout),
        "directory": os.getcwd(),
        "path": sys.path,
        "oom": open("/proc/self/oom_score_adj").read().strip(),
    }


@inbox.handler("prints", isolation="process")
def prints(item: Any, run: Any) -> Any:
    os.write(1, f"to standard output: {item}\n".encode())
    os.write(2, f"to standard error: {item}\n".encode())
    return sys.stdin.read()


@inbox.handler("large", isolation="process")
def large(item: Any, run: Any) -> Any:
    return "x" * int(item)


@inbox.handler("leaves-thread", isolation="process")
def leaves_thread(item: Any, run: Any) -> Any:
    """Its child cannot end by itself."""
    import threading

    threading.Thread(target=time.sleep, args=(600,)).start()
    return "done"


async def not_isolated(item: Any, run: Any) -> Any:
    return os.getpid()


def made_by(words: str) -> Any:
    """A closure, which no other process can find."""

    def inner(item: Any, run: Any) -> Any:
        return words

    return inner


@inbox.handler("family-locked", isolation="process")
def family_locked(item: Any, run: Any) -> Any:
    """Starts another in its group and one in a session of its own, then holds its interpreter's lock for ever."""
    pids = [os.getpid(), subprocess.Popen(SLEEPER).pid, subprocess.Popen(SLEEPER, start_new_session=True).pid]
    run.emit({"pids": pids})
    return bool(re.match(r"(a+)+$", "a" * 40 + "b"))
