"""The line: high before normal before low, bounded overtaking, owners in turn, and nothing in the way.

What the suite fixes is what the documents promise. Places of different owners that tie are told apart by id here; the
agreement test holds stores to the same line exactly.
"""

from __future__ import annotations

from collections import Counter

import pytest

from postroom.model import OutcomeKind, Priority
from tests.stores.conftest import MakeOffice
from tests.stores.office import TICK, Office

HIGH, NORMAL, LOW = Priority


async def drain(office: Office, *kinds: str, limit: int = 1, **request: object) -> list[str]:
    """Claim until nothing is given; the ids in the order in which they came."""
    order: list[str] = []
    while ids := await office.claimed_ids(*kinds, limit=limit, **request):
        order += ids
    return order


@pytest.mark.parametrize("limit", [1, 4, 100])
async def test_first_come_first_served_within_a_priority(office: Office, limit: int) -> None:
    await office.submit_all([office.draft() for _ in range(30)])
    assert await drain(office, limit=limit) == office.submitted


@pytest.mark.parametrize("limit", [1, 4, 100])
async def test_first_come_first_served_whatever_the_kind(office: Office, limit: int) -> None:
    for n in range(30):
        await office.submit("abc"[n % 3])
    assert await drain(office, "c", "a", "b", limit=limit) == office.submitted


@pytest.mark.parametrize("limit", [1, 4, 100])
async def test_high_goes_before_normal_before_low(office: Office, limit: int) -> None:
    priorities = [LOW, NORMAL, HIGH, NORMAL, HIGH, LOW, HIGH]
    drafts = [office.draft(priority=priority) for priority in priorities]
    await office.submit_all(drafts)
    expected = [d.job_id for rank in (HIGH, NORMAL, LOW) for d in drafts if d.priority is rank]
    assert await drain(office, limit=limit) == expected


async def test_high_goes_first_over_all_queues_and_kinds_asked_for(office: Office) -> None:
    low = await office.submit("a", queue="q1", priority=LOW)
    normal = await office.submit("b", queue="q2")
    high = await office.submit("c", queue="q3", priority=HIGH)
    assert await drain(office, "a", "b", "c", queues=("q1", "q2", "q3")) == [high, normal, low]


async def test_a_later_high_job_overtakes_those_that_wait(office: Office) -> None:
    normal = [await office.submit() for _ in range(3)]
    assert await office.claimed_ids() == [normal[0]]
    high = await office.submit(priority=HIGH)
    assert await drain(office) == [high, *normal[1:]]


async def test_a_job_moves_up_exactly_when_it_waited_long_enough(make_office: MakeOffice) -> None:
    """Places are given at the claim that finds it due: behind what its owner has in line there, before what comes."""
    office = await make_office(overtake_seconds=600.0)
    low = await office.submit(priority=LOW)
    normal = [await office.submit() for _ in range(3)]
    office.clock.advance(600.0 - TICK)
    assert await office.claimed_ids() == [normal[0]]
    normal.append(await office.submit())
    office.clock.advance(TICK)
    assert await office.claimed_ids() == [normal[1]]
    normal.append(await office.submit())
    assert await drain(office) == [normal[2], normal[3], low, normal[4]]


async def test_a_low_job_is_high_after_two_spans(make_office: MakeOffice) -> None:
    office = await make_office(overtake_seconds=600.0)
    low = [await office.submit(priority=LOW) for _ in range(2)]
    office.clock.advance(1200.0)
    assert await office.claimed_ids() == low[:1]
    high = await office.submit(priority=HIGH)
    assert await drain(office) == [low[1], high]


async def test_a_moved_job_keeps_its_priority_for_all_to_see(make_office: MakeOffice) -> None:
    office = await make_office(overtake_seconds=600.0)
    low = await office.submit(priority=LOW)
    office.clock.advance(5000.0)
    [lease] = await office.claim()
    assert lease.job.priority is LOW
    assert await office.events(low) == ["submitted", "claimed"]


async def test_waiting_for_run_at_is_not_waiting_in_line(make_office: MakeOffice) -> None:
    office = await make_office(overtake_seconds=600.0)
    low = await office.submit(priority=LOW, run_at=office.clock() + 5000.0)
    office.clock.advance(5000.0)
    normal = await office.submit()
    assert await drain(office) == [normal, low]


async def overtaken(office: Office) -> int:
    """How many high jobs, two of which come every 10 s while one is claimed, go before a low one; at most 500."""
    low = await office.submit(priority=LOW)
    for turn in range(500):
        await office.submit(priority=HIGH)
        await office.submit(priority=HIGH)
        if await office.claimed_ids() == [low]:
            return turn
        office.clock.advance(10.0)
    return 500


async def test_overtaking_is_bounded(make_office: MakeOffice) -> None:
    """A low job is high after two spans, 120 turns: the high jobs that are there go before it, later ones do not."""
    assert 120 <= await overtaken(await make_office(overtake_seconds=600.0)) <= 245


