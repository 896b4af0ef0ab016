"""Counts: exact at rest, a picture of the last hour, and per owner (I32)."""

from __future__ import annotations

import asyncio
from collections import Counter

from postroom.model import OutcomeKind, State
from tests.stores.office import TICK, Office, item


async def test_an_empty_store_counts_nothing(office: Office) -> None:
    stats = await office.store.count()
    assert stats.states == dict.fromkeys((str(state) for state in State), 0)
    assert (stats.oldest_due_seconds, stats.mean_seconds, stats.p95_seconds) == (None, None, None)
    assert (stats.succeeded_last_hour, stats.failed_last_hour, stats.stale) == (0, 0, 0)
    assert stats.last_claimed_at is None


async def recounted(office: Office) -> dict[str, int]:
    jobs = (await office.store.get(office.submitted)).jobs.values()
    return {str(state): Counter(job.state for job in jobs)[state] for state in State}


async def test_states_sum_to_all_jobs_after_every_step(office: Office) -> None:
    async def check() -> None:
        assert (await office.store.count()).states == await recounted(office)

    job_id = await office.submit()
    await check()
    for end in (OutcomeKind.RELEASED, OutcomeKind.FAILED, OutcomeKind.CRASHED, OutcomeKind.HELD):
        [lease] = await office.claim()
        await check()
        await office.beat(lease.job)
        await check()
        await office.settle(lease.job, end, after_seconds=1.0)
        await check()
        office.clock.advance(100.0)
    await office.cancel(job_id)
    await check()
    await office.replay(job_id)
    await check()
    [lease] = await office.claim()
    await office.succeed(lease.job)
    await check()
    await office.fail_new(message="x")
    await office.submit(expires_at=office.clock())
    await office.sweep()
    await check()
    assert (await office.store.count()).states == {
        "queued": 0,
        "running": 0,
        "succeeded": 1,
        "failed": 1,
        "cancelled": 1,
    }


async def test_counts_are_exact_after_many_at_once(office: Office) -> None:
    await office.submit_all([office.draft() for _ in range(60)])

    async def work(name: str) -> None:
        for lease in await office.claim(worker=name, limit=10):
            await (office.succeed(lease.job) if int(lease.job.job_id, 16) % 2 else office.fail(lease.job))

    await asyncio.gather(
        *(work(f"w{n}") for n in range(5)), *(office.cancel(i) for i in office.submitted[50:])
    )
    assert (await office.store.count()).states == await recounted(office)
    assert await office.store.verify() == []


async def test_an_owner_counts_only_its_own(office: Office) -> None:
    await office.fail_new(owner="ann", message="x")
    await office.succeed_new(owner="bob")
    await office.start(owner="bob")
    office.clock.advance(100.0)
    ann, bob = await office.store.count("ann"), await office.store.count("bob")
    assert (ann.states["failed"], sum(ann.states.values())) == (1, 1)
    assert (bob.states["succeeded"], bob.states["running"], sum(bob.states.values())) == (1, 1, 2)
    assert (ann.failed_last_hour, ann.succeeded_last_hour, ann.stale, ann.mean_seconds) == (1, 0, 0, None)
    assert (bob.failed_last_hour, bob.succeeded_last_hour, bob.stale) == (0, 1, 1)
    assert sum((await office.store.count("cay")).states.values()) == 0


async def test_the_oldest_due_job_tells_how_long_it_has_been_due(office: Office) -> None:
    await office.submit(run_at=office.clock() + 10.0)
    assert (await office.store.count()).oldest_due_seconds is None
    office.clock.advance(10.0)
    assert (await office.store.count()).oldest_due_seconds == 0.0
    office.clock.advance(7.5)
    await office.submit()
    assert (await office.store.count()).oldest_due_seconds == 7.5
    assert (await office.store.count("other")).oldest_due_seconds is None
    await office.claim(limit=2)
    assert (await office.store.count()).oldest_due_seconds is None


async def test_seconds_are_from_start_to_success(office: Office) -> None:
    await office.submit_all([office.draft() for _ in range(20)])
    office.clock.advance(500.0)
    for seconds in range(1, 21):
        [lease] = await office.claim()
        office.clock.advance(float(seconds))
        await office.succeed(lease.job)
    job = await office.start()
    office.clock.advance(999.0)
    await office.fail(job)
    stats = await office.store.count()
    assert stats.mean_seconds == 10.5
    assert stats.p95_seconds is not None
    assert 19.0 <= stats.p95_seconds <= 20.0


async def test_the_last_hour_is_an_hour(office: Office) -> None:
    await office.succeed_new()
    await office.fail_new(message="x")
    office.clock.advance(3600.0 - 60.0)
    await office.succeed_new()
    stats = await office.store.count()
    assert (stats.succeeded_last_hour, stats.failed_last_hour) == (2, 1)
    office.clock.advance(120.0)
    stats = await office.store.count()
    assert (stats.succeeded_last_hour, stats.failed_last_hour) == (1, 0)
    office.clock.advance(3600.0)
    stats = await office.store.count()
    assert (stats.succeeded_last_hour, stats.mean_seconds) == (0, None)
    assert (stats.states["succeeded"], stats.states["failed"]) == (2, 1)


async def test_a_job_that_failed_twice_counts_twice(office: Office) -> None:
    job_id = await office.fail_new(message="x")
    await office.replay(job_id)
    [lease] = await office.claim()
    await office.fail(lease.job)
    assert (await office.store.count()).failed_last_hour == 2
    assert (await office.store.count()).states["failed"] == 1


async def test_a_run_is_stale_from_the_end_of_its_lease(office: Office) -> None:
    job = await office.start(items=["1"])
    office.clock.advance(60.0 - TICK)
    assert (await office.store.count()).stale == 0
    office.clock.advance(TICK)
    assert (await office.store.count()).stale == 1
    await office.beat(job, checkpoints=(item("0", "1"),))
    assert (await office.store.count()).stale == 0


async def test_the_last_claim_is_remembered(office: Office) -> None:
    await office.start()
    at = office.clock()
    office.clock.advance(50.0)
    await office.claim()
    assert (await office.store.count()).last_claimed_at == at
