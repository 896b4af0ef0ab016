"""Listing: filters, order, cursors that hold while the store moves (I35)."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from typing import Any

import pytest

from postroom.errors import DraftInvalid
from postroom.model import State
from postroom.stores.port import Query
from tests.stores.conftest import Factory
from tests.stores.office import Office


async def find(office: Office, **query: Any) -> list[str]:
    """All ids of a listing, page after page."""
    ids: list[str] = []
    cursor = None
    for _ in range(1000):
        page = await office.store.find(Query(cursor=cursor, **query))
        assert len(page.jobs) <= query.get("limit", 50)
        ids += [job.job_id for job in page.jobs]
        cursor = page.next_cursor
        if cursor is None:
            return ids
    raise AssertionError("the listing never ends")


async def spread(office: Office, number: int, **fields: Any) -> list[str]:
    """Jobs submitted a second apart."""
    ids = []
    for _ in range(number):
        ids.append(await office.submit(**fields))
        office.clock.advance(1.0)
    return ids


async def test_an_empty_store_has_one_empty_page(office: Office) -> None:
    page = await office.store.find(Query())
    assert (page.jobs, page.next_cursor, page.now) == ((), None, office.clock())


async def test_newest_come_first(office: Office) -> None:
    ids = await spread(office, 5)
    assert await find(office) == ids[::-1]


async def test_oldest_come_first_where_asked(office: Office) -> None:
    ids = await spread(office, 5)
    assert await find(office, oldest_first=True) == ids


async def test_a_page_has_the_jobs_as_they_stand(office: Office) -> None:
    job = await office.start()
    assert (await office.store.find(Query())).jobs == (job,)


@pytest.mark.parametrize("limit", [1, 2, 5, 6, 7, 100])
@pytest.mark.parametrize("oldest_first", [True, False])
async def test_every_job_is_on_exactly_one_page(office: Office, limit: int, oldest_first: bool) -> None:
    ids = await spread(office, 3)
    await office.submit_all([office.draft() for _ in range(3)])
    ids += office.submitted[3:]
    found = await find(office, limit=limit, oldest_first=oldest_first)
    assert found == (ids if oldest_first else ids[::-1])


async def test_a_page_that_is_just_full_and_the_last_says_so(office: Office) -> None:
    await spread(office, 4)
    assert (await office.store.find(Query(limit=4))).next_cursor is None
    assert (await office.store.find(Query(limit=3))).next_cursor is not None


async def test_jobs_that_come_meanwhile_move_no_page(office: Office) -> None:
    ids = await spread(office, 6)
    first = await office.store.find(Query(limit=3))
    await spread(office, 3)
    await office.cancel(ids[1])
    second = await office.store.find(Query(limit=3, cursor=first.next_cursor))
    assert [job.job_id for job in (*first.jobs, *second.jobs)] == ids[::-1]


async def test_each_filter_leaves_out_the_others(office: Office) -> None:
    a = await office.submit("a", owner="ann", sender="s1", topic="t1", queue="q1")
    b = await office.submit("b", owner="bob", sender="s2", topic="t2", queue="q2")
    c = await office.submit("c", owner="ann", sender="s2", topic="t1", queue="q2")
    assert await find(office, owner="ann") == [c, a]
    assert await find(office, owner="nobody") == []
    assert await find(office, kinds=("a", "b")) == [b, a]
    assert await find(office, sender="s2") == [c, b]
    assert await find(office, topic="t2") == [b]
    assert await find(office, queue="q2") == [c, b]
    assert await find(office, queue="q2", topic="t1", owner="ann", sender="s2", kinds=["c"]) == [c]
    assert await find(office, queue="q1", topic="t2") == []


async def test_states_are_found_as_they_are_now(office: Office) -> None:
    failed = await office.fail_new(message="x")
    done = await office.succeed_new()
    running = (await office.start()).job_id
    queued = await office.submit()
    cancelled = await office.submit()
    await office.cancel(cancelled)
    for state, job_id in (
        (State.FAILED, failed),
        (State.SUCCEEDED, done),
        (State.RUNNING, running),
        (State.QUEUED, queued),
        (State.CANCELLED, cancelled),
    ):
        assert await find(office, states=[state]) == [job_id]
        assert await find(office, states=[state], owner="local", limit=1) == [job_id]
        assert await find(office, states=[state], owner="other") == []
    assert sorted(await find(office, states=list(State))) == sorted(office.submitted)
    assert sorted(await find(office, states=[State.FAILED, State.QUEUED], limit=1)) == sorted(
        [failed, queued]
    )


async def test_since_is_a_bound_on_the_creation_and_includes_it(office: Office) -> None:
    start = office.clock()
    ids = await spread(office, 4)
    assert await find(office, since=start + 2.0) == ids[:1:-1]
    assert await find(office, since=start + 2.0, oldest_first=True, limit=1) == ids[2:]
    assert await find(office, since=start + 3.5) == []


async def test_a_filtered_listing_goes_on_over_long_gaps(office: Office) -> None:
    await office.submit_all([office.draft("rare" if n % 100 == 0 else "common") for n in range(1000)])
    assert await find(office, kinds=["rare"], limit=3) == office.submitted[0::100][::-1]


NO_CURSORS = [
    "",
    "?",
    "bm90IG91cnM=",
    "WzFd",
    "é",
    *(
        urlsafe_b64encode(text.encode()).decode()
        for text in (
            r'[1, "\ud800"]',
            '[1, "é"]',
            "[1, 2]",
            '[NaN, "a"]',
            '[1e999, "a"]',
            f'[1{"0" * 400}, "a"]',
            "[" * 5000,
            '{"a": 1, "b": 2}',
        )
    ),
]


@pytest.mark.parametrize("cursor", [*NO_CURSORS])
async def test_a_cursor_that_no_listing_gave_is_refused(office: Office, cursor: str) -> None:
    with pytest.raises(DraftInvalid, match="cursor"):
        await office.store.find(Query(cursor=cursor))


async def test_a_broken_row_stops_no_other(office: Office, factory: Factory) -> None:
    """An undecodable error, a missing lease: the listing shows the others, and the broken one or its reason."""
    ids = await spread(office, 3)
    await factory.spoil(office.store, ids[1], error="{broken", lease_expires_at=None, worker=None)
    page = await office.store.find(Query())
    listed = [job.job_id for job in page.jobs] + [job_id for job_id, _ in page.broken]
    assert sorted(listed) == ids
