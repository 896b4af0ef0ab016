"""Runs in children of their own, each a real process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import psutil
import pytest

from postroom.errors import LeaseLost
from postroom.handlers import Handler
from postroom.jsontext import decode
from postroom.model import Lease, Outcome, OutcomeKind, State
from postroom.worker.guardian import Guardian
from postroom.worker.isolation import HandlerNotLoaded, run_in_child
from postroom.worker.recorder import Halt
from postroom.worker.reference import for_handler
from tests.worker import isolated_handlers
from tests.worker.bench import SHORT, Bench, DeskRecorder, bench, is_alive, until

APP = "tests.worker.isolated_handlers:inbox"


@pytest.fixture
async def desk() -> AsyncIterator[Bench]:
    async with bench() as made:
        yield made


class Started:
    """A run in a child, under way."""

    def __init__(self, desk: Bench, lease: Lease, guardian: Guardian | None = None) -> None:
        handler = isolated_handlers.inbox.handlers.get(lease.job.kind)
        assert handler is not None
        self.recorder: DeskRecorder = desk.recorder(lease)
        reference = for_handler(handler, APP)
        assert reference is not None
        settings = desk.settings
        self.task = asyncio.create_task(
            run_in_child(
                lease, handler, self.recorder, settings=settings, reference=reference, guardian=guardian
            )
        )

    async def pid(self) -> int:
        return int((await self.recorder.first_output())["pid"])

    async def outcome(self) -> Outcome:
        return await asyncio.wait_for(self.task, 30)


async def run(desk: Bench, kind: str, content: Any = "x", **options: Any) -> Outcome:
    content = None if "items" in options else content
    return await Started(desk, await desk.lease(kind, content, **options)).outcome()


# ---- what a run says and gets


async def test_a_child_has_a_process_a_group_and_a_session_of_its_own(desk: Bench) -> None:
    outcome = await run(desk, "shout", "hello")
    said = decode(outcome.result or "")
    assert outcome.kind is OutcomeKind.SUCCEEDED
    assert said["said"] == "HELLO"
    assert said["pid"] == said["group"] == said["session"] != os.getpid()
    assert not is_alive(said["pid"])


async def test_each_item_is_durable_before_the_next_one_starts(desk: Bench) -> None:
    """The third item kills its child: the two before it are in the store."""
    lease = await desk.lease("keeps-then-dies", items=["a", "b", "die", "c"])
    started = Started(desk, lease)
    assert (await started.outcome()).kind is OutcomeKind.CRASHED
    kept = {c.key: c.value async for c in aiter_checkpoints(desk, lease)}
    assert kept == {"0": '"a"', "1": '"b"'}
    assert started.recorder.starts >= 3


async def aiter_checkpoints(desk: Bench, lease: Lease) -> AsyncIterator[Any]:
    for checkpoint in await desk.desk.store.checkpoints(lease.job.job_id):
        yield checkpoint


async def test_many_items_at_once_in_one_child(desk: Bench) -> None:
    words = [f"word {i}" for i in range(30)]
    lease = await desk.lease("shout-async", items=words)
    outcome = await Started(desk, lease).outcome()
    assert (await desk.settle(outcome)).state is State.SUCCEEDED
    assert await desk.inbox.result(lease.job.job_id) == {"results": [word.upper() for word in words]}


async def test_progress_output_usage_and_steps_come_through_in_order(desk: Bench) -> None:
    started = Started(desk, await desk.lease("news", "x"))
    outcome = await started.outcome()
    assert outcome.result == "3"
    assert started.recorder.outputs == [{"token": "a"}, {"token": "b"}]
    assert started.recorder.progresses == [(1, 3), (3, 3)]
    assert started.recorder.usages == [{"tokens_out": 7}]


@pytest.mark.parametrize(
    ("kind", "code", "is_permanent"), [("permanent", "nothing_there", True), ("broken", "KeyError", False)]
)
async def test_errors_come_through(desk: Bench, kind: str, code: str, is_permanent: bool) -> None:
    outcome = await run(desk, kind)
    assert outcome.kind is OutcomeKind.FAILED
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.is_permanent) == (code, is_permanent)


async def test_a_hold_comes_through(desk: Bench) -> None:
    outcome = await run(desk, "later")
    assert (outcome.kind, outcome.after_seconds) == (OutcomeKind.HELD, 12.5)


async def test_a_refused_checkpoint_ends_the_run_as_lost(desk: Bench) -> None:
    lease = await desk.lease("shout-async", items=["a"])
    recorder = Started(desk, replace(lease, job=replace(lease.job, epoch=lease.job.epoch + 1)))
    outcome = await recorder.outcome()
    assert (outcome.kind, outcome.reason) == (OutcomeKind.RELEASED, "lease lost")


async def test_large_values_pass_both_ways(desk: Bench) -> None:
    size = 3_000_000
    outcome = await run(desk, "large", str(size))
    assert len(decode(outcome.result or "")) == size
    big = await run(desk, "shout", "y" * 900_000)
    assert len(decode(big.result or "")["said"]) == 900_000


async def test_what_the_handler_prints_is_passed_through(desk: Bench, capfd: pytest.CaptureFixture) -> None:
    outcome = await run(desk, "prints", "hello")
    printed = capfd.readouterr()
    assert "to standard output: hello" in printed.out
    assert "to standard error: hello" in printed.err
    assert outcome.result == '""'  # its standard input is empty, not the worker's


async def test_no_descriptor_leaks_into_the_child_or_its_children(desk: Bench) -> None:
    with open(__file__) as file:
        os.set_inheritable(file.fileno(), True)
        seen = decode((await run(desk, "looks-around")).result or "")
    assert __file__ not in seen["files"].values()
    assert (
        sum(name.startswith("socket:") for name in seen["files"].values()) <= 3
    )  # channel, and its loop's pair
    assert seen["inherited"] <= 4  # input, output, error, and the listing
    assert seen["directory"] == os.getcwd()
    assert set(filter(None, sys.path)) <= set(seen["path"])
    assert seen["oom"] == "500"


# ---- dying


async def test_a_killed_child_is_a_crash_that_names_the_signal(desk: Bench) -> None:
    lease = await desk.lease("killed", str(int(signal.SIGKILL)))
    outcome = await Started(desk, lease).outcome()
    assert (outcome.kind, outcome.reason) == (OutcomeKind.CRASHED, "signal 9")
    answer = await desk.settle(outcome)
    assert answer.job is not None
    assert (answer.job.crashes, answer.job.attempts) == (1, 0)
    line = (await desk.desk.journal(lease.job.job_id))[-1]
    assert (line.event, line.reason) == ("crashed", "signal 9")


async def test_a_child_that_exits_without_a_word_is_a_crash(desk: Bench) -> None:
    outcome = await run(desk, "exits")
    assert (outcome.kind, outcome.reason) == (OutcomeKind.CRASHED, "process gone")


async def test_a_fault_in_a_library_is_a_crash(desk: Bench) -> None:
    outcome = await run(desk, "killed", str(int(signal.SIGSEGV)))
    assert outcome.reason == "signal 11"


async def test_a_worker_that_lets_the_system_reap_its_children_goes_on(desk: Bench) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert (await run(desk, "shout", "hello")).kind is OutcomeKind.SUCCEEDED
        assert (await run(desk, "killed", "9")).kind is OutcomeKind.CRASHED
    finally:
        signal.signal(signal.SIGCHLD, before)


async def test_a_child_that_cannot_end_by_itself_is_ended(desk: Bench) -> None:
    outcome = await run(desk, "leaves-thread")
    assert outcome.result == '"done"'


# ---- being ended


@pytest.mark.parametrize("kind", ["busy", "busy-async", "stubborn"])
@pytest.mark.parametrize(
    ("halt", "ends_as"),
    [(Halt.CANCELLED, OutcomeKind.CANCELLED), (Halt.TIMEOUT, OutcomeKind.FAILED)],
)
async def test_a_run_that_takes_no_hint_is_killed(
    desk: Bench, monkeypatch: pytest.MonkeyPatch, kind: str, halt: Halt, ends_as: OutcomeKind
) -> None:
    monkeypatch.setattr("postroom.worker.isolation.HALT_GRACE_SECONDS", 0.2)
    monkeypatch.setattr("postroom.worker.isolation.TERM_GRACE_SECONDS", 0.2)
    started = Started(desk, await desk.lease(kind, "x"))
    pid = await started.pid()
    assert is_alive(pid)
    started.recorder.halt.set(halt)
    outcome = await started.outcome()
    assert outcome.kind is ends_as
    assert not psutil.pid_exists(pid)


async def test_a_plain_handler_that_looks_ends_by_itself(desk: Bench) -> None:
    started = Started(desk, await desk.lease("patient", "x"))
    await started.pid()
    started.recorder.halt.set(Halt.CANCELLED)
    outcome = await started.outcome()
    assert outcome.reason == "cleaned up"


async def test_an_async_handler_is_cancelled_and_cleans_up(desk: Bench) -> None:
    started = Started(desk, await desk.lease("tidy-async", "x"))
    await started.pid()
    started.recorder.halt.set(Halt.TIMEOUT)
    outcome = await started.outcome()
    assert outcome.error is not None
    assert outcome.error.code == "timeout"
    assert {"cleaned": True} in started.recorder.outputs


async def test_a_lost_lease_ends_the_child_fast(desk: Bench) -> None:
    started = Started(desk, await desk.lease("busy", "x"))
    pid = await started.pid()
    started.recorder.halt.set(Halt.LOST)
    outcome = await started.outcome()
    assert outcome.reason == "lease lost"
    assert not psutil.pid_exists(pid)


async def test_cancelling_the_task_kills_the_child_first(desk: Bench) -> None:
    started = Started(desk, await desk.lease("stubborn", "x"))
    pid = await started.pid()
    started.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await started.task
    assert not psutil.pid_exists(pid)


async def test_cancelling_twice_does_not_leave_the_child_behind(desk: Bench) -> None:
    started = Started(desk, await desk.lease("stubborn", "x"))
    pid = await started.pid()
    for _ in range(3):
        started.task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await started.task
    assert not psutil.pid_exists(pid)


async def test_all_that_a_child_started_ends_with_it(desk: Bench) -> None:
    """Also what left its group and its session, and what lost its parent."""
    started = Started(desk, await desk.lease("family", "stay"))
    pids = (await started.recorder.first_output())["pids"]
    assert all(map(is_alive, pids))
    started.recorder.halt.set(Halt.LOST)
    await started.outcome()
    await until(lambda: not any(map(is_alive, pids)))


async def test_what_stays_in_the_group_ends_with_a_run_that_succeeds(desk: Bench) -> None:
    lease = await desk.lease("family", "return")
    outcome = await Started(desk, lease).outcome()
    own, grandchild, own_group, own_session, orphan = decode(outcome.result or "")
    try:
        assert not any(map(is_alive, (own, grandchild, orphan)))
    finally:
        for pid in (own_group, own_session):
            os.kill(pid, signal.SIGKILL)


async def test_a_busy_child_does_not_block_its_worker(desk: Bench) -> None:
    """The worker's loop goes on turning while the child holds its own interpreter."""
    started = Started(desk, await desk.lease("stubborn", "x"))
    await started.pid()
    for _ in range(100):
        await asyncio.sleep(0)
    assert not started.task.done()
    started.recorder.halt.set(Halt.LOST)
    await started.outcome()


# ---- not starting


async def test_a_child_that_cannot_find_its_handler_says_so_and_why(desk: Bench) -> None:
    lease = await desk.lease("shout", "x")
    handler = isolated_handlers.inbox.handlers.get("shout")
    assert isinstance(handler, Handler)
    reference = for_handler(handler, APP)
    assert reference is not None
    wrong = replace(reference, target="no_such_module:inbox")
    with pytest.raises(HandlerNotLoaded, match="no_such_module") as told:
        await run_in_child(lease, handler, desk.recorder(lease), settings=SHORT, reference=wrong)
    assert "import_module" in told.value.trace


async def test_a_child_that_cannot_be_started_holds_the_job(
    desk: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/interpreter")
    outcome = await run(desk, "shout")
    assert outcome.kind is OutcomeKind.HELD


async def test_lease_lost_is_raised_in_the_child_as_itself(desk: Bench) -> None:
    from postroom.worker.channel import error_from_json, error_to_json

    error = error_from_json(error_to_json(LeaseLost("gone")))
    assert isinstance(error, LeaseLost)
    assert str(error) == "gone"
