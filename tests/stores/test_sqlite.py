"""What is truly the SQLite store's own: plans, pragmas, refusals, migrations, processes, trouble, group commit."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom import lifecycle
from postroom.errors import (
    SchemaOutOfDate,
    SettingsInvalid,
    StoreError,
    StoreFull,
    StoreUnavailable,
    StoreUnsuitable,
)
from postroom.model import (
    JOB_FIELDS,
    Checkpoint,
    CheckpointKind,
    Draft,
    Job,
    OutcomeKind,
    Payload,
    State,
    WorkerInfo,
    evolve,
    job_to_row,
    new_job_id,
)
from postroom.stores.port import WORK, ClaimRequest, Query, Retention, Submission
from postroom.stores.sqlite import checkpoint, chores, schema, solo, suitability, writer
from postroom.stores.sqlite.connections import connect, prepare
from postroom.stores.sqlite.ledger import claimed
from postroom.stores.sqlite.presence import Presence
from postroom.stores.sqlite.reader import Glance
from postroom.stores.sqlite.rows import FIXED, MUTABLE, line_values
from postroom.stores.sqlite.schema import migrate, migrations
from postroom.stores.sqlite.standstill import Standstill
from postroom.stores.sqlite.statements import FOLDER, query
from postroom.stores.sqlite.store import SqliteStore
from postroom.stores.sqlite.turnstile import Turnstile
from postroom.stores.sqlite.wakeups import SUFFIX, Wakeups
from postroom.testing import ManualClock
from tests.stores.office import Office

# ---------------------------------------------------------------- helpers


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "inbox.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(f"sqlite:///{path}")
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def office(path: Path) -> AsyncIterator[Office]:
    clock = ManualClock()
    store = SqliteStore(f"sqlite:///{path}", clock=clock)
    await store.open()
    yield Office(store, clock)
    await store.close()


@pytest.fixture
def other(path: Path, store: SqliteStore) -> Iterator[apsw.Connection]:
    """A connection of somebody else to the file of ``store``."""
    connection = apsw.Connection(str(path))
    yield connection
    connection.close()


def submission(kind: str = "note", **fields: Any) -> Submission:
    draft = Draft(job_id=fields.pop("job_id", new_job_id()), kind=kind, payload=Payload('"hello"'), **fields)
    return Submission(lifecycle.submit(draft, time.time()), draft)


def spoilt(given: Submission, **fields: Any) -> Submission:
    """A submission whose row SQLite will refuse."""
    return given._replace(change=given.change._replace(job=evolve(given.change.job, **fields)))


def worker_info(worker: str, **fields: Any) -> WorkerInfo:
    given = {"kinds": ("note",), "queues": ("default",), "concurrency": 1, "host": "here", "pid": os.getpid()}
    return WorkerInfo(worker=worker, started_at=0.0, seen_at=0.0, is_local=True, **(given | fields))


def start(code: str, *args: object, **options: Any) -> subprocess.Popen[str]:
    """A real process of our Python that runs some code."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, args)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)


