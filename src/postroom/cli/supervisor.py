"""Several worker processes under one: dead ones are started again, signals are passed on.

The supervisor knows no jobs. A worker that dies is noticed by the store (or by its leases), whether it has a supervisor
or not. Each worker holds one end of a pipe: where the supervisor itself is killed, its workers see that and drain.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from postroom.cli.failures import DONE, USAGE
from postroom.cli.output import plural, tell

FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 30.0
STEADY_SECONDS = 60.0
"""A process that ran so long is started again at once, as if it were the first time."""


class _Place:
    """One worker process and its successors."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0
        self.start_at = 0.0
        self.failures = 0


def supervise(words: Sequence[str], count: int) -> int:
    """Keep so many workers running until told to end; the exit code.

    Args:
        words: the arguments after ``postroom``.
        count: how many.
    """
    supervisor = _Supervisor(words, count)
    try:
        return supervisor.run()
    finally:
        supervisor.close()


class _Supervisor:
    def __init__(self, words: Sequence[str], count: int) -> None:
        self._words = list(words)
        self._places = [_Place(number) for number in range(1, count + 1)]
        self._life, self._alive = os.pipe()
        self._woken, wake = os.pipe()
        self._wake = wake
        for handle in (self._woken, wake):
            os.set_blocking(handle, False)
        self._told = 0
        self._passed_on = 0
        self._failure: int | None = None
        self._before: dict[int, Any] = {}
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._note)
        self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        self._wake_before = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def _note(self, number: int, frame: Any) -> None:
        self._told += 1

    def run(self) -> int:
        """Until all have ended after a signal."""
        tell(f"postroom: supervisor {os.getpid()} starts {plural(len(self._places), 'worker')}")
        worst = DONE
        while True:
            self._pass_on()
            for place in self._places:
                code = self._reap(place)
                if code is not None:
                    worst = max(worst, self._judge(place, code))
                if place.process is None and not self._told and time.monotonic() >= place.start_at:
                    self._start(place)
            if self._told and all(place.process is None for place in self._places):
                return worst if self._failure is None else self._failure
            self._sleep()

    def _start(self, place: _Place) -> None:
        from postroom.cli.work import supervised_by

        command = [sys.executable, "-m", "postroom", *self._words, *supervised_by(self._life)]
        place.started_at = time.monotonic()
        # A group of its own: Ctrl-C reaches the supervisor alone, which passes it on, once.
        try:
            place.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=(self._life,), process_group=0
            )
        except OSError as error:  # no memory, no room for a process: no reason to end those that run
            self._delay(place, f"worker {place.number} could not be started ({error.strerror})")

    def _reap(self, place: _Place) -> int | None:
        """The exit code of a worker that has ended since the last look."""
        if place.process is None:
            return None
        code = place.process.poll()
        if code is not None:
            place.process = None
        return code

    def _judge(self, place: _Place, code: int) -> int:
        """What the end of a worker means: nothing after a signal of ours, else another start, or the end of all."""
        if self._told:
            return 0 if code in (DONE, -signal.SIGTERM, -signal.SIGINT) else 1
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        if code == USAGE:
            tell(f"postroom: worker {place.number} cannot start ({how}); ending the others")
            self._failure = USAGE
            self._told = 1
            return USAGE
        has_lasted = time.monotonic() - place.started_at >= STEADY_SECONDS
        if code == DONE or has_lasted:
            place.failures = 0
            tell(f"postroom: worker {place.number} ended ({how}); starting it again")
        else:
            self._delay(place, f"worker {place.number} ended ({how})")
        return 0

    def _delay(self, place: _Place, what: str) -> None:
        """After a failure: the next start comes later each time."""
        place.failures += 1
        delay = min(FIRST_DELAY_SECONDS * 2.0 ** min(place.failures - 1, 16), LONGEST_DELAY_SECONDS)
        place.start_at = time.monotonic() + delay
        tell(f"postroom: {what}; starting it again in {delay:g} s")

    def _pass_on(self) -> None:
        """Tell the workers what we were told, as often as they have not been told yet; twice at most."""
        wanted = min(self._told, 2)
        while self._passed_on < wanted:
            self._passed_on += 1
            for place in self._places:
                if place.process is not None:
                    with suppress(ProcessLookupError):
                        place.process.send_signal(signal.SIGTERM)

    def _sleep(self) -> None:
        """Until a signal comes, a child ends, or one is to be started."""
        waits = [p.start_at - time.monotonic() for p in self._places if p.process is None and not self._told]
        select.select([self._woken], [], [], max(0.0, min([1.0, *waits])))
        with suppress(BlockingIOError):
            while os.read(self._woken, 512):
                pass

    def close(self) -> None:
        """Leave nothing behind: whoever is still there is killed."""
        for place in self._places:
            if place.process is not None:
                place.process.kill()
                place.process.wait()
        signal.set_wakeup_fd(self._wake_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        for handle in (self._life, self._alive, self._woken, self._wake):
            os.close(handle)
