"""The worker's side: claims that wait, heartbeats and ends of runs, and what each write is answered."""

from __future__ import annotations

import asyncio

import pytest

from postroom.model import Beat, ErrorInfo, Limits, Outcome, OutcomeKind, Payload, State
from tests.verbs.conftest import NOBODY, World, beat, item, item_error, outcome, step

LONG = 50.0
"""Longer than any test may take: who waits so long has not been woken."""

# ---- claims


async def test_a_claim_gives_what_a_handler_needs(world: World) -> None:
    job_id = await world.submit(
        items=["a", {"b": 1}],
        item_keys=["x", "y"],
        params={"p": 1},
        metadata={"m": 1},
        sender="ann",
        topic="t",
        timeout_seconds=90,
        allow_failed_items=0.5,
    )
    [lease] = await world.claim(lease_seconds=20)
    job = lease.job
    assert (job.job_id, job.epoch, job.attempts, job.life, job.worker) == (job_id, 1, 1, 1, "w1")
    assert (job.kind, job.sender, job.topic, job.params, job.metadata) == (
        "note",
        "ann",
        "t",
        '{"p":1}',
        '{"m":1}',
    )
    assert (job.timeout_seconds, job.allow_failed_items, job.lease_seconds) == (90, 0.5, 20)
    assert job.lease_expires_at == world.clock() + 20
    assert lease.payload == Payload('["a",{"b":1}]', ("x", "y"))
    assert lease.checkpoints == ()


async def test_only_kinds_and_queues_that_were_asked_for_are_given(world: World) -> None:
    note, mail = await world.submit("note"), await world.submit("mail")
    away = await world.submit("note", queue="q")
    assert [lease.job.job_id for lease in await world.claim("mail", limit=5)] == [mail]
    assert [lease.job.job_id for lease in await world.claim("note", limit=5)] == [note]
    assert [lease.job.job_id for lease in await world.claim("note", queues=("q",), limit=5)] == [away]


async def test_a_claim_that_need_not_wait_gives_at_once(world: World) -> None:
    await world.submit()
    async with asyncio.timeout(10):
        assert len(await world.claim(wait_seconds=LONG)) == 1


async def test_a_claim_that_waits_is_answered_as_soon_as_work_comes(world: World) -> None:
    async with asyncio.timeout(10):
        waiting = asyncio.create_task(world.claim(wait_seconds=LONG))
        await asyncio.sleep(0)
        job_id = await world.submit()
        [lease] = await waiting
    assert lease.job.job_id == job_id


async def test_a_claim_that_waits_is_woken_by_a_replay_and_by_what_was_given_back(world: World) -> None:
    dead = await world.dead()
    async with asyncio.timeout(10):
        waiting = asyncio.create_task(world.claim(wait_seconds=LONG))
        await asyncio.sleep(0)
        await world.verbs.replay(dead)
        [lease] = await waiting
        waiting = asyncio.create_task(world.claim(wait_seconds=LONG))
        await asyncio.sleep(0)
        await world.settle(lease, OutcomeKind.RELEASED)
        [again] = await waiting
    assert (again.job.job_id, again.job.epoch) == (dead, lease.job.epoch + 1)


async def test_a_claim_that_waited_in_vain_is_empty(world: World) -> None:
    assert await world.claim(wait_seconds=0.05) == []


async def test_two_who_wait_get_one_job_each(world: World) -> None:
    async with asyncio.timeout(10):
        tasks = [asyncio.create_task(world.claim(worker=w, wait_seconds=LONG)) for w in ("w1", "w2")]
        await asyncio.sleep(0)
        ids = {await world.submit(), await world.submit()}
        leases = [lease for task in tasks for lease in await task]
    assert {lease.job.job_id for lease in leases} == ids


async def test_fifty_who_claim_at_once_get_each_job_once(world: World) -> None:
    ids = sorted([await world.submit(content=n) for n in range(20)])
    given = await asyncio.gather(*(world.claim(worker=f"w{n}") for n in range(50)))
    assert sorted(lease.job.job_id for leases in given for lease in leases) == ids


# ---- heartbeats


