"""Moving the write-ahead log into the file, beside the commits instead of in one of them.

Left to SQLite, the commit that makes the log long enough also moves it: 15 to 40 ms here, in which its caller and all
others wait. Here most of it is moved by another connection while commits go on, and then the little that they added,
while they are held up for a moment: only when all is moved can the log begin anew. A log that begins anew is written
over in place, which is synced faster than a file that grows.
"""

from __future__ import annotations

import threading
from pathlib import Path

import apsw

from postroom.stores.sqlite.connections import connect

PAGES = 4000
"""Pages that a connection writes to the log between two moves: pages that many commits touched are moved once."""


class Checkpoint:
    """Decides when, and does it. Belongs to the writer's thread, but for `is_due`.

    Args:
        path: the file.
        writing: the connection whose pages are counted.
    """

    def __init__(self, path: Path, writing: apsw.Connection) -> None:
        self._path = path
        self._writing = writing
        self._moved_at = 0
        self._moving: apsw.Connection | None = None

    def is_due(self) -> bool:
        """Whether enough was written since the last time. Asked by whoever holds the writing connection."""
        return self._written() - self._moved_at >= PAGES

    def _written(self) -> int:
        return self._writing.status(apsw.SQLITE_DBSTATUS_CACHE_WRITE)[0]

    def move(self, writers: threading.Lock) -> None:
        """Move the log. What cannot be moved now (somebody reads it) is moved the next time.

        Args:
            writers: held by whoever writes.
        """
        try:
            if self._moving is None:
                self._moving = connect(self._path, writes=True)
            self._moving.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            with writers:
                self._moved_at = self._written()
                self._moving.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.Error:  # nothing is lost by a log that stays long; the next commit tells what is wrong
            with writers:
                self._moved_at = self._written()

    def close(self) -> None:
        """Let go of the file."""
        if self._moving is not None:
            self._moving.close()
