"""Leases live as long as their runs, whatever a handler does to the event loop; and a lost one is noticed."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

from postroom import Inbox
from postroom.model import Beat, Outcome, OutcomeKind
from postroom.stores.memory import MemoryStore
from postroom.testing import ManualClock
from postroom.worker import heartbeat
from postroom.worker.heartbeat import Heartbeat
from tests.worker.workbench import SETTINGS, WeakDesk, ended, events, until

LEASE = {"lease_seconds": 1.0, "heartbeat_seconds": 0.05}


def busy(seconds: float) -> None:
    """Keep the event loop's thread busy, as a handler that computes does."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


async def test_a_handler_that_blocks_the_loop_for_four_leases_keeps_its_job(make_inbox):
    async with make_inbox(**LEASE) as inbox:

        @inbox.handler("busy")
        async def block(item, run):
            busy(2.4)
            return "done"

        job = await inbox.submit("busy", "x")
        async with inbox.worker():
            job = await ended(inbox, job.job_id)
        assert (job.state, job.epoch, job.crashes) == ("succeeded", 1, 0)


async def test_control_without_heartbeats_such_a_job_is_taken_away(make_inbox, monkeypatch):
    async def send_nothing(self, records):
        return True

    monkeypatch.setattr(Heartbeat, "_send", send_nothing)
    async with make_inbox(**LEASE) as inbox:

        @inbox.handler("busy")
        async def block(item, run):
            if run.epoch == 1:
                busy(2.4)
            return "done"

        job = await inbox.submit("busy", "x")
        async with inbox.worker():
            job = await ended(inbox, job.job_id)
        assert "crashed" in await events(inbox, job.job_id)


async def test_all_runs_of_a_worker_share_one_heartbeat(inbox, desk, monkeypatch):
    sizes = []
    send = desk.heartbeat
    go_on = asyncio.Event()

    async def count(beats, **options):
        sizes.append(len(beats))
        return await send(beats, **options)

    monkeypatch.setattr(desk, "heartbeat", count)

    @inbox.handler("waits")
    async def waits(item, run):
        await go_on.wait()

    jobs = [await inbox.submit("waits", n) for n in range(20)]
    async with inbox.worker(concurrency=20):
        await until(lambda: 20 in sizes)
        go_on.set()
        for job in jobs:
            await ended(inbox, job.job_id)
    assert set(sizes) <= {0, 20} | set(range(1, 20))
    assert sizes.count(20) >= 1


async def test_a_lost_lease_ends_the_run_and_nothing_more_is_written(inbox, desk):
    """The job is taken away under the run; all that its handler still tries is refused."""
    started, was_cancelled = asyncio.Event(), asyncio.Event()
    calls = []

    @inbox.handler("slow")
    async def slow(item, run):
        calls.append((run.epoch, item))
        if run.epoch > 1:
            return "second"
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            run.emit("too late")
            was_cancelled.set()
            raise

    job = await inbox.submit("slow", items=["a", "b"])
    async with inbox.worker(concurrency=2):
        await started.wait()
        await desk.settle([Outcome(job.job_id, 1, OutcomeKind.RELEASED)])
        await was_cancelled.wait()
        job = await ended(inbox, job.job_id)
    assert calls == [(1, "a"), (2, "a"), (2, "b")]
    assert job.epoch == 2
    assert await events(inbox, job.job_id) == [
        "submitted",
        "claimed",
        "released",
        "claimed",
        "progress",
        "succeeded",
    ]


async def test_the_outcome_of_a_run_that_lost_its_lease_is_not_recorded(inbox, desk, caplog):
    """The lease goes while the handler makes its last move, before any heartbeat could tell."""
    go_on = threading.Event()
    started = asyncio.Event()
    loop = asyncio.get_running_loop()

    @inbox.handler("slow")
    def slow(item, run):
        if run.epoch == 1:
            loop.call_soon_threadsafe(started.set)
            go_on.wait(30)
            return "stale"
        return "fresh"

    job = await inbox.submit("slow", "x")
    async with inbox.worker(concurrency=2):
        await started.wait()
        desk.cut.add("heartbeat")
        await desk.settle([Outcome(job.job_id, 1, OutcomeKind.RELEASED)])
        assert (await ended(inbox, job.job_id)).result == "fresh"
        go_on.set()
        await until(lambda: "was not recorded" in caplog.text)
        desk.cut.clear()
    assert (await inbox.get(job.job_id)).result == "fresh"