async def test_a_beat_extends_the_lease_and_keeps_what_it_carries(world: World) -> None:
    lease = await world.start(items=["a", "b"])
    world.clock.advance(30)
    answer = await world.beat(lease, checkpoints=(item("0", '"A"'), step("s", "1")), seq=1)
    assert (answer.job_id, answer.epoch, answer.status) == (lease.job.job_id, 1, "ok")
    job = await world.job(lease.job.job_id)
    assert job.lease_expires_at is not None
    assert job.lease_expires_at.timestamp() == world.clock() + 60
    assert (job.done, job.total) == (1, 2)


async def test_progress_of_a_whole_handler_is_shown(world: World) -> None:
    lease = await world.start()
    await world.beat(lease, done=3, total=10)
    job = await world.job(lease.job.job_id)
    assert (job.done, job.total) == (3, 10)


async def test_a_counted_beat_that_is_repeated_adds_nothing_twice(world: World) -> None:
    lease = await world.start()
    for _ in range(2):
        answer = await world.beat(lease, seq=1, output=('"said"',), usage={"tokens": 5})
        assert answer.status == "ok"
    assert (await world.events(lease.job.job_id)).count("output") == 1
    assert (await world.job(lease.job.job_id)).usage == {"tokens": 5}


async def test_the_same_checkpoint_again_is_ok_and_another_value_a_conflict(world: World) -> None:
    lease = await world.start(items=["a", "b"])
    assert (await world.beat(lease, checkpoints=(item("0", '"A"'),))).status == "ok"
    assert (await world.beat(lease, checkpoints=(item("0", '"A"'),))).status == "ok"
    answer = await world.beat(lease, checkpoints=(item("0", '"B"'), item("1", '"C"')))
    assert answer.status == "conflict"
    assert answer.detail is not None
    assert "'0'" in answer.detail
    job = await world.job(lease.job.job_id)
    assert job.done == 1, "a write that is refused is refused whole"


async def test_an_item_that_does_not_exist_is_invalid(world: World) -> None:
    lease = await world.start(items=["a"])
    answer = await world.beat(lease, checkpoints=(item("1", '"A"'),))
    assert answer.status == "invalid"
    content = await world.start("other")
    assert (await world.beat(content, checkpoints=(item("0", '"A"'),))).status == "invalid"


async def test_a_write_under_another_epoch_has_lost_the_lease(world: World) -> None:
    lease = await world.start()
    job_id = lease.job.job_id
    for epoch in (0, 2, 99):
        [answer] = await world.verbs.heartbeat([Beat(job_id, epoch)])
        assert (answer.job_id, answer.epoch, answer.status) == (job_id, epoch, "lease_lost")
        [answer] = await world.verbs.settle([Outcome(job_id, epoch, OutcomeKind.SUCCEEDED, result="1")])
        assert answer.status == "lease_lost"
    assert await world.state(job_id) == State.RUNNING


async def test_a_write_for_no_job_has_lost_the_lease(world: World) -> None:
    for answers in (
        await world.verbs.heartbeat([Beat(NOBODY, 1)]),
        await world.verbs.settle([Outcome(NOBODY, 1, OutcomeKind.RELEASED)]),
    ):
        assert [answer.status for answer in answers] == ["lease_lost"]


async def test_the_fence_comes_before_the_shape(world: World) -> None:
    """A worker that lost the job is told so, whatever else is wrong with what it says."""
    lease = await world.start(items=["a"])
    stale = Beat(lease.job.job_id, 0, checkpoints=(item("nonsense", "1"),))
    assert [a.status for a in await world.verbs.heartbeat([stale])] == ["lease_lost"]


# ---- ends of runs


async def test_a_success_has_its_result(world: World) -> None:
    lease = await world.start()
    answer = await world.settle(lease, OutcomeKind.SUCCEEDED, result='{"a":1}')
    assert (answer.status, answer.state) == ("ok", State.SUCCEEDED)
    assert (await world.job(lease.job.job_id)).result == {"a": 1}


