"""The isolated child: one run of one handler in a process, session and process group of its own.

Run as a script by its path (``child.py CHANNEL PARENT``): where its worker imports from is what it is told first.
Standard output and error are the worker's; what the two say to each other goes
through a pair of sockets (`postroom.worker.channel`).

A child never outlives its worker. Three things see to it, since each alone has a gap: the worker's guardian kills the
groups that it was told of, with all that they started; the kernel kills the child when the thread that started it ends
(Linux); a thread of its own kills the group when the channel hangs up.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":  # what stands beside this file must not be found by short names
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from postroom.worker.channel import (
    Channel,
    Message,
    checkpoint_to_json,
    error_from_json,
    lease_from_json,
    outcome_to_json,
    receive_one,
    wait_for_hangup,
)
from postroom.worker.recorder import Halt, HaltSignal

if TYPE_CHECKING:
    from postroom.model import Checkpoint, JsonText, Lease, Outcome
    from postroom.worker.reference import HandlerReference

log = logging.getLogger("postroom.worker")

OOM_SCORE = "500"
"""Where memory runs out, the kernel takes this process before the worker, which others need as well."""

_PR_SET_PDEATHSIG = 1


class PipeRecorder:
    """A `postroom.worker.recorder.Recorder` that speaks to the one in the worker."""

    def __init__(self, channel: Channel, loop: asyncio.AbstractEventLoop) -> None:
        self._channel = channel
        self._loop = loop
        self._halt = HaltSignal(loop)
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[None]] = {}

    @property
    def halt(self) -> HaltSignal:
        return self._halt

    async def clear_to_start(self) -> None:
        self._halt.check()
        await self._ask({"do": "clear_to_start"})

    async def checkpoint(self, checkpoint: Checkpoint) -> None:
        await self._ask({"do": "checkpoint", "checkpoint": checkpoint_to_json(checkpoint)})

    async def _ask(self, message: Message) -> None:
        """Send, and wait until the worker's recorder has done it."""
        number = next(self._numbers)
        future = self._asked[number] = self._loop.create_future()
        self._channel.send({**message, "number": number})
        try:
            await future
        finally:
            del self._asked[number]

    def progress(self, done: int, total: int | None) -> None:
        self._channel.send({"do": "progress", "done": done, "total": total})

    def emit(self, data: JsonText) -> None:
        self._channel.send({"do": "emit", "data": data})

    def usage(self, amounts: Mapping[str, float]) -> None:
        self._channel.send({"do": "usage", "amounts": dict(amounts)})

    def hear(self, message: Message) -> None:
        """A message of the worker: an answer, or a reason to end."""
        if message["do"] == "halt":
            self._halt.set(Halt(message["reason"]))
            return
        future = self._asked.get(message["number"])
        if future is None or future.done():
            return
        if message.get("error"):
            future.set_exception(error_from_json(message["error"]))
        else:
            future.set_result(None)


async def _serve(end: socket.socket, task: Message) -> None:
    """Find the handler, run the attempt, and hand its outcome over."""
    recorder: PipeRecorder
    channel = Channel(end, lambda message: recorder.hear(message), lambda: None)
    recorder = PipeRecorder(channel, asyncio.get_running_loop())
    channel.start()
    try:
        outcome = await _attempt(task, recorder)
    except _NotLoaded as error:
        channel.send({"do": "not_loaded", "why": str(error), "trace": error.trace})
    else:
        channel.send({"do": "outcome", "outcome": outcome_to_json(outcome)})
    await channel.flush()
    end.detach()  # open until the very end: the thread that waits for a hang-up would take a close for one


async def _attempt(task: Message, recorder: PipeRecorder) -> Outcome:
    from postroom.settings import Settings
    from postroom.worker.attempt import run_attempt
    from postroom.worker.reference import HandlerReference

    settings = Settings(**task["settings"])
    handler = _load(HandlerReference.from_json(task["reference"]), settings)
    if not logging.getLogger().handlers:
        logging.basicConfig(level=task["log_level"], format="%(levelname)s %(name)s: %(message)s")
    lease: Lease = lease_from_json(task["lease"])
    deadline = task["deadline"]
    return await run_attempt(lease, handler, recorder, settings=settings, log=log, deadline=deadline)


class _NotLoaded(Exception):
    """The handler could not be found here; says why, and where."""

    def __init__(self, why: str, trace: str) -> None:
        super().__init__(why)
        self.trace = trace


def _load(reference: HandlerReference, settings: Any) -> Any:
    try:
        return reference.load(settings)
    except BaseException as error:  # noqa: BLE001 - somebody's module: it may end itself, or run a loop of its own
        raise _NotLoaded(f"{type(error).__name__}: {error}"[:500], traceback.format_exc()[-4000:]) from None


def _die_with(parent: int, channel: int) -> None:
    """Let this process, and its group, end when the worker does."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        try:
            with open("/proc/self/oom_score_adj", "w") as file:
                file.write(OOM_SCORE)
        except OSError:
            pass  # not ours to change here; it only was to be kinder to the worker
    if os.getppid() != parent:
        os._exit(1)  # it ended before the line above: nobody waits for this run
    threading.Thread(target=_hang_up, args=(channel,), name="postroom-hangup", daemon=True).start()


def _hang_up(channel: int) -> None:
    wait_for_hangup(channel)
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def main(arguments: list[str]) -> None:
    """Run what the worker sends."""
    channel, parent = map(int, arguments)
    os.set_inheritable(channel, False)
    _die_with(parent, channel)
    end = socket.socket(fileno=channel)
    task = receive_one(end)
    if task is None:
        os._exit(1)
    sys.path[:] = task["path"]
    sys.argv[:] = task["argv"]
    asyncio.run(_serve(end, task))


if __name__ == "__main__":
    main(sys.argv[1:])
