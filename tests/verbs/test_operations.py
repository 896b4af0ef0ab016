"""What is seen of the whole: stats, health, workers, and what each job waits for."""

from __future__ import annotations

from postroom.model import OutcomeKind, State
from postroom.stores.port import Query
from tests.verbs.conftest import World


async def waits_for(world: World, job_id: str) -> str | None:
    alone = (await world.job(job_id)).waiting_for
    [listed] = [job for job in (await world.verbs.find(Query())).jobs if job.job_id == job_id]
    assert listed.waiting_for == alone
    return None if alone is None else alone.reason


# ---- waiting_for


async def test_a_job_that_is_not_due_waits_for_its_time(world: World) -> None:
    await world.attend()
    job_id = await world.submit(run_at="2030-01-31T08:00:00Z")
    waiting = (await world.job(job_id)).waiting_for
    assert waiting is not None
    assert (waiting.reason, waiting.gate) == ("run_at", None)
    assert waiting.until == (await world.job(job_id)).run_at


async def test_a_job_that_was_held_says_why_it_waits(world: World) -> None:
    lease = await world.start()
    await world.settle(lease, OutcomeKind.HELD, after_seconds=30, reason="provider away")
    waiting = (await world.job(lease.job.job_id)).waiting_for
    assert waiting is not None
    assert waiting.reason == "run_at"
    assert "provider away" in waiting.text


async def test_a_due_job_that_nobody_takes_waits_for_a_worker(world: World) -> None:
    await world.attend("w1", "other")
    await world.attend("w2", "note", queues=("elsewhere",))
    job_id = await world.submit()
    waiting = (await world.job(job_id)).waiting_for
    assert waiting is not None
    assert waiting.reason == "no_worker"
    assert "'note'" in waiting.text


async def test_a_due_job_that_somebody_takes_waits_for_its_turn(world: World) -> None:
    job_id = await world.submit()
    assert await waits_for(world, job_id) == "no_worker"
    await world.attend("w1", "other", "note", queues=("default", "q"))
    assert await waits_for(world, job_id) == "turn"
    await world.verbs.leave("w1")
    world.clock.advance(1.0)
    assert await waits_for(world, job_id) == "no_worker"


async def test_a_job_is_due_exactly_at_its_time(world: World) -> None:
    job_id = await world.submit(run_at="2023-11-15T00:00:00Z")
    due = (await world.job(job_id)).run_at.timestamp()
    world.clock.set_to(due - 0.125)
    assert await waits_for(world, job_id) == "run_at"
    world.clock.set_to(due)
    assert await waits_for(world, job_id) == "no_worker"


async def test_a_job_that_runs_or_ended_waits_for_nothing(world: World) -> None:
    lease = await world.start()
    assert await waits_for(world, lease.job.job_id) is None
    await world.succeed(lease)
    assert await waits_for(world, lease.job.job_id) is None


# ---- workers


async def test_workers_are_shown_with_what_they_run(world: World) -> None:
    await world.attend("w1", "note", "mail")
    lease = await world.start()
    [one] = await world.verbs.workers()
    assert (one.info.worker, one.info.queues) == ("w1", ("default",))
    assert one.job_ids == (lease.job.job_id,)
    await world.succeed(lease)
    [one] = await world.verbs.workers()
    assert one.job_ids == ()
    await world.verbs.leave("w1")
    assert await world.verbs.workers() == []


async def test_a_worker_that_was_not_seen_for_long_is_left_out(world: World) -> None:
    await world.attend("w1")
    world.clock.advance(89)
    assert [one.info.worker for one in await world.verbs.workers()] == ["w1"]
    world.clock.advance(2)
    assert await world.verbs.workers() == []


async def test_leaving_twice_is_leaving(world: World) -> None:
    await world.attend("w/1 ?")
    await world.verbs.leave("w/1 ?")
    await world.verbs.leave("w/1 ?")
    assert await world.verbs.workers() == []


# ---- stats and health


async def test_stats_count_every_job_once(world: World) -> None:
    empty = await world.verbs.stats()
    assert sum(empty.states.values()) == 0
    assert (empty.oldest_due_seconds, empty.mean_seconds, empty.p95_seconds) == (None, None, None)
    waits = await world.submit("waits")
    lease = await world.start()
    world.clock.advance(4)
    await world.succeed(lease)
    await world.dead()
    await world.start("runs")
    gone = await world.submit()
    await world.verbs.cancel(gone)
    stats = await world.verbs.stats()
    assert dict(stats.states) == {"queued": 1, "running": 1, "succeeded": 1, "failed": 1, "cancelled": 1}
    assert (stats.succeeded_last_hour, stats.failed_last_hour, stats.stale) == (1, 1, 0)
    assert (stats.mean_seconds, stats.p95_seconds) == (4.0, 4.0)
    assert stats.oldest_due_seconds is not None
    created = (await world.job(waits)).created_at.timestamp()
    assert stats.oldest_due_seconds == world.clock() - created
    world.clock.advance(3601)
    later = await world.verbs.stats()
    assert (later.succeeded_last_hour, later.failed_last_hour, later.stale) == (0, 0, 1)
    assert dict(later.states) == dict(stats.states)


async def test_health_says_what_the_store_keeps(world: World) -> None:
    health = await world.verbs.health()
    assert (health.status, health.store) == ("ok", world.store.capabilities.name)
    assert health.durability == world.store.capabilities.durability
    assert health.last_claimable_seconds is None
    await world.start()
    world.clock.advance(5)
    assert (await world.verbs.health()).last_claimable_seconds == 5.0


async def test_a_run_past_its_lease_is_stale(world: World) -> None:
    lease = await world.start()
    world.clock.advance(59.875)
    assert not (await world.job(lease.job.job_id)).stale
    world.clock.advance(0.125)
    job = await world.job(lease.job.job_id)
    assert (job.stale, job.state) == (True, State.RUNNING)
