"""Hints between processes on one file: each that watches has a datagram socket beside it.

After a commit the writing process sends the topics to every socket of the others. Nothing waits for an answer, a full
or dead socket is passed over, and the socket of a process that died is removed by the next one that meets it. All of
it may fail: whoever waits polls as well.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Collection
from pathlib import Path

from postroom.stores.hints import Hub, HubWatch

SUFFIX = ".hints"
LONGEST_BYTES = 60_000
"""Topics longer than this together are told as "something": the others look at everything they watch."""
EVERYTHING = b"*"
TICK_NS = 2_000_000_000
"""So far apart, two changes of the folder have different stamps, whatever the file system."""


class Wakeups:
    """Tells the watchers of this process and of all others on one file.

    Args:
        folder: where the sockets are; it exists.
    """

    def __init__(self, folder: Path) -> None:
        self.hub = Hub()
        self._folder = folder
        self._handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._name = f"{os.getpid()}-{secrets.token_hex(4)}{SUFFIX}"
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._others: tuple[int, list[str]] = (-1, [])
        self._sender: socket.socket | None = None
        self._is_closed = False

    def watch(self, topics: tuple[str, ...]) -> HubWatch:
        """A watch that hears of other processes too, as far as sockets can be had here."""
        self._listen()
        return HubWatch(self.hub, topics)

    def is_heard(self) -> bool:
        """Whether anybody, here or in another process, watches anything."""
        return self.hub.is_watched or bool(self._find_others())

    def tell(self, topics: Collection[str]) -> None:
        """Something changed. Called by the writer's thread after a commit."""
        if not topics:
            return
        others = self._find_others()
        if others:  # first: whoever wakes up in this process takes the interpreter lock, which sending needs
            text = " ".join(topics).encode()
            self._send(others, text if len(text) <= LONGEST_BYTES else EVERYTHING)
        self.hub.hint(topics)

    def close(self) -> None:
        """Hear and tell no more; can be called twice."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            listening, thread, sender = self._socket, self._thread, self._sender
        if listening is not None and thread is not None:
            _unlink(self._folder / self._name)
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()
            listening.close()
        if sender is not None:
            sender.close()
        os.close(self._handle)

    # ---- telling

    def _find_others(self) -> list[str]:
        """The sockets of other processes; the folder is listed again only when something came or went."""
        if self._is_closed:
            return []
        try:
            changed = os.stat(self._handle).st_mtime_ns
            if changed != self._others[0]:
                found = os.listdir(self._handle)
                names = [name for name in found if name.endswith(SUFFIX) and name != self._name]
                # What comes within the same tick of the file system's clock does not change the stamp.
                is_settled = time.time_ns() - changed > TICK_NS
                self._others = (changed if is_settled else -1, names)
        except OSError:  # no descriptor to be had, for one: those known before are told
            pass
        return self._others[1]

    def _send(self, names: list[str], text: bytes) -> None:
        if self._sender is None:
            try:
                self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            except OSError:  # the others poll; what was committed must not seem to have failed
                return
            self._sender.setblocking(False)
        for name in names:
            try:
                self._sender.sendto(text, self._address(name))
            except ConnectionRefusedError:  # its process died without removing it
                _unlink(self._folder / name)
            except OSError:  # its buffer is full (it has hints to read), or it is gone
                continue

    def _address(self, name: str) -> str:
        """The path of a socket, short enough for any folder where the system lets us name it through our handle."""
        if sys.platform == "linux":
            return f"/proc/self/fd/{self._handle}/{name}"
        return str(self._folder / name)

    # ---- hearing

    def _listen(self) -> None:
        """Open our socket at the first watch; without one (no room for it) watchers poll."""
        with self._lock:
            if self._socket is not None or self._is_closed:
                return
            listening = None
            try:
                listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                listening.bind(self._address(self._name))
            except OSError:
                if listening is not None:
                    listening.close()
                return
            self._socket = listening
            self._thread = threading.Thread(
                target=self._hear, args=(listening,), name="postroom-sqlite-hints", daemon=True
            )
            self._thread.start()

    def _hear(self, listening: socket.socket) -> None:
        while True:
            try:
                text = listening.recv(LONGEST_BYTES + 1)
            except OSError:
                return
            if self._is_closed:
                return
            if text == EVERYTHING:
                self.hub.hint_all()
            else:
                self.hub.hint(set(text.decode("utf-8", "replace").split()))


def _unlink(path: Path) -> None:
    try:
        path.unlink()
    except OSError:
        pass