@pytest.mark.parametrize(
    ("kind", "fields", "events"),
    [
        (OutcomeKind.SUCCEEDED, {"result": "1"}, "succeeded"),
        (OutcomeKind.FAILED, {"error": ErrorInfo("Broken", "no", {"a": [1]}, True)}, "failed"),
        (OutcomeKind.FAILED, {"error": ErrorInfo("Broken", "no")}, "retried"),
        (OutcomeKind.HELD, {"after_seconds": 30.5, "reason": "away"}, "held"),
        (OutcomeKind.RELEASED, {"reason": "drain"}, "released"),
        (OutcomeKind.CRASHED, {"reason": "gone"}, "crashed"),
    ],
)
async def test_a_repeated_end_is_ok_again_and_ends_nothing_twice(
    world: World, kind: OutcomeKind, fields: dict[str, object], events: str
) -> None:
    """Its answer may have been lost."""
    lease = await world.start()
    first = await world.settle(lease, kind, **fields)
    again = await world.settle(lease, kind, **fields)
    assert (again.status, again.state) == (first.status, first.state)
    assert first.status == "ok"
    assert (await world.events(lease.job.job_id)).count(events) == 1


async def test_another_end_after_the_end_has_lost_the_lease(world: World) -> None:
    lease = await world.start()
    await world.succeed(lease, '"one"')
    assert (await world.settle(lease, OutcomeKind.SUCCEEDED, result='"two"')).status == "lease_lost"
    assert (await world.settle(lease, OutcomeKind.RELEASED)).status == "lease_lost"
    assert (await world.job(lease.job.job_id)).result == "one"


async def test_a_hold_waits_and_is_not_charged(world: World) -> None:
    lease = await world.start()
    answer = await world.settle(lease, OutcomeKind.HELD, after_seconds=30, reason="provider away")
    assert (answer.status, answer.state) == ("ok", State.QUEUED)
    job = await world.job(lease.job.job_id)
    assert (job.attempts, job.holds) == (0, 1)
    assert job.run_at.timestamp() == world.clock() + 30
    world.clock.advance(29.9)
    assert await world.claim() == []
    world.clock.advance(0.2)
    assert len(await world.claim()) == 1


async def test_an_end_that_does_not_fit_is_invalid_and_changes_nothing(world: World) -> None:
    lease = await world.start(items=["a", "b"])
    for wrong in (
        outcome(lease),  # items are pending
        outcome(lease, result='"x"'),  # a job of items has no one result
        outcome(lease, OutcomeKind.CANCELLED),  # nobody asked
        outcome(lease, OutcomeKind.FAILED, checkpoints=(item("9", "1"),)),
    ):
        [answer] = await world.verbs.settle([wrong])
        assert answer.status == "invalid", wrong
        assert answer.detail
    job = await world.job(lease.job.job_id)
    assert (job.state, job.done) == (State.RUNNING, 0)


async def test_limits_of_the_handler_stand_where_the_job_says_nothing(world: World) -> None:
    lease = await world.start()
    error = ErrorInfo("Broken", "no")
    await world.settle(lease, OutcomeKind.FAILED, error=error, limits=Limits(max_attempts=1))
    job = await world.job(lease.job.job_id)
    assert (job.state, job.max_attempts) == (State.FAILED, 1)


# ---- batches


async def test_one_bad_entry_harms_no_other(world: World) -> None:
    first, second, third = [await world.start(kind, items=["a"]) for kind in ("k1", "k2", "k3")]
    await world.beat(second, checkpoints=(item("0", '"A"'),))
    answers = await world.verbs.heartbeat(
        [
            beat(first, checkpoints=(item("nonsense", "1"),)),
            Beat(NOBODY, 1),
            beat(second, checkpoints=(item("0", '"B"'),)),
            Beat(third.job.job_id, 7),
            beat(third, checkpoints=(item("0", '"C"'),)),
            beat(first, checkpoints=(item("0", '"D"'),)),
        ]
    )
    assert [a.status for a in answers] == ["invalid", "lease_lost", "conflict", "lease_lost", "ok", "ok"]
    assert [a.job_id for a in answers] == [
        first.job.job_id,
        NOBODY,
        second.job.job_id,
        third.job.job_id,
        third.job.job_id,
        first.job.job_id,
    ]
    assert [(await world.job(lease.job.job_id)).done for lease in (first, second, third)] == [1, 1, 1]


async def test_one_bad_end_harms_no_other(world: World) -> None:
    leases = [await world.start(f"k{n}") for n in range(3)]
    answers = await world.verbs.settle(
        [
            outcome(leases[0]),
            outcome(leases[1], OutcomeKind.CANCELLED),
            Outcome(NOBODY, 1, OutcomeKind.RELEASED),
            outcome(leases[2]),
        ]
    )
    assert [a.status for a in answers] == ["ok", "invalid", "lease_lost", "ok"]
    assert await world.states(*(lease.job.job_id for lease in leases)) == [
        "succeeded",
        "running",
        "succeeded",
    ]