def told(process: subprocess.Popen[str]) -> str:
    """The next line that a process prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def writer_of(store: SqliteStore) -> writer.Writer:
    assert store._parts is not None
    return store._parts.writer


def rows_of(path: Path, text: str) -> list[tuple[Any, ...]]:
    connection = apsw.Connection(str(path))
    try:
        return connection.execute(text).fetchall()
    finally:
        connection.close()


# ---------------------------------------------------------------- statements


def plan_of(store: SqliteStore, name: str, *values: Any) -> list[str]:
    connection = writer_of(store)._book.connection
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query(name).text}", values)]


@pytest.mark.parametrize(
    ("name", "values", "index"),
    [
        ("pick", ("[1,2]", 10, 0.0), "SEARCH jobs USING INDEX jobs_in_line (lane=?)"),
        ("waking", (0.0, 10), "SEARCH jobs USING INDEX jobs_to_wake (wake_at<?)"),
        ("next_due", ("[1]", 0.0), "SEARCH jobs USING COVERING INDEX jobs_queued (lane=? AND run_at>?)"),
        ("versions", ('["a"]',), "SEARCH jobs USING INDEX jobs_by_id (job_id=?)"),
        ("expired", (0.0, 10, 0.0, 0.0, 0.0), "SEARCH jobs USING INDEX jobs_running (lease_expires_at<?)"),
        ("late_to_start", (0.0, 10), "SEARCH jobs USING INDEX jobs_to_start (start_by<?)"),
    ],
)
async def test_hot_statements_walk_an_index_and_never_the_table(store, name, values, index):
    plan = plan_of(store, name, *values)
    assert index in plan
    assert not [step for step in plan if step.startswith("SCAN jobs")]
    # Sorted is only what the heads of the lanes gave; within a lane the order is the index's.
    assert plan.count("USE TEMP B-TREE FOR ORDER BY") == (1 if name == "pick" else 0)


def test_every_statement_is_used_and_every_used_one_exists():
    package = FOLDER.parent
    code = "\n".join(module.read_text() for module in package.glob("*.py"))
    known = {statement.stem for statement in FOLDER.glob("*.sql")}
    families = {"purge_jobs", "purge_payloads", "purge_results", "purge_checkpoints", "purge_journal"}
    families |= {"find_few_newest", "find_few_oldest"}  # named by a prefix
    assert {name for name in known - families if f'"{name}"' not in code} == set()


def test_rows_are_parted_into_few_statements():
    statement = query("save_results")
    assert list(statement.sizes(100)) == [64, 32, 4]
    assert list(statement.sizes(0)) == []
    assert statement.sized(2).endswith("VALUES (?,?),(?,?)")
    assert all(len(query(f.stem).sized(query(f.stem).most)) <= 16_000 for f in FOLDER.glob("*.sql"))


async def test_every_field_of_a_job_comes_back_as_it_was_written(office):
    job_id = await office.submit()
    job = await office.job(job_id)
    values: dict[str, Any] = {}
    for number, name in enumerate(JOB_FIELDS):
        if name in FIXED or name in ("version", "state", "error"):
            continue
        kind = Job.__annotations__[name]
        values[name] = f"text {number} 文" if "str" in kind or "Json" in kind else number + 0.123456789
        if "int" in kind:
            values[name] = number
        if "bool" in kind:
            values[name] = True
    after = evolve(job, **values, state=State.RUNNING, version=2)
    assert set(values) == set(MUTABLE) - {"version", "state", "error"}
    change = lifecycle.Change(after, 1, State.QUEUED)
    assert await office.store.commit([change]) == [True]
    assert await office.job(job_id) == after
    assert job_to_row(await office.job(job_id)) == job_to_row(after)


times = st.floats(1.6e9, 1.9e9)


@given(
    now=times,
    updated_at=times,
    timeout_seconds=st.none() | st.floats(0.001, 1e6),
    stall_timeout_seconds=st.none() | st.floats(0.001, 1e6),
    lease_seconds=st.floats(1.0, 3600.0),
    number=st.integers(1, 10_000),
)
def test_the_claim_is_that_of_lifecycle(
    now, updated_at, timeout_seconds, stall_timeout_seconds, lease_seconds, number
):
    draft = Draft(new_job_id(), "note", Payload("1"), timeout_seconds=timeout_seconds)
    job = evolve(
        lifecycle.submit(draft, now - 1).job,
        stall_timeout_seconds=stall_timeout_seconds,
        updated_at=updated_at,
        version=number,
        epoch=number,
        lines=number,
        reason="held",
        start_by=now + 1,
    )
    change = lifecycle.claim(job, "w", lease_seconds, now)
    after, line = claimed(job, "w", lease_seconds, now)
    assert after == change.job
    assert [line] == [line_values(each) for each in change.lines]


# ---------------------------------------------------------------- what is checked at the door


async def test_the_file_is_written_as_durably_as_promised(store):
    connection = writer_of(store)._book.connection
    assert connection.pragma("journal_mode") == "wal"
    assert connection.pragma("synchronous") == 2  # FULL. What 1 would lose is seen only when the power goes
    assert connection.pragma("application_id") == suitability.APPLICATION_ID
    assert "FULL" in store.capabilities.durability


@pytest.mark.parametrize("version", ["3.40.1", "3.51.2", "3.7.0"])
def test_an_old_library_is_refused_with_a_sentence(version):
    with pytest.raises(StoreUnsuitable, match=rf"SQLite {version} can damage a file .* install a newer apsw"):
        suitability.check_library(version)


@pytest.mark.parametrize("version", ["3.51.3", "3.52.0", "4.0.0"])
def test_a_mended_library_is_taken(version):
    suitability.check_library(version)


def test_the_library_here_is_taken():
    suitability.check_library()


def test_a_network_file_system_is_refused_with_a_sentence(path):
    with pytest.raises(StoreUnsuitable, match=r"lies on NFS, a network file system.*local disk"):
        suitability.check_place(path, file_system=lambda folder: "NFS")
    suitability.check_place(path)  # this one is local


@pytest.mark.parametrize(
    ("magic", "name"),
    [(0x6969, "NFS"), (0xFF534D42, "CIFS"), (0xFE534D42, "SMB"), (0x01021997, "9P"), (0x00C36400, "Ceph")],
)
def test_network_file_systems_are_known_by_their_number(magic, name, path, monkeypatch):
    monkeypatch.setattr(suitability, "_magic", lambda folder: magic)
    assert suitability.network_file_system(path.parent) == name


@pytest.mark.parametrize(
    ("kind", "name"),
    [("fuse.sshfs", "fuse.sshfs"), ("fuse.s3fs", "fuse.s3fs"), (None, "FUSE"), ("fuseblk", None)],
)
def test_a_fuse_mount_is_taken_only_where_its_bytes_are_known_to_be_here(kind, name, path, monkeypatch):
    monkeypatch.setattr(suitability, "_magic", lambda folder: suitability.FUSE)
    monkeypatch.setattr(suitability, "_mounted_as", lambda folder: kind)
    assert suitability.network_file_system(path.parent) == name


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the file system by a number")
def test_the_file_system_is_asked_for_real(path):
    assert suitability._magic(Path("/proc")) == 0x9FA0
    assert suitability.network_file_system(path.parent) is None
    assert suitability._mounted_as(Path("/proc/self")) == "proc"


async def test_a_missing_folder_is_refused(tmp_path):
    store = SqliteStore(f"sqlite:///{tmp_path}/no/inbox.db")
    with pytest.raises(StoreUnsuitable, match="does not exist"):
        await store.open()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite:///a.db?mode=ro"])
def test_a_url_without_a_file_is_refused(url):
    with pytest.raises(SettingsInvalid):
        SqliteStore(url)


async def test_the_url_opens_the_same_file_from_anywhere(path, store, monkeypatch, tmp_path_factory):
    [answer] = await store.submit([submission()])
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    other = SqliteStore(store.url)
    await other.open()
    assert answer.job_id in (await other.get([answer.job_id])).jobs
    await other.close()


async def test_a_file_that_is_no_database_is_left_alone(path):
    path.write_bytes(b"not a database, but a letter\n" * 100)
    with pytest.raises(StoreError, match="damaged or not a database"):
        await SqliteStore(f"sqlite:///{path}").open()
    assert path.read_bytes().startswith(b"not a database")


async def test_a_closed_store_says_so(path):
    store = SqliteStore(f"sqlite:///{path}")
    with pytest.raises(StoreUnavailable, match="not open"):
        await store.submit([submission()])
    await store.open()
    await store.close()
    await store.close()
    with pytest.raises(StoreUnavailable, match="not open"):
        await store.find(Query())


async def test_closing_finishes_what_was_accepted(path):
    store = SqliteStore(f"sqlite:///{path}")
    await store.open()
    waiting = [asyncio.ensure_future(store.submit([submission()])) for _ in range(50)]
    await asyncio.sleep(0)
    await store.close()
    answers = [answer for [answer] in await asyncio.gather(*waiting)]
    assert len(rows_of(path, "SELECT job_id FROM jobs")) == len({answer.job_id for answer in answers}) == 50


# ---------------------------------------------------------------- migrations

KILLED_MIGRATION = """
    import os, sys
    from pathlib import Path
    from postroom.stores.sqlite.connections import connect
    from postroom.stores.sqlite.schema import migrate
    path, steps = Path(sys.argv[1]), int(sys.argv[2])
    connection = connect(path, writes=True)
    left = [steps]
    def tick():
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), 9)
        return False
    connection.set_progress_handler(tick, 1)
    migrate(connection, path)
    print("whole")
