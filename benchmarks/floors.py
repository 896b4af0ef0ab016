"""What the machine and the bare database can do: floors taken in the same run as our figures."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from statistics import median

import apsw

_SCHEMA = """
CREATE TABLE jobs (id INTEGER PRIMARY KEY, state TEXT, kind TEXT, run_at REAL, payload TEXT, worker TEXT,
    started REAL, finished REAL, result TEXT);
CREATE INDEX due ON jobs (run_at) WHERE state = 'queued';
"""
_INSERT = "INSERT INTO jobs (state, kind, run_at, payload) VALUES ('queued', 'noop', ?1, '{\"i\": 1}')"
_CLAIM = """UPDATE jobs SET state = 'running', started = 2, worker = 'w'
WHERE id IN (SELECT id FROM jobs WHERE state = 'queued' AND run_at <= 5 ORDER BY run_at LIMIT 100) RETURNING id"""
_COMPLETE = "UPDATE jobs SET state = 'done', finished = 3, result = '1' WHERE id = ?1"


def fsync_milliseconds(folder: Path, times: int = 100) -> float:
    """The median time of one fsync after a 4 KiB write."""
    path = folder / "fsync"
    found = []
    with path.open("wb") as file:
        for _ in range(times):
            file.write(b"x" * 4096)
            file.flush()
            begun = time.perf_counter()
            os.fsync(file.fileno())
            found.append((time.perf_counter() - begun) * 1000)
    return median(found)


def _open(path: Path) -> apsw.Connection:
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", "full")
    for statement in _SCHEMA.split(";"):
        connection.execute(statement)
    return connection


def single_commits(folder: Path, seconds: float = 1.0) -> float:
    """Rows a second, one durable commit each: what one client can ever reach."""
    connection = _open(folder / "single.db")
    count, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        connection.execute(_INSERT, (1.0,))
        count += 1
    rate = count / (time.perf_counter() - begun)
    connection.close()
    return rate


def two_commits_after_a_pause(folder: Path, times: int = 100) -> list[float]:
    """Milliseconds of two single-row commits after 30 ms of rest: what a submit and a claim cannot do without."""
    connection = _open(folder / "rested.db")
    found = []
    for _ in range(times):
        time.sleep(0.03)
        begun = time.perf_counter()
        connection.execute(_INSERT, (1.0,))
        connection.execute(_CLAIM).fetchall()
        found.append((time.perf_counter() - begun) * 1000)
    connection.close()
    return found


def pairs_in_batches(folder: Path, seconds: float = 1.0) -> float:
    """Claim and complete pairs a second in batches of 100, no journal, no fence, no result apart."""
    connection = _open(folder / "pairs.db")
    with connection:
        connection.executemany(_INSERT, ((1.0,) for _ in range(200_000)))
    count, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        with connection:
            ids = [(row[0],) for row in connection.execute(_CLAIM)]
        with connection:
            connection.executemany(_COMPLETE, ids)
        count += len(ids)
        if not ids:
            break
    rate = count / (time.perf_counter() - begun)
    connection.close()
    return rate


def thousand_sleeps() -> float:
    """Seconds that a thousand sleeps of one second take in a bare event loop."""

    async def sleep() -> float:
        begun = time.perf_counter()
        await asyncio.gather(*(asyncio.sleep(1.0) for _ in range(1000)))
        return time.perf_counter() - begun

    return asyncio.run(sleep())