@pytest.mark.parametrize("count", [3, 31, 32, 33, 200])
async def test_several_writes_for_one_job_are_decided_in_turn(world: World, count: int) -> None:
    lease = await world.start(items=list(range(count)))
    other = await world.start("other")
    beats = [beat(lease, checkpoints=(item(str(n), str(n)),), seq=n + 1) for n in range(count)]
    answers = await world.verbs.heartbeat([*beats, beat(other)])
    assert [a.status for a in answers] == ["ok"] * (count + 1)
    assert (await world.job(lease.job.job_id)).done == count


async def test_after_an_end_the_next_of_the_same_batch_has_lost_the_lease(world: World) -> None:
    lease = await world.start()
    answers = await world.verbs.settle(
        [outcome(lease, result='"one"'), outcome(lease, result='"two"'), outcome(lease, result='"one"')]
    )
    assert [a.status for a in answers] == ["ok", "lease_lost", "ok"]
    assert (await world.job(lease.job.job_id)).result == "one"


async def test_many_who_beat_for_one_job_at_once_are_all_heard(world: World) -> None:
    lease = await world.start(items=list(range(20)))
    answers = await asyncio.gather(
        *(world.beat(lease, checkpoints=(item(str(n), str(n)),)) for n in range(20))
    )
    assert [answer.status for answer in answers] == ["ok"] * 20
    assert (await world.job(lease.job.job_id)).done == 20


async def test_an_empty_batch_is_answered_by_nothing(world: World) -> None:
    assert await world.verbs.heartbeat([]) == []
    assert await world.verbs.settle([]) == []


# ---- rows that the caller knows


async def test_a_stale_row_hides_no_cancel(world: World) -> None:
    lease = await world.start()
    await world.verbs.cancel(lease.job.job_id)
    known = {lease.job.job_id: lease.job}
    [answer] = await world.verbs.heartbeat([beat(lease)], known=known, is_trusted=True)
    assert answer.status == "cancel_requested"
    [answer] = await world.verbs.settle([outcome(lease, OutcomeKind.CANCELLED)], known=known, is_trusted=True)
    assert (answer.status, answer.state) == ("ok", State.CANCELLED)


async def test_a_write_is_not_refused_because_of_a_stale_row(world: World) -> None:
    """The row that the caller knows is of an earlier epoch: it is read again before the write is refused."""
    old = await world.start(items=["a"])
    await world.settle(old, OutcomeKind.RELEASED)
    [new] = await world.claim()
    known = {old.job.job_id: old.job}
    [answer] = await world.verbs.heartbeat([beat(new)], known=known)
    assert answer.status == "ok"
    [answer] = await world.verbs.settle(
        [outcome(new, checkpoints=(item("0", '"A"'),))], known=known, is_trusted=True
    )
    assert (answer.status, answer.state) == ("ok", State.SUCCEEDED)


async def test_a_stale_row_gives_no_lease_back(world: World) -> None:
    old = await world.start()
    await world.settle(old, OutcomeKind.RELEASED)
    [new] = await world.claim(worker="w2")
    known = {old.job.job_id: old.job}
    assert [a.status for a in await world.verbs.heartbeat([beat(old)], known=known)] == ["lease_lost"]
    assert [a.status for a in await world.verbs.settle([outcome(old)], known=known)] == ["lease_lost"]
    assert (await world.job(new.job.job_id)).worker == "w2"


async def test_a_row_of_a_job_that_is_no_more_is_no_lease(world: World) -> None:
    lease = await world.start()
    await world.succeed(lease)
    world.clock.advance(91 * 86_400)
    await world.house.purge()
    known = {lease.job.job_id: lease.job}
    assert [a.status for a in await world.verbs.heartbeat([beat(lease)], known=known)] == ["lease_lost"]


async def test_an_error_of_an_item_that_may_be_retried_gives_way(world: World) -> None:
    lease = await world.start(items=["a"])
    await world.beat(lease, checkpoints=(item_error("0", is_final=False),))
    assert (await world.job(lease.job.job_id)).done == 0
    answer = await world.settle(lease, OutcomeKind.SUCCEEDED, checkpoints=(item("0", '"A"'),))
    assert (answer.status, answer.state) == ("ok", State.SUCCEEDED)
