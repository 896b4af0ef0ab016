"""The SQLite store: one file, any number of processes on one machine, nothing acknowledged that a power cut could lose.

Beside ``inbox.db`` (and SQLite's own ``-wal`` and ``-shm``) lies the folder ``inbox.db-live``: locks that order the
writers, locks that prove workers present, sockets for hints. It holds no data and may be removed while nobody runs.

Who does what: `writer` the transactions, `ledger` what is in them, `line` the order, `reader` everything that only
reads, `presence` who is there, `wakeups` who is told.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from postroom.errors import StoreUnavailable, StoreUnsuitable
from postroom.model import (
    Change,
    Checkpoint,
    CheckpointKind,
    Job,
    JsonText,
    Line,
    Payload,
    WorkerInfo,
)
from postroom.stores.port import (
    Capabilities,
    Claimed,
    ClaimRequest,
    DeadLetterGroup,
    Page,
    Query,
    Reading,
    Retention,
    Stats,
    Submission,
    Submitted,
    Sweep,
    Watch,
)
from postroom.stores.sqlite import browsing, chores
from postroom.stores.sqlite.book import Book
from postroom.stores.sqlite.connections import connect, prepare, translated
from postroom.stores.sqlite.ledger import Ledger
from postroom.stores.sqlite.line import Line as WaitingLine
from postroom.stores.sqlite.presence import Presence
from postroom.stores.sqlite.reader import Glance, Reader
from postroom.stores.sqlite.rows import checkpoint_from, keys_from, worker_values
from postroom.stores.sqlite.schema import migrate
from postroom.stores.sqlite.standstill import Standstill
from postroom.stores.sqlite.suitability import check_library, check_place, path_of
from postroom.stores.sqlite.turnstile import Turnstile
from postroom.stores.sqlite.wakeups import Wakeups
from postroom.stores.sqlite.writer import Writer

BRIEF_IDS = 32
"""Jobs by id that are read in the asking event loop itself."""
MIGRATE_SECONDS = 60.0
LIVE_SUFFIX = "-live"


@dataclass(frozen=True)
class _Options:
    overtake_seconds: float
    fair_by: str
    groups: bool


class SqliteStore:
    """Implements `port.Store` on one SQLite file.

    Args:
        url: ``sqlite:///path``.
        clock: gives the time in seconds since the epoch; tests pass a `ManualClock`.
        overtake_seconds: how long a ready job waits before it moves up one rank.
        fair_by: whose jobs take turns: ``owner``, ``sender``, or ``none`` for first come first served.
        groups: False gives each request a transaction of its own; only to measure what grouping gains.
    Raises:
        SettingsInvalid: the URL names no file.
    """

    capabilities = Capabilities(
        name="sqlite",
        durability="survives a crash and a power cut: an answer waits until its data is on the disk (synchronous=FULL)",
        shares_processes=True,
        hints_across_processes=True,
        proves_death=True,
    )

    def __init__(
        self,
        url: str,
        *,
        clock: Callable[[], float] = time.time,
        overtake_seconds: float = 600.0,
        fair_by: str = "owner",
        groups: bool = True,
    ) -> None:
        if fair_by not in ("owner", "sender", "none"):
            raise ValueError(f"fair_by is owner, sender or none, got {fair_by!r}")
        self.path = path_of(url)
        self._clock = clock
        self._options = _Options(overtake_seconds, fair_by, groups)
        self._standstill = Standstill(clock)
        self._parts: _Parts | None = None

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"

    def now(self) -> float:
        return self._clock()

    # ---- opening and closing

    async def open(self) -> None:
        if self._parts is not None:
            return
        check_library()
        check_place(self.path)
        self._migrate()
        self._parts = _Parts(self.path, self._clock, self._standstill, self._options)

    async def close(self) -> None:
        parts, self._parts = self._parts, None
        if parts is not None:
            await parts.close()

    async def migrate(self) -> list[str]:
        check_library()
        check_place(self.path)
        return self._migrate()

    def _migrate(self) -> list[str]:
        connection = connect(self.path, writes=True)
        try:
            connection.set_busy_timeout(int(MIGRATE_SECONDS * 1000))
            with translated(self.path):
                return migrate(connection, self.path)
        finally:
            connection.close()

    @property
    def _open(self) -> _Parts:
        if self._parts is None:
            raise StoreUnavailable(f"{self.path} is not open: await store.open() first")
        return self._parts

    # ---- writing

    async def submit(self, submissions: Sequence[Submission]) -> list[Submitted]:
        return await self._open.writer.submit(submissions) if submissions else []

    async def claim(self, request: ClaimRequest) -> Claimed:
        return await self._open.writer.claim(request)

    async def commit(self, changes: Sequence[Change]) -> list[bool]:
        return await self._open.writer.commit(changes) if changes else []

    async def keep(self, name: str, value: JsonText | None, *, before: JsonText | None) -> bool:
        return await self._open.writer.act(lambda book: chores.keep(book, name, value, before))

    async def purge(self, retention: Retention, limit: int = 1000) -> int:
        return await self._open.writer.act(lambda book: chores.purge(book, self._clock(), retention, limit))

    # ---- sweeping, watching, attending

    async def expired(self, limit: int = 100) -> Sweep:
        parts = self._open
        now, standstill = self._clock(), self._standstill.last()

        def sweep(glance: Glance) -> tuple[Sweep, list[str]]:
            gone = parts.gone(glance)
            return chores.expired(glance, now, limit, gone, standstill), gone

        found, gone = await parts.reader.read(sweep)
        if gone:
            for worker in await parts.writer.act(lambda book: chores.forget_workers(book, gone)):
                parts.presence.forget(worker)
        return found

    def watch(self, *topics: str) -> Watch:
        return self._open.wakeups.watch(topics)

    async def attend(self, info: WorkerInfo) -> None:
        parts = self._open
        lock = parts.presence.hold(info.worker) if info.is_local else None
        seen = replace(info, seen_at=self._clock())
        await parts.writer.act(lambda book: book.run("save_worker", *worker_values(seen, lock)))

    async def leave(self, worker: str) -> None:
        parts = self._open
        await parts.writer.act(lambda book: book.run("drop_workers", json.dumps([worker])))
        parts.presence.release(worker)

    async def workers(self, seen_within_seconds: float = 90.0) -> list[WorkerInfo]:
        parts = self._open
        since = self._clock() - seen_within_seconds
        known = await parts.reader.read(chores.workers)
        return [w for w, lock in known if w.seen_at >= since and not parts.presence.is_gone(w.worker, lock)]

    # ---- reading

    async def get(
        self,
        job_ids: Collection[str],
        *,
        checkpoints: Mapping[str, Collection[tuple[CheckpointKind, str]]] | None = None,
    ) -> Reading:
        named = checkpoints or {}

        def look(glance: Glance) -> Reading:
            now = self._clock()
            jobs, _ = browsing.jobs_by_id(glance, job_ids)
            return Reading(now, jobs, browsing.named_checkpoints(glance, named))

        reader = self._open.reader
        is_brief = len(job_ids) <= BRIEF_IDS and sum(map(len, named.values())) <= BRIEF_IDS
        return await (reader.read_briefly(look) if is_brief else reader.read(look))

    async def find(self, query: Query) -> Page:
        now = self._clock()
        return await self._open.reader.read(lambda glance: browsing.find(glance, query, now))

    async def count(self, owner: str | None = None) -> Stats:
        now = self._clock()
        return await self._open.reader.read(lambda glance: browsing.count(glance, owner, now))

    async def journal(self, job_id: str, *, after: int = -1, limit: int = 500) -> list[Line]:
        return await self._open.reader.read(lambda glance: browsing.journal(glance, job_id, after, limit))

    async def payload(self, job_id: str) -> Payload | None:
        row = await self._open.reader.read(lambda glance: glance.row("payload", job_id))
        return None if row is None else Payload(row[0], keys_from(row[1]))

    async def item_keys(self, job_id: str) -> tuple[str, ...] | None:
        row = await self._open.reader.read(lambda glance: glance.row("item_keys", job_id))
        return None if row is None else keys_from(row[0])

    async def checkpoints(
        self,
        job_id: str,
        *,
        kind: CheckpointKind | None = None,
        after_key: str | None = None,
        limit: int | None = None,
    ) -> list[Checkpoint]:
        most = -1 if limit is None else limit
        rows = await self._open.reader.read(
            lambda glance: glance.rows("checkpoints", job_id, kind, after_key, most)
        )
        return [checkpoint_from(row) for row in rows]

    async def result(self, job_id: str) -> JsonText | None:
        row = await self._open.reader.read(lambda glance: glance.row("result", job_id))
        return None if row is None else str(row[0])

    async def dead_letters(
        self,
        *,
        owner: str | None = None,
        since: float | None = None,
        kind: str | None = None,
        limit: int = 100,
    ) -> list[DeadLetterGroup]:
        return await self._open.reader.read(
            lambda glance: browsing.dead_letters(glance, owner, since, kind, limit)
        )

    async def failed(
        self,
        *,
        owner: str | None = None,
        kind: str | None = None,
        code: str | None = None,
        message: str | None = None,
        since: float | None = None,
        limit: int = 10_000,
    ) -> list[Job]:
        return await self._open.reader.read(
            lambda glance: browsing.failed(glance, owner, kind, code, message, since, limit)
        )

    async def kept(self, prefix: str) -> dict[str, JsonText]:
        return dict(await self._open.reader.read(lambda glance: glance.rows("kept_values", prefix)))

    async def purged_at(self, job_id: str) -> float | None:
        row = await self._open.reader.read(lambda glance: glance.row("purged_at", job_id))
        return None if row is None else float(row[0])

    async def verify(self) -> list[str]:
        return await self._open.reader.read(browsing.verify)


class _Parts:
    """What an open store consists of."""

    def __init__(
        self, path: Path, clock: Callable[[], float], standstill: Standstill, options: _Options
    ) -> None:
        folder = path.with_name(path.name + LIVE_SUFFIX)
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise StoreUnsuitable(
                f"{folder} cannot be made ({error.strerror}): the store needs it beside its file"
            ) from error
        connection = connect(path, writes=True)
        with translated(path):
            prepare(connection, writes=True)
        book = Book(connection, path)
        line = WaitingLine(book, overtake_seconds=options.overtake_seconds, fair_by=options.fair_by)
        self.presence = Presence(folder)
        self.wakeups = Wakeups(folder)
        self.turnstile = Turnstile(folder)
        self.reader = Reader(path)
        self.writer = Writer(
            book,
            Ledger(book, line, clock),
            self.turnstile,
            standstill=standstill,
            wakeups=self.wakeups,
            groups=options.groups,
        )
        self.writer.start()

    def gone(self, glance: Glance) -> list[str]:
        """Workers on record whose process is proven to have ended."""
        return [
            info.worker for info, lock in chores.workers(glance) if self.presence.is_gone(info.worker, lock)
        ]

    async def close(self) -> None:
        """Finish what was accepted, then let go. Locks of workers that did not leave stay held while the process
        lives: a worker whose store was closed under it is not gone."""
        await self.writer.close()
        await self.reader.close()
        self.wakeups.close()
        self.turnstile.close()
