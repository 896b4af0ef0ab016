"""What `postroom verify` finds: every change by another hand but those that the docs name, and else nothing."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postroom import lifecycle, seals, verification
from postroom.errors import LeaseLost, PostroomError
from postroom.model import (
    JOB_FIELDS,
    Checkpoint,
    Draft,
    ErrorInfo,
    Job,
    Limits,
    OutcomeKind,
    Payload,
    Priority,
    evolve,
)
from postroom.stores.memory import MemoryStore
from postroom.stores.port import Retention, Store
from postroom.stores.sqlite.store import SqliteStore
from postroom.testing import ManualClock
from postroom.verification import Finding, verify_store
from tests.stores.office import Office, item, item_error, step

Make = Callable[[Path, ManualClock], Store]

STORES: dict[str, Make] = {
    "memory": lambda folder, clock: MemoryStore(clock=clock),
    "sqlite": lambda folder, clock: SqliteStore(f"sqlite:///{folder / 'inbox.db'}", clock=clock),
}


async def findings(store: Store) -> list[Finding]:
    return [finding async for step in verify_store(store) for finding in step.findings]


@pytest.fixture(params=STORES)
async def office(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Office]:
    clock = ManualClock()
    store = STORES[request.param](tmp_path, clock)
    await store.open()
    yield Office(store, clock)
    await store.close()


@pytest.fixture
async def sqlite(tmp_path: Path) -> AsyncIterator[Office]:
    clock = ManualClock()
    store = STORES["sqlite"](tmp_path, clock)
    await store.open()
    yield Office(store, clock)
    await store.close()


async def fill(office: Office) -> None:
    """Jobs of every shape and fate."""
    clock = office.clock
    await office.submit("waits")
    await office.submit("waits", priority=Priority.LOW, sender="mail", owner="ann", actor="ann")
    await office.submit(
        "waits", run_at=clock() + 500, expires_at=clock() + 900, max_attempts=2, timeout_seconds=9.0
    )
    await office.submit("waits", idempotency_key="monday", body_digest="b" * 24)
    await office.succeed_new(result='{"é":1}')
    await office.fail_new(message="job 12 broke")
    await _with_items(office)
    await _through_it_all(office)
    cancelled = await office.submit("cancelled")
    clock.advance(1)
    await office.cancel(cancelled)
    expired = await office.submit("expired", expires_at=clock() + 1)
    clock.advance(2)
    assert await office.sweep() == [expired]
    await _of_old(office)
    running = await office.start("runs", items=["1", "2", "3"], worker="w9")
    clock.advance(1)
    await office.beat(running, checkpoints=(item("0", '"a"'),), output=('"hello"',), usage={"tokens": 5})
    clock.advance(1)
    await office.beat(running, seq=2, checkpoints=(item_error("1"), step("fetch", '"x"')))


async def _with_items(office: Office) -> None:
    """Items that fail, a retry, a replay, and an end in spite of them."""
    job = await office.start("items", items=["1", "2", "3"], keys=("a", "b", "c"), allow_failed_items=1.0)
    await office.beat(job, done=1, checkpoints=(item("a", '"A"'),), output=('{"deep":[1,2.5]}', '"é"'))
    office.clock.advance(1)
    await office.settle(job, OutcomeKind.FAILED, error=_error(), checkpoints=(item_error("b"),))
    office.clock.advance(60)
    [lease] = await office.claim("items", worker="w2")
    new = (item("b", '"B"'), item_error("c", is_final=True))
    await office.succeed(lease.job, None, checkpoints=new)


async def _through_it_all(office: Office) -> None:
    """One job that meets every event: held, released, crashed, retried, failed, replayed, cancelled while it runs."""
    clock = office.clock
    job = await office.start("busy", worker="w3")
    await office.settle(
        job, OutcomeKind.HELD, after_seconds=5.0, reason="the provider is down", usage={"tokens": 2}
    )
    clock.advance(6)
    [lease] = await office.claim("busy", worker="w3")
    await office.settle(lease.job, OutcomeKind.RELEASED, reason="worker drains")
    [lease] = await office.claim("busy", worker="w4", lease_seconds=10)
    clock.advance(11)
    await office.sweep()
    clock.advance(10)
    [lease] = await office.claim("busy", worker="w5")
    await office.beat(lease.job, done=1, total=4, checkpoints=(step("fetch", '"rows"'),))
    await office.settle(lease.job, OutcomeKind.FAILED, error=_error())
    clock.advance(60)
    [lease] = await office.claim("busy", worker="w6")
    await office.fail(lease.job, "no such mail 7")
    clock.advance(1)
    await office.replay(lease.job.job_id)
    [lease] = await office.claim("busy", worker="w7")
    await office.cancel(lease.job.job_id)
    clock.advance(1)
    await office.settle(lease.job, OutcomeKind.CANCELLED)


async def _of_old(office: Office) -> None:
    """A clock that is set back during a run: no time in the journal falls, and the next run starts before its line."""
    job = await office.start("old")
    office.clock.set_to(office.clock() - 30)
    await office.settle(job, OutcomeKind.RELEASED)
    [lease] = await office.claim("old")
    claimed = (await office.store.journal(job.job_id))[-1]
    assert (lease.job.started_at, claimed.data) == (office.clock(), {"started_at": office.clock()})
    await office.succeed(lease.job)


def _error() -> ErrorInfo:
    return ErrorInfo("TimeoutError", "the model did not answer", {"after": 1.5})


async def test_a_store_that_only_we_wrote_has_no_findings(office: Office) -> None:
    await fill(office)
    assert await findings(office.store) == []


class Lives:
    """Takes random steps with random jobs, whether or not they lead anywhere."""

    def __init__(self, office: Office, chance: random.Random) -> None:
        self.office = office
        self.chance = chance
        self.ids: list[str] = []

    async def step(self) -> None:
        steps = (
            self.submit,
            self.claim,
            self.claim,
            self.beat,
            self.beat,
            self.settle,
            self.settle,
            self.others,
        )
        try:
            await self.chance.choice(steps)()
        except PostroomError:
            pass  # refused: it must have changed nothing
        self.office.clock.advance(self.chance.choice((0, 0.001, 1, 7, 70)))

    async def submit(self) -> None:
        some = self.chance.choice(
            (
                {},
                {"items": ["1", "2", "3"]},
                {"run_at": self.office.clock() + 5},
                {"expires_at": self.office.clock() + 9},
            )
        )
        key = self.chance.choice((None, None, f"key {len(self.ids)}"))
        limits = self.chance.choice(
            ({}, {"max_attempts": 1, "timeout_seconds": 50.0, "allow_failed_items": 0.5})
        )
        self.ids.append(await self.office.submit(idempotency_key=key, **some, **limits))

    async def claim(self) -> None:
        await self.office.claim(
            limit=self.chance.randrange(1, 4), worker=self.chance.choice("ab"), lease_seconds=20
        )

    async def held(self) -> Job:
        if not self.office.claims:
            raise LeaseLost("nothing is held")
        lease = self.chance.choice(self.office.claims[-6:])
        return lease.job

    def checkpoints(self, job: Job) -> tuple[Checkpoint, ...]:
        if not job.has_items:
            return (step(self.chance.choice("xy"), '"v"', self.chance.choice("de")),)
        key = self.chance.choice("012")
        return self.chance.choice(
            ((item(key, '"v"'),), (item_error(key),), (item_error(key, is_final=True),), ())
        )

    async def beat(self) -> None:
        job = await self.held()
        output = ('"emitted"',) * self.chance.randrange(3)
        limits = self.chance.choice((None, Limits(max_attempts=9, stall_timeout_seconds=99.0)))
        usage = self.chance.choice((None, {"tokens": 3}))
        seq = self.chance.choice((None, 1, 2))
        await self.office.beat(
            job,
            checkpoints=self.checkpoints(job),
            output=output,
            limits=limits,
            usage=usage,
            done=1,
            total=2,
            seq=seq,
        )

    async def settle(self) -> None:
        job = await self.held()
        kind = self.chance.choice(tuple(OutcomeKind))
        error = ErrorInfo(
            self.chance.choice(("items_failed", "Broken")), "no luck", None, self.chance.random() < 0.2
        )
        result = '"r"' if kind is OutcomeKind.SUCCEEDED and not job.has_items else None
        await self.office.settle(
            job,
            kind,
            error=error if kind is OutcomeKind.FAILED else None,
            result=result,
            checkpoints=self.checkpoints(job) if job.has_items else (),
            usage=self.chance.choice((None, {"tokens": 1})),
            reason=self.chance.choice((None, "so it was")),
        )

    async def others(self) -> None:
        await self.office.sweep()
        if self.ids:
            await self.chance.choice((self.office.cancel, self.office.replay))(self.chance.choice(self.ids))


@pytest.mark.parametrize("seed", range(6))
async def test_a_store_of_random_lives_has_no_findings(office: Office, seed: int) -> None:
    lives = Lives(office, random.Random(seed))
    for number in range(150):
        await lives.step()
        if number % 50 == 49:
            assert await findings(office.store) == []
    states = (await office.store.count()).states
    assert sum(states.values()) == len(lives.ids) > 10
    assert sum(count > 0 for count in states.values()) >= 4, "the steps lead nowhere any more"


async def test_more_checkpoints_and_lines_than_are_read_at_once(office: Office) -> None:
    keys = tuple(f"k{n:04d}" for n in range(2 * verification.CHECKPOINTS + 1))
    job = await office.start(items=["1"] * len(keys), keys=keys)
    await office.beat(
        job, checkpoints=tuple(item(key, '"v"') for key in keys), output=('"o"',) * verification.LINES
    )
    await office.succeed(job, None)
    assert await findings(office.store) == []


async def test_what_retention_removed_leaves_no_findings(office: Office) -> None:
    for _ in range(30):
        await office.submit("note", items=["1", "2"])
    await office.finish_all()
    await office.store.purge(Retention(0, 0), 10)
    assert await findings(office.store) == []


# ---- every column of every row

TABLES = {
    "jobs": ("seq",),
    "payloads": ("seq",),
    "results": ("seq",),
    "checkpoints": ("seq", "kind", "key"),
    "journal": ("line",),
}
NUMBERS_OF_ROWS = {("jobs", "seq"), ("payloads", "seq"), ("results", "seq"), ("journal", "line")}
"""How tables refer to each other. A changed one is a row without its job; `line` only orders the journal's pages."""

