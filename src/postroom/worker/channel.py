"""What a worker and its isolated child say to each other: JSON over a pair of sockets, each value after its length.

Not over standard input and output, which belong to the handler.
"""

from __future__ import annotations

import asyncio
import json
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from postroom.errors import CheckpointConflict, LeaseLost, OutcomeInvalid, StoreError, StoreUnavailable
from postroom.model import (
    Checkpoint,
    CheckpointKind,
    ErrorInfo,
    Lease,
    Limits,
    Outcome,
    OutcomeKind,
    Payload,
    job_from_row,
    job_to_row,
)
from postroom.worker.recorder import Halt, RunCancelled

Message = dict[str, Any]

_LENGTH = struct.Struct(">I")
_CHUNK = 1 << 18


class Channel:
    """One end of the pair, in one event loop.

    `send` may be called from any thread, never waits, and sends at once where there is room, so that a handler that
    blocks the loop is heard all the same. Messages arrive in the order in which they were sent.

    Args:
        end: this side's socket.
        on_message: called in the loop with each message; not before `start`.
        on_end: called in the loop once nothing more will come.
    """

    def __init__(
        self, end: socket.socket, on_message: Callable[[Message], None], on_end: Callable[[], None]
    ) -> None:
        end.setblocking(False)
        self._socket = end
        self._on_message = on_message
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._outbox: deque[memoryview] = deque()
        self._inbox = bytearray()
        self._is_ended = False
        self._is_closed = False
        self._empty = asyncio.Event()
        self._empty.set()

    def start(self) -> None:
        """Let messages come."""
        self._loop.add_reader(self._socket, self.pump)

    def close(self) -> None:
        """Let go of the socket; what was not sent yet is dropped. Can be called twice."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()

    # ---- out

    def send(self, message: Message) -> None:
        """Send a message; dropped where the other side is gone."""
        body = json.dumps(message, ensure_ascii=False, separators=(",", ":"), default=repr).encode()
        with self._lock:
            if self._is_closed:
                return
            was_empty = not self._outbox
            self._outbox.append(memoryview(_LENGTH.pack(len(body)) + body))
            if was_empty and not self._push():
                self._loop.call_soon_threadsafe(self._write_later)

    def _push(self) -> bool:
        """Send what can be sent now; True once nothing is left."""
        while self._outbox:
            try:
                sent = self._socket.send(self._outbox[0])
            except (BlockingIOError, InterruptedError):
                return False
            except OSError:  # the other side is gone: nobody will read it
                self._outbox.clear()
                return True
            rest = self._outbox.popleft()[sent:]
            if rest:
                self._outbox.appendleft(rest)
        return True

    def _write_later(self) -> None:
        self._empty.clear()
        if not self._is_closed:
            self._loop.add_writer(self._socket, self._writable)

    def _writable(self) -> None:
        with self._lock:
            if self._is_closed or not self._push():
                return
            self._loop.remove_writer(self._socket)
            self._empty.set()

    async def flush(self) -> None:
        """Return once all that was sent is on its way."""
        await asyncio.sleep(0)
        await self._empty.wait()

    # ---- in

    def pump(self) -> None:
        """Take in all that has come."""
        while not self._is_ended and not self._is_closed:
            try:
                data = self._socket.recv(_CHUNK)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data = b""
            if not data:
                self._is_ended = True
                self._loop.remove_reader(self._socket)
                self._on_end()
                return
            self._inbox += data
            self._take()

    def _take(self) -> None:
        start = 0
        while len(self._inbox) - start >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._inbox, start)
            end = start + _LENGTH.size + size
            if len(self._inbox) < end:
                break
            message = json.loads(self._inbox[start + _LENGTH.size : end])
            start = end
            self._on_message(message)
        del self._inbox[:start]


def receive_one(end: socket.socket) -> Message | None:
    """Wait for one message, before there is an event loop; None where the other side is gone."""
    head = _exactly(end, _LENGTH.size)
    body = _exactly(end, _LENGTH.unpack(head)[0]) if head else b""
    message: Message | None = json.loads(body) if body else None
    return message


def _exactly(end: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = end.recv(min(size - len(parts), _CHUNK))
        if not part:
            return b""
        parts += part
    return bytes(parts)


def wait_for_hangup(descriptor: int) -> None:
    """Return when the other side is gone; reads nothing."""
    poller = select.poll()
    poller.register(descriptor, select.POLLHUP)
    while not any(event & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, event in poller.poll()):
        pass


# ---- values


def checkpoint_to_json(checkpoint: Checkpoint) -> Message:
    return dict(vars(checkpoint))


def checkpoint_from_json(values: Message) -> Checkpoint:
    return Checkpoint(**{**values, "kind": CheckpointKind(values["kind"])})


def lease_to_json(lease: Lease) -> Message:
    return {
        "job": job_to_row(lease.job),
        "body": lease.payload.body,
        "keys": lease.payload.keys,
        "checkpoints": [checkpoint_to_json(c) for c in lease.checkpoints],
    }


def lease_from_json(values: Message) -> Lease:
    keys = values["keys"]
    payload = Payload(values["body"], None if keys is None else tuple(keys))
    return Lease(job_from_row(values["job"]), payload, _checkpoints(values))


def _checkpoints(values: Message) -> tuple[Checkpoint, ...]:
    return tuple(checkpoint_from_json(c) for c in values["checkpoints"])


def outcome_to_json(outcome: Outcome) -> Message:
    return {
        **vars(outcome),
        "checkpoints": [checkpoint_to_json(c) for c in outcome.checkpoints],
        "error": None if outcome.error is None else vars(outcome.error),
        "limits": None if outcome.limits is None else vars(outcome.limits),
    }


def outcome_from_json(values: Message) -> Outcome:
    error, limits = values["error"], values["limits"]
    changed = {
        "kind": OutcomeKind(values["kind"]),
        "checkpoints": _checkpoints(values),
        "output": tuple(values["output"]),
        "error": None if error is None else ErrorInfo(**error),
        "limits": None if limits is None else Limits(**limits),
    }
    return Outcome(**{**values, **changed})


_ERRORS: dict[str, type[Exception]] = {
    e.__name__: e for e in (LeaseLost, OutcomeInvalid, StoreError, StoreUnavailable)
}


def error_to_json(error: Exception) -> Message:
    """An error that a recorder raised, so that the other side can raise it again."""
    about = error.key if isinstance(error, CheckpointConflict) else None
    if isinstance(error, RunCancelled):
        about = error.reason
    return {"name": type(error).__name__, "message": str(error), "about": about}


def error_from_json(values: Message) -> Exception:
    """What `error_to_json` was given, or its nearest kin."""
    name, message, about = values["name"], values["message"], values["about"]
    if name == "CheckpointConflict":
        return CheckpointConflict(message, key=about)
    if name == "RunCancelled":
        return RunCancelled(Halt(about))
    return _ERRORS.get(name, StoreError)(message)
