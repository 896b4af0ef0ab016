"""A worker from its start to its end: claiming, slots, the store's absence, draining."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import secrets
import subprocess
import sys
import threading

import pytest

from postroom import HandlerInvalid
from postroom.model import Outcome, OutcomeKind
from postroom.stores.port import ClaimRequest
from postroom.worker import loop as loop_module
from postroom.worker.loop import Worker
from tests.worker import plain_handlers
from tests.worker.workbench import ended, events, run_to_end, until


async def test_no_more_jobs_are_claimed_than_there_are_slots(inbox):
    running, most = 0, 0
    full = asyncio.Event()

    @inbox.handler("counts")
    async def counts(item, run):
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            full.set()
        await full.wait()
        await asyncio.sleep(0)
        running -= 1

    jobs = [await inbox.submit("counts", n) for n in range(9)]
    async with inbox.worker(concurrency=3):
        for job in jobs:
            assert (await ended(inbox, job.job_id)).state == "succeeded"
    assert most == 3


async def test_jobs_are_claimed_in_the_order_of_the_line(inbox):
    order = []

    @inbox.handler("notes")
    async def notes(item, run):
        order.append(item)

    for priority in ("low", "normal", "high"):
        for n in range(2):
            job = await inbox.submit("notes", f"{priority}{n}", priority=priority)
            del job
    last = await inbox.submit("notes", "last", priority="low")
    async with inbox.worker(concurrency=1):
        await ended(inbox, last.job_id)
    assert order == ["high0", "high1", "normal0", "normal1", "low0", "low1", "last"]


async def test_hundreds_of_async_handlers_run_at_once(inbox):
    count = 300
    everybody = asyncio.Barrier(count)

    @inbox.handler("meets")
    async def meets(item, run):
        await everybody.wait()

    answers = await inbox.submit_many({"kind": "meets", "content": n} for n in range(count))
    async with inbox.worker(concurrency=count):
        for answer in answers:
            assert (await ended(inbox, answer.job_id)).state == "succeeded"


async def test_plain_handlers_get_a_thread_each(inbox):
    count = 40
    everybody = threading.Barrier(count)

    @inbox.handler("meets")
    def meets(item, run):
        everybody.wait(30)

    answers = await inbox.submit_many({"kind": "meets", "content": n} for n in range(count))
    async with inbox.worker(concurrency=count):
        for answer in answers:
            assert (await ended(inbox, answer.job_id)).state == "succeeded"


async def test_only_kinds_and_queues_of_the_worker_are_taken(inbox):
    @inbox.handler("known")
    async def known(item, run):
        return item

    other_kind = await inbox.submit("unknown", "x")
    other_queue = await inbox.submit("known", "x", queue="elsewhere")
    job = await inbox.submit("known", "x")
    async with inbox.worker():
        await ended(inbox, job.job_id)
    for job in (other_kind, other_queue):
        assert (await inbox.get(job.job_id)).epoch == 0


async def test_a_job_whose_handler_is_gone_is_given_back_and_never_failed(inbox):
    @inbox.handler("vanishes")
    async def vanishes(item, run):
        return item

    async with inbox.worker() as worker:
        del worker.registry._handlers["vanishes"]
        job = await inbox.submit("vanishes", "x")
        async for line in inbox.follow(job.job_id):
            if line.event == "released":
                break
    assert "no handler" in line.reason
    job = await inbox.get(job.job_id)
    assert (job.state, job.attempts) == ("queued", 0)


async def test_a_worker_introduces_itself_under_a_new_name_at_every_start_and_leaves(inbox):
    @inbox.handler("any")
    async def anything(item, run):
        return run.epoch

    names = set()
    for _ in range(2):
        async with inbox.worker(concurrency=7) as worker:
            [view] = await inbox.workers()
            assert (view.info.worker, view.info.kinds, view.info.concurrency) == (
                worker.identity,
                ("any",),
                7,
            )
            names.add(worker.identity)
        assert await inbox.workers() == []
    assert len(names) == 2


async def test_an_idle_worker_hears_of_a_new_job_without_polling(make_inbox):
    async with make_inbox(poll_seconds=60.0) as inbox:

        @inbox.handler("any")
        async def anything(item, run):
            return "found"

        desk = await inbox.verbs()
        async with inbox.worker():
            await until(lambda: desk.calls["claim"] > 0)
            job = await inbox.submit("any", "x")
            assert (await ended(inbox, job.job_id)).result == "found"


async def test_a_worker_that_cannot_watch_at_first_works_all_the_same(inbox, desk, monkeypatch, caplog):
    watch, failed = desk.watch, []

    def watch_later(*topics):
        if not failed:
            failed.append(topics)
            raise OSError(24, "Too many open files")
        return watch(*topics)

    @inbox.handler("echo")
    async def echo(item, run):
        return item

    job = await inbox.submit("echo", "x")
    async with inbox.worker():
        monkeypatch.setattr(desk, "watch", watch_later)
        async with asyncio.timeout(10):
            while (await inbox.get(job.job_id)).state != "succeeded":
                await asyncio.sleep(0.01)
    assert failed
    assert "Too many open files" in caplog.text


async def test_outcomes_are_kept_while_the_store_is_away_and_settled_once_it_is_back(inbox, desk):
    finished = []

    @inbox.handler("quick")
    async def quick(item, run):
        finished.append(item)
        return item

    desk.cut.add("settle")
    jobs = [await inbox.submit("quick", n) for n in range(12)]
    async with inbox.worker(concurrency=4):
        await until(lambda: len(finished) == 8 and desk.calls["settle"] > 2)
        assert (await inbox.stats()).states["succeeded"] == 0
        desk.cut.clear()
        for job in jobs:
            job = await ended(inbox, job.job_id)
            assert (job.state, job.epoch) == ("succeeded", 1)
    assert sorted(finished) == list(range(12))


async def test_what_waits_for_the_store_is_bounded_by_the_slots(inbox, desk):
    """No more is claimed than twice the slots, or a long outage would fill the memory."""
    started = 0

    @inbox.handler("quick")
    async def quick(item, run):
        nonlocal started
        started += 1

    desk.cut.add("settle")
    await inbox.submit_many({"kind": "quick", "content": n} for n in range(50))
    async with inbox.worker(concurrency=4):
        await until(lambda: started == 8 and desk.calls["settle"] > 2)
        claims = desk.calls["claim"]
        settles = desk.calls["settle"]
        await until(lambda: desk.calls["settle"] > settles)
        assert (started, desk.calls["claim"]) == (8, claims)
        desk.cut.clear()
        await until(lambda: started == 50)


async def test_one_outcome_that_is_refused_does_not_keep_the_others_back(inbox, desk, caplog):
    """A confirmation of a cancel that nobody asked for."""
    from postroom.worker.recorder import RunCancelled

    @inbox.handler("odd")
    async def odd(item, run):
        if item == 0:
            raise RunCancelled
        return item

    jobs = [await inbox.submit("odd", n) for n in range(3)]
    async with inbox.worker():
        states = [(await ended(inbox, job.job_id)).state for job in jobs]
    assert states == ["failed", "succeeded", "succeeded"]
    assert (await inbox.get(jobs[0].job_id)).error["code"] == "outcome_refused"


async def test_lost_workers_jobs_are_taken_back_by_the_sweep(make_inbox):
    async with make_inbox() as inbox:

        @inbox.handler("any")
        async def anything(item, run):
            return run.epoch

        job = await inbox.submit("any", "x")
        await (await inbox.verbs()).claim(ClaimRequest("dead", ("any",), lease_seconds=0.2))
        async with inbox.worker():
            job = await ended(inbox, job.job_id)
    assert (job.result, job.crashes, job.attempts) == (2, 1, 1)


# ---- after a crash, alone


async def crashed_job(inbox, kind: str):
    """A job whose last worker was lost."""
    job = await inbox.submit(kind, "x")
    desk = await inbox.verbs()
    [lease] = (await desk.claim(ClaimRequest("lost", (kind,)))).leases
    await desk.settle([Outcome(job.job_id, lease.job.epoch, OutcomeKind.CRASHED, reason="signal 9")])
    return job


@pytest.mark.parametrize(
    "function", [plain_handlers.tells_its_process, plain_handlers.tells_its_process_async]
)
async def test_after_a_crash_a_job_runs_in_a_child_of_its_own(inbox, function):
    inbox.handler("where")(function)
    crashed = await crashed_job(inbox, "where")
    healthy = await inbox.submit("where", "x")
    async with inbox.worker():
        assert (await ended(inbox, healthy.job_id)).result == os.getpid()
        assert (await ended(inbox, crashed.job_id)).result != os.getpid()


async def test_a_job_that_kills_its_child_each_time_is_a_dead_letter_after_its_budget(make_inbox):
    async with make_inbox("sqlite") as inbox:
        inbox.handler("poison", isolation="process")(plain_handlers.kills_its_process)
        job = await run_to_end(inbox, "poison", "x")
    assert (job.state, job.epoch, job.crashes, job.error["code"]) == ("failed", 3, 3, "worker_lost")
    assert "signal 9" in job.error["message"]


async def test_after_a_crash_a_job_that_no_child_can_find_runs_alone(inbox):
    running: set[str] = set()
    together: list[set[str]] = []
    go_on, neighbour_runs = asyncio.Event(), asyncio.Event()

    @inbox.handler("local")
    async def local(item, run):
        running.add(run.job_id)
        together.append(set(running))
        if item == "neighbour":
            neighbour_runs.set()
            await go_on.wait()
        running.discard(run.job_id)

    @inbox.handler("other")
    async def other(item, run):
        if run.epoch == 1:
            await asyncio.sleep(60)
        together.append({*running, run.job_id})

    neighbour = await inbox.submit("local", "neighbour")
    async with inbox.worker() as worker:
        await neighbour_runs.wait()
        crashed = await crashed_job_beside(inbox, "other")
        await until(lambda: worker._alone)
        later = await inbox.submit("local", "later")
        assert (await inbox.get(later.job_id)).state == "queued"
        go_on.set()
        for job in (neighbour, crashed, later):
            assert (await ended(inbox, job.job_id)).state == "succeeded"
    assert all(len(names) == 1 for names in together)


async def crashed_job_beside(inbox, kind: str):
    """As `crashed_job`, while a worker of this inbox is at work: what it runs is taken for crashed."""
    job = await inbox.submit(kind, "x")
    desk = await inbox.verbs()
    while (view := await inbox.get(job.job_id)).state != "running":
        await asyncio.sleep(0)
    await desk.settle([Outcome(job.job_id, view.epoch, OutcomeKind.CRASHED, reason="signal 9")])
    return job


UNLOADABLE = {
    "fails": "raise ImportError('half a deploy')",
    "exits": "import sys; sys.exit(3)",
    "is no Python": "async def where(",
    "lost it": "",
    "runs a loop": "import asyncio\n\nasyncio.run(asyncio.sleep(0))",
}


def unloadable_module(tmp_path, monkeypatch, text: str):
    """A module as this process knows it, whose file is another by the time that a child looks."""
    name = f"changing_{secrets.token_hex(4)}"
    file = tmp_path / f"{name}.py"
    file.write_text(
        "import os\n\n\nasync def where(item, run):\n    return os.getpid()\n\n\n"
        "def where_plain(item, run):\n    return os.getpid()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module(name)
    file.write_text(text)
    return module


@pytest.mark.parametrize("function", ["where", "where_plain"])
@pytest.mark.parametrize("text", UNLOADABLE.values(), ids=UNLOADABLE)
async def test_after_a_crash_a_job_whose_handler_no_child_can_load_runs_alone(
    inbox, tmp_path, monkeypatch, caplog, text, function
):
    caplog.set_level(logging.INFO, "postroom.worker")
    monkeypatch.setattr(loop_module, "ALONE_HOLD_SECONDS", 0.1)
    module = unloadable_module(tmp_path, monkeypatch, text)
    inbox.handler("where")(getattr(module, function))
    jobs = [await crashed_job(inbox, "where") for _ in range(2)]
    async with inbox.worker(concurrency=1):
        for job in jobs:
            job = await ended(inbox, job.job_id)
            assert (job.state, job.result, job.crashes, job.attempts) == ("succeeded", os.getpid(), 1, 1)
    told = [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    assert len(told) == 1, told
    assert 'if __name__ == "__main__":' in told[0]


async def test_an_isolated_handler_that_no_child_can_load_waits_uncharged_and_is_told_once(
    make_inbox, tmp_path, monkeypatch, caplog
):
    module = unloadable_module(tmp_path, monkeypatch, UNLOADABLE["fails"])
    async with make_inbox("sqlite") as inbox:
        inbox.handler("where", isolation="process")(module.where_plain)
        jobs = [await inbox.submit("where", "x") for _ in range(2)]
        async with inbox.worker(concurrency=1):
            for job in jobs:
                while (job := await inbox.get(job.job_id)).holds == 0:
                    await asyncio.sleep(0.01)
                assert (job.state, job.attempts, job.crashes) == ("queued", 0, 0)
                assert "half a deploy" in job.reason
    assert len([r for r in caplog.records if r.levelno >= logging.ERROR]) == 1


SCRIPT_WITHOUT_A_GUARD = """
import asyncio, os, signal, sys
from postroom import Inbox
from postroom.settings import Settings

