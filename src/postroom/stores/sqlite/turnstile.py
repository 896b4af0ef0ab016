"""Whose turn it is to write: processes on one file queue up instead of racing for SQLite's lock.

SQLite's own waiting is a sleep that grows; who has just written is awake and wins again, and the others can wait
for a second and more while each turn takes a millisecond. Two locks in a row make it fair: one waits for ``main``
while holding ``next``, so whoever has just left ``main`` stands behind the one that was next.

The locks are flock(2)'s: the kernel drops them when their process dies. They are an order of service and no
protection; that is SQLite's own lock, which is taken all the same.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

FIRST_WAIT_SECONDS = 0.0001
LONGEST_WAIT_SECONDS = 0.001


class Turnstile:
    """A place in the queue of writers of one file.

    Args:
        folder: where the two lock files are; it exists.
    """

    def __init__(self, folder: Path) -> None:
        self._next = _open(folder / "next")
        self._main = _open(folder / "main")

    def enter(self, deadline: float) -> bool:
        """Wait for our turn until a deadline of the monotonic clock; whether it came.

        The wait is a short sleep repeated and not a blocking call, because a stopped process that holds the lock must
        not hold us past the deadline.
        """
        if not _lock(self._next, deadline):
            return False
        try:
            return _lock(self._main, deadline)
        finally:
            fcntl.flock(self._next, fcntl.LOCK_UN)

    def leave(self) -> None:
        """Let the next one through."""
        fcntl.flock(self._main, fcntl.LOCK_UN)

    def close(self) -> None:
        """Let go of both files."""
        os.close(self._next)
        os.close(self._main)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)


def _lock(handle: int, deadline: float) -> bool:
    wait = FIRST_WAIT_SECONDS
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
        time.sleep(wait)
        wait = min(wait * 1.5, LONGEST_WAIT_SECONDS)
