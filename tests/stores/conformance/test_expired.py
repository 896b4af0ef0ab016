"""What the sweep finds: leases that ended, starts that came too late, rows that are broken (I01, I16, I18, I35)."""

from __future__ import annotations

import asyncio

from postroom.lifecycle import Kept
from postroom.model import Expire, Rescue, State
from postroom.policy import Policy
from tests.stores.conftest import Factory
from tests.stores.office import TICK, Office, item


async def test_a_lease_is_over_exactly_when_it_ends(office: Office) -> None:
    job = await office.start()
    office.clock.advance(60.0 - TICK)
    assert (await office.store.expired()).found == ()
    office.clock.advance(TICK)
    sweep = await office.store.expired()
    assert sweep.now == office.clock()
    assert sweep.found == ((job, Rescue(job.job_id, 1)),)
    assert sweep.broken == ()


async def test_finding_changes_nothing(office: Office) -> None:
    job = await office.start()
    office.clock.advance(60.0)
    before = await office.record(job.job_id)
    first = await office.store.expired()
    assert await office.store.expired() == first
    assert await office.record(job.job_id) == before


async def test_a_beat_carries_the_lease_further(office: Office) -> None:
    job = await office.start()
    office.clock.advance(40.0)
    await office.beat(job, lease_seconds=60.0)
    office.clock.advance(60.0 - TICK)
    assert (await office.store.expired()).found == ()
    office.clock.advance(TICK)
    assert await office.sweep() == [job.job_id]


async def test_no_beat_carries_a_lease_past_the_time_limit(office: Office) -> None:
    job = await office.start(timeout_seconds=100.0)
    for _ in range(9):
        office.clock.advance(10.0)
        await office.beat(job, lease_seconds=60.0)
    assert (await office.job(job.job_id)).lease_expires_at == job.created_at + 100.0
    office.clock.advance(10.0 - TICK)
    assert (await office.store.expired()).found == ()
    office.clock.advance(TICK)
    await office.sweep()
    assert (await office.job(job.job_id)).state is State.RUNNING  # its worker is heard first
    office.clock.advance(Policy().limit_grace_seconds)
    await office.sweep()
    assert (await office.job(job.job_id)).state is State.QUEUED
    assert (await office.events(job.job_id))[-1] == "retried"


async def test_ended_and_waiting_jobs_are_not_found(office: Office) -> None:
    await office.succeed_new()
    await office.fail_new(message="x")
    await office.submit()
    await office.submit(run_at=office.clock() + 1e9)
    office.clock.advance(1e6)
    assert (await office.store.expired()).found == ()


async def test_a_job_expires_exactly_at_expires_at(office: Office) -> None:
    job = await office.job(await office.submit(expires_at=office.clock() + 10.0))
    delayed = await office.submit(expires_at=office.clock() + 10.0, run_at=office.clock() + 99.0)
    office.clock.advance(10.0 - TICK)
    assert (await office.store.expired()).found == ()
    office.clock.advance(TICK)
    sweep = await office.store.expired()
    assert set(sweep.found) == {(job, Expire(job.job_id)), (await office.job(delayed), Expire(delayed))}
    await office.sweep()
    assert (await office.job(job.job_id)).state is State.CANCELLED
    assert await office.events(job.job_id) == ["submitted", "expired"]
    assert (await office.store.expired()).found == ()


async def test_a_job_that_started_once_never_expires(office: Office) -> None:
    job = await office.start(expires_at=office.clock() + 10.0)
    await office.fail(job, is_permanent=False)
    office.clock.advance(100.0)
    assert (await office.store.expired()).found == ()
    assert await office.claimed_ids() == [job.job_id]


async def test_the_limit_bounds_one_look_and_the_rest_comes_with_the_next(office: Office) -> None:
    await office.submit_all([office.draft() for _ in range(25)])
    await office.claim(limit=25)
    office.clock.advance(60.0)
    found = [await office.sweep(limit=10) for _ in range(4)]
    assert [len(each) for each in found] == [10, 10, 5, 0]
    assert sorted(sum(found, [])) == office.submitted


async def test_two_sweeps_at_once_rescue_each_job_once(office: Office) -> None:
    await office.submit_all([office.draft() for _ in range(20)])
    await office.claim(limit=20)
    office.clock.advance(60.0)
    await asyncio.gather(*(office.sweep() for _ in range(4)))
    for job_id in office.submitted:
        assert await office.events(job_id) == ["submitted", "claimed", "crashed"]


async def test_a_lease_found_ended_and_then_extended_is_not_rescued(office: Office) -> None:
    job = await office.start()
    office.clock.advance(60.0)
    [(_, rescue)] = (await office.store.expired()).found
    await office.beat(job)
    assert isinstance(await office.want(rescue), Kept)
    assert (await office.job(job.job_id)).state is State.RUNNING


async def test_a_job_that_always_loses_its_worker_is_claimed_as_often_as_the_budget_says(
    office: Office,
) -> None:
    job_id = await office.submit()
    for _ in range(10):
        await office.claim(worker=f"w{len(office.claims)}")
        office.clock.advance(60.0)
        await office.sweep()
        office.clock.advance(60.0)
    assert len(office.claims) == 3
    job = await office.job(job_id)
    assert job.state is State.FAILED
    assert job.attempts == 0
    assert '"worker_lost"' in (job.error or "")
    assert '"w2"' in (job.error or "")
    assert await office.events(job_id) == ["submitted", *["claimed", "crashed"] * 2, "claimed", "failed"]


async def test_a_checkpoint_between_crashes_refills_the_budget(office: Office) -> None:
    job_id = await office.submit(items=[str(n) for n in range(6)])
    for n in range(6):
        [lease] = await office.claim()
        await office.beat(lease.job, checkpoints=(item(str(n), "1"),))
        office.clock.advance(60.0)
        await office.sweep()
        office.clock.advance(60.0)
    job = await office.job(job_id)
    assert (job.state, job.crashes, job.crashes_in_row, job.attempts) == (State.QUEUED, 6, 1, 0)


async def test_a_broken_row_stops_no_other(office: Office, factory: Factory) -> None:
    await office.submit_all([office.draft() for _ in range(4)])
    await office.claim(limit=4)
    broken = office.submitted[0]
    await factory.spoil(office.store, broken, lease_expires_at=None)
    office.clock.advance(60.0)
    sweep = await office.store.expired()
    assert [job.job_id for job, _ in sweep.found] == office.submitted[1:]
    [(job_id, why)] = sweep.broken
    assert job_id == broken
    assert why
