"""The guardian's process: watches one worker from outside, where no handler can hold it up.

Two things need somebody beside the worker. A handler that holds the interpreter's lock (a regular expression gone wild,
a C extension) stops every thread of the worker, the one that beats as well: while the worker lives and is not stopped,
the leases that it holds are renewed from here. And when the worker is killed, the process groups of its isolated
children are killed from here, with whatever they started.

The worker tells what it holds by a `Board`: memory that both processes see. Writing to it is no call into the kernel,
so a guardian that hangs never holds the worker up, and one that is started anew knows at once what the last one knew.

This file is run as a script by its path, without the package and without site-packages, so that it starts in 20 ms
and stays below 12 MiB. Only a renewal needs more; that is a forked process of its own, which ends when it is over.
It never renews for a worker that is stopped (SIGSTOP, a debugger) or gone: those leases are meant to run out.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import struct
import sys
import threading
import time

TYPE_CHECKING = False  # not typing's: importing that costs a tenth of this process's memory
if TYPE_CHECKING:
    from typing import NoReturn

MARK = "_POSTROOM_RUN"
"""In the environment of every isolated child, and so of all that it starts: ``<token of the worker>.<number>``."""

MAX_GROUPS = 4096
_CELL = 8
_GROUPS = 8  # cells before the groups: the time of the last ping, the number of lease slots in use, and room
_LEASES_AT = _CELL * (_GROUPS + MAX_GROUPS)
_LEASE = struct.Struct("=32sQ")
_FIRST_SLOTS = 64
SHORT_LEASE_SECONDS = 5.0
"""For leases below this the renewing process is there from the start: making it ready could take too long then."""


# ---- what the worker tells


class Board:
    """The times, leases and process groups of one worker, in a file of memory that two processes map.

    One process writes, one reads. A reader may see a half-written lease: it belongs to no job, and a heartbeat for it
    changes nothing. Times and process groups are single machine words and are never seen half-written.

    Args:
        file: descriptor of the file; `create` makes one.
    """

    def __init__(self, file: int) -> None:
        self.file = file
        self._lock = threading.Lock()
        self._slots: dict[tuple[str, int], int] = {}
        self._free: list[int] = []
        self._groups: dict[int, int] = {}
        self._map = mmap.mmap(file, 0)
        self._cells = memoryview(self._map)[:_LEASES_AT].cast("q")

    @classmethod
    def create(cls) -> Board:
        """A new, empty board."""
        if hasattr(os, "memfd_create"):
            file = os.memfd_create("postroom-board")
        else:
            import tempfile

            file, path = tempfile.mkstemp(prefix="postroom-board-")
            os.unlink(path)
        os.ftruncate(file, _LEASES_AT + _FIRST_SLOTS * _LEASE.size)
        return cls(file)

    def close(self) -> None:
        """Let go of the memory; can be called twice."""
        with self._lock:
            if self.file >= 0:
                self._unmap()
                os.close(self.file)
                self.file = -1

    def _unmap(self) -> None:
        self._cells.release()
        self._map.close()

    def _remap(self) -> None:
        self._unmap()
        self._map = mmap.mmap(self.file, 0)
        self._cells = memoryview(self._map)[:_LEASES_AT].cast("q")

    # ---- the worker writes

    def ping(self) -> None:
        """The worker can still run its own code."""
        with self._lock:
            if self.file >= 0:
                self._cells[0] = time.monotonic_ns()

    def hold(self, job_id: str, epoch: int) -> None:
        """The worker holds this lease from now on."""
        with self._lock:
            if self.file < 0 or (job_id, epoch) in self._slots:
                return
            slot = self._free.pop() if self._free else self._new_slot()
            self._slots[job_id, epoch] = slot
            _LEASE.pack_into(self._map, _LEASES_AT + slot * _LEASE.size, job_id.encode()[:32], epoch)

    def _new_slot(self) -> int:
        slot = self._cells[1]
        end = _LEASES_AT + (slot + 1) * _LEASE.size
        if end > len(self._map):
            os.ftruncate(self.file, _LEASES_AT + 2 * (slot + 1) * _LEASE.size)
            self._remap()
        self._cells[1] = slot + 1
        return slot

    def let_go(self, job_id: str, epoch: int) -> None:
        """The worker holds this lease no longer."""
        with self._lock:
            slot = self._slots.pop((job_id, epoch), None)
            if slot is not None and self.file >= 0:
                _LEASE.pack_into(self._map, _LEASES_AT + slot * _LEASE.size, b"", 0)
                self._free.append(slot)

    def watch_group(self, group: int) -> None:
        """This process group must not outlive the worker.

        Raises:
            RuntimeError: there are too many.
        """
        with self._lock:
            if self.file < 0 or group in self._groups:
                return
            cell = next((i for i in range(MAX_GROUPS) if not self._cells[_GROUPS + i]), None)
            if cell is None:
                raise RuntimeError(f"more than {MAX_GROUPS} isolated children at once")
            self._groups[group] = cell
            self._cells[_GROUPS + cell] = group

    def forget_group(self, group: int) -> None:
        """This process group is gone; call it before its leader is reaped, while nobody else can have its number."""
        with self._lock:
            cell = self._groups.pop(group, None)
            if cell is not None and self.file >= 0:
                self._cells[_GROUPS + cell] = 0

    # ---- the guardian reads

    def silent_seconds(self) -> float:
        """How long ago the worker pinged last."""
        return (time.monotonic_ns() - self._cells[0]) / 1e9

    def leases(self) -> list[tuple[str, int]]:
        """(job id, epoch) of all leases that the worker holds."""
        if os.fstat(self.file).st_size != len(self._map):
            self._remap()
        end = _LEASES_AT + self._cells[1] * _LEASE.size
        found = _LEASE.iter_unpack(self._map[_LEASES_AT:end])
        return [(name.decode("ascii", "replace"), epoch) for name, epoch in found if epoch]

    def groups(self) -> list[int]:
        """The process groups to be killed when the worker is gone."""
        return [group for group in self._cells[_GROUPS:] if group > 0]


# ---- processes


def is_stopped(pid: int) -> bool:
    """True for a process that a signal or a debugger stopped: it lives, and nobody may act for it."""
    if sys.platform == "linux":
        return _stat(pid)[:1] in ([b"T"], [b"t"])
    import subprocess

    answer = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return answer.stdout.strip().startswith("T")


def _stat(pid: int | str) -> list[bytes]:
    """State, parent, group and the rest of what Linux tells of a process; empty where there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def signal_group(group: int, number: int) -> bool:
    """Send a signal to a process group; False where there is nobody left in it."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        return (
            sys.platform != "darwin"
        )  # there: only zombies are left; elsewhere: somebody changed their user
    return True


def group_is_gone(group: int) -> bool:
    """True once nobody alive is left in a process group. The dead that nobody reaped yet do not count."""
    if not signal_group(group, 0):
        return True
    if sys.platform != "linux":
        return False
    wanted = str(group).encode()
    for name in os.listdir("/proc"):
        fields = _stat(name) if name.isdecimal() else []
        if fields and fields[2] == wanted and fields[0] not in (b"Z", b"X"):
            return False
    return True


def marked(mark: str) -> list[int]:
    """Live processes whose environment carries a mark that starts so: also those that left their group and session.

    Only Linux tells; elsewhere the list is empty.
    """
    wanted = f"{MARK}={mark}".encode()
    found = []
    for name in os.listdir("/proc") if sys.platform == "linux" else ():
        if name.isdecimal() and int(name) != os.getpid() and _carries(name, wanted):
            found.append(int(name))
    return found


def _carries(pid: str, wanted: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return any(entry.startswith(wanted) for entry in file.read().split(b"\0"))
    except OSError:
        return False  # gone, or another user's


def kill_marked(mark: str, *, rounds: int = 50) -> None:
    """SIGKILL all that carry the mark, again until there is nobody: one may start another in between."""
    for _ in range(rounds):
        pids = marked(mark)
        if not pids:
            return
        for pid in pids:
            _kill_if_marked(pid, mark)
        time.sleep(0.005)  # nothing tells when the kernel is done with them


def _kill_if_marked(pid: int, mark: str) -> None:
    """Kill through a descriptor, so that a number that was given anew in between is never hit."""
    if sys.platform != "linux":
        return
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if _carries(str(pid), f"{MARK}={mark}".encode()):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except OSError:
        pass  # it ended by itself
    finally:
        os.close(descriptor)


# ---- the watch


class Guard:
    """One watch over one worker, until that is gone.

    Args:
        pipe: read end of a pipe whose other end only the worker has.
        board: what the worker tells.
        worker: its process id; it is this process's parent.
        token: in the mark of all that its isolated children start.
        lease_seconds: how long its leases are.
        config: JSON for `postroom.worker.renewal`; empty where there is nothing to renew.
    """

    def __init__(
        self, pipe: int, board: Board, worker: int, token: str, lease_seconds: float, config: bytes
    ) -> None:
        self.pipe = pipe
        self.board = board
        self.worker = worker
        self.token = token
        self.lease_seconds = lease_seconds
        self.config = config
        self._renewer = 0
        self._renewed_at = float("-inf")
        self._poller = select.poll()
        self._poller.register(pipe, select.POLLIN | select.POLLHUP)
        self._pidfd = os.pidfd_open(worker) if sys.platform == "linux" else -1
        if self._pidfd >= 0:
            self._poller.register(self._pidfd, select.POLLIN)

    def run(self) -> None:
        """Watch until the worker is gone (or closed its end); then nothing of its runs is left alive."""
        tick = int(1000 * min(max(self.lease_seconds / 12, 0.05), 5.0))
        while os.getppid() == self.worker:
            self._reap()
            if self.config and self._needs_renewer():
                self._start_renewer()
            if self._poller.poll(tick):
                break
        if self._renewer:
            os.kill(self._renewer, signal.SIGKILL)
        for group in self.board.groups():
            signal_group(group, signal.SIGKILL)
        kill_marked(self.token + ".")

    def _needs_renewer(self) -> bool:
        """Start it a little before the first renewal is due, so that it is ready then."""
        if self._renewer or time.monotonic() - self._renewed_at < 1.0:
            return False
        if self.lease_seconds < SHORT_LEASE_SECONDS:
            return True
        is_silent = self.board.silent_seconds() > self.lease_seconds / 4
        return is_silent and bool(self.board.leases()) and not is_stopped(self.worker)

    def _start_renewer(self) -> None:
        self._renewed_at = time.monotonic()
        guardian = os.getpid()
        self._renewer = os.fork()
        if self._renewer == 0:
            self._renew(guardian)

    def _renew(self, guardian: int) -> NoReturn:
        """In the forked process: what it takes to speak to the store is imported here and nowhere else."""
        status = 1
        try:
            import json

            config = json.loads(self.config)
            sys.path[:] = config["path"]
            from postroom.worker.renewal import renew

            renew(self.board, config, lambda: os.getppid() != guardian or self._is_gone())
            status = 0
        except BaseException as error:  # noqa: BLE001  whatever it is, the guardian says so and tries again
            tell(f"could not renew the leases of worker {self.worker}: {type(error).__name__}: {error}")
        os._exit(status)

    def _is_gone(self) -> bool:
        if self._pidfd >= 0:
            return bool(select.select([self._pidfd], [], [], 0)[0])
        try:
            os.kill(self.worker, 0)
        except ProcessLookupError:
            return True
        return False

    def _reap(self) -> None:
        if self._renewer and os.waitpid(self._renewer, os.WNOHANG)[0]:
            self._renewer = 0


def tell(text: str) -> None:
    """A line to the worker's error output, if anybody still reads it."""
    try:
        os.write(2, f"postroom guardian: {text}\n".encode())
    except OSError:
        pass


def _read_line(pipe: int) -> bytes | None:
    """What the worker says at the start; None where it ended before."""
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(pipe, 65536)
        if not part:
            return None
        line += part
    return line[:-1]


def main(arguments: list[str]) -> None:
    """``guard.py PIPE BOARD WORKER TOKEN LEASE_SECONDS``: two descriptors, a process id, and what `Guard` takes."""
    pipe, file, worker = map(int, arguments[:3])
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with its worker, which may have to drain first
    config = _read_line(pipe)
    if config is not None:
        Guard(pipe, Board(file), worker, arguments[3], float(arguments[4]), config).run()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
