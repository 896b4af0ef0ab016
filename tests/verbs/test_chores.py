"""Sweep and purge, as seen through the verbs."""

from __future__ import annotations

import pytest

from postroom.errors import JobNotFound, JobPurged
from postroom.model import OutcomeKind, State
from postroom.policy import Policy
from tests.verbs.conftest import NOBODY, World, item
from tests.verbs.test_looking import LOOKS

DAY = 86_400.0


async def test_a_job_whose_worker_is_lost_is_taken_back(world: World) -> None:
    lease = await world.start(items=["a", "b"])
    await world.beat(lease, checkpoints=(item("0", '"A"'),))
    world.clock.advance(59)
    assert (await world.house.sweep()).changed == 0
    world.clock.advance(1)
    assert (await world.house.sweep()).changed == 1
    job = await world.job(lease.job.job_id)
    assert (job.state, job.crashes, job.attempts, job.worker, job.done) == (State.QUEUED, 1, 0, None, 1)
    assert (await world.beat(lease)).status == "lease_lost"
    assert (await world.settle(lease, OutcomeKind.RELEASED)).status == "lease_lost"
    world.clock.advance(60)
    [again] = await world.claim(worker="w2")
    assert (again.job.job_id, again.job.epoch) == (lease.job.job_id, 2)
    assert [c.key for c in again.checkpoints] == ["0"]


async def test_a_job_that_kills_its_worker_every_time_is_a_dead_letter(world: World) -> None:
    job_id = await world.submit()
    for n in range(3):
        [lease] = await world.claim()
        assert lease.job.epoch == n + 1
        world.clock.advance(61)
        await world.house.sweep()
        world.clock.advance(60)
    assert await world.claim() == []
    job = await world.job(job_id)
    assert job.state is State.FAILED
    assert job.error is not None
    assert (job.error["code"], job.error["detail"]["worker"]) == ("worker_lost", "w1")


async def test_a_write_after_the_lease_ran_out_counts_until_somebody_took_the_job_back(world: World) -> None:
    lease = await world.start()
    world.clock.advance(100)
    assert (await world.beat(lease)).status == "ok"
    assert (await world.house.sweep()).changed == 0
    world.clock.advance(100)
    await world.succeed(lease)
    assert (await world.house.sweep()).changed == 0


async def test_a_run_past_its_time_is_ended_as_such(world: World) -> None:
    lease = await world.start(timeout_seconds=30)
    world.clock.advance(20)
    await world.beat(lease)
    world.clock.advance(10)
    assert (await world.house.sweep()).changed == 0
    world.clock.advance(Policy().limit_grace_seconds)
    assert (await world.house.sweep()).changed == 1
    job = await world.job(lease.job.job_id)
    assert (job.state, job.attempts, job.crashes) == (State.QUEUED, 1, 0)
    assert job.last_error is not None
    assert job.last_error["code"] == "timeout"


async def test_a_run_without_progress_is_ended_as_such(world: World) -> None:
    lease = await world.start(stall_timeout_seconds=90)
    world.clock.advance(50)
    await world.beat(lease, done=1, total=5)
    for _ in range(2):
        world.clock.advance(45)
        await world.beat(lease, done=1, total=5)
    world.clock.advance(Policy().limit_grace_seconds)
    assert (await world.house.sweep()).changed == 1
    job = await world.job(lease.job.job_id)
    assert job.last_error is not None
    assert job.last_error["code"] == "stalled"


async def test_a_job_that_did_not_start_in_time_expires(world: World) -> None:
    job_id = await world.submit(expires_at="2023-11-15T00:00:00Z")
    expires = (await world.job(job_id)).expires_at
    assert expires is not None
    world.clock.set_to(expires.timestamp() - 0.125)
    assert (await world.house.sweep()).changed == 0
    world.clock.set_to(expires.timestamp())
    assert await world.claim() == []
    assert (await world.house.sweep()).changed == 1
    job = await world.job(job_id)
    assert (job.state, job.reason) == (State.CANCELLED, "expired")
    assert await world.events(job_id) == ["submitted", "expired"]
    again = await world.verbs.replay(job_id)
    assert (again.state, again.expires_at) == (State.QUEUED, None)


async def test_a_job_that_started_in_time_does_not_expire(world: World) -> None:
    lease = await world.start(expires_at="2023-11-14T22:20:00Z")
    world.clock.advance(600)
    await world.beat(lease)
    assert (await world.house.sweep()).changed == 0


async def test_a_second_sweep_finds_nothing(world: World) -> None:
    await world.start()
    world.clock.advance(61)
    assert (await world.house.sweep()).changed == 1
    assert (await world.house.sweep()).changed == 0


async def test_the_verbs_may_sweep_wherever_they_are(world: World) -> None:
    """Over HTTP the service does it, and there is nothing to do."""
    await world.start()
    world.clock.advance(61)
    assert (await world.verbs.sweep()).changed in (0, 1)


# ---- purge


async def test_a_purged_job_is_told_as_such_by_every_verb(world: World) -> None:
    lease = await world.start()
    await world.succeed(lease)
    job_id = lease.job.job_id
    world.clock.advance(90 * DAY - 1)
    assert await world.house.purge() == 0
    world.clock.advance(1)
    assert await world.house.purge() == 1
    for look in LOOKS:
        with pytest.raises(JobPurged) as purged:
            await look(world.verbs, job_id)
        assert (purged.value.job_id, purged.value.purged_at) == (job_id, world.clock())
    with pytest.raises(JobNotFound):
        await world.job(NOBODY)
    assert await world.found() == []
    assert sum((await world.verbs.stats()).states.values()) == 0


async def test_what_can_be_replayed_is_kept_longer(world: World) -> None:
    dead = await world.dead()
    cancelled = await world.submit()
    await world.verbs.cancel(cancelled)
    world.clock.advance(364 * DAY)
    assert await world.house.purge() == 0
    assert await world.states(dead, cancelled) == ["failed", "cancelled"]
    world.clock.advance(1 * DAY)
    assert await world.house.purge() == 2
    assert await world.verbs.dead_letters() == []


async def test_a_live_job_is_never_purged(world: World) -> None:
    await world.submit(run_at="2030-01-31T08:00:00Z")
    await world.start("other")
    world.clock.advance(3650 * DAY)
    assert await world.house.purge() == 0
