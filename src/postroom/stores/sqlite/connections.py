"""Connections to the file, and how SQLite's errors become ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from postroom.errors import StoreDamaged, StoreError, StoreFull, StoreUnavailable
from postroom.stores.sqlite.statements import query

WRITER_CACHE_KIB = 8 * 1024
READER_CACHE_KIB = 2 * 1024
"""Pages that a connection keeps. What it does not, the system has in its own cache, microseconds away."""
PREPARED_MOST = 400
"""Statements that a connection keeps prepared: every one of ours in the sizes that it comes in."""
LOG_BYTES = 64 * 1024 * 1024
"""What the log is cut back to after a burst."""

UNAVAILABLE = (
    apsw.BusyError,
    apsw.LockedError,
    apsw.IOError,
    apsw.CantOpenError,
    apsw.ReadOnlyError,
    apsw.ProtocolError,
    apsw.NoMemError,
    apsw.InterruptError,
)


def connect(path: Path, *, writes: bool) -> apsw.Connection:
    """A connection of ours; a writing one makes the file where there is none, a reading one cannot change it.

    Raises:
        StoreError: as `translated` says.
    """
    flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if writes else 0)
    with translated(path):
        connection = apsw.Connection(str(path), flags=flags, statementcachesize=PREPARED_MOST)
        try:
            connection.set_busy_timeout(2000)
            if writes:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute("PRAGMA wal_autocheckpoint = 0")  # see checkpoint.py
                connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
            connection.execute(f"PRAGMA cache_size = -{WRITER_CACHE_KIB if writes else READER_CACHE_KIB}")
            connection.execute("PRAGMA temp_store = MEMORY")
        except BaseException:
            connection.close()
            raise
    return connection


def prepare(connection: apsw.Connection, *, writes: bool) -> None:
    """What a connection needs once the schema stands."""
    connection.execute(query("job_rows").text)
    if not writes:
        connection.execute("PRAGMA query_only = ON")


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn the driver's errors into ours.

    Raises:
        StoreFull: no room on the disk, or the file may not grow.
        StoreUnavailable: locked, unreadable, unwritable now; trying again may help.
        StoreDamaged: the file is broken, or a part of the schema is missing.
        StoreError: a statement of ours is wrong.
    """
    try:
        yield
    except apsw.Error as error:
        raise as_ours(error, path) from error


def as_ours(error: apsw.Error, path: Path) -> StoreError:
    """Our error for one of the driver's."""
    if isinstance(error, apsw.FullError):
        return StoreFull(f"{path}: no room left on the disk; nothing was written. Make room and try again")
    if isinstance(error, apsw.ReadOnlyError):
        return StoreUnavailable(
            f"{path} cannot be written by this user ({error}); commands that only read need it, too, since they take "
            f"part in its log. Give this user the right to write {path.name}, {path.name}-wal, {path.name}-shm "
            f"and the folder {path.name}-live, or ask a running service: --store http://…"
        )
    if isinstance(error, UNAVAILABLE):
        return StoreUnavailable(f"{path}: SQLite says {error}; nothing was written. Try again")
    if isinstance(error, (apsw.CorruptError, apsw.NotADBError)):
        return StoreDamaged(
            f"{path} is damaged or not a database ({error}): stop what uses it, keep a copy, restore a backup"
        )
    if isinstance(error, apsw.SQLError) and "no such " in str(error):
        return StoreDamaged(
            f"{path} lacks a part of its schema ({error}): stop what uses it, keep a copy, restore a backup"
        )
    return StoreError(f"{path}: SQLite says {type(error).__name__}: {error}")
