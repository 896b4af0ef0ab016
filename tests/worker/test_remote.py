"""A worker whose inbox is a service at the other end of a connection."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from postroom import Inbox, PermanentError, RetryLater
from postroom.stores.memory import MemoryStore
from postroom.verbs import Answer
from tests.api.live import QUICK, live_service
from tests.worker.workbench import SETTINGS, WeakDesk, ended, run_to_end, until


async def test_a_worker_over_http_keeps_items_and_follows_a_cancel():
    with live_service() as service:
        async with Inbox(service.url, settings=QUICK) as inbox:
            started = asyncio.Event()

            @inbox.handler("double", item_concurrency=2)
            async def double(item, run):
                if item < 0:
                    raise PermanentError("negative", code="negative")
                return item * 2

            @inbox.handler("report", whole=True)
            async def report(run):
                rows = await run.step("rows", lambda n: [n, n], run.content)
                run.emit("half way")
                run.progress(1, 2)
                run.usage(tokens=3)
                if run.attempt == 1:
                    raise ValueError("again")
                return rows

            @inbox.handler("long")
            async def long(item, run):
                started.set()
                await until(lambda: run.cancelled)
                await asyncio.sleep(60)

            async with inbox.worker(concurrency=4):
                items = await inbox.submit("double", items=[1, -2, 3])
                whole = await inbox.submit("report", 5)
                slow = await inbox.submit("long", "x")
                await started.wait()
                await inbox.cancel(slow.job_id)
                items, whole, slow = [await ended(inbox, job.job_id) for job in (items, whole, slow)]
            assert (items.state, items.failed_items, items.error["code"]) == ("failed", 1, "items_failed")
            assert [i.value async for i in inbox.items(items.job_id)] == [2, None, 6]
            assert (whole.state, whole.result, whole.attempts) == ("succeeded", [5, 5], 2)
            assert whole.usage == {"tokens": 6}
            assert slow.state == "cancelled"
            assert await inbox.workers() == []


@pytest.mark.parametrize("road", ["memory", "http"])
async def test_no_road_to_the_store_refuses_how_a_run_ended(road):
    names = [f"name_{n}" for n in range(150)]
    with live_service() as service:
        async with Inbox(service.url if road == "http" else "memory://", settings=QUICK) as inbox:

            @inbox.handler("wordy")
            async def wordy(item, run):
                if run.epoch == 1:
                    raise RetryLater(0, "e" * 1500)
                return "done"

            @inbox.handler("patient")
            async def patient(item, run):
                raise RetryLater(1e12, "for ever")

            @inbox.handler("talks", max_attempts=1)
            async def talks(item, run):
                for n in range(25_000):
                    run.emit(n)
                    if n % 5_000 == 0:
                        await asyncio.sleep(0.05)  # as a handler that waits for something now and then
                return "done"

            @inbox.handler("counts", max_attempts=1)
            async def counts(item, run):
                run.usage(**dict.fromkeys(names, 1))
                return "done"

            async with inbox.worker(concurrency=4):
                jobs = {
                    kind: await inbox.submit(kind, "x") for kind in ("wordy", "talks", "counts", "patient")
                }
                ends = {kind: await ended(inbox, jobs[kind].job_id) for kind in ("wordy", "talks", "counts")}
                while not (held := await inbox.get(jobs["patient"].job_id)).holds:
                    await asyncio.sleep(0.01)
            for job in ends.values():
                assert (job.state, job.result, job.crashes, job.attempts) == ("succeeded", "done", 0, 1), job
            assert (held.reason, held.attempts, held.crashes) == ("for ever", 0, 0)
            assert sum(ends["counts"].usage.values()) == 150
            output = [
                line.data["output"]
                async for line in inbox.follow(jobs["talks"].job_id)
                if line.event == "output"
            ]
            assert output == sorted(output)
            assert len(output) >= 20_000


async def test_more_names_of_usage_than_any_road_takes_are_the_handlers_error():
    async with Inbox("memory://", settings=QUICK) as inbox:

        @inbox.handler("counts", max_attempts=1)
        async def counts(item, run):
            for n in range(2_000):
                run.usage(**{f"name_{n}": 1})

        async with inbox.worker():
            job = await ended(inbox, (await inbox.submit("counts", "x")).job_id)
        assert (job.state, job.error["code"]) == ("failed", "ValueError")
        assert "names" in job.error["message"]


class Picky(WeakDesk):
    """A desk that takes no output and no usage beside an outcome."""

    async def settle(self, outcomes, **options):
        if any(outcome.output or outcome.usage for outcome in outcomes):
            return [Answer(o.job_id, o.epoch, "invalid", detail="too much") for o in outcomes]
        return await super().settle(outcomes, **options)


async def test_a_result_is_kept_where_only_what_was_said_beside_it_is_refused(caplog):
    settings = replace(SETTINGS, heartbeat_seconds=5.0)
    async with Inbox.over(Picky(MemoryStore(), settings), settings) as inbox:

        @inbox.handler("talks")
        async def talks(item, run):
            run.emit("a")
            run.usage(tokens=1)
            return "done"

        job = await run_to_end(inbox, "talks", "x")
    assert (job.state, job.result, job.usage) == ("succeeded", "done", None)
    assert "without what was said beside it" in caplog.text
