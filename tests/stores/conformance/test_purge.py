"""Retention: what ended long enough ago goes, with a mark; nothing else does (I33)."""

from __future__ import annotations

from postroom.model import OutcomeKind, State
from postroom.stores.port import Query, Retention, Submitted
from tests.stores.office import TICK, Office, Record, item

DAY = 86_400.0
KEEP = Retention(succeeded_seconds=90 * DAY, failed_seconds=365 * DAY)


async def test_a_job_goes_exactly_when_it_was_kept_long_enough(office: Office) -> None:
    job_id = await office.succeed_new()
    office.clock.advance(90 * DAY - TICK)
    assert await office.store.purge(KEEP) == 0
    office.clock.advance(TICK)
    assert await office.store.purge(KEEP) == 1
    assert await office.store.purge(KEEP) == 0
    assert (await office.record(job_id)).job is None


async def test_failed_and_cancelled_jobs_are_kept_as_long_as_failures_are(office: Office) -> None:
    failed = await office.fail_new(message="x")
    cancelled = await office.submit()
    await office.cancel(cancelled)
    office.clock.advance(365 * DAY - TICK)
    assert await office.store.purge(KEEP) == 0
    office.clock.advance(TICK)
    assert await office.store.purge(KEEP) == 2
    assert (await office.store.get([failed, cancelled])).jobs == {}


async def test_nothing_stays_of_a_purged_job_but_its_mark(office: Office) -> None:
    job = await office.start(items=["1"], idempotency_key="k", body_digest="d")
    await office.beat(job, checkpoints=(item("0", "1"),), output=("1",))
    await office.succeed(job, None)
    content = await office.succeed_new()
    office.clock.advance(90 * DAY)
    assert await office.store.purge(KEEP) == 2
    for job_id in (job.job_id, content):
        assert await office.record(job_id) == Record(None, (), (), None, None, None)
        assert await office.store.purged_at(job_id) == office.clock()
    assert (await office.store.find(Query())).jobs == ()
    assert sum((await office.store.count()).states.values()) == 0
    assert await office.store.verify() == []


async def test_only_a_purged_job_has_a_mark(office: Office) -> None:
    job_id = await office.succeed_new()
    assert await office.store.purged_at(job_id) is None
    assert await office.store.purged_at("f" * 32) is None


async def test_a_purged_dead_letter_is_in_no_group(office: Office) -> None:
    await office.fail_new(message="x")
    office.clock.advance(365 * DAY)
    kept = await office.fail_new(message="x")
    await office.store.purge(KEEP)
    [group] = await office.store.dead_letters()
    assert group.job_ids == (kept,)
    assert [job.job_id for job in await office.store.failed()] == [kept]


async def test_a_job_that_has_not_ended_is_kept_for_ever(office: Office) -> None:
    waiting = await office.submit("other", run_at=office.clock() + 1e12)
    held = await office.start()
    await office.settle(held, OutcomeKind.HELD, after_seconds=1e12)
    running = await office.start("third")
    replayed = await office.fail_new("fourth", message="x")
    await office.replay(replayed)
    office.clock.advance(10_000 * DAY)
    assert await office.store.purge(Retention(0.0, 0.0)) == 0
    assert len((await office.store.get([waiting, held.job_id, running.job_id, replayed])).jobs) == 4


async def test_none_keeps_for_ever(office: Office) -> None:
    await office.succeed_new()
    failed = await office.fail_new(message="x")
    office.clock.advance(10_000 * DAY)
    assert await office.store.purge(Retention(None, None)) == 0
    assert await office.store.purge(Retention(1.0, None)) == 1
    assert set((await office.store.get(office.submitted)).jobs) == {failed}


async def test_the_limit_bounds_one_step(office: Office) -> None:
    for _ in range(5):
        await office.succeed_new()
        office.clock.advance(1.0)
    assert await office.store.purge(Retention(0.0, 0.0), limit=2) == 2
    assert set((await office.store.get(office.submitted)).jobs) == set(office.submitted[2:])
    assert await office.store.purge(Retention(0.0, 0.0), limit=9) == 3


async def test_an_idempotency_key_lives_as_long_as_its_job(office: Office) -> None:
    first = await office.succeed_new(idempotency_key="k", body_digest="d")
    office.clock.advance(90 * DAY)
    await office.store.purge(KEEP)
    [answer] = await office.submit_all([office.draft(idempotency_key="k", body_digest="d")])
    assert answer.is_new
    assert answer.job_id != first
    [again] = await office.submit_all([office.draft(idempotency_key="k", body_digest="d")])
    assert again == Submitted(answer.job_id, False, "d")


async def test_purging_leaves_the_others_whole(office: Office) -> None:
    old = await office.succeed_new()
    kept = await office.start(items=["1", "2"])
    await office.beat(kept, checkpoints=(item("0", "1"),))
    before = await office.record(kept.job_id)
    office.clock.advance(90 * DAY)
    assert await office.store.purge(KEEP) == 1
    assert await office.record(kept.job_id) == before
    assert await office.store.purged_at(old) is not None
    assert (await office.store.count()).states[State.RUNNING] == 1


async def test_a_job_that_comes_after_a_purge_has_nothing_of_the_one_that_went(office: Office) -> None:
    """Also within the same instant, and after the store was opened anew: no number of the old one is met again."""
    for _ in range(3):
        job_id = await office.submit()
        await office.cancel(job_id)
        assert await office.events(job_id) == ["submitted", "cancelled"]
        assert await office.store.purge(Retention(0.0, 0.0)) == 1
        await office.store.close()
        await office.store.open()
    assert await office.store.verify() == []
