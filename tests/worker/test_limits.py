"""Time limits: what can be ended is, and what cannot is given up, refused or run in a child; never silently ignored."""

from __future__ import annotations

import asyncio
import threading

from postroom.policy import Policy
from postroom.worker import isolation, loop
from tests.worker import plain_handlers
from tests.worker.workbench import ended, events, run_to_end, until


async def test_a_run_past_its_timeout_is_cancelled_and_fails_with_its_code(inbox):
    was_cancelled = asyncio.Event()

    @inbox.handler("slow", timeout_seconds=0.1, max_attempts=1)
    async def slow(item, run):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            was_cancelled.set()
            raise

    job = await run_to_end(inbox, "slow", "x")
    assert was_cancelled.is_set()
    assert (job.state, job.error["code"], job.attempts) == ("failed", "timeout", 1)
    assert "timeout_seconds (0.1 s)" in job.error["message"]


async def test_a_timeout_is_an_error_that_may_be_retried(inbox):
    @inbox.handler("slow", timeout_seconds=0.1)
    async def slow(item, run):
        if run.attempt == 1:
            await asyncio.sleep(60)
        return "second time"

    job = await run_to_end(inbox, "slow", "x")
    assert (job.state, job.attempts, job.result) == ("succeeded", 2, "second time")


async def test_the_limit_of_the_job_stands_before_that_of_its_handler(inbox):
    @inbox.handler("slow", timeout_seconds=60)
    async def slow(item, run):
        await asyncio.sleep(60)

    job = await run_to_end(inbox, "slow", "x", timeout_seconds=0.1, max_attempts=1)
    assert job.error["code"] == "timeout"


async def test_items_that_ended_before_the_timeout_are_kept(inbox):
    @inbox.handler("slow", timeout_seconds=0.3)
    async def slow(item, run):
        if item == "b" and run.attempt == 1:
            await asyncio.sleep(60)
        return [item, run.attempt]

    job = await run_to_end(inbox, "slow", items=["a", "b"])
    assert job.state == "succeeded"
    assert [i.value async for i in inbox.items(job.job_id)] == [["a", 1], ["b", 2]]


async def test_a_run_without_progress_is_stalled(inbox):
    @inbox.handler("stuck", stall_timeout_seconds=0.1, max_attempts=1)
    async def stuck(item, run):
        await asyncio.sleep(60)

    job = await run_to_end(inbox, "stuck", "x")
    assert (job.state, job.error["code"]) == ("failed", "stalled")


async def test_progress_output_and_steps_keep_a_run_from_stalling(inbox):
    @inbox.handler("moves", stall_timeout_seconds=0.6, whole=True, max_attempts=1)
    async def moves(run):
        for n in range(1, 4):
            run.progress(n, 10)
            await asyncio.sleep(0.25)
            run.emit(n)
            await asyncio.sleep(0.25)
            await run.step("n", max, [n, 0])
        return "moved for longer than the limit"

    job = await run_to_end(inbox, "moves", "x")
    assert (job.state, job.crashes) == ("succeeded", 0)


async def test_progress_that_does_not_grow_is_none(inbox):
    @inbox.handler("stuck", stall_timeout_seconds=0.2, whole=True, max_attempts=1)
    async def stuck(run):
        while True:
            run.progress(1, 10)
            await asyncio.sleep(0.01)

    job = await run_to_end(inbox, "stuck", "x")
    assert job.error["code"] == "stalled"


async def test_a_limit_of_a_job_that_its_plain_handler_cannot_keep_is_refused_with_a_sentence(inbox):
    @inbox.handler("plain")
    def plain(item, run):
        return "never called"

    job = await run_to_end(inbox, "plain", "x", timeout_seconds=5)
    assert (job.state, job.attempts, job.error["code"]) == ("failed", 1, "limit_unenforceable")
    assert "cannot be stopped" in job.error["message"]


async def test_a_limit_of_a_job_with_a_plain_handler_is_kept_by_a_child_where_one_can_find_it(make_inbox):
    async with make_inbox("sqlite") as inbox:
        inbox.handler("hangs")(plain_handlers.hangs)
        job = await run_to_end(inbox, "hangs", "x", timeout_seconds=0.5, max_attempts=1)
    assert (job.state, job.error["code"]) == ("failed", "timeout")


async def test_a_stalled_thread_is_given_up_and_keeps_its_slot_until_it_ends(make_inbox, caplog):
    """The default stall limit also holds for threads, which nothing can end."""
    async with make_inbox(stall_timeout_seconds=0.2, max_attempts=1) as inbox:
        go_on = threading.Event()
        calls = []

        @inbox.handler("stuck")
        def stuck(item, run):
            go_on.wait(30)
            run.emit("too late")
            return "too late"

        @inbox.handler("other")
        async def other(item, run):
            calls.append(item)

        job = await inbox.submit("stuck", "x")
        async with inbox.worker(concurrency=1) as worker:
            job = await ended(inbox, job.job_id)
            assert (job.state, job.error["code"]) == ("failed", "stalled")
            assert "keeps its slot" in caplog.text
            next_job = await inbox.submit("other", "y")
            await until(lambda: not worker._beats._records)
            assert (await inbox.get(next_job.job_id)).state == "queued"
            go_on.set()
            assert (await ended(inbox, next_job.job_id)).state == "succeeded"
        assert await events(inbox, job.job_id) == ["submitted", "claimed", "failed"]


async def test_a_handler_that_ignores_its_cancellation_is_given_up_after_a_grace(make_inbox, monkeypatch):
    monkeypatch.setattr("postroom.worker.loop.ABORT_GRACE_SECONDS", 0.1)
    async with make_inbox(lease_seconds=1.0) as inbox:
        go_on = asyncio.Event()

        @inbox.handler("stubborn", timeout_seconds=0.1, max_attempts=1)
        async def stubborn(item, run):
            while not go_on.is_set():
                try:
                    await go_on.wait()
                except asyncio.CancelledError:
                    continue
            return "too late"

        job = await inbox.submit("stubborn", "x")
        async with inbox.worker():
            job = await ended(inbox, job.job_id)
            go_on.set()
        assert (job.state, job.error["code"]) == ("failed", "timeout")


async def test_one_timer_serves_all_runs(inbox):
    """A thousand runs with limits far away set one timer, not a thousand."""
    started = 0
    go_on = asyncio.Event()

    @inbox.handler("waits", timeout_seconds=60)
    async def waits(item, run):
        nonlocal started
        started += 1
        await go_on.wait()

    for n in range(200):
        await inbox.submit("waits", n)
    async with inbox.worker(concurrency=200) as worker:
        await until(lambda: started == 200)
        loop = asyncio.get_running_loop()
        timers = [t for t in getattr(loop, "_scheduled", []) if t._callback == worker._check_limits]
        assert len([t for t in timers if not t.cancelled()]) == 1
        go_on.set()


def test_the_grace_at_a_limit_is_longer_than_all_that_a_worker_takes_to_end_a_run():
    assert Policy().limit_grace_seconds > loop.ABORT_GRACE_SECONDS
    assert Policy().limit_grace_seconds > isolation.HALT_GRACE_SECONDS + isolation.TERM_GRACE_SECONDS
