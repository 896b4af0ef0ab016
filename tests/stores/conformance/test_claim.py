"""The claim: equal to `lifecycle.claim`, never twice, only what is due and asked for (I01, I02, I14, I15, I17, I19)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from postroom import lifecycle
from postroom.errors import TransitionRefused
from postroom.model import Job, Lease, OutcomeKind, Priority, State
from postroom.stores.port import ClaimRequest
from tests.stores.conftest import Factory
from tests.stores.office import TICK, Office, item, plain, run_threads, step


def as_dict(job: Job) -> dict[str, Any]:
    return dict(job.__dict__)


async def assert_claimed_as_lifecycle_would(
    office: Office, before: Job, lease: Lease, seconds: float
) -> None:
    expected = lifecycle.claim(before, lease.job.worker or "", seconds, office.clock())
    assert as_dict(lease.job) == as_dict(expected.job)
    assert await office.job(before.job_id) == expected.job
    lines = await office.store.journal(before.job_id, after=before.lines - 1)
    assert [plain(line) for line in lines] == list(expected.lines)


async def test_a_first_claim_is_what_lifecycle_says(office: Office) -> None:
    before = await office.job(await office.submit())
    office.clock.advance(3.25)
    [lease] = await office.claim(worker="w7", lease_seconds=12.5)
    await assert_claimed_as_lifecycle_would(office, before, lease, 12.5)
    assert lease.job.worker == "w7"
    assert lease.job.lease_expires_at == office.clock() + 12.5


@pytest.mark.parametrize(
    "limits", [{"timeout_seconds": 5.0}, {"stall_timeout_seconds": 4.5}, {"timeout_seconds": 90.0}]
)
async def test_the_first_lease_ends_at_the_time_limit_of_the_run(
    office: Office, limits: dict[str, Any]
) -> None:
    before = await office.job(await office.submit(**limits))
    [lease] = await office.claim(lease_seconds=60.0)
    await assert_claimed_as_lifecycle_would(office, before, lease, 60.0)
    assert lease.job.lease_expires_at == office.clock() + min(60.0, *limits.values())


@pytest.mark.parametrize("how", ["retry", "hold", "release", "crash", "replay", "reclaim"])
async def test_later_claims_are_what_lifecycle_says(office: Office, how: str) -> None:
    first = await office.start(expires_at=office.clock() + 5.0, max_attempts=2)
    match how:
        case "retry":
            await office.fail(first, is_permanent=False)
        case "hold":
            await office.settle(first, OutcomeKind.HELD, after_seconds=7.0, reason="limit")
        case "release":
            await office.settle(first, OutcomeKind.RELEASED)
        case "crash":
            await office.settle(first, OutcomeKind.CRASHED, reason="signal 9")
        case "replay":
            await office.fail(first)
            await office.replay(first.job_id)
        case "reclaim":
            office.clock.advance(60.0)
            assert await office.sweep() == [first.job_id]
    office.clock.advance(100.0)
    before = await office.job(first.job_id)
    [lease] = await office.claim(worker="w2", lease_seconds=30.0)
    await assert_claimed_as_lifecycle_would(office, before, lease, 30.0)
    assert lease.job.epoch == first.epoch + 1


async def test_a_batch_of_claims_is_what_lifecycle_says(office: Office) -> None:
    await office.submit_all([office.draft(timeout_seconds=float(n + 1), content=str(n)) for n in range(120)])
    before = (await office.store.get(office.submitted)).jobs
    leases = await office.claim(limit=120, lease_seconds=60.0)
    assert len(leases) == 120
    for lease in leases:
        await assert_claimed_as_lifecycle_would(office, before[lease.job.job_id], lease, 60.0)


async def test_a_lease_carries_payload_and_every_checkpoint(office: Office) -> None:
    first = await office.start(items=["1", "2", "3"], keys=("b", "a", "c"))
    await office.beat(first, checkpoints=(item("b", '"B"'), item("a", '{"é": 1.0}'), step("s", "null")))
    await office.settle(first, OutcomeKind.RELEASED)
    other = await office.submit(content='"x"')
    leases = await office.claim(limit=2)
    by_id = {lease.job.job_id: lease for lease in leases}
    lease = by_id[first.job_id]
    assert lease.payload.body == "[1,2,3]"
    assert lease.payload.keys == ("b", "a", "c")
    assert [(c.kind, c.key, c.value) for c in lease.checkpoints] == [
        ("item", "a", '{"é": 1.0}'),
        ("item", "b", '"B"'),
        ("step", "s", "null"),
    ]
    assert by_id[other].payload.body == '"x"'
    assert by_id[other].payload.keys is None
    assert by_id[other].checkpoints == ()


async def test_no_more_than_the_limit_is_given(office: Office) -> None:
    await office.submit_all([office.draft() for _ in range(5)])
    assert len(await office.claim(limit=2)) == 2
    assert len(await office.claim(limit=2)) == 2
    assert len(await office.claim(limit=2)) == 1
    assert await office.claim(limit=2) == []


async def test_at_most_a_thousand_are_given_at_once(office: Office) -> None:
    await office.submit_all([office.draft() for _ in range(1005)])
    assert len(await office.claim(limit=5000)) == 1000
    assert len(await office.claim(limit=5000)) == 5


async def test_only_the_kinds_and_queues_asked_for_are_given(office: Office) -> None:
    wanted = await office.submit("a", queue="q1")
    also = await office.submit("b", queue="q2")
    await office.submit("c", queue="q1")
    await office.submit("a", queue="q3")
    assert sorted(await office.claimed_ids("a", "b", "nobody", queues=("q1", "q2"), limit=9)) == [
        wanted,
        also,
    ]
    assert await office.claim("a", "b", queues=("q1", "q2"), limit=9) == []


async def test_asking_for_a_kind_twice_gives_its_jobs_once(office: Office) -> None:
    await office.submit_all([office.draft() for _ in range(3)])
    assert len(await office.claim("note", "note", queues=("default", "default"), limit=9)) == 3


async def test_a_delayed_job_is_given_exactly_at_run_at(office: Office) -> None:
    run_at = office.clock() + 10.0
    job_id = await office.submit(run_at=run_at)
    request = ClaimRequest("w1", ("note",))
    office.clock.set_to(run_at - TICK)
    claimed = await office.store.claim(request)
    assert claimed.leases == ()
    assert claimed.next_due_at == run_at
    office.clock.set_to(run_at)
    assert await office.claimed_ids() == [job_id]


async def test_a_retry_is_given_exactly_when_its_backoff_ends(office: Office) -> None:
    job = await office.start()
    await office.fail(job, is_permanent=False)
    office.clock.advance(2.0 - TICK)
    assert await office.claim() == []
    office.clock.advance(TICK)
    assert await office.claimed_ids() == [job.job_id]


async def test_a_job_is_not_started_at_or_after_expires_at(office: Office) -> None:
    expires_at = office.clock() + 10.0
    await office.submit_all([office.draft(expires_at=expires_at) for _ in range(2)])
    office.clock.set_to(expires_at - TICK)
    assert len(await office.claim()) == 1
    office.clock.set_to(expires_at)
    assert await office.claim() == []


async def test_jobs_past_expires_at_do_not_take_the_places_of_others(office: Office) -> None:
    await office.submit_all([office.draft(expires_at=office.clock() + 1.0) for _ in range(50)])
    job_id = await office.submit()
    office.clock.advance(1.0)
    assert await office.claimed_ids(limit=1) == [job_id]


async def test_next_due_at_is_the_earliest_of_what_was_asked_for(office: Office) -> None:
    now = office.clock()
    await office.submit("b", run_at=now + 3.0)
    await office.submit("a", run_at=now + 9.0)
    await office.submit("a", run_at=now + 7.0)
    await office.submit("a", run_at=now + 1.0, queue="other")
    assert (await office.store.claim(ClaimRequest("w1", ("a",)))).next_due_at == now + 7.0
    assert (await office.store.claim(ClaimRequest("w1", ("a", "b")))).next_due_at == now + 3.0
    assert (
        await office.store.claim(ClaimRequest("w1", ("a",), ("default", "other")))
    ).next_due_at == now + 1.0
    assert (await office.store.claim(ClaimRequest("w1", ("c",)))).next_due_at is None


async def test_next_due_at_forgets_delayed_jobs_that_were_cancelled(office: Office) -> None:
    now = office.clock()
    job_id = await office.submit(run_at=now + 5.0)
    await office.submit(run_at=now + 6.0)
    await office.cancel(job_id)
    assert (await office.store.claim(ClaimRequest("w1", ("note",)))).next_due_at == now + 6.0


async def test_a_running_job_is_not_given_again_even_past_its_lease(office: Office) -> None:
    await office.start()
    office.clock.advance(1000.0)
    assert await office.claim() == []


async def test_a_cancelled_job_is_never_given(office: Office) -> None:
    job_id = await office.submit()
    delayed = await office.submit(run_at=office.clock() + 1.0)
    await office.cancel(job_id)
    await office.cancel(delayed)
    office.clock.advance(5.0)
    assert await office.claim(limit=9) == []


async def test_an_ended_job_is_never_given(office: Office) -> None:
    await office.succeed_new()
    await office.fail_new(message="for good")
    office.clock.advance(1e6)
    assert await office.claim(limit=9) == []


async def test_a_cancelled_and_replayed_job_is_given_once(office: Office) -> None:
    job_id = await office.submit()
    await office.cancel(job_id)
    await office.replay(job_id)
    assert await office.claimed_ids(limit=9) == [job_id]
    assert await office.claim(limit=9) == []


async def test_two_workers_never_hold_the_same_job(office: Office) -> None:
    await office.submit_all([office.draft() for _ in range(200)])
    await asyncio.gather(*(office.claim(worker=f"w{n}", limit=7) for n in range(40)))
    ids = [lease.job.job_id for lease in office.claims]
    assert sorted(ids) == sorted(office.submitted)
    jobs = (await office.store.get(ids)).jobs
    assert all(jobs[lease.job.job_id] == lease.job for lease in office.claims)


async def test_workers_in_many_threads_never_hold_the_same_job(office: Office) -> None:
    await office.submit_all([office.draft() for _ in range(200)])
    start = threading.Barrier(4)

    async def work(name: str) -> None:
        while await office.claim(worker=name, limit=3):
            pass

    def run(name: str) -> None:
        start.wait(10)
        asyncio.run(work(name))

    threads = [threading.Thread(target=run, args=(f"w{n}",)) for n in range(4)]
    await run_threads(threads)
    assert sorted(lease.job.job_id for lease in office.claims) == sorted(office.submitted)


async def test_epochs_rise_by_one_and_are_never_used_twice(office: Office) -> None:
    job_id = await office.submit()
    ends = [
        OutcomeKind.RELEASED,
        OutcomeKind.HELD,
        OutcomeKind.FAILED,
        OutcomeKind.CRASHED,
        OutcomeKind.RELEASED,
    ]
    for end in ends:
        [lease] = await office.claim()
        await office.settle(lease.job, end, after_seconds=1.0)
        office.clock.advance(100.0)
    await office.cancel(job_id)
    await office.replay(job_id)
    await office.claim()
    assert [lease.job.epoch for lease in office.claims] == [1, 2, 3, 4, 5, 6]


async def test_running_means_holder_and_lease_and_nothing_else_does(office: Office) -> None:
    for end in OutcomeKind:
        job = await office.start()
        running = await office.job(job.job_id)
        assert running.state is State.RUNNING
        assert running.worker == "w1"
        assert running.lease_expires_at is not None
        if end is OutcomeKind.CANCELLED:
            await office.cancel(job.job_id)
        await office.settle(job, end, after_seconds=1e9)
        ended = await office.job(job.job_id)
        assert (ended.worker, ended.lease_expires_at) == (None, None)
        if ended.state is State.QUEUED:
            await office.cancel(job.job_id)


async def test_attempts_never_pass_the_budget(office: Office) -> None:
    job_id = await office.submit(max_attempts=2)
    for end in (
        OutcomeKind.HELD,
        OutcomeKind.FAILED,
        OutcomeKind.CRASHED,
        OutcomeKind.RELEASED,
        OutcomeKind.FAILED,
    ):
        office.clock.advance(100.0)
        [lease] = await office.claim()
        assert lease.job.attempts <= 2
        await office.settle(lease.job, end, after_seconds=1.0)
    assert (await office.job(job_id)).state is State.FAILED
    office.clock.advance(1e6)
    assert await office.claim() == []


async def test_a_broken_row_stops_no_other(office: Office, factory: Factory) -> None:
    await office.submit_all([office.draft() for _ in range(5)])
    await office.submit_all([office.draft(run_at=office.clock() + 1.0) for _ in range(5)])
    for job_id in (office.submitted[0], office.submitted[7]):
        await factory.spoil(office.store, job_id, priority="purple")
    office.clock.advance(1.0)
    given: list[str] = []
    for _ in range(12):
        given += await office.claimed_ids(limit=2)
    others = [job_id for n, job_id in enumerate(office.submitted) if n not in (0, 7)]
    assert [job_id for job_id in given if job_id in others] == others


async def test_a_claim_that_lifecycle_refuses_is_never_made(office: Office) -> None:
    """The control of all the equalities above: lifecycle's own claim refuses what the store did not give."""
    late = await office.job(await office.submit(run_at=office.clock() + 1.0))
    stale = await office.job(await office.submit(expires_at=office.clock()))
    assert await office.claim(limit=9) == []
    for job in (late, stale):
        with pytest.raises(TransitionRefused):
            lifecycle.claim(job, "w1", 60.0, office.clock())


async def test_a_clock_that_was_set_back_loses_no_job_from_the_line(office: Office) -> None:
    ids = [await office.submit(priority=Priority.HIGH), await office.submit(priority=Priority.LOW)]
    now = office.clock()
    office.clock.set_to(now - 3600.0)
    claimed = await office.claimed_ids(limit=10)
    office.clock.set_to(now)
    claimed += await office.claimed_ids(limit=10)
    assert claimed == ids
