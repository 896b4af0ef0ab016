"""Whether a worker's process is there: it holds a lock on a file of its own, and the kernel drops it when it dies.

Seen free, such a lock proves that the process is gone, however it went, and at once. Held, it proves nothing: the
process may be stopped, or a child that was forked from it still holds what it inherited; then the lease decides.

The proof is taken only where it is one: the same running kernel as the worker's, and the very file that the worker
locked (a folder that was cleaned or restored has others). A file that is missing proves nothing.
"""

from __future__ import annotations

import fcntl
import os
from functools import cache
from pathlib import Path

SUFFIX = ".worker"


class Presence:
    """The locks of this process's workers, and a look at those of others.

    Args:
        folder: where the lock files are; it exists.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[str, int] = {}

    def hold(self, worker: str) -> str | None:
        """Take the worker's lock, or keep it; what identifies it, to be stored beside the worker.

        None where it cannot be had (its folder was removed, another store of this worker holds it): then nothing is
        proven about the worker, and its leases decide.
        """
        path = self._path(worker)
        handle = self._held.get(worker)
        if handle is not None and _same_file(handle, path):
            return _identity(handle)
        # Where somebody removed the file, the old one is let go of last: until then its identity is nobody else's.
        gone = self._held.pop(worker, None)
        try:
            return self._take(worker, path)
        finally:
            if gone is not None:
                os.close(gone)

    def _take(self, worker: str, path: Path) -> str | None:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError:
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            return None
        self._held[worker] = handle
        return _identity(handle)

    def release(self, worker: str) -> None:
        """The worker ended in good order."""
        handle = self._held.pop(worker, None)
        if handle is not None:
            self.forget(worker)
            os.close(handle)

    def forget(self, worker: str) -> None:
        """Remove the file of a worker that is gone for good."""
        try:
            self._path(worker).unlink()
        except OSError:
            pass

    def is_gone(self, worker: str, identity: str | None) -> bool:
        """True only if the process that held this lock is proven to have ended."""
        if identity is None or worker in self._held:
            return False
        try:
            handle = os.open(self._path(worker), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            if _identity(handle) != identity:
                return False
            fcntl.flock(
                handle, fcntl.LOCK_SH | fcntl.LOCK_NB
            )  # shared: two who look do not take each other for it
        except OSError:
            return False
        finally:
            os.close(handle)
        return True

    def _path(self, worker: str) -> Path:
        safe = "".join(c if c.isalnum() or c in "-_" else f"%{ord(c):x}" for c in worker)
        return self._folder / f"{safe[:200]}{SUFFIX}"


def _same_file(handle: int, path: Path) -> bool:
    try:
        there = path.stat()
    except OSError:
        return False
    here = os.fstat(handle)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def _identity(handle: int) -> str:
    status = os.fstat(handle)
    return f"{_kernel()}:{status.st_dev}:{status.st_ino}"


@cache
def _kernel() -> str:
    """What tells one running kernel from another, and from itself before a restart; its host's name where none is."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return os.uname().nodename
