"""Isolated handlers under a whole worker: cancelled, out of time, crashing, drained."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from typing import Any

import psutil
import pytest

from postroom import Inbox, State
from postroom.settings import Settings
from postroom.views import JobView
from postroom.worker.loop import Worker
from tests.worker import isolated_handlers
from tests.worker.bench import is_alive

QUICK = Settings(
    store="memory://",
    lease_seconds=1.0,
    heartbeat_seconds=0.2,
    poll_seconds=0.05,
    rescue_seconds=0.1,
    backoff_base_seconds=0.05,
    backoff_cap_seconds=0.1,
    drain_seconds=0.1,
)


@pytest.fixture(autouse=True)
def _short_graces(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HALT_GRACE_SECONDS", "TERM_GRACE_SECONDS"):
        monkeypatch.setattr(f"postroom.worker.isolation.{name}", 0.3)


@pytest.fixture
async def inbox() -> AsyncIterator[Inbox]:
    """An inbox whose handlers are those of `isolated_handlers`."""
    async with Inbox("memory://", settings=QUICK) as inbox:
        for kind in isolated_handlers.inbox.handlers.kinds():
            handler = isolated_handlers.inbox.handlers.get(kind)
            assert handler is not None
            inbox.handlers.add(handler)
        yield inbox


async def said(inbox: Inbox, job_id: str) -> Any:
    """What the handler of a running job emitted first."""
    async for line in inbox.follow(job_id):
        if line.event == "output":
            return line.data["output"]
    raise AssertionError("it ended without a word")


async def ended(inbox: Inbox, job: JobView) -> JobView:
    return await inbox.wait(job.job_id, timeout_seconds=30)


@pytest.mark.parametrize("kind", ["busy", "busy-async", "stubborn"])
async def test_cancelling_a_job_means_that_nothing_of_it_goes_on(inbox: Inbox, kind: str) -> None:
    async with inbox.worker():
        job = await inbox.submit(kind, "x")
        pid = (await said(inbox, job.job_id))["pid"]
        assert is_alive(pid)
        await inbox.cancel(job.job_id, "enough")
        assert (await ended(inbox, job)).state == State.CANCELLED
        assert not psutil.pid_exists(pid)


async def test_a_run_that_takes_too_long_is_killed_and_is_a_timeout(inbox: Inbox) -> None:
    async with inbox.worker():
        job = await inbox.submit("stubborn", "x", timeout_seconds=1.0, max_attempts=1)
        pid = (await said(inbox, job.job_id))["pid"]
        failed = await ended(inbox, job)
        assert (failed.state, failed.crashes) == (State.FAILED, 0)
        assert failed.error is not None
        assert failed.error["code"] == "timeout"
        assert not psutil.pid_exists(pid)


async def test_the_next_attempt_starts_only_once_the_run_at_its_limit_is_gone(
    inbox: Inbox, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "postroom.worker")
    async with inbox.worker(), inbox.worker():
        job = await inbox.submit("stubborn", "x", timeout_seconds=1.0, max_attempts=2)
        pids, alive_at_next_claim = [], []
        async for line in inbox.follow(job.job_id):
            if line.event == "claimed":
                alive_at_next_claim += [pid for pid in pids if is_alive(pid)]
            if line.event == "output":
                pids.append(line.data["output"]["pid"])
        failed = await inbox.get(job.job_id)
    assert (failed.attempts, len(pids), alive_at_next_claim) == (2, 2, [])
    assert "lease is lost" not in caplog.text


async def test_a_run_without_progress_is_killed_and_is_stalled(inbox: Inbox) -> None:
    async with inbox.worker():
        job = await inbox.submit("busy", "x", stall_timeout_seconds=0.8, max_attempts=1)
        pid = (await said(inbox, job.job_id))["pid"]
        failed = await ended(inbox, job)
        assert failed.error is not None
        assert failed.error["code"] == "stalled"
        assert not psutil.pid_exists(pid)


async def test_a_child_that_is_killed_each_time_uses_up_the_crash_budget(inbox: Inbox) -> None:
    async with inbox.worker():
        job = await inbox.submit("killed", str(int(signal.SIGKILL)))
        failed = await ended(inbox, job)
    assert (failed.state, failed.crashes, failed.attempts) == (State.FAILED, 3, 0)
    assert failed.error is not None
    assert failed.error["code"] == "worker_lost"
    assert "signal 9" in failed.error["message"]
    events = [line.event async for line in inbox.follow(job.job_id)]
    assert events.count("claimed") == 3


async def test_a_drained_worker_hands_the_run_back_uncharged_and_leaves_no_process(inbox: Inbox) -> None:
    async with inbox.worker():
        job = await inbox.submit("stubborn", "x")
        pid = (await said(inbox, job.job_id))["pid"]
    assert not psutil.pid_exists(pid)
    back = await inbox.get(job.job_id)
    assert (back.state, back.attempts, back.interruptions) == (State.QUEUED, 0, 1)


async def test_a_worker_that_must_end_now_leaves_no_process_either(inbox: Inbox) -> None:
    worker = Worker(inbox, inbox.handlers)
    await worker.start()
    job = await inbox.submit("stubborn", "x")
    pid = (await said(inbox, job.job_id))["pid"]
    await worker.stop_now()
    assert not psutil.pid_exists(pid)
    assert (await inbox.get(job.job_id)).interruptions == 1


async def test_isolated_runs_go_on_beside_each_other(inbox: Inbox) -> None:
    async with inbox.worker():
        stuck = await inbox.submit("stubborn", "x")
        await said(inbox, stuck.job_id)
        others = await asyncio.gather(*(inbox.submit("shout", f"word {i}") for i in range(6)))
        for other in others:
            assert (await ended(inbox, other)).state == State.SUCCEEDED
        await inbox.cancel(stuck.job_id)
        await ended(inbox, stuck)
