"""Submissions: receipts, and what a repeat is told."""

from __future__ import annotations

import asyncio

from postroom.errors import DuplicateJob
from postroom.model import State
from postroom.verbs import Receipt
from tests.verbs.conftest import World


async def test_a_batch_is_answered_in_order(world: World) -> None:
    drafts = [world.draft(content=n) for n in range(20)]
    receipts = await world.verbs.submit(drafts)
    ids = [receipt.job_id for receipt in receipts if isinstance(receipt, Receipt)]
    assert len(set(ids)) == 20
    assert all(r.state is State.QUEUED and not r.is_replayed for r in receipts if isinstance(r, Receipt))
    bodies = [(await world.verbs.payload(job_id)).body for job_id in ids]
    assert bodies == [str(n) for n in range(20)]


async def test_nothing_submitted_is_nothing_answered(world: World) -> None:
    assert await world.verbs.submit([]) == []
    assert await world.found() == []


async def test_the_same_key_and_body_is_the_first_job(world: World) -> None:
    [first] = await world.verbs.submit([world.draft(key="k", content={"a": 1, "b": 2})])
    [again] = await world.verbs.submit([world.draft(key="k", content={"b": 2, "a": 1})])
    assert isinstance(first, Receipt)
    assert again == Receipt(first.job_id, State.QUEUED, is_replayed=True)
    assert await world.found() == [first.job_id]


async def test_a_repeat_is_told_the_state_that_the_job_has_by_then(world: World) -> None:
    lease = await world.start(key="k")
    await world.succeed(lease)
    [again] = await world.verbs.submit([world.draft(key="k")])
    assert again == Receipt(lease.job.job_id, State.SUCCEEDED, is_replayed=True)


async def test_the_same_key_and_another_body_is_refused_and_names_the_first(world: World) -> None:
    first = await world.submit(key="k")
    good, refused, other = await world.verbs.submit(
        [world.draft(content="fine"), world.draft(key="k", content="other"), world.draft(key="k2")]
    )
    assert isinstance(refused, DuplicateJob)
    assert refused.job_id == first
    assert isinstance(good, Receipt)
    assert isinstance(other, Receipt)
    assert sorted(await world.found()) == sorted([first, good.job_id, other.job_id])


async def test_a_key_twice_in_one_batch_is_one_job(world: World) -> None:
    one, again, other = await world.verbs.submit(
        [world.draft(key="k"), world.draft(key="k"), world.draft(key="k", content="other")]
    )
    assert isinstance(one, Receipt)
    assert again == Receipt(one.job_id, State.QUEUED, is_replayed=True)
    assert isinstance(other, DuplicateJob)
    assert await world.found() == [one.job_id]


async def test_fifty_at_once_with_one_key_are_one_job(world: World) -> None:
    answers = await asyncio.gather(*(world.verbs.submit([world.draft(key="k")]) for _ in range(50)))
    receipts = [receipt for [receipt] in answers if isinstance(receipt, Receipt)]
    assert len(receipts) == 50
    assert len({receipt.job_id for receipt in receipts}) == 1
    assert sum(not receipt.is_replayed for receipt in receipts) == 1
    assert await world.found() == [receipts[0].job_id]


async def test_a_key_is_free_again_once_its_job_is_purged(world: World) -> None:
    lease = await world.start(key="k")
    await world.succeed(lease)
    world.clock.advance(91 * 86_400)
    assert await world.house.purge() == 1
    assert await world.submit(key="k") != lease.job.job_id


async def test_what_was_asked_is_what_the_job_has(world: World) -> None:
    job_id = await world.submit(
        items=["a", "b"],
        item_keys=["x", "y"],
        sender="ann",
        topic="t",
        priority="high",
        queue="q",
        max_attempts=7,
        timeout_seconds=5,
        stall_timeout_seconds=2.5,
        params={"b": [1, "é"]},
        metadata={"ticket": 7},
        run_at="2030-01-31T09:00:00.25+01:00",
        expires_at="2030-02-01T08:00:00Z",
    )
    job = await world.job(job_id)
    assert (job.kind, job.sender, job.topic, job.priority, job.queue) == ("note", "ann", "t", "high", "q")
    assert (job.max_attempts, job.timeout_seconds, job.stall_timeout_seconds) == (7, 5.0, 2.5)
    assert (job.params, job.metadata) == ({"b": [1, "é"]}, {"ticket": 7})
    assert (job.total, job.done, job.attempts, job.epoch, job.replays) == (2, 0, 0, 0, 0)
    assert job.run_at.isoformat() == "2030-01-31T08:00:00.250000+00:00"
    assert job.expires_at is not None
    assert job.expires_at.isoformat() == "2030-02-01T08:00:00+00:00"
    assert job.created_at.timestamp() == world.clock()