async def test_no_new_item_starts_while_the_lease_is_in_doubt(make_inbox):
    """Beats are cut off; once the last accepted one is older than the lease less two intervals, items wait."""
    async with make_inbox(lease_seconds=1.0, heartbeat_seconds=0.3) as inbox:
        desk = await inbox.verbs()
        starts: list[float] = []

        @inbox.handler("steady", whole=True)
        async def steady(run):
            desk.cut.add("heartbeat")
            cut_at = time.monotonic()
            await asyncio.sleep(0.45)  # longer than 1.0 - 2 * 0.3, the window
            asyncio.get_running_loop().call_later(0.1, desk.cut.clear)
            await run.step("next", lambda: starts.append(time.monotonic() - cut_at))

        job = await inbox.submit("steady", "x")
        async with inbox.worker():
            job = await ended(inbox, job.job_id)
    assert job.state == "succeeded"
    assert starts[0] >= 0.55


async def test_a_store_that_is_away_for_a_while_costs_no_run_and_is_told_of_once(inbox, desk, caplog):
    started = asyncio.Event()
    caplog.set_level(logging.WARNING, logger="postroom")

    @inbox.handler("steady")
    async def steady(item, run):
        started.set()
        await until(lambda: desk.calls["claim"] > claims + 3)
        return item

    job = await inbox.submit("steady", items=[1, 2, 3])
    claims = 0
    async with inbox.worker():
        await started.wait()
        claims = desk.calls["claim"]
        desk.cut.update({"heartbeat", "settle", "sweep", "claim"})
        beats = desk.calls["heartbeat"]
        await until(lambda: desk.calls["heartbeat"] > beats + 3 and desk.calls["claim"] > claims + 3)
        desk.cut.clear()
        job = await ended(inbox, job.job_id)
        await until(lambda: "the store is back" in caplog.text)
    assert (job.state, job.epoch, job.done) == ("succeeded", 1, 3)
    told = [r.getMessage() for r in caplog.records if r.name == "postroom.worker"]
    assert sum("cannot be reached" in line for line in told) == 1
    assert sum("the store is back" in line for line in told) == 1


async def test_what_a_beat_brought_is_added_once_though_its_answer_was_lost(inbox, desk, monkeypatch):
    lost = []
    send = desk.heartbeat

    async def lose_the_first_answer(beats, **options):
        answers = await send(beats, **options)
        if not lost and any(beat.output for beat in beats):
            lost.append(beats)
            raise ConnectionError("the answer was lost")
        return answers

    monkeypatch.setattr(desk, "heartbeat", lose_the_first_answer)

    @inbox.handler("talks", whole=True)
    async def talks(run):
        run.emit("once")
        run.usage(tokens=5)
        await until(lambda: lost)
        run.emit("twice")

    job = await inbox.submit("talks", "x")
    async with inbox.worker():
        job = await ended(inbox, job.job_id)
    lines = [line async for line in inbox.follow(job.job_id)]
    assert lost, "the fault did not fire"
    assert [line.data["output"] for line in lines if line.event == "output"] == ["once", "twice"]
    assert job.usage == {"tokens": 5}


async def test_a_cancel_is_told_first_and_then_ends_an_async_handler(inbox):
    told: list[str] = []
    started = asyncio.Event()

    @inbox.handler("long")
    async def long(item, run):
        started.set()
        try:
            await until(lambda: run.cancelled)
            told.append("told")
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            told.append("cancelled")
            raise

    job = await inbox.submit("long", items=["a", "b"])
    async with inbox.worker():
        await started.wait()
        await inbox.cancel(job.job_id, "changed my mind")
        job = await ended(inbox, job.job_id)
    assert (job.state, job.reason, told) == ("cancelled", "changed my mind", ["told", "cancelled"])


