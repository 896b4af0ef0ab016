"""Stores that several openers share: one truth, whoever reads, writes, claims or sweeps.

A store that is its process's own says so in its capabilities; then there is no second opener and nothing to share.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from postroom.model import State
from postroom.stores.opening import open_store
from postroom.stores.port import WORK, Query
from tests.stores.office import Office, item

LONG = 20.0


@pytest.fixture
async def others(office: Office) -> AsyncIterator[list[Office]]:
    """Three more openers of the same store; the store itself, thrice, where it can have none."""
    if not office.store.capabilities.shares_processes:
        yield [Office(office.store, office.clock, ids=office.ids) for _ in range(3)]
        return
    made = [
        Office(open_store(office.store.url, clock=office.clock), office.clock, ids=office.ids)
        for _ in range(3)
    ]
    for other in made:
        await other.store.open()
    yield made
    for other in made:
        await other.store.close()


async def test_what_one_wrote_the_others_read_at_once(office: Office, others: list[Office]) -> None:
    job = await office.start(items=["1", "2"])
    await office.beat(job, checkpoints=(item("0", '"é"'),), output=('"said"',))
    expected = await office.record(job.job_id)
    for other in others:
        assert await other.record(job.job_id) == expected
        assert await other.store.count() == await office.store.count()
        assert await other.store.find(Query()) == await office.store.find(Query())


async def test_all_openers_together_give_each_job_once(office: Office, others: list[Office]) -> None:
    await office.submit_all([office.draft() for _ in range(120)])

    async def work(name: str, place: Office) -> None:
        while leases := await place.claim(worker=name, limit=7):
            for lease in leases:
                await place.succeed(lease.job)

    everybody = [office, *others]
    await asyncio.gather(*(work(f"w{n}", place) for n, place in enumerate(everybody)))
    given = [lease.job.job_id for place in everybody for lease in place.claims]
    assert sorted(given) == sorted(office.submitted)
    stats = await others[0].store.count()
    assert stats.states[State.SUCCEEDED] == 120
    assert await others[1].store.verify() == []


async def test_one_key_is_one_job_whoever_submits(office: Office, others: list[Office]) -> None:
    everybody = [office, *others] * 5
    answers = await asyncio.gather(
        *(place.submit_all([place.draft(idempotency_key="k", body_digest="d")]) for place in everybody)
    )
    assert len({answer.job_id for [answer] in answers}) == 1
    assert sum(answer.is_new for [answer] in answers) == 1


async def test_a_change_decided_by_one_is_refused_after_anothers(
    office: Office, others: list[Office]
) -> None:
    job = await office.start()
    await asyncio.gather(
        *(place.beat(job, output=(f'"{n}"',)) for n, place in enumerate([office, *others] * 3))
    )
    lines = await office.store.journal(job.job_id)
    assert [line.n for line in lines] == list(range(14))
    assert (await office.job(job.job_id)).version == job.version + 12


async def test_sweeps_of_all_rescue_each_job_once(office: Office, others: list[Office]) -> None:
    await office.submit_all([office.draft() for _ in range(20)])
    await office.claim(limit=20)
    office.clock.advance(60.0)
    await asyncio.gather(*(place.sweep() for place in [office, *others]))
    for job_id in office.submitted:
        assert await office.events(job_id) == ["submitted", "claimed", "crashed"]


HINTS: dict[str, Callable[[str], str]] = {"work": lambda job_id: WORK, "job": lambda job_id: job_id}


@pytest.mark.parametrize("topic", HINTS)
async def test_hints_reach_the_others_where_the_store_says_so(
    office: Office, others: list[Office], topic: str
) -> None:
    job_id = await office.submit()
    await office.cancel(job_id)
    if not office.store.capabilities.hints_across_processes and office.store.capabilities.shares_processes:
        return  # polling finds it
    with others[0].store.watch(HINTS[topic](job_id)) as watch:
        await office.replay(job_id)
        assert await watch.wait(LONG)


async def test_a_store_that_was_closed_has_everything_when_it_is_opened_again(
    office: Office, others: list[Office]
) -> None:
    job = await office.start(items=["1", "2"], idempotency_key="k", body_digest="d")
    await office.beat(job, checkpoints=(item("0", "1"),))
    await office.fail_new("other", message="broke")
    await office.store.keep("plan", '"p"', before=None)
    before = [await office.record(job_id) for job_id in office.submitted]
    stats = await office.store.count()
    for place in [office, *others]:
        await place.store.close()
    await office.store.open()
    assert [await office.record(job_id) for job_id in office.submitted] == before
    assert await office.store.count() == stats
    assert await office.store.kept("") == {"plan": '"p"'}
    [group] = await office.store.dead_letters()
    assert group.message == "broke"
    [again] = await office.submit_all([office.draft(idempotency_key="k", body_digest="d")])
    assert not again.is_new