"""


def schema_text(path: Path) -> list[tuple[Any, ...]]:
    return rows_of(path, "SELECT type, name, sql FROM sqlite_schema ORDER BY type, name")


async def test_a_migration_that_is_killed_anywhere_can_be_repeated(tmp_path):
    whole = tmp_path / "whole.db"
    assert await SqliteStore(f"sqlite:///{whole}").migrate() == ["0001_inbox"]
    fired = 0
    for steps in (1, 5, 30, 120, 300, 500, 700, 900):
        path = tmp_path / f"{steps}.db"
        process = start(KILLED_MIGRATION, path, steps)
        process.communicate()
        fired += process.returncode == -signal.SIGKILL
        found = schema_text(path)
        assert found in ([], schema_text(whole)), f"half a schema after {steps} steps"
        store = SqliteStore(f"sqlite:///{path}")
        await store.open()
        await store.submit([submission()])
        assert await store.verify() == []
        await store.close()
        assert schema_text(path) == schema_text(whole)
    assert fired >= 6, f"only {fired} kills fired"


async def test_two_processes_that_start_at_once_migrate_once(path):
    code = """
        import asyncio, sys
        from postroom.stores.sqlite.store import SqliteStore
        store = SqliteStore(f"sqlite:///{sys.argv[1]}")
        print("ready", flush=True)
        sys.stdin.readline()
        print(asyncio.run(store.migrate()), flush=True)
    """
    processes = [start(code, path) for _ in range(6)]
    try:
        assert [told(process) for process in processes] == ["ready"] * 6
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        answers = sorted(told(process) for process in processes)
    finally:
        for process in processes:
            end(process)
    assert answers == ["['0001_inbox']"] + ["[]"] * 5


async def test_a_newer_schema_is_refused(path):
    await SqliteStore(f"sqlite:///{path}").migrate()
    rows_of(path, f"PRAGMA user_version = {schema.NEWEST + 1}")
    with pytest.raises(SchemaOutOfDate, match=r"Update this program"):
        await SqliteStore(f"sqlite:///{path}").open()


async def test_a_schema_that_becomes_newer_stops_the_writing_of_older_code(store, other):
    await store.submit([submission()])
    other.execute(f"PRAGMA user_version = {schema.NEWEST + 1}")
    with pytest.raises(SchemaOutOfDate):
        await store.submit([submission()])
    other.execute(f"PRAGMA user_version = {schema.NEWEST}")
    await store.submit([submission()])
    assert (await store.count()).states["queued"] == 2


async def test_another_programs_database_is_left_alone(path):
    rows_of(path, "CREATE TABLE theirs (a)")
    with pytest.raises(StoreUnsuitable, match="another program's database"):
        await SqliteStore(f"sqlite:///{path}").open()
    assert rows_of(path, "SELECT name FROM sqlite_schema") == [("theirs",)]


def test_a_step_that_fails_leaves_nothing_of_itself(path):
    connection = apsw.Connection(str(path))
    steps = [replace(step) for step in migrations()]
    migrate(connection, path, steps)
    steps.append(schema.Migration(2, "0002_broken", "CREATE TABLE more (a); CREATE TABLE jobs (a)"))
    with pytest.raises(apsw.SQLError):
        migrate(connection, path, steps)
    assert connection.pragma("user_version") == 1
    assert not connection.table_exists("main", "more")
    steps[1] = schema.Migration(2, "0002_mended", "CREATE TABLE more (a)")
    assert migrate(connection, path, steps) == ["0002_mended"]
    connection.close()


# ---------------------------------------------------------------- trouble


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "PATIENCE_SECONDS", 0.3)


def test_whoever_is_refused_is_refused_within_five_seconds():
    assert writer.PATIENCE_SECONDS < 4.5


@pytest.mark.usefixtures("impatient")
async def test_a_locked_file_is_unavailable_and_nothing_is_written_later(store, other):
    other.execute("BEGIN IMMEDIATE")
    refused = await asyncio.gather(*(store.submit([submission()]) for _ in range(5)), return_exceptions=True)
    assert [type(answer) for answer in refused] == [StoreUnavailable] * 5
    other.execute("COMMIT")
    await store.submit([submission()])
    assert (await store.count()).states["queued"] == 1
    assert await store.verify() == []


STOPPED_WRITER = """
    import sys, time
    from pathlib import Path
    from postroom.stores.sqlite.turnstile import Turnstile
    turnstile = Turnstile(Path(sys.argv[1]))
    assert turnstile.enter(time.monotonic() + 5)
    print("inside", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.usefixtures("impatient")
async def test_a_stopped_process_in_the_turnstile_holds_nobody_for_ever(store, path):
    process = start(STOPPED_WRITER, f"{path}-live")
    try:
        assert told(process) == "inside"
        os.kill(process.pid, signal.SIGSTOP)
        with pytest.raises(StoreUnavailable, match="Try again"):
            await store.submit([submission()])
    finally:
        end(process)
    await store.submit([submission()])  # its death let the others in
    assert (await store.count()).states["queued"] == 1


def test_the_turnstile_lets_the_one_through_that_was_next(tmp_path):
    """Whoever leaves and comes back stands behind the one who waited."""
    first, second = Turnstile(tmp_path), Turnstile(tmp_path)
    order: list[str] = []
    soon = time.monotonic() + 30

    def wait() -> None:
        assert second.enter(soon)
        order.append("second")
        second.leave()

    assert first.enter(soon)
    thread = threading.Thread(target=wait)
    thread.start()
    while second_is_not_next(first):
        time.sleep(0.001)  # nothing tells that it stands at the first of the two locks
    first.leave()
    assert first.enter(soon)
    order.append("first")
    first.leave()
    thread.join()
    assert order == ["second", "first"]
    first.close()
    second.close()


def second_is_not_next(turnstile: Turnstile) -> bool:
    import fcntl

    try:
        fcntl.flock(turnstile._next, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(turnstile._next, fcntl.LOCK_UN)
    return True


@pytest.mark.parametrize("how", ["removed", "replaced"])
async def test_a_file_that_was_taken_away_is_not_written_any_more(store, path, how):
    """SQLite would go on in the file that has no name any more, and all of it would be lost."""
    await store.submit([submission()])
    path.rename(path.with_name("away.db"))
    if how == "replaced":
        path.write_bytes(b"")
    with pytest.raises(StoreUnavailable, match="moved, removed or replaced"):
        await store.submit([submission()])
    path.with_name("away.db").rename(path)
    await store.submit([submission()])
    assert (await store.count()).states["queued"] == 2


async def test_a_full_disk_is_told_and_leaves_nothing_half_written(store):
    await store.submit([submission()])
    connection = writer_of(store)._book.connection
    connection.execute(f"PRAGMA max_page_count = {connection.pragma('page_count') + 1}")
    with pytest.raises(StoreFull, match="no room left"):
        await store.submit([submission(metadata=json.dumps("x" * 5000)) for _ in range(50)])
    assert (await store.count()).states["queued"] == 1
    assert await store.verify() == []
    connection.execute("PRAGMA max_page_count = 1000000")
    await store.submit([submission() for _ in range(50)])
    assert (await store.count()).states["queued"] == 51
    assert await store.verify() == []


async def test_a_reader_is_never_held_up_by_a_writer(store, other):
    [answer] = await store.submit([submission()])
    other.execute("BEGIN EXCLUSIVE")
    other.execute("UPDATE jobs SET topic = 'unseen'")
    async with asyncio.timeout(30):  # far below what a wait for the lock would end in
        assert (await store.get([answer.job_id])).jobs[answer.job_id].topic == "default"
        assert len((await store.find(Query())).jobs) == 1
        assert (await store.count()).states["queued"] == 1
        assert len(await store.journal(answer.job_id)) == 1
        assert await store.verify() == []
    other.execute("ROLLBACK")


async def test_a_long_read_does_not_hold_up_the_writer(store, path):
    await store.submit([submission() for _ in range(10)])
    reading = apsw.Connection(str(path))
    cursor = reading.execute("SELECT * FROM jobs")
    next(cursor)
    await store.submit([submission()])
    assert (await store.count()).states["queued"] == 11
    assert 1 + len(cursor.fetchall()) == 10
    reading.close()


# ---------------------------------------------------------------- group commit


async def submitted_at_once(path: Path, number: int, **options: Any) -> int:
    """Let so many callers submit at once; how many transactions that took."""
    store = SqliteStore(f"sqlite:///{path}", **options)
    await store.open()
    counts = writer_of(store).counts
    await asyncio.gather(*(store.submit([submission()]) for _ in range(number)))
    transactions = counts.transactions
    assert counts.requests == number
    assert (await store.count()).states["queued"] == number
    await store.close()
    return transactions


async def test_callers_at_once_share_commits(tmp_path):
    shared = await submitted_at_once(tmp_path / "a.db", 100)
    alone = await submitted_at_once(tmp_path / "b.db", 100, groups=False)  # the control: grouping is off
    assert alone == 100
    assert shared <= 20


async def test_one_bad_request_harms_no_other_of_its_group(store):
    good = [submission() for _ in range(20)]
    bad = [
        spoilt(submission(), topic="\ud800"),  # no UTF-8
        spoilt(submission(), max_attempts=2**70),  # no 64 bits
    ]
    requests = [good[:10], [bad[0]], good[10:], [bad[1]]]
    answers = await asyncio.gather(*(store.submit(request) for request in requests), return_exceptions=True)
    assert [isinstance(answer, Exception) for answer in answers] == [False, True, False, True]
    assert (await store.count()).states["queued"] == 20
    assert await store.verify() == []


async def test_a_known_id_in_a_group_is_told_and_the_others_are_written(store):
    first = submission(body_digest="d1")
    await store.submit([first])
    answers = await asyncio.gather(
        store.submit([submission()]), store.submit([first]), store.submit([submission()])
    )
    assert [answer.is_new for [answer] in answers] == [True, False, True]
    assert answers[1][0].body_digest == "d1"
    assert (await store.count()).states["queued"] == 3


async def test_a_lone_caller_is_served_without_the_thread_until_others_come(store, monkeypatch):
    monkeypatch.setattr(solo, "QUICK_SECONDS", float("inf"))  # however slow this disk is
    counts = writer_of(store).counts
    for _ in range(4 * solo.STREAK + solo.SETBACK):
        await store.submit([submission()])
    assert counts.by_caller > 0
    before = counts.by_caller, counts.transactions
    await asyncio.gather(*(store.submit([submission()]) for _ in range(50)))
    assert counts.by_caller <= before[0] + 1  # the last to come may find the others gone ahead
    assert counts.transactions - before[1] < 25
    assert await store.verify() == []


async def test_one_slow_write_sends_few_others_through_the_thread_and_many_send_all():
    watch = solo.Solo()
    for _ in range(solo.STREAK):
        watch.note(1, 0, 0.0)
    assert watch.is_likely(1)
    watch.note(1, 0, solo.QUICK_SECONDS)
    assert not watch.is_likely(1)
    for _ in range(solo.HICCUP):
        watch.note(1, 0, 0.0)
    assert watch.is_likely(1)
    for _ in range(solo.STREAK):
        watch.note(1, 0, solo.QUICK_SECONDS)
    for _ in range(solo.STREAK):
        watch.note(1, 0, 0.0)
    assert not watch.is_likely(1)


async def test_a_lone_caller_lets_other_tasks_in(store):
    """An `await` that never gives way would starve whatever else runs in the loop."""
    seen = 0

    async def other_task() -> None:
        nonlocal seen
        while True:
            seen += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other_task())
    for _ in range(100):
        await store.submit([submission()])
    task.cancel()
    assert seen >= 100


async def test_a_claim_for_many_slots_is_served_without_the_thread_while_it_brings_little(store, monkeypatch):
    monkeypatch.setattr(solo, "QUICK_SECONDS", float("inf"))
    counts = writer_of(store).counts
    request = ClaimRequest("w1", ("note",), limit=500)
    for _ in range(2 * solo.STREAK):
        await store.submit([submission()])
        assert len((await store.claim(request)).leases) == 1
    assert counts.by_caller > 0

    await store.submit([submission() for _ in range(50)])
    assert len((await store.claim(request)).leases) == 50
    before = counts.by_caller
    await store.claim(request)  # as many may wait again
    assert counts.by_caller == before


@pytest.mark.usefixtures("impatient")
async def test_a_lone_caller_waits_for_a_lock_in_the_thread(store, other):
    for _ in range(100):
        await store.submit([submission()])
    other.execute("BEGIN IMMEDIATE")
    waiting = asyncio.ensure_future(store.submit([submission()]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # had it waited here, this would come too late to let go
    other.execute("COMMIT")
    await waiting
    assert (await store.count()).states["queued"] == 101


async def test_the_log_begins_anew_while_a_caller_writes_without_a_pause(store, path, monkeypatch):
    monkeypatch.setattr(checkpoint, "PAGES", 50)
    monkeypatch.setattr(solo, "QUICK_SECONDS", float("inf"))
    for _ in range(400):  # about nine pages each: 3,600 in all
        await store.submit([submission()])
    assert writer_of(store).counts.by_caller > 100  # moving the log is not taken for another caller
    log = path.with_name("inbox.db-wal")
    assert log.stat().st_size < 1500 * 4120
    assert (await store.count()).states["queued"] == 400
    assert await store.verify() == []


# ---------------------------------------------------------------- several processes

CLAIMER = """
    import asyncio, sys
    from postroom.stores.port import ClaimRequest
    from postroom.stores.sqlite.store import SqliteStore

    async def main():
        store = SqliteStore(f"sqlite:///{sys.argv[1]}")
        await store.open()
        print("ready", flush=True)
        sys.stdin.readline()
        mine = []
        while True:
            claimed = await store.claim(ClaimRequest(sys.argv[2], ("note",), limit=3))
            if not claimed.leases:
                break
            mine += [lease.job.job_id for lease in claimed.leases]
        print(" ".join(mine), flush=True)
        await store.close()

    asyncio.run(main())
"""


async def test_eight_processes_claim_each_job_once(store, path):
    answers = await store.submit([submission() for _ in range(400)])
    processes = [start(CLAIMER, path, f"w{n}") for n in range(8)]
    try:
        assert [told(process) for process in processes] == ["ready"] * 8
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        shares = [told(process).split() for process in processes]
    finally:
        for process in processes:
            end(process)
    every = [job_id for share in shares for job_id in share]
    assert sorted(every) == sorted(answer.job_id for answer in answers)
    jobs = (await store.get(every)).jobs
    assert {(job.state, job.epoch) for job in jobs.values()} == {(State.RUNNING, 1)}
    assert await store.verify() == []


SUBMITTER = """
    import asyncio, sys, time
    from postroom import lifecycle
    from postroom.model import Draft, Payload, new_job_id
    from postroom.stores.port import Submission
    from postroom.stores.sqlite.store import SqliteStore

    async def main():
        store = SqliteStore(f"sqlite:///{sys.argv[1]}")
        await store.open()
        for line in sys.stdin:
            draft = Draft(new_job_id(), "note", Payload('"hello"'))
            [answer] = await store.submit([Submission(lifecycle.submit(draft, time.time()), draft)])
            print(answer.job_id, flush=True)
        await store.close()

    asyncio.run(main())
"""


async def test_a_watcher_hears_of_another_process(store, path):
    process = start(SUBMITTER, path)
    try:
        with store.watch(WORK) as watch:
            assert process.stdin is not None
            for _ in range(3):
                process.stdin.write("\n")
                process.stdin.flush()
                assert await watch.wait(30.0)
                assert told(process)
        assert (await store.count()).states["queued"] == 3
    finally:
        end(process)


async def test_hints_find_their_way_from_a_folder_with_a_long_name(tmp_path):
    """The path of a unix socket may have 107 bytes; the store must not."""
    folder = tmp_path / ("a" * 100) / ("b" * 100)
    folder.mkdir(parents=True)
    stores = [SqliteStore(f"sqlite:///{folder}/inbox.db") for _ in range(2)]
    for store in stores:
        await store.open()
    with stores[0].watch(WORK) as watch:
        await stores[1].submit([submission()])
        assert await watch.wait(30.0)
    for store in stores:
        await store.close()


async def test_the_socket_of_a_dead_process_is_removed(store, path):
    code = """
        import asyncio, os, sys
        from postroom.stores.sqlite.store import SqliteStore

        async def main():
            store = SqliteStore(f"sqlite:///{sys.argv[1]}")
            await store.open()
            with store.watch("work"):
                print("watching", flush=True)
                sys.stdin.readline()

        asyncio.run(main())
    """
    process = start(code, path)
    assert told(process) == "watching"
    end(process)
    live = path.with_name("inbox.db-live")
    assert len(list(live.glob(f"*{SUFFIX}"))) == 1
    await store.submit([submission()])
    await store.submit([submission()])
    assert list(live.glob(f"*{SUFFIX}")) == []


# ---------------------------------------------------------------- presence

WORKER = """
    import asyncio, os, subprocess, sys
    from postroom.model import WorkerInfo
    from postroom.stores.port import ClaimRequest
    from postroom.stores.sqlite.store import SqliteStore

    async def main():
        store = SqliteStore(f"sqlite:///{sys.argv[1]}")
        await store.open()
        info = WorkerInfo("w1", ("note",), ("default",), 1, "here", os.getpid(), 0.0, 0.0, True)
        await store.attend(info)
        claimed = await store.claim(ClaimRequest("w1", ("note",), limit=1, lease_seconds=60.0))
        if sys.argv[2:] == ["fork"]:
            child = os.fork()
            if child == 0:
                sys.stdin.readline()
                os._exit(0)
            print(child, flush=True)
        elif sys.argv[2:] == ["spawn"]:
            print(subprocess.Popen(["sleep", "600"], close_fds=False).pid, flush=True)
        print(claimed.leases[0].job.job_id, flush=True)
        sys.stdin.readline()
        os._exit(0)

    asyncio.run(main())
"""


async def test_the_jobs_of_a_killed_worker_are_found_at_once(store, path):
    await store.submit([submission()])
    process = start(WORKER, path)
    try:
        job_id = told(process)
        assert (await store.expired()).found == ()
        assert [info.worker for info in await store.workers(1e12)] == ["w1"]
    finally:
        end(process)
    [(job, intent)] = (await store.expired()).found
    assert (job.job_id, intent.job_id) == (job_id, job_id)
    assert isinstance(intent, lifecycle.Rescue)
    assert (intent.reason, intent.is_proven) == ("process gone", True)
    assert job.lease_expires_at is not None
    assert job.lease_expires_at > store.now()
    assert await store.workers(1e12) == []
    decision = lifecycle.decide(job, intent, lifecycle.Facts(store.now()))
    assert isinstance(decision, lifecycle.Change)
    assert await store.commit([decision]) == [True]
    assert (await store.journal(job_id))[-1].reason == "process gone"
    assert (await store.expired()).found == ()  # and the worker that holds nothing any more is struck out
    assert rows_of(path, "SELECT worker FROM workers") == []
    assert list(path.with_name("inbox.db-live").glob("*.worker")) == []


async def test_a_stopped_worker_is_not_taken_for_dead(path):
    clock = ManualClock(time.time())
    store = SqliteStore(f"sqlite:///{path}", clock=clock)
    await store.open()
    await store.submit([submission()])
    process = start(WORKER, path)
    try:
        assert told(process)
        os.kill(process.pid, signal.SIGSTOP)
        assert (await store.expired()).found == ()
        clock.advance(120.0)
        [(_, intent)] = (await store.expired()).found
        assert isinstance(intent, lifecycle.Rescue)
        assert (intent.reason, intent.is_proven) == ("lease expired", False)
    finally:
        end(process)
        await store.close()


async def test_a_child_that_inherited_the_lock_keeps_its_worker_present(store, path):
    """A handler's forked child may still work on the job: while it lives, the lease decides."""
    await store.submit([submission()])
    process = start(WORKER, path, "fork")
    child = int(told(process))
    try:
        assert told(process)
        process.kill()
        process.wait()
        assert (await store.expired()).found == ()
    finally:
        os.kill(child, signal.SIGKILL)
        process.communicate()
    for _ in range(1000):
        if (await store.expired()).found:
            break
        await asyncio.sleep(0.01)  # nothing tells when the kernel has cleared away somebody else's child
    assert len((await store.expired()).found) == 1


async def test_a_child_that_was_spawned_does_not_keep_its_worker_present(store, path):
    await store.submit([submission()])
    process = start(WORKER, path, "spawn", stderr=subprocess.DEVNULL)
    child = int(told(process))
    try:
        assert told(process)
        process.kill()
        process.wait()
        assert len((await store.expired()).found) == 1
    finally:
        os.kill(child, signal.SIGKILL)
        process.communicate()


def test_only_the_very_lock_that_was_taken_proves_anything(tmp_path):
    ours, theirs = Presence(tmp_path), Presence(tmp_path)
    identity = ours.hold("w1")
    assert not theirs.is_gone("w1", identity)
    [lock] = tmp_path.glob("*.worker")
    lock.unlink()
    assert not theirs.is_gone("w1", identity)  # missing
    lock.touch()
    assert not theirs.is_gone("w1", identity)  # another file
    again = ours.hold("w1")
    assert again is not None
    assert again != identity
    assert not theirs.is_gone("w1", again)
    assert not theirs.is_gone("w1", "another machine:" + again.partition(":")[2])
    assert not theirs.is_gone("w2", None)
    for handle in ours._held.values():
        os.close(handle)  # as the kernel does when the process dies
    assert theirs.is_gone("w1", again)
    assert not theirs.is_gone("w1", "another machine:" + again.partition(":")[2])
    assert not theirs.is_gone("w1", identity)


def test_two_who_look_at_once_do_not_take_each_other_for_the_worker(tmp_path):
    import fcntl

    ours, theirs = Presence(tmp_path), Presence(tmp_path)
    identity = ours.hold("w1")
    os.close(ours._held.pop("w1"))
    handle = os.open(next(tmp_path.glob("*.worker")), os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_SH)
    assert theirs.is_gone("w1", identity)
    os.close(handle)


async def test_a_worker_whose_store_was_closed_under_it_is_not_gone(path):
    """It runs on until its lease ends; closing the store is no proof of anything."""
    store, other = SqliteStore(f"sqlite:///{path}"), SqliteStore(f"sqlite:///{path}")
    await store.open()
    await other.open()
    parts = store._parts
    assert parts is not None
    await store.submit([submission()])
    await store.attend(worker_info("w1"))
    assert len((await store.claim(ClaimRequest("w1", ("note",)))).leases) == 1
    await store.close()
    assert (await other.expired()).found == ()
    parts.presence.release("w1")
    await other.close()


async def test_a_worker_without_a_lock_to_prove_it_is_never_taken_for_dead(store, path):
    shutil.rmtree(path.with_name("inbox.db-live"))
    await store.submit([submission()])
    await store.attend(worker_info("w1"))
    assert len((await store.claim(ClaimRequest("w1", ("note",)))).leases) == 1
    other = SqliteStore(f"sqlite:///{path}")
    await other.open()
    assert (await other.expired()).found == ()
    assert [info.worker for info in await other.workers()] == ["w1"]
    await other.close()


async def test_a_worker_that_left_leaves_no_lock(store, path):
    await store.attend(worker_info("w1"))
    await store.attend(worker_info("w1"))
    live = path.with_name("inbox.db-live")
    assert len(list(live.glob("*.worker"))) == 1
    await store.leave("w1")
    assert list(live.glob("*.worker")) == []
    assert await store.workers() == []


def test_a_watcher_that_came_within_the_same_tick_of_the_file_system_is_told(tmp_path):
    teller, watcher = Wakeups(tmp_path), Wakeups(tmp_path)
    tick = time.time_ns()
    os.utime(tmp_path, ns=(tick, tick))
    assert not teller.is_heard()
    with watcher.watch((WORK,)):
        os.utime(tmp_path, ns=(tick, tick))
        assert teller.is_heard()
    teller.close()
    watcher.close()


def test_a_lock_taken_anew_is_another_one(tmp_path):
    """Its file was removed: under the same identity, it would be seen free between being made and being locked."""
    presence = Presence(tmp_path)
    first = presence.hold("w")
    presence.forget("w")
    second = presence.hold("w")
    assert None not in (first, second)
    assert first != second
    presence.release("w")


# ---------------------------------------------------------------- purge


async def end_all(office: Office, count: int) -> None:
    await office.submit_all([office.draft() for _ in range(count)])
    for lease in await office.claim(limit=count):
        await office.succeed(lease.job)


async def steps_of_a_purge(office: Office) -> int:
    """Instructions of SQLite's machine, in hundreds: what it costs, on any computer."""
    ticks: list[None] = []
    connection = office.store._open.writer._book.connection
    connection.set_progress_handler(lambda: bool(ticks.append(None)), 100)
    await office.store.purge(Retention(None, None))
    connection.set_progress_handler(None)
    return len(ticks)


async def test_a_purge_costs_the_same_however_much_is_kept(office, monkeypatch):
    monkeypatch.setattr(chores, "ENDS_MOST", 10)
    await end_all(office, 40)
    office.clock.advance(7200.0)
    few = await steps_of_a_purge(office)
    await end_all(office, 400)
    office.clock.advance(7200.0)
    assert await steps_of_a_purge(office) < few * 2


async def test_ends_that_say_nothing_any_more_are_removed_in_pieces(office, path, monkeypatch):
    monkeypatch.setattr(chores, "ENDS_MOST", 3)
    job = await office.start()
    await end_all(office, 10)  # all at one time
    await office.fail(job)
    await office.replay(job.job_id)
    office.clock.advance(7200.0)
    for _ in range(5):
        await office.store.purge(Retention(None, None))
    assert rows_of(path, "SELECT state, count(*) FROM ends GROUP BY state") == [("succeeded", 10)]
    [lease] = await office.claim()
    await office.succeed(lease.job)
    office.clock.advance(7200.0)
    assert await office.store.purge(Retention(3600.0, 3600.0)) == 11
    assert rows_of(path, "SELECT count(*) FROM ends") == [(0,)]


# ---------------------------------------------------------------- standstills


def test_a_standstill_is_noted_and_those_close_upon_each_other_are_one():
    clock = ManualClock(1000.0)
    standstill = Standstill(clock)
    assert standstill.last() == (0.0, 0.0, 0.0)
    standstill.note(999.5)
    assert standstill.last() == (0.0, 0.0, 0.0)
    clock.advance(4.0)
    standstill.note(1000.0)
    clock.advance(4.0)
    standstill.note(1004.0)
    assert standstill.last() == (1000.0, 1008.0, 8.0)
    clock.advance(100.0)
    standstill.note(1105.0)
    assert standstill.last() == (1105.0, 1108.0, 3.0)


async def test_leases_are_lengthened_by_the_stores_own_standstill(office):
    job = await office.start()  # a lease of 60 s
    office.clock.advance(50.0)
    began = office.clock()
    office.clock.advance(30.0)  # the disk stood still: no beat could be written
    office.store._standstill.note(began)
    assert (await office.store.expired()).found == ()
    office.clock.advance(9.999)
    assert (await office.store.expired()).found == ()
    office.clock.advance(0.001)
    assert [found.job_id for found, _ in (await office.store.expired()).found] == [job.job_id]


async def test_leases_are_lengthened_while_the_store_still_stands(office, path):
    job = await office.start()  # a lease of 60 s
    office.clock.advance(50.0)
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    writing = asyncio.create_task(office.store.keep("name", '"value"', before=None))
    while not office.store._standstill.is_under_way:
        await asyncio.sleep(0.001)
    office.clock.advance(30.0)
    assert (await office.store.expired()).found == ()
    other.execute("ROLLBACK")
    other.close()
    assert await writing
    assert (await office.store.expired()).found == ()
    office.clock.advance(10.0)
    assert [found.job_id for found, _ in (await office.store.expired()).found] == [job.job_id]


def test_what_takes_long_is_a_standstill_while_it_does_and_never_after_its_end():
    clock = ManualClock(1000.0)
    standstill = Standstill(clock)
    with suppress(ValueError), standstill.noted():
        clock.advance(0.999)
        assert standstill.last() == (0.0, 0.0, 0.0)
        clock.advance(4.001)
        with standstill.noted():  # beside it
            assert standstill.last() == (1000.0, 1005.0, 5.0)
        raise ValueError
    clock.advance(100.0)
    assert standstill.last() == (1000.0, 1005.0, 5.0)
    with standstill.noted():
        clock.advance(3.0)
        assert standstill.last() == (1105.0, 1108.0, 3.0)


async def test_a_lease_given_after_a_standstill_is_not_lengthened(office):
    office.clock.advance(30.0)
    office.store._standstill.note(office.clock() - 30.0)
    job = await office.start()
    office.clock.advance(60.0)
    assert [found.job_id for found, _ in (await office.store.expired()).found] == [job.job_id]


async def test_a_job_that_changed_hands_during_the_sweep_is_not_taken_from_the_living(office, path):
    """Somebody else's sweep took it back from the dead, and a live worker has it by the time its row is read."""
    job = await office.start(worker="dead")

    class Interrupted(Glance):
        def rows(self, name: str, *values: Any) -> list[tuple[Any, ...]]:
            rows = super().rows(name, *values)
            if name == "held_by":
                rows_of(path, "UPDATE jobs SET worker = 'alive', epoch = epoch + 1, version = version + 1")
            return rows

    reading = connect(path, writes=False)
    prepare(reading, writes=False)
    found = chores.expired(Interrupted(reading), office.clock(), 10, ["dead"], (0.0, 0.0, 0.0)).found
    reading.close()
    assert (await office.job(job.job_id)).worker == "alive"
    assert found == ()


# ---------------------------------------------------------------- rows that cannot be read


async def spoil_part(path: Path, table: str, job_id: str, assignment: str) -> None:
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(2000)
    whose = "seq = (SELECT seq FROM jobs WHERE job_id = ?)"
    connection.execute(f"UPDATE {table} SET {assignment} WHERE {whose}", (job_id,))
    connection.close()


@pytest.mark.parametrize("assignment", ["body = CAST(x'ff41' AS TEXT)", "keys = '[broken'"])
async def test_an_unreadable_payload_keeps_no_other_job_from_its_worker(office, path, assignment):
    ids = [await office.submit(items=["1"], keys=("k",)) for _ in range(4)]
    await spoil_part(path, "payloads", ids[1], assignment)
    assert await office.claimed_ids(limit=3) == [ids[0], ids[2]]
    assert await office.claimed_ids(limit=3) == [ids[3]]


async def test_an_unreadable_checkpoint_keeps_no_other_job_from_its_worker(office, path):
    jobs = [await office.start(f"kind{n}", items=["1", "2"]) for n in range(2)]
    for job in jobs:
        kept = Checkpoint(CheckpointKind.ITEM, "0", value='"v"')
        await office.settle(job, OutcomeKind.RELEASED, checkpoints=(kept,))
    await spoil_part(path, "checkpoints", jobs[0].job_id, "value = CAST(x'ff41' AS TEXT)")
    [lease] = await office.claim("kind0", "kind1", limit=2)
    assert (lease.job.job_id, len(lease.checkpoints)) == (jobs[1].job_id, 1)


async def test_what_was_committed_beside_an_unreadable_payload_is_not_written_again(office, path):
    bad = await office.submit("bad")
    await spoil_part(path, "payloads", bad, "body = CAST(x'ff41' AS TEXT)")
    [[answer], leases] = await asyncio.gather(office.submit_all([office.draft()]), office.claim("bad"))
    assert (answer.is_new, leases) == (True, [])


async def spoil(path: Path, job_id: str, assignment: str) -> None:
    rows_of(path, f"UPDATE jobs SET {assignment} WHERE job_id = '{job_id}'")


UNREADABLE = ["topic = CAST(x'ff41' AS TEXT)", "priority = 'urgent'", "params = CAST(x'c328' AS TEXT)"]


@pytest.mark.parametrize("assignment", UNREADABLE)
async def test_a_row_that_cannot_be_read_stops_no_claim_and_is_listed(office, path, assignment):
    ids = [await office.submit() for _ in range(5)]
    await spoil(path, ids[0], assignment)
    assert await office.claimed_ids(limit=1) == [ids[1]]
    assert await office.claimed_ids(limit=10) == ids[2:]
    page = await office.store.find(Query())
    assert [job.job_id for job in page.jobs] == ids[:0:-1]
    [(job_id, reason)] = page.broken
    assert job_id == ids[0]
    assert "cannot be read" in reason
    assert ids[0] in dict((await office.store.expired()).broken)
    assert [text for text in await office.store.verify() if ids[0] in text]
    assert set((await office.store.get(ids)).jobs) == set(ids[1:])


async def test_a_row_that_cannot_be_read_stops_no_other_from_becoming_due(office, path):
    due = office.clock() + 10.0
    ids = [await office.submit(run_at=due) for _ in range(4)]
    await spoil(path, ids[0], "owner = CAST(x'ff41' AS TEXT)")
    await spoil(path, ids[1], "priority = 'urgent'")
    office.clock.advance(10.0)
    assert await office.claimed_ids(limit=10) == ids[2:]
    assert {ids[0], ids[1]} <= set(dict((await office.store.expired()).broken))


async def test_a_row_that_cannot_be_read_stops_no_rescue(office, path):
    ids = [await office.submit() for _ in range(3)]
    await office.claim(limit=3)
    await spoil(path, ids[1], "reason = CAST(x'ff41' AS TEXT)")
    office.clock.advance(60.0)
    sweep = await office.store.expired()
    assert [job.job_id for job, _ in sweep.found] == [ids[0], ids[2]]
    assert [job_id for job_id, _ in sweep.broken] == [ids[1]]


async def test_a_mended_row_comes_back_into_line(office, path):
    job_id = await office.submit()
    await spoil(path, job_id, "priority = 'urgent'")
    assert await office.claimed_ids() == []
    await spoil(path, job_id, "priority = 'high', broken = NULL, wake_at = 0")
    assert await office.claimed_ids() == [job_id]


# ---------------------------------------------------------------- verify


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        ("UPDATE owners SET queued = queued + 1", "the counts of local differ"),
        ("DELETE FROM journal WHERE n = 1", "has 3 journal lines, found are 2"),
        ("DELETE FROM payloads", "has no payload"),
        ("UPDATE results SET body = 'shorter'", "that is not there as such"),
        ("UPDATE jobs SET state = 'asleep'", "which is none of"),
        ("DELETE FROM jobs", "belongs to no job"),
    ],
)
async def test_verify_finds_what_is_wrong_in_the_file(office, path, damage, found):
    await office.succeed_new()
    assert await office.store.verify() == []
    rows_of(path, damage)
    assert [text for text in await office.store.verify() if found in text]


async def test_verify_finds_a_damaged_index(office, path):
    await office.succeed_new()
    connection = apsw.Connection(str(path))
    [(page,)] = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'jobs_by_id'").fetchall()
    size = connection.pragma("page_size")
    assert connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE) == (0, 0)
    connection.close()
    copy = path.with_name("copy.db")
    shutil.copy(path, copy)
    with copy.open("r+b") as file:
        file.seek(page * size - 20)
        file.write(b"0123456789")
    damaged = SqliteStore(f"sqlite:///{copy}")
    await damaged.open()
    assert [text for text in await damaged.verify() if text.startswith("SQLite finds")]
    await damaged.close()


# ---------------------------------------------------------------- large things


async def test_large_payloads_and_checkpoints_come_back_byte_for_byte(office):
    large = json.dumps("è文\u2028" * 100_000, ensure_ascii=False)
    ids = [await office.submit(content=large), await office.submit(content='"small"')]
    leases = await office.claim(limit=2)
    assert [lease.payload.body for lease in leases] == [large, '"small"']
    job = await office.start(items=["1", "2"], kind="many")
    checkpoint = Checkpoint(CheckpointKind.ITEM, "0", value=large)
    await office.beat(job, checkpoints=(checkpoint,))
    await office.settle(job, OutcomeKind.RELEASED)
    [lease] = await office.claim("many")
    assert [(c.key, c.value) for c in lease.checkpoints] == [("0", large)]
    await office.succeed(leases[0].job, large)
    assert await office.store.result(ids[0]) == large
    assert await office.store.verify() == []


async def test_a_status_read_touches_no_payload_and_no_result(office, path):
    job_id = await office.succeed_new()
    for table in ("payloads", "results", "checkpoints", "journal"):
        rows_of(path, f"DROP TABLE {table}")
    assert (await office.job(job_id)).state is State.SUCCEEDED
    assert len((await office.store.find(Query())).jobs) == 1
