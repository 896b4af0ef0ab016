"""Hints: they shorten the wait, within a loop, between loops, and never come from what was not asked for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from postroom.model import Job, OutcomeKind
from postroom.stores.port import WORK
from tests.stores.office import Office

LONG = 20.0  # never waited out where the hint comes
SHORT = 0.05  # waited out where none comes; a store may hint for nothing, so a True here is no failure of the port


async def test_a_hint_that_came_before_the_wait_is_not_lost(office: Office) -> None:
    with office.store.watch(WORK) as watch:
        await office.submit()
        assert await watch.wait(LONG)


async def test_a_wait_ends_as_soon_as_the_hint_comes(office: Office) -> None:
    with office.store.watch(WORK) as watch:
        waiting = asyncio.create_task(watch.wait(LONG))
        await asyncio.sleep(0)
        await office.submit()
        assert await waiting


async def test_a_wait_without_a_hint_ends_at_its_timeout(office: Office) -> None:
    with office.store.watch("f" * 32) as watch:
        assert not await watch.wait(SHORT)
        assert not await watch.wait(0.0)


async def test_a_hint_is_used_up_by_the_wait_that_saw_it(office: Office) -> None:
    job_id = await office.submit()
    with office.store.watch(job_id) as watch:
        await office.cancel(job_id)
        assert await watch.wait(LONG)
        while await watch.wait(SHORT):
            pass
        await office.replay(job_id)
        assert await watch.wait(LONG)


EVENTS: dict[str, Callable[[Office, Job], Awaitable[Any]]] = {
    "output": lambda office, job: office.beat(job, output=('"x"',)),
    "cancel_requested": lambda office, job: office.cancel(job.job_id),
    "succeeded": lambda office, job: office.succeed(job),
    "failed": lambda office, job: office.fail(job),
    "retried": lambda office, job: office.fail(job, is_permanent=False),
}


@pytest.mark.parametrize("event", EVENTS)
async def test_a_journal_line_hints_at_its_job(office: Office, event: str) -> None:
    job = await office.start()
    with office.store.watch(job.job_id) as watch:
        await EVENTS[event](office, job)
        assert await watch.wait(LONG)
    assert (await office.events(job.job_id))[-1] == event


async def test_a_claim_hints_at_its_job(office: Office) -> None:
    job_id = await office.submit()
    with office.store.watch(job_id) as watch:
        await office.claim()
        assert await watch.wait(LONG)


@pytest.mark.parametrize("how", ["submit", "release", "replay", "retry"])
async def test_whatever_may_be_claimed_hints_at_work(office: Office, how: str) -> None:
    job = await office.start()
    if how == "replay":
        await office.fail(job)
    with office.store.watch(WORK) as watch:
        match how:
            case "submit":
                await office.submit()
            case "release":
                await office.settle(job, OutcomeKind.RELEASED)
            case "replay":
                await office.replay(job.job_id)
            case "retry":
                await office.fail(job, is_permanent=False)
        assert await watch.wait(LONG)


async def test_one_watch_hears_of_several_topics(office: Office) -> None:
    ids = [await office.submit() for _ in range(3)]
    with office.store.watch(*ids) as watch:
        for job_id in ids:
            await office.cancel(job_id)
            assert await watch.wait(LONG)


async def test_every_watcher_of_a_topic_is_told(office: Office) -> None:
    job_id = await office.submit()
    with (
        office.store.watch(job_id) as one,
        office.store.watch(job_id) as two,
        office.store.watch(WORK, job_id) as three,
    ):
        await office.cancel(job_id)
        assert all(await asyncio.gather(one.wait(LONG), two.wait(LONG), three.wait(LONG)))


async def test_a_wait_in_another_loop_is_woken(office: Office) -> None:
    job_id = await office.submit()
    ready = threading.Event()
    heard: list[bool] = []

    async def listen() -> None:
        with office.store.watch(job_id) as watch:
            waiting = asyncio.create_task(watch.wait(LONG))
            await asyncio.sleep(0)
            ready.set()
            heard.append(await waiting)

    thread = threading.Thread(target=lambda: asyncio.run(listen()))
    thread.start()
    assert await asyncio.to_thread(ready.wait, 10.0)
    await office.cancel(job_id)
    await asyncio.to_thread(thread.join)
    assert heard == [True]


async def test_a_cancelled_wait_leaves_the_watch_usable(office: Office) -> None:
    job_id = await office.submit()
    with office.store.watch(job_id) as watch:
        waiting = asyncio.create_task(watch.wait(LONG))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await office.cancel(job_id)
        assert await watch.wait(LONG)


async def test_a_watch_whose_loop_is_gone_disturbs_nobody(office: Office) -> None:
    job_id = await office.submit()

    def open_and_leave() -> Any:
        watch = office.store.watch(job_id)
        watch.__enter__()
        return watch

    watch = await asyncio.to_thread(lambda: asyncio.run(leave_waiting(open_and_leave())))
    await office.cancel(job_id)
    assert (await office.events(job_id))[-1] == "cancelled"
    watch.__exit__(None, None, None)


async def leave_waiting(watch: Any) -> Any:
    waiting = asyncio.create_task(watch.wait(LONG))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    return watch
