"""Another's job looks like none. Over HTTP it is the key that says who one is, so there nobody may name an owner."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from postroom.errors import AccessRefused, JobNotFound, JobPurged
from postroom.model import State
from postroom.stores.port import Query
from postroom.verbs import Receipt, ReplayRequest, Verbs
from tests.verbs.conftest import NOBODY, World


async def read(verbs: Verbs, job_id: str, owner: str) -> str:
    return "".join([piece async for piece in verbs.result(job_id, owner=owner)])


BY_ID: dict[str, Callable[[Verbs, str, str], Awaitable[object]]] = {
    "get": lambda verbs, job_id, owner: verbs.get(job_id, owner=owner),
    "items": lambda verbs, job_id, owner: verbs.items(job_id, owner=owner),
    "payload": lambda verbs, job_id, owner: verbs.payload(job_id, owner=owner),
    "result": read,
    "journal": lambda verbs, job_id, owner: verbs.journal(job_id, owner=owner),
    "cancel": lambda verbs, job_id, owner: verbs.cancel(job_id, owner=owner),
    "replay": lambda verbs, job_id, owner: verbs.replay(job_id, owner=owner),
    "replay_dead": lambda verbs, job_id, owner: verbs.replay_dead(ReplayRequest((job_id,)), owner=owner),
}
LISTS: dict[str, Callable[[Verbs, str], Awaitable[object]]] = {
    "find": lambda verbs, owner: verbs.find(Query(owner=owner)),
    "dead_letters": lambda verbs, owner: verbs.dead_letters(owner=owner),
    "replay_dead": lambda verbs, owner: verbs.replay_dead(ReplayRequest(kind="note"), owner=owner),
    "stats": lambda verbs, owner: verbs.stats(owner=owner),
}


async def of_ann(world: World) -> tuple[str, str]:
    """A queued job and a dead letter of somebody, made beside the store."""
    queued, failed = await world.house.submit([world.draft(owner="ann"), world.draft("dies", owner="ann")])
    assert isinstance(queued, Receipt)
    assert isinstance(failed, Receipt)
    [lease] = await world.claim("dies")
    await world.fail(lease)
    return queued.job_id, failed.job_id


@pytest.mark.parametrize("verb", BY_ID)
async def test_anothers_job_is_answered_as_one_that_does_not_exist(world: World, verb: str) -> None:
    for job_id in await of_ann(world):
        before = await world.job(job_id)
        told = []
        for asked in (job_id, NOBODY):
            with pytest.raises((JobNotFound, AccessRefused)) as refused:
                await BY_ID[verb](world.verbs, asked, "bob")
            assert isinstance(refused.value, AccessRefused) is world.verbs.is_remote
            told.append((type(refused.value), str(refused.value)))
        assert told[0] == told[1]
        assert await world.job(job_id) == before


@pytest.mark.parametrize("verb", LISTS)
async def test_nothing_is_listed_counted_or_replayed_of_anothers(world: World, verb: str) -> None:
    queued, failed = await of_ann(world)
    if world.verbs.is_remote:
        with pytest.raises(AccessRefused):
            await LISTS[verb](world.verbs, "bob")
    else:
        before = await LISTS[verb](world.verbs, "nobody at all")
        assert await LISTS[verb](world.verbs, "bob") == before
    assert await world.states(queued, failed) == ["queued", "failed"]


async def test_an_owner_sees_what_is_theirs(world: World) -> None:
    queued, failed = await of_ann(world)
    mine = await world.submit("note")
    local = await world.verbs.find(Query(owner="local"))
    if not world.verbs.is_remote:  # without keys, whoever is answered over HTTP owns all
        assert [job.job_id for job in local.jobs] == [mine]
        ann = await world.verbs.find(Query(owner="ann"))
        assert [job.job_id for job in ann.jobs] == [failed, queued]
        assert (await world.verbs.get(queued, owner="ann")).job_id == queued
        assert (await world.verbs.cancel(queued, owner="ann")).state is State.CANCELLED
        [group] = await world.verbs.dead_letters(owner="ann")
        assert group.job_ids == (failed,)
        assert await world.verbs.replay_dead(ReplayRequest(kind="dies"), owner="ann") == 1
    assert (await world.verbs.get(mine, owner="local")).job_id == mine


async def test_a_key_belongs_to_its_owner(world: World) -> None:
    [ann] = await world.house.submit([world.draft(owner="ann", key="k")])
    mine = await world.submit(key="k")
    assert isinstance(ann, Receipt)
    assert ann.job_id != mine


async def test_a_job_cannot_be_submitted_in_anothers_name_over_http(world: World) -> None:
    draft = world.draft(owner="ann")
    if world.verbs.is_remote:
        with pytest.raises(AccessRefused):
            await world.verbs.submit([draft])
        assert await world.found() == []
    else:
        [receipt] = await world.verbs.submit([draft])
        assert isinstance(receipt, Receipt)


async def test_what_was_purged_of_anothers_was_never_there(world: World) -> None:
    _, failed = await of_ann(world)
    world.clock.advance(366 * 86_400)
    assert await world.house.purge() == 1
    with pytest.raises(JobPurged):
        await world.job(failed)
    with pytest.raises((JobNotFound, AccessRefused)):
        await world.verbs.get(failed, owner="bob")
