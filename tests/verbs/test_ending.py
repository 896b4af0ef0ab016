"""Cancel and replay, from every state."""

from __future__ import annotations

import asyncio

import pytest

from postroom.errors import TransitionRefused
from postroom.model import OutcomeKind, State
from tests.verbs.conftest import World, item, item_error, outcome, step

# ---- cancel


async def test_a_queued_job_is_cancelled_at_once(world: World) -> None:
    job_id = await world.submit()
    job = await world.verbs.cancel(job_id, reason="no longer wanted")
    assert (job.state, job.reason, job.is_final) == (State.CANCELLED, "no longer wanted", True)
    assert job == await world.job(job_id)
    assert await world.claim() == []
    assert await world.events(job_id) == ["submitted", "cancelled"]


async def test_a_running_job_is_asked_to_stop(world: World) -> None:
    lease = await world.start()
    job = await world.verbs.cancel(lease.job.job_id)
    assert (job.state, job.cancel_requested) == (State.RUNNING, True)
    assert (await world.beat(lease)).status == "cancel_requested"
    answer = await world.settle(lease, OutcomeKind.CANCELLED)
    assert (answer.status, answer.state) == ("ok", State.CANCELLED)
    job = await world.job(lease.job.job_id)
    assert (job.state, job.cancel_requested, job.worker) == (State.CANCELLED, False, None)
    assert await world.events(lease.job.job_id) == ["submitted", "claimed", "cancel_requested", "cancelled"]


@pytest.mark.parametrize(
    "kind", [OutcomeKind.FAILED, OutcomeKind.HELD, OutcomeKind.RELEASED, OutcomeKind.CRASHED]
)
async def test_a_run_that_was_asked_to_stop_ends_cancelled_however_it_ends(
    world: World, kind: OutcomeKind
) -> None:
    lease = await world.start()
    await world.verbs.cancel(lease.job.job_id)
    answer = await world.settle(lease, kind)
    assert (answer.status, answer.state) == ("ok", State.CANCELLED)


async def test_a_success_that_commits_first_wins(world: World) -> None:
    lease = await world.start()
    await world.verbs.cancel(lease.job.job_id)
    await world.succeed(lease)
    assert await world.state(lease.job.job_id) == State.SUCCEEDED


async def test_asked_twice_is_asked_once(world: World) -> None:
    lease = await world.start()
    first = await world.verbs.cancel(lease.job.job_id, reason="one")
    again = await world.verbs.cancel(lease.job.job_id, reason="two")
    assert again == first
    assert (await world.events(lease.job.job_id)).count("cancel_requested") == 1


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled"])
async def test_a_job_that_ended_cannot_be_cancelled(world: World, state: str) -> None:
    job_id = await ended(world, state)
    before = await world.job(job_id)
    with pytest.raises(TransitionRefused) as refused:
        await world.verbs.cancel(job_id)
    assert (refused.value.job_id, refused.value.state) == (job_id, state)
    assert await world.job(job_id) == before


async def ended(world: World, state: str) -> str:
    if state == "cancelled":
        job_id = await world.submit()
        await world.verbs.cancel(job_id)
        return job_id
    if state == "failed":
        return await world.dead()
    lease = await world.start()
    await world.succeed(lease)
    return lease.job.job_id


async def test_cancelled_at_once_by_many_it_is_cancelled_once(world: World) -> None:
    job_id = await world.submit()
    answers = await asyncio.gather(*(world.verbs.cancel(job_id) for _ in range(10)), return_exceptions=True)
    refused = [a for a in answers if isinstance(a, TransitionRefused)]
    assert len(refused) == 9
    assert await world.events(job_id) == ["submitted", "cancelled"]


async def test_a_cancelled_job_keeps_the_results_that_it_has(world: World) -> None:
    lease = await world.start(items=["a", "b"])
    await world.beat(lease, checkpoints=(item("0", '"A"'),))
    await world.settle(lease, OutcomeKind.RELEASED)
    job = await world.verbs.cancel(lease.job.job_id)
    assert job.result == {"results": ["A", None]}
    assert job == await world.job(lease.job.job_id)


# ---- replay


@pytest.mark.parametrize("state", ["failed", "cancelled"])
async def test_a_replay_is_a_new_life_of_the_same_job(world: World, state: str) -> None:
    job_id = await ended(world, state)
    before = await world.job(job_id)
    job = await world.verbs.replay(job_id)
    assert (job.job_id, job.state, job.replays) == (job_id, State.QUEUED, 1)
    assert (job.attempts, job.crashes, job.error, job.last_error) == (0, 0, None, None)
    assert job.epoch == before.epoch
    [lease] = await world.claim()
    assert (lease.job.job_id, lease.job.life, lease.job.epoch) == (job_id, 2, before.epoch + 1)
    await world.succeed(lease)
    assert await world.state(job_id) == State.SUCCEEDED


async def test_a_replay_shows_what_the_job_waits_for(world: World) -> None:
    job_id = await world.dead()
    job = await world.verbs.replay(job_id)
    assert job == await world.job(job_id)
    await world.fail((await world.claim())[0])
    await world.attend("w9", "note")
    job = await world.verbs.replay(job_id)
    assert job.waiting_for is not None
    assert job.waiting_for.reason == "turn"
    assert job == await world.job(job_id)


async def test_a_replay_keeps_what_succeeded_and_runs_what_failed(world: World) -> None:
    lease = await world.start(items=["a", "b", "c"])
    kept = (item("0", '"A"'), item_error("1"), item_error("2"))
    await world.beat(lease, checkpoints=(*kept, step("s", "1")))
    await world.verbs.settle([outcome(lease)])
    job = await world.verbs.replay(lease.job.job_id)
    assert (job.done, job.total, job.failed_items) == (1, 3, 0)
    [again] = await world.claim()
    assert sorted((c.kind, c.key, c.value) for c in again.checkpoints) == [
        ("item", "0", '"A"'),
        ("step", "s", "1"),
    ]


@pytest.mark.parametrize("state", ["queued", "running", "succeeded"])
async def test_only_what_failed_or_was_cancelled_is_replayed(world: World, state: str) -> None:
    if state == "queued":
        job_id = await world.submit()
    elif state == "running":
        job_id = (await world.start()).job.job_id
    else:
        job_id = await ended(world, state)
    before = await world.job(job_id)
    with pytest.raises(TransitionRefused) as refused:
        await world.verbs.replay(job_id)
    assert refused.value.state == state
    assert await world.job(job_id) == before


async def test_replayed_at_once_by_many_it_lives_once_more(world: World) -> None:
    job_id = await world.dead()
    answers = await asyncio.gather(*(world.verbs.replay(job_id) for _ in range(10)), return_exceptions=True)
    assert sum(isinstance(a, TransitionRefused) for a in answers) == 9
    assert (await world.job(job_id)).replays == 1


async def test_a_worker_of_an_earlier_life_has_lost_the_job(world: World) -> None:
    lease = await world.start()
    await world.verbs.cancel(lease.job.job_id)
    await world.settle(lease, OutcomeKind.CANCELLED)
    await world.verbs.replay(lease.job.job_id)
    assert (await world.beat(lease)).status == "lease_lost"
    assert (await world.settle(lease, OutcomeKind.FAILED)).status == "lease_lost"
