"""Dead letters: groups, and replaying them in numbers."""

from __future__ import annotations

from typing import Any

import pytest

from postroom.errors import DraftInvalid, JobNotFound
from postroom.model import State
from postroom.verbs import ReplayRequest
from tests.verbs.conftest import NOBODY, World


async def press(world: World, *job_ids: str, **request: Any) -> int:
    return await world.verbs.replay_dead(ReplayRequest(tuple(job_ids), **request))


async def letters(world: World, count: int, **fields: Any) -> list[str]:
    return [await world.dead(**fields) for _ in range(count)]


async def queued(world: World) -> int:
    return len(await world.found(states=(State.QUEUED,)))


# ---- groups


async def test_failures_that_are_alike_are_one_group(world: World) -> None:
    ids = [await world.dead(message=f"row {n} is broken") for n in range(3)]
    at = world.clock.advance(10)
    await world.dead(message="no answer")
    mail = await world.dead("mail", message="row 1 is broken")
    groups = await world.verbs.dead_letters()
    largest = groups[0]
    assert (largest.kind, largest.code, largest.message) == ("note", "Broken", "row <n> is broken")
    assert largest.count == 3
    assert sorted(groups[0].job_ids) == sorted(ids)
    assert groups[0].first_at < groups[0].last_at
    assert sorted((g.kind, g.message) for g in groups[1:]) == [
        ("mail", "row <n> is broken"),
        ("note", "no answer"),
    ]
    assert [g.job_ids for g in await world.verbs.dead_letters(kind="mail")] == [(mail,)]
    late = await world.verbs.dead_letters(since=at)
    assert sorted(g.message for g in late) == ["no answer", "row <n> is broken"]
    assert sum(g.count for g in groups) == 5


async def test_a_group_shows_twenty_of_its_jobs(world: World) -> None:
    await letters(world, 23)
    [group] = await world.verbs.dead_letters()
    assert (group.count, len(group.job_ids)) == (23, 20)


async def test_what_was_replayed_is_no_dead_letter(world: World) -> None:
    job_id = await world.dead()
    await world.verbs.replay(job_id)
    assert await world.verbs.dead_letters() == []


# ---- replay


async def test_replayed_by_ids(world: World) -> None:
    first, second, third = await letters(world, 3)
    assert await press(world, first, third) == 2
    assert await world.states(first, second, third) == ["queued", "failed", "queued"]


async def test_an_id_twice_is_one_replay(world: World) -> None:
    job_id = await world.dead()
    assert await press(world, job_id, job_id) == 1
    assert (await world.job(job_id)).replays == 1


async def test_replayed_by_the_message_that_the_group_shows(world: World) -> None:
    ids = [await world.dead(message=f"row {n} of deadbeef{n} is broken") for n in range(3)]
    other = await world.dead(message="no answer")
    [group] = [g for g in await world.verbs.dead_letters() if g.count == 3]
    assert await press(world, kind=group.kind, code=group.code, message=group.message) == 3
    assert await world.states(*ids, other) == ["queued"] * 3 + ["failed"]


async def test_replayed_by_kind_alone_and_by_time(world: World) -> None:
    early = await world.dead("mail")
    at = world.clock.advance(10)
    late = await world.dead("mail")
    assert await press(world, kind="mail", since=at) == 1
    assert await world.states(early, late) == ["failed", "queued"]
    assert await press(world, kind="mail") == 1
    assert await world.states(early, late) == ["queued", "queued"]


async def test_pressed_twice_it_is_one_replay(world: World) -> None:
    ids = await letters(world, 3)
    assert await press(world, kind="note") == 3
    assert await press(world, kind="note") == 0
    assert await press(world, *ids) == 0
    assert [(await world.job(job_id)).replays for job_id in ids] == [1, 1, 1]


async def test_what_is_no_dead_letter_is_left_alone(world: World) -> None:
    dead, live = await world.dead(), await world.submit("other")
    assert await press(world, dead, live) == 1
    assert (await world.job(live)).replays == 0


async def test_an_unknown_id_is_told_and_nothing_replayed(world: World) -> None:
    job_id = await world.dead()
    with pytest.raises(JobNotFound):
        await press(world, job_id, NOBODY)
    assert await world.state(job_id) == State.FAILED


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"job_ids": (NOBODY,), "kind": "note"},
        {"kind": "note", "canary": 0},
        {"kind": "note", "canary": -1},
        {"kind": "note", "per_second": 0.0},
        {"kind": "note", "per_second": -1.0},
        {"kind": "note", "per_second": 1e7},
    ],
)
async def test_a_request_that_cannot_be_is_refused(world: World, request_: dict[str, Any]) -> None:
    job_id = await world.dead()
    with pytest.raises(DraftInvalid):
        await world.verbs.replay_dead(ReplayRequest(**request_))
    assert await world.state(job_id) == State.FAILED


# ---- canaries


