"""A worker whose inbox is a service at the other end of a connection."""

from __future__ import annotations

import asyncio

from postroom import Inbox, PermanentError
from tests.api.live import QUICK, live_service
from tests.worker.workbench import ended, until


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