async def test_a_cancel_is_confirmed_only_when_a_plain_handler_really_ended(inbox, desk):
    has_ended = threading.Event()
    go_on = threading.Event()
    started = asyncio.Event()
    loop = asyncio.get_running_loop()

    @inbox.handler("thread")
    def thread(item, run):
        loop.call_soon_threadsafe(started.set)
        go_on.wait(30)
        assert run.cancelled
        has_ended.set()
        raise RuntimeError("stopped")

    job = await inbox.submit("thread", "x")
    async with inbox.worker():
        await started.wait()
        await inbox.cancel(job.job_id)
        beats = desk.calls["heartbeat"]
        await until(lambda: desk.calls["heartbeat"] > beats + 2)
        assert (await inbox.get(job.job_id)).state == "running"
        go_on.set()
        job = await ended(inbox, job.job_id)
        assert has_ended.is_set()
    assert job.state == "cancelled"


async def test_an_item_done_in_the_grace_is_kept_and_no_other_starts(inbox):
    started = asyncio.Event()
    calls = []

    @inbox.handler("quick")
    async def quick(item, run):
        calls.append(item)
        started.set()
        await until(lambda: run.cancelled)
        return "kept"

    job = await inbox.submit("quick", items=["a", "b"])
    async with inbox.worker():
        await started.wait()
        await inbox.cancel(job.job_id)
        job = await ended(inbox, job.job_id)
    assert (job.state, job.done, calls) == ("cancelled", 1, ["a"])


async def test_a_success_that_comes_before_the_confirmation_wins(inbox):
    started = asyncio.Event()

    @inbox.handler("quick")
    async def quick(item, run):
        started.set()
        await until(lambda: run.cancelled)
        return "done all the same"

    job = await inbox.submit("quick", "x")
    async with inbox.worker():
        await started.wait()
        await inbox.cancel(job.job_id)
        job = await ended(inbox, job.job_id)
    assert (job.state, job.result) == ("succeeded", "done all the same")


def frozen_worker() -> tuple[Inbox, ManualClock]:
    clock = ManualClock()
    settings = SETTINGS
    return Inbox.over(WeakDesk(MemoryStore(clock=clock), settings), settings), clock


async def test_a_process_that_was_frozen_beats_before_it_sweeps():
    inbox, clock = frozen_worker()
    desk = await inbox.verbs()
    started, go_on = asyncio.Event(), asyncio.Event()

    @inbox.handler("waits")
    async def waits(item, run):
        started.set()
        await go_on.wait()
        return run.epoch

    job = await inbox.submit("waits", "x")
    async with inbox.worker() as worker:
        await started.wait()
        desk.cut.update({"heartbeat", "sweep"})
        clock.advance(100)
        worker._beats._beaten_at -= 100
        order = []
        for verb in ("heartbeat", "sweep"):
            note(desk, verb, order)
        desk.cut.clear()
        await until(lambda: "sweep" in order)
        go_on.set()
        job = await ended(inbox, job.job_id)
    assert order[0] == "heartbeat"
    assert (job.result, job.crashes) == (1, 0)


async def test_control_a_sweep_before_the_beat_takes_its_own_runs_away(monkeypatch):
    async def is_always_fresh(self):
        return True

    monkeypatch.setattr(Heartbeat, "is_fresh", is_always_fresh)
    inbox, clock = frozen_worker()
    desk = await inbox.verbs()
    started, go_on = asyncio.Event(), asyncio.Event()

    @inbox.handler("waits")
    async def waits(item, run):
        started.set()
        await go_on.wait()

    job = await inbox.submit("waits", "x")
    async with inbox.worker():
        await started.wait()
        desk.cut.add("heartbeat")
        clock.advance(100)
        sweeps = desk.calls["sweep"]
        await until(lambda: desk.calls["sweep"] > sweeps + 1)
        assert (await inbox.get(job.job_id)).crashes == 1
        desk.cut.clear()
        go_on.set()


def note(desk: WeakDesk, verb: str, order: list[str]) -> None:
    call = getattr(desk, verb)

    async def noted(*args, **options):
        order.append(verb)
        return await call(*args, **options)

    setattr(desk, verb, noted)