async def test_the_rest_follows_when_the_canaries_succeed(world: World) -> None:
    await letters(world, 5)
    assert await press(world, kind="note", canary=2) == 5
    assert await queued(world) == 2
    leases = await world.claim(limit=10)
    assert (await world.house.sweep()).replayed == 0  # they run
    await world.succeed(leases[0])
    assert (await world.house.sweep()).replayed == 0  # one of them does
    await world.succeed(leases[1])
    assert (await world.house.sweep()).replayed == 3
    assert await queued(world) == 3
    assert (await world.house.sweep()).replayed == 0


async def test_a_failing_canary_stops_the_rest(world: World) -> None:
    await letters(world, 5)
    assert await press(world, kind="note", canary=2) == 5
    good, bad = await world.claim(limit=10)
    await world.succeed(good)
    await world.fail(bad)
    for _ in range(3):
        assert (await world.house.sweep()).replayed == 0
    assert len(await world.found(states=(State.FAILED,))) == 4
    assert await press(world, kind="note") == 4  # and may be pressed again


async def test_a_cancelled_canary_stops_the_rest(world: World) -> None:
    await letters(world, 3)
    await press(world, kind="note", canary=1)
    [canary] = await world.found(states=(State.QUEUED,))
    await world.verbs.cancel(canary)
    assert (await world.house.sweep()).replayed == 0
    assert await queued(world) == 0


async def test_more_canaries_than_letters_are_all_of_them(world: World) -> None:
    await letters(world, 2)
    assert await press(world, kind="note", canary=10) == 2
    assert await queued(world) == 2


async def test_pressed_twice_with_canaries_it_is_one_replay(world: World) -> None:
    ids = await letters(world, 4)
    assert await press(world, kind="note", canary=1) == 4
    assert await press(world, kind="note", canary=1) == 4
    assert await press(world, *ids, canary=1) == 4
    assert await queued(world) == 1
    assert sum([(await world.job(job_id)).replays for job_id in ids]) == 1


async def test_a_letter_of_a_plan_pressed_alone_is_one(world: World) -> None:
    ids = await letters(world, 4)
    await press(world, *ids, canary=1)
    [canary] = await world.found(states=(State.QUEUED,))
    waiting = next(job_id for job_id in ids if job_id != canary)
    assert await press(world, waiting, canary=1) == 1
    assert await queued(world) == 1


async def test_new_letters_beside_a_plan_are_taken_up(world: World) -> None:
    await letters(world, 3)
    await press(world, kind="note", canary=1)
    [lease] = await world.claim(limit=10)
    new = await world.submit()
    [other] = await world.claim()
    await world.fail(other)
    assert await press(world, kind="note", canary=1) == 3  # two that wait, and the new one
    assert await world.state(new) == State.QUEUED
    await world.succeed(lease)
    assert (await world.house.sweep()).replayed == 2


# ---- pace


async def test_so_many_a_second_and_no_more(world: World) -> None:
    await letters(world, 5)
    assert await press(world, kind="note", per_second=2) == 5
    assert await queued(world) == 1
    seen = []
    for _ in range(6):
        world.clock.advance(0.5)
        await world.house.sweep()
        await world.house.sweep()  # twice is no faster
        seen.append(await queued(world))
    assert seen == [2, 3, 4, 5, 5, 5]


async def test_a_long_pause_is_caught_up(world: World) -> None:
    await letters(world, 5)
    await press(world, kind="note", per_second=1)
    world.clock.advance(60)
    assert (await world.house.sweep()).replayed == 4


async def test_canaries_first_then_the_pace(world: World) -> None:
    await letters(world, 4)
    await press(world, kind="note", canary=1, per_second=1)
    [lease] = await world.claim(limit=10)
    world.clock.advance(10)
    assert (await world.house.sweep()).replayed == 0
    await world.succeed(lease)
    assert (await world.house.sweep()).replayed >= 1
    for _ in range(4):
        world.clock.advance(1)
        await world.house.sweep()
    assert await queued(world) == 3


# ---- restarts


async def test_a_plan_survives_a_new_desk_over_the_same_store(world: World) -> None:
    await letters(world, 4)
    assert await press(world, kind="note", canary=1) == 4
    [lease] = await world.claim(limit=10)
    await world.succeed(lease)
    restarted = world.new_house()
    assert (await restarted.sweep()).replayed == 3
    assert (await world.house.sweep()).replayed == 0


async def test_two_desks_take_a_step_once(world: World) -> None:
    ids = await letters(world, 6)
    await press(world, kind="note", per_second=1)
    world.clock.advance(2)
    counts = [(await house.sweep()).replayed for house in (world.house, world.new_house())]
    assert counts == [2, 0]
    assert sum([(await world.job(job_id)).replays for job_id in ids]) == 3


async def test_a_letter_that_was_replayed_by_hand_meanwhile_lives_once_more_only(world: World) -> None:
    ids = await letters(world, 3)
    await press(world, kind="note", per_second=1)
    for job_id in ids:
        if await world.state(job_id) == State.FAILED:
            await world.verbs.replay(job_id)
    world.clock.advance(60)
    assert (await world.house.sweep()).replayed == 0
    assert [(await world.job(job_id)).replays for job_id in ids] == [1, 1, 1]
