"""Reading connections. A reader sees the last commit, and neither waits for the writer nor holds it up.

A few rows by id are read where they are asked for: the answer is there in less time than a thread needs to wake up.
Whatever can be long is read in threads of the reader's own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import apsw

from postroom.errors import StoreUnavailable
from postroom.stores.sqlite.book import listed
from postroom.stores.sqlite.connections import connect, prepare, translated
from postroom.stores.sqlite.statements import query
from postroom.stores.sqlite.yielding import patiently

Answer = TypeVar("Answer")

THREADS = 2
TEXT_ERRORS = (apsw.SQLError, apsw.MismatchError, UnicodeDecodeError, ValueError)
"""What a row that cannot be read ends in."""


class Glance:
    """What a read sees: one connection, for the time of one question."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def rows(self, name: str, *values: Any) -> list[tuple[Any, ...]]:
        """All rows of a statement."""
        return self._connection.execute(query(name).text, values).fetchall()

    def row(self, name: str, *values: Any) -> tuple[Any, ...] | None:
        """The first row of a statement, None without one."""
        rows = self.rows(name, *values)
        return rows[0] if rows else None

    def gathered(self, name: str, *values: Any) -> list[Any]:
        """The rows of a statement that gathers arrays into one text."""
        return listed(self.rows(name, *values)[0][0])

    def pragma(self, name: str) -> list[tuple[Any, ...]]:
        """The rows of a pragma."""
        return self._connection.execute(f"PRAGMA {name}").fetchall()


class Reader:
    """Answers questions about one file, from any event loop."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._near = self._connect()
        self._near_lock = threading.Lock()
        self._pool = ThreadPoolExecutor(THREADS, "postroom-sqlite-reader")
        self._own = threading.local()
        self._connections: list[apsw.Connection] = []
        self._is_closed = False

    def _connect(self) -> apsw.Connection:
        connection = connect(self._path, writes=False)
        prepare(connection, writes=False)
        return connection

    async def read(self, question: Callable[[Glance], Answer]) -> Answer:
        """Ask in a thread."""
        self._check_open()
        loop = asyncio.get_running_loop()
        answer: Answer = await patiently(loop.run_in_executor(self._pool, self._answer, question))
        return answer

    async def read_briefly(self, question: Callable[[Glance], Answer]) -> Answer:
        """Ask right here, unless somebody else is asking: only for what is over in microseconds."""
        self._check_open()
        if not self._near_lock.acquire(blocking=False):
            return await self.read(question)
        try:
            with translated(self._path):
                return question(Glance(self._near))
        finally:
            self._near_lock.release()

    def _answer(self, question: Callable[[Glance], Answer]) -> Answer:
        connection: apsw.Connection | None = getattr(self._own, "connection", None)
        if connection is None:
            connection = self._own.connection = self._connect()
            self._connections.append(connection)
        with translated(self._path):
            return question(Glance(connection))

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreUnavailable(f"{self._path} is closed")

    async def close(self) -> None:
        """Finish what is being read and let go of the file; can be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        ended = [self._pool.submit(int) for _ in range(THREADS)]
        for each in ended:
            await asyncio.wrap_future(each)
        self._pool.shutdown(wait=True)
        with self._near_lock:
            self._near.close()
        for connection in self._connections:
            connection.close()
