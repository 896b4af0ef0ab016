"""The public names, used as a caller uses them. Never run: the type checker reads it (python3 run.py check)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_type

import postroom
from postroom import Client, Inbox, LeaseLost, PermanentError, PostroomError, RetryLater, Run
from postroom.views import JobView

assert_type(postroom.__version__, str)

inbox = Inbox()
thin = Client("http://127.0.0.1:8000", key="a key")
lost: type[PostroomError] = LeaseLost
elsewhere = Inbox("http://127.0.0.1:8000", key="a key")


@inbox.handler("sort", timeout_seconds=600, max_attempts=5, item_concurrency=4)
async def sort(item: Any, run: Run) -> str:
    if not isinstance(item, str):
        raise PermanentError("only text can be sorted", code="not_text")
    if not item:
        raise RetryLater(2.5, "nothing to read yet")
    return item


@inbox.handler("report", whole=True)
async def report(run: Run) -> dict[str, int]:
    return {"rows": 1}


@inbox.handler("grind", isolation="process", stall_timeout_seconds=60)
def grind(item: int, run: Run) -> int:
    return item * 2


# A handler stays the function that it was, with its types, so that it can be tested by a plain call.
grinding: Callable[[int, Run], int] = grind


async def use() -> None:
    job = await inbox.submit(
        "sort", items=["b", "a"], sender="email", priority="high", params={"order": "up"}
    )
    assert_type(job, JobView)
    seen = await inbox.wait(job.job_id, timeout_seconds=60)
    assert_type(seen, JobView)
    async for line in inbox.follow(job.job_id):
        assert_type(line.n, int)
    async for item in inbox.items(job.job_id):
        assert_type(item.key, str)
    async with inbox.worker(concurrency=8, kinds=["sort"]):
        await inbox.cancel(job.job_id, "not needed any more")
        await inbox.replay(job.job_id)
    async with elsewhere:
        await elsewhere.get(job.job_id)