inbox = Inbox(settings=Settings(store=sys.argv[1], backoff_base_seconds=0.01, rescue_seconds=0.05, poll_seconds=0.05))

@inbox.handler("fragile")
async def fragile(item, run):
    if run.epoch == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"

async def main():
    async with inbox.worker():
        job = await inbox.submit("fragile", "x", idempotency_key="once")
        job = await inbox.wait(job.job_id, timeout_seconds=60)
        print(job.state, job.result, job.crashes)

asyncio.run(main())
"""


def test_a_script_without_a_main_guard_that_was_killed_goes_on_where_it_was(short_path):
    (short_path / "script.py").write_text(SCRIPT_WITHOUT_A_GUARD)
    command = [sys.executable, str(short_path / "script.py"), f"sqlite:///{short_path}/jobs.db"]
    first, second = (subprocess.run(command, capture_output=True, text=True, timeout=90) for _ in range(2))
    assert first.returncode == -9
    assert second.stdout.strip() == "succeeded done 1", second.stderr
    assert second.stderr.count("Traceback") <= 1


# ---- draining


async def test_a_drain_claims_no_more_and_waits_for_the_runs(inbox):
    started, go_on = asyncio.Event(), asyncio.Event()

    @inbox.handler("slow")
    async def slow(item, run):
        started.set()
        await go_on.wait()
        return "done"

    job = await inbox.submit("slow", "x")
    worker = Worker(inbox, inbox.handlers, concurrency=2)
    running = asyncio.create_task(worker.run_until_stopped())
    await started.wait()
    draining = asyncio.create_task(worker.drain())
    await asyncio.sleep(0)
    later = await inbox.submit("slow", "y")
    go_on.set()
    await draining
    await running
    job = await inbox.get(job.job_id)
    assert (job.state, job.result, job.interruptions) == ("succeeded", "done", 0)
    assert (await inbox.get(later.job_id)).epoch == 0


async def test_what_does_not_end_in_time_is_handed_back_at_once_and_uncharged(make_inbox):
    async with make_inbox("sqlite", drain_seconds=0.05) as inbox:
        started = asyncio.Event()

        @inbox.handler("slow")
        async def slow(item, run):
            if item == "b":
                started.set()
                await asyncio.sleep(60)
            return item

        job = await inbox.submit("slow", items=["a", "b"])
        async with inbox.worker():
            await started.wait()
        job = await inbox.get(job.job_id)
        assert (job.state, job.attempts, job.interruptions, job.done) == ("queued", 0, 1, 1)
        assert job.run_at <= job.updated_at


async def test_eight_restarts_cost_a_long_job_no_attempt(make_inbox):
    async with make_inbox(drain_seconds=0.0) as inbox:
        started = asyncio.Event()

        @inbox.handler("long")
        async def long(item, run):
            started.set()
            if run.epoch <= 8:
                await asyncio.sleep(60)
            return run.epoch

        job = await inbox.submit("long", "x", max_attempts=3)
        for _ in range(8):
            started.clear()
            async with inbox.worker():
                await started.wait()
        async with inbox.worker():
            job = await ended(inbox, job.job_id)
    assert (job.state, job.result, job.attempts, job.interruptions) == ("succeeded", 9, 1, 8)


async def test_a_thread_that_does_not_end_is_handed_back_all_the_same(make_inbox):
    async with make_inbox(drain_seconds=0.05) as inbox:
        started = asyncio.Event()
        go_on = threading.Event()
        refused = []
        main = asyncio.get_running_loop()

        @inbox.handler("stuck")
        def stuck(item, run):
            main.call_soon_threadsafe(started.set)
            go_on.wait(30)
            try:
                run.step("late", lambda: 1)
            except Exception as error:
                refused.append(type(error).__name__)

        job = await inbox.submit("stuck", "x")
        async with inbox.worker():
            await started.wait()
        job = await inbox.get(job.job_id)
        assert (job.state, job.attempts, job.interruptions) == ("queued", 0, 1)
        go_on.set()
        await until(lambda: refused)
    assert refused == ["RunCancelled"]


async def test_stopping_now_waits_neither_for_the_drain_nor_for_a_stubborn_handler(make_inbox):
    async with make_inbox(drain_seconds=600.0) as inbox:
        started, go_on = asyncio.Event(), asyncio.Event()

        @inbox.handler("stubborn")
        async def stubborn(item, run):
            started.set()
            while not go_on.is_set():
                try:
                    await go_on.wait()
                except asyncio.CancelledError:
                    continue

        job = await inbox.submit("stubborn", "x")
        worker = Worker(inbox, inbox.handlers)
        running = asyncio.create_task(worker.run_until_stopped())
        await started.wait()
        draining = asyncio.create_task(worker.drain())
        await asyncio.sleep(0)
        async with asyncio.timeout(10):
            await worker.stop_now()
        await asyncio.gather(draining, running)
        job = await inbox.get(job.job_id)
        assert (job.state, job.interruptions, worker.lingering) == ("queued", 1, 1)
        go_on.set()


async def test_children_are_gone_when_a_worker_that_must_stop_now_has(make_inbox):
    async with make_inbox("sqlite") as inbox:
        inbox.handler("hangs", isolation="process")(plain_handlers.hangs)
        job = await inbox.submit("hangs", "x")
        worker = Worker(inbox, inbox.handlers)
        running = asyncio.create_task(worker.run_until_stopped())
        async for line in inbox.follow(job.job_id):
            if line.event == "claimed":
                break
        await worker.stop_now()
        await running
        job = await inbox.get(job.job_id)
    assert (job.state, job.interruptions, job.crashes) == ("queued", 1, 0)


async def test_a_drain_while_the_store_is_away_ends_all_the_same(inbox, desk, monkeypatch, caplog):
    monkeypatch.setattr(loop_module, "SETTLE_SECONDS", 0.2)

    @inbox.handler("quick")
    async def quick(item, run):
        return item

    desk.cut.add("settle")
    await inbox.submit("quick", "x")
    async with inbox.worker():
        await until(lambda: desk.calls["settle"] > 0)
    assert "1 outcomes could not be settled" in caplog.text


async def test_a_handler_that_must_run_in_a_child_and_cannot_be_found_there_is_refused_at_the_start(inbox):
    @inbox.handler("local", isolation="process")
    def local(item, run):
        return item

    with pytest.raises(HandlerInvalid, match="at the top of a module"):
        async with inbox.worker():
            pass


async def test_the_log_has_a_line_per_failure_with_ids_and_no_contents(inbox, caplog):
    @inbox.handler("secretive", max_attempts=1)
    async def secretive(item, run):
        raise ValueError("contains my secret content")

    with caplog.at_level(logging.DEBUG, logger="postroom"):
        job = await run_to_end(inbox, "secretive", "my secret content")
    assert f"job {job.job_id} epoch 1: failed (ValueError)" in caplog.text
    assert "my secret content" not in caplog.text
    assert await events(inbox, job.job_id) == ["submitted", "claimed", "failed"]