FLAGS = {"has_items", "cancel_requested", "is_final"}

STANDING_IN_LINE = {"rank", "place", "wake_at"}
"""Whether a job is in line at all is checked. Where in it, nobody can say again: it depends on who else stood there."""

TOLD_BY_NO_LINE = frozenset(
    "version lease_expires_at lease_seconds beat_seq progress_at updated_at usage settled max_attempts timeout_seconds "
    "stall_timeout_seconds allow_failed_items".split()
)
"""Of a running job: a heartbeat changes these and leaves no line. Once the run ends they are sealed."""


def other(value: Any, column: str, which: int) -> Any:
    """Another value that the column could hold."""
    if column in FLAGS:
        return 1 - value
    if value is None:
        return (1, 2.5, "x")[which % 3]
    if isinstance(value, int | float):
        return value + (1, -1)[which % 2]
    return (value + "x", value[:-1] + chr(ord(value[-1]) ^ 1) if value else "y")[which % 2]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a closed store with jobs of every fate."""
    folder = tmp_path_factory.mktemp("filled")

    async def make() -> None:
        clock = ManualClock()
        store = STORES["sqlite"](folder, clock)
        await store.open()
        await fill(Office(store, clock))
        await store.close()

    asyncio.run(make())
    return folder / "inbox.db"


class Edited:
    """One change by hand, written for as long as the block lasts; ``is_written`` False where the schema refuses it."""

    def __init__(self, file: Path, table: str, column: str, row: int, which: int) -> None:
        self._file = apsw.Connection(str(file))
        self._file.set_busy_timeout(5000)
        self.table, self.column = table, column
        keys = ", ".join(TABLES[table])
        rows = self._file.execute(f"SELECT {keys} FROM {table} ORDER BY {keys}").fetchall()
        self.key = rows[row % len(rows)]
        self._where = " AND ".join(f"{name} = ?" for name in TABLES[table])
        ((self.before,),) = self._file.execute(f"SELECT {column} FROM {table} WHERE {self._where}", self.key)
        self.after = other(self.before, column, which)
        self.is_written = False

    def __enter__(self) -> Edited:
        try:
            self._write(self.after, self.key)
            self.is_written = True
        except apsw.ConstraintError:
            pass
        return self

    def __exit__(self, *ended: object) -> None:
        if self.is_written:
            names = TABLES[self.table]
            self._write(
                self.before,
                tuple(self.after if n == self.column else k for n, k in zip(names, self.key, strict=True)),
            )
        self._file.close()

    def _write(self, value: Any, key: tuple[Any, ...]) -> None:
        self._file.execute(f"UPDATE {self.table} SET {self.column} = ? WHERE {self._where}", (value, *key))

    @property
    def is_of_running_job(self) -> bool:
        (row,) = self._file.execute(
            "SELECT count(*) FROM jobs WHERE seq = ? AND state = 'running'", self.key[:1]
        )
        return bool(row[0])

    def __str__(self) -> str:
        return f"{self.table}.{self.column} of row {self.key}: {self.before!r} -> {self.after!r}"


def columns_of(file: Path, table: str) -> list[str]:
    connection = apsw.Connection(str(file))
    try:
        return [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
    finally:
        connection.close()


def cannot_be_told(edit: Edited) -> bool:
    """What docs/reference/verify.md says of it."""
    if edit.table != "jobs":
        return (edit.table, edit.column) in NUMBERS_OF_ROWS
    return edit.column in STANDING_IN_LINE or (edit.column in TOLD_BY_NO_LINE and edit.is_of_running_job)


@pytest.mark.parametrize("table", TABLES)
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.randoms(use_true_random=False))
def test_a_change_by_hand_of_any_column_is_found(table: str, filled: Path, rows: Any) -> None:
    async def edit_each() -> list[str]:
        store = SqliteStore(f"sqlite:///{filled}", clock=ManualClock())
        await store.open()
        missed = []
        for column in columns_of(filled, table):
            with Edited(filled, table, column, rows.randrange(1000), rows.randrange(6)) as edit:
                if edit.is_written and not cannot_be_told(edit) and not await findings(store):
                    missed.append(str(edit))
        assert await findings(store) == []
        await store.close()
        return missed

    assert asyncio.run(edit_each()) == []


SUBMITTED = "job_id owner kind sender topic priority queue has_items created_at params metadata".split()
"""What the digest of the first line covers."""


def test_every_field_of_a_job_is_sealed() -> None:
    assert {*seals.NUMBERS, *seals.TEXTS, *SUBMITTED} == set(JOB_FIELDS)
    job = lifecycle.submit(Draft("1" * 32, "note", Payload('"a"')), 1.0).job
    before = seals.row_seal(job)
    for name in seals.NUMBERS + seals.TEXTS:
        value = getattr(job, name)
        changed = 7 if name in seals.NUMBERS else "x"
        assert value != changed
        assert seals.row_seal(evolve(job, **{name: changed})) != before, name


async def test_a_finding_names_the_job_and_the_column_and_no_content(sqlite: Office) -> None:
    job_id = await sqlite.succeed_new(result='"the secret answer"', content='"the secret question"')
    edit(sqlite, "UPDATE jobs SET attempts = 2, owner = 'eve'")
    edit(sqlite, "UPDATE results SET body = '\"forged reply\"'")
    found = await findings(sqlite.store)
    assert {finding.job_id for finding in found} == {job_id, None}
    assert {"attempts", "row", "payload", "result"} <= {finding.where for finding in found}
    assert not any("secret" in str(finding) or "forged" in str(finding) for finding in found)


def edit(office: Office, statement: str) -> None:
    connection = apsw.Connection(str(office.store.path))  # type: ignore[attr-defined]
    connection.set_busy_timeout(5000)
    connection.execute(statement)
    connection.close()


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM journal WHERE n = 1",
        "DELETE FROM checkpoints WHERE kind = 'step'",
        "DELETE FROM results",
        "DELETE FROM payloads",
        "DELETE FROM jobs WHERE state = 'failed'",
        "INSERT INTO checkpoints (seq, kind, key, is_final, epoch, value) VALUES (1, 'item', 'zz', 1, 1, '1')",
        "INSERT INTO results SELECT seq, '1' FROM jobs WHERE state = 'queued' LIMIT 1",
        "UPDATE owners SET succeeded = succeeded + 1",
        "UPDATE jobs SET error_group = 'another' WHERE state = 'failed'",
        "UPDATE jobs SET place = NULL WHERE state = 'queued' AND place IS NOT NULL",
        "UPDATE jobs SET state = 'somewhere' WHERE state = 'failed'",
        "UPDATE journal SET event = 'something' WHERE n = 1",
        "UPDATE journal SET data = 'no json' WHERE n = 2",
        "UPDATE checkpoints SET kind = 'thing'",
        "UPDATE jobs SET params = 'no json'",
    ],
)
async def test_what_is_lost_slipped_in_or_unreadable_is_found(sqlite: Office, statement: str) -> None:
    await fill(sqlite)
    edit(sqlite, statement)
    assert await findings(sqlite.store)


async def test_without_the_seal_of_the_row_a_changed_usage_would_not_be_found(
    sqlite: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sqlite.succeed_new()
    edit(sqlite, "UPDATE jobs SET usage = '{\"tokens\": 1}'")
    assert await findings(sqlite.store)

    class Anything(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            return True

        def __ne__(self, other: object) -> bool:
            return False

    monkeypatch.setattr(verification, "row_seal", lambda job: Anything())
    assert await findings(sqlite.store) == []


async def test_jobs_that_move_while_they_are_verified_are_no_findings(office: Office) -> None:
    for _ in range(40):
        await office.submit("note", items=["1", "2", "3"])
    is_over = asyncio.Event()

    async def work() -> None:
        while leases := await office.claim(limit=3):
            for lease in leases:
                for key in "012":
                    await office.beat(lease.job, checkpoints=(item(key, "1"),), output=("1",))
                await office.succeed(lease.job, None)
        is_over.set()

    async def verify() -> list[Finding]:
        found = []
        while not is_over.is_set():
            found += await findings(office.store)
            await asyncio.sleep(0)
        return found

    _, found = await asyncio.gather(work(), verify())
    assert found == []


async def test_a_copy_of_a_store_is_as_sound_as_the_store(filled: Path, tmp_path: Path) -> None:
    shutil.copy(filled, tmp_path / "inbox.db")
    store = STORES["sqlite"](tmp_path, ManualClock())
    await store.open()
    assert await findings(store) == []
    await store.close()
