"""Dead letters: each failure in one group, once per life; groups sum to the failed (I13, I32)."""

from __future__ import annotations

import json

from postroom.deadletters import mask
from postroom.stores.port import DeadLetterGroup
from tests.stores.conftest import Factory
from tests.stores.office import Office


async def test_without_failures_there_are_no_groups(office: Office) -> None:
    await office.succeed_new()
    await office.start()
    assert await office.store.dead_letters() == []
    assert await office.store.failed() == []


async def test_failures_that_differ_in_ids_and_numbers_are_alike(office: Office) -> None:
    first_at = office.clock()
    ids = []
    for n in range(3):
        ids.append(
            await office.fail_new(
                message=f"item {n} of {n * 7}: request 0a1b2c3d-0000-4000-8000-00000000000{n} timed out"
            )
        )
        office.clock.advance(1.0)
    [group] = await office.store.dead_letters()
    assert group == DeadLetterGroup(
        "note", "Broken", "item <n> of <n>: request <id> timed out", 3, first_at, first_at + 2.0, tuple(ids)
    )


async def test_kind_code_and_message_each_part_groups(office: Office) -> None:
    for kind, code, message in (
        ("a", "C1", "one"),
        ("a", "C1", "two"),
        ("a", "C2", "one"),
        ("b", "C1", "one"),
        ("a", "C1", "one"),
    ):
        await office.fail_new(kind, code=code, message=message)
    groups = await office.store.dead_letters()
    assert sorted((g.kind, g.code, g.message) for g in groups) == [
        ("a", "C1", "one"),
        ("a", "C1", "two"),
        ("a", "C2", "one"),
        ("b", "C1", "one"),
    ]
    assert [g.count for g in groups] == [2, 1, 1, 1]
    assert sum(g.count for g in groups) == (await office.store.count()).states["failed"] == 5


async def test_the_largest_group_comes_first_and_the_limit_cuts_the_rest(office: Office) -> None:
    for kind, number in (("a", 1), ("b", 3), ("c", 2)):
        for _ in range(number):
            await office.fail_new(kind, message="x")
    assert [g.kind for g in await office.store.dead_letters()] == ["b", "c", "a"]
    assert [g.kind for g in await office.store.dead_letters(limit=2)] == ["b", "c"]


async def test_a_group_names_twenty_ids_and_counts_all(office: Office) -> None:
    for _ in range(23):
        await office.fail_new(message="x")
    [group] = await office.store.dead_letters()
    assert group.count == 23
    assert len(group.job_ids) == len(set(group.job_ids)) == 20
    assert set(group.job_ids) <= set(office.submitted)


async def test_groups_are_asked_for_by_owner_kind_and_time(office: Office) -> None:
    ann = await office.fail_new("a", owner="ann", message="x")
    office.clock.advance(10.0)
    since = office.clock()
    bob = await office.fail_new("b", owner="bob", message="x")

    async def ids(**query: object) -> list[str]:
        return sorted(i for g in await office.store.dead_letters(**query) for i in g.job_ids)  # type: ignore[arg-type]

    assert await ids() == [ann, bob]
    assert await ids(owner="ann") == [ann]
    assert await ids(owner="cay") == []
    assert await ids(kind="b") == [bob]
    assert await ids(since=since) == [bob]
    assert await ids(since=since + 1.0) == []


async def test_a_replayed_job_is_no_dead_letter_until_it_fails_again(office: Office) -> None:
    job_id = await office.fail_new(message="first")
    await office.replay(job_id)
    assert await office.store.dead_letters() == []
    assert await office.store.failed() == []
    [lease] = await office.claim()
    await office.fail(lease.job, "second")
    [group] = await office.store.dead_letters()
    assert (group.message, group.count, group.job_ids) == ("second", 1, (job_id,))


async def test_failed_jobs_are_found_by_what_their_group_shows(office: Office) -> None:
    long = "x" * 70 + " 12345 and so on, longer than a group shows"
    ids = [
        await office.fail_new(message=message) for message in (long, "job 17 broke", "job 18 broke", "other")
    ]
    for group in await office.store.dead_letters():
        found = await office.store.failed(kind=group.kind, code=group.code, message=group.message)
        assert {job.job_id for job in found} == set(group.job_ids)
    assert [job.job_id for job in await office.store.failed(message="job 99 broke")] == ids[1:3]
    assert [job.job_id for job in await office.store.failed(message=mask(long))] == ids[:1]


async def test_failed_jobs_come_oldest_first_and_whole(office: Office) -> None:
    ids = []
    for n in range(4):
        ids.append(
            await office.fail_new("ab"[n % 2], owner="ann" if n < 2 else "bob", code=f"C{n}", message="x")
        )
        office.clock.advance(1.0)
    found = await office.store.failed()
    assert [job.job_id for job in found] == ids
    assert found == [await office.job(job_id) for job_id in ids]
    assert [job.job_id for job in await office.store.failed(limit=2)] == ids[:2]
    assert [job.job_id for job in await office.store.failed(owner="bob")] == ids[2:]
    assert [job.job_id for job in await office.store.failed(kind="b")] == ids[1::2]
    assert [job.job_id for job in await office.store.failed(code="C2")] == ids[2:3]
    assert [job.job_id for job in await office.store.failed(since=office.clock() - 2.0)] == ids[2:]


async def test_a_failure_has_code_message_epoch_and_attempt(office: Office) -> None:
    job_id = await office.fail_new(code="Odd", message='it said "é" \\ and more')
    error = json.loads((await office.job(job_id)).error or "")
    assert error == {
        "code": "Odd",
        "message": 'it said "é" \\ and more',
        "detail": None,
        "epoch": 1,
        "attempt": 1,
    }
    [group] = await office.store.dead_letters()
    assert group.message == 'it said "é" \\ and more'


async def test_a_huge_error_stops_no_other(office: Office) -> None:
    await office.fail_new(message="y" * 300_000)
    await office.fail_new(message="x")
    groups = await office.store.dead_letters()
    assert sorted(g.message for g in groups) == ["x", "y" * 80]


async def test_an_error_that_cannot_be_read_stops_no_other(office: Office, factory: Factory) -> None:
    broken = await office.fail_new(message="x")
    fine = await office.fail_new(message="y")
    await factory.spoil(office.store, broken, error="{broken")
    assert fine in {job_id for group in await office.store.dead_letters() for job_id in group.job_ids}
    assert fine in {job.job_id for job in await office.store.failed()}