async def test_a_beat_of_a_stale_epoch_changes_nothing(inbox, desk):
    job = await inbox.submit("any", "x")
    [answer] = await desk.heartbeat([Beat(job.job_id, 7, done=1)])
    assert answer.status == "lease_lost"


async def test_two_runs_of_one_job_in_one_heartbeat_are_told_apart(inbox, desk):
    """The old runs lost their leases and are still there (threads); the new ones, of the same worker, go on."""
    go_on = threading.Event()
    count = 8

    @inbox.handler("stuck")
    def stuck(item, run):
        go_on.wait(30)
        return run.epoch

    jobs = [await inbox.submit("stuck", n) for n in range(count)]
    async with inbox.worker(concurrency=2 * count) as worker:
        await until(lambda: len(worker._running) == count)
        desk.cut.add("heartbeat")
        await desk.settle([Outcome(job.job_id, 1, OutcomeKind.RELEASED) for job in jobs])
        await until(lambda: len(worker._running) == 2 * count)
        desk.cut.clear()
        await until(lambda: sum(record.is_closed for record in worker._running) == count)
        go_on.set()
        ends = [await ended(inbox, job.job_id) for job in jobs]
    assert [(job.state, job.result, job.epoch) for job in ends] == [("succeeded", 2, 2)] * count


async def test_a_handler_that_never_lets_the_loop_rest_keeps_its_job(make_inbox):
    """Such a loop lets go of the interpreter only for instants; the heartbeat's thread gets its turn all the same."""
    async with make_inbox(**LEASE) as inbox:

        @inbox.handler("restless")
        async def restless(item, run):
            end = time.monotonic() + 2.4
            while time.monotonic() < end:
                await asyncio.sleep(0)
            return "done"

        job = await inbox.submit("restless", "x")
        async with inbox.worker():
            job = await ended(inbox, job.job_id)
        assert (job.state, job.epoch, job.crashes) == ("succeeded", 1, 0)


async def test_news_that_no_store_can_write_cost_no_other_run_its_heartbeat(inbox, desk, monkeypatch):
    """Whatever it is that slipped through: here the desk itself gives up at one job's output."""
    whole = type(desk).heartbeat
    go = asyncio.Event()

    async def heartbeat(self, beats, **options):
        if any('"poison"' in beat.output for beat in beats):
            raise OverflowError("int too big to convert")
        return await whole(self, beats, **options)

    monkeypatch.setattr(type(desk), "heartbeat", heartbeat)

    @inbox.handler("speaks")
    async def speaks(item, run):
        run.emit(item)
        await go.wait()
        run.emit("later")

    jobs = [await inbox.submit("speaks", word) for word in ("plain", "poison", "simple")]
    async with inbox.worker():
        for job, word in zip(jobs, ("plain", None, "simple"), strict=True):
            while word is not None and word not in await outputs(inbox, job.job_id):
                await asyncio.sleep(0.01)
        go.set()
        for job in jobs:
            assert (await ended(inbox, job.job_id)).state == "succeeded"
    assert [await outputs(inbox, job.job_id) for job in jobs] == [
        ["plain", "later"],
        ["later"],
        ["simple", "later"],
    ]


async def test_output_waits_neither_for_the_next_second_nor_beyond_what_memory_has(
    inbox, desk, monkeypatch, caplog
):
    piece = "x" * 1_000

    @inbox.handler("talks", whole=True)
    async def talks(run):
        desk.cut.add("heartbeat")
        for _ in range(6_000):
            run.emit(piece)
        desk.cut.clear()
        while len(await outputs(inbox, run.job_id)) < 100:
            await asyncio.sleep(0.01)

    monkeypatch.setattr(heartbeat, "NEWS_SECONDS", 3600.0)
    monkeypatch.setattr(heartbeat, "MAX_WAITING_CHARS", 3_000_000)
    job = await inbox.submit("talks", "x")
    async with inbox.worker():
        assert (await ended(inbox, job.job_id)).state == "succeeded"
    assert "output is dropped" in caplog.text


async def outputs(inbox: Inbox, job_id: str) -> list[object]:
    lines = await (await inbox.verbs()).journal(job_id)
    return [line.data["output"] for line in lines if line.event == "output"]