async def test_overtaking_is_not_bounded_where_nothing_moves_up(make_office: MakeOffice) -> None:
    """The control of the test above."""
    assert await overtaken(await make_office(overtake_seconds=1e9)) == 500


async def turns_of_ten_after_many(office: Office, many: int, **by: str) -> list[int]:
    """At which of the next turns the ten jobs of a second one are claimed, after many of a first one."""
    first, second = ({name: f"{name}-{n}" for name in by} for n in (1, 2))
    await office.submit_all([office.draft(**first) for _ in range(many)])
    assert len(await office.claim(limit=5)) == 5
    ten = [office.draft(**second) for _ in range(10)]
    await office.submit_all(ten)
    wanted = {draft.job_id for draft in ten}
    order = await office.claimed_ids(limit=40)
    return [turn for turn, job_id in enumerate(order) if job_id in wanted]


async def test_ten_thousand_of_one_owner_do_not_keep_ten_of_another_waiting(office: Office) -> None:
    turns = await turns_of_ten_after_many(office, 10_000, owner="")
    assert len(turns) == 10
    assert max(turns) <= 20


async def test_owners_share_where_they_all_came_before_anything_was_claimed(office: Office) -> None:
    for owner, number in (("ann", 100), ("bob", 10), ("cay", 10)):
        await office.submit_all([office.draft(owner=owner) for _ in range(number)])
    first = [lease.job.owner for lease in await office.claim(limit=30)]
    assert Counter(first) == {"ann": 10, "bob": 10, "cay": 10}
    for turn in range(0, 30, 3):
        assert set(first[turn : turn + 3]) == {"ann", "bob", "cay"}


async def test_senders_share_where_the_store_is_told_so(make_office: MakeOffice) -> None:
    office = await make_office(fair_by="sender")
    turns = await turns_of_ten_after_many(office, 500, sender="")
    assert len(turns) == 10
    assert max(turns) <= 20


async def test_an_owner_waits_behind_all_where_nothing_is_shared(make_office: MakeOffice) -> None:
    """The control of the fairness tests, and what ``none`` means: first come first served."""
    office = await make_office(fair_by="none")
    assert await turns_of_ten_after_many(office, 500, owner="") == []
    assert await drain(office, limit=100) == office.submitted[45:]


async def test_an_owner_who_was_away_saved_nothing_up(office: Office) -> None:
    """An owner who comes late takes turns from now on, and does not go before all for the turns that it missed."""
    await office.submit_all([office.draft(owner="ann") for _ in range(200)])
    await office.claim(limit=100)
    await office.submit_all([office.draft(owner="bob") for _ in range(50)])
    owners = Counter(lease.job.owner for lease in await office.claim(limit=40))
    assert owners == {"ann": 20, "bob": 20}


async def test_sharing_is_per_priority(office: Office) -> None:
    await office.submit_all([office.draft(owner="ann", priority=HIGH) for _ in range(3)])
    bob = await office.submit(owner="bob")
    assert (await drain(office))[-1] == bob


async def test_delayed_jobs_line_up_when_they_are_due(office: Office) -> None:
    now = office.clock()
    late = await office.submit(run_at=now + 20.0)
    early = await office.submit(run_at=now + 10.0)
    at_once = await office.submit()
    office.clock.advance(30.0)
    assert await drain(office) == [at_once, early, late]


async def test_a_hundred_thousand_instants_of_delay_do_not_hide_a_due_job(office: Office) -> None:
    """More jobs become due at once than one bounded step may move: all are given in the end, in their order."""
    now = office.clock()
    drafts = [office.draft(run_at=now + 1.0 + n / 10_000) for n in range(3000)]
    await office.submit_all(drafts[::-1])
    office.clock.advance(60.0)
    high = await office.submit(priority=HIGH)
    order: list[str] = []
    for _ in range(60):
        order += await office.claimed_ids(limit=100)
        if len(order) == 3001:
            break
    assert len(order) == 3001
    assert order.index(high) < 100
    order.remove(high)
    assert order == [draft.job_id for draft in drafts]


async def test_a_job_that_was_given_back_is_the_next_one_again(office: Office) -> None:
    await office.submit_all([office.draft() for _ in range(20)])
    leases = await office.claim(limit=3)
    for lease in leases[::-1]:
        await office.settle(lease.job, OutcomeKind.RELEASED)
    assert await drain(office) == office.submitted


async def test_a_large_backlog_of_other_kinds_does_not_matter(office: Office) -> None:
    await office.submit_all([office.draft("nobody-knows", priority=HIGH) for _ in range(10_000)])
    wanted = [await office.submit("known") for _ in range(3)]
    assert await drain(office, "known", limit=10) == wanted
    assert await office.claim("known") == []


async def test_a_large_backlog_in_other_queues_does_not_matter(office: Office) -> None:
    await office.submit_all([office.draft(queue="other", priority=HIGH) for _ in range(2000)])
    wanted = [await office.submit(owner=owner) for owner in ("ann", "bob", "ann")]
    assert sorted(await drain(office, limit=10)) == wanted
