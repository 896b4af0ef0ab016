"""A job whose items came to a lot is looked at and read in pieces: never all of it at once."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import apsw
import pytest

from postroom import desk
from postroom.desk import Desk
from postroom.model import CheckpointKind, OutcomeKind
from postroom.stores.memory import MemoryStore
from postroom.stores.port import Reading
from postroom.stores.sqlite.store import SqliteStore
from postroom.testing import ManualClock
from tests.verbs.conftest import SETTINGS, World, item

ITEMS = 60
VALUE = json.dumps("x" * 400_000)


class Weighed(MemoryStore):
    """Remembers the most bytes of checkpoints that one reading gave, and all of them together."""

    most = total = 0

    async def get(
        self,
        job_ids: Collection[str],
        *,
        checkpoints: Mapping[str, Collection[tuple[CheckpointKind, str]]] | None = None,
    ) -> Reading:
        reading = await super().get(job_ids, checkpoints=checkpoints)
        weight = sum(len(c.value or "") for kept in reading.checkpoints.values() for c in kept)
        self.most, self.total = max(self.most, weight), self.total + weight
        return reading


async def ended(world: World, count: int, value: str) -> str:
    lease = await world.start(items=list(range(count)))
    kept = tuple(item(str(n), value) for n in range(count))
    await world.settle(lease, OutcomeKind.SUCCEEDED, result=None, checkpoints=kept)
    return lease.job.job_id


def weighed() -> tuple[Any, Weighed]:
    clock = ManualClock()
    store = Weighed(clock=clock)
    return World(Desk(store, SETTINGS, jitter=lambda: 1.0), store, clock), store


async def test_to_see_that_results_are_large_few_of_them_are_read() -> None:
    world, store = weighed()
    job_id = await ended(world, ITEMS, VALUE)
    store.total = 0
    job = await world.job(job_id)
    assert (job.result, job.result_url) == (None, f"/jobs/{job_id}/result")
    assert store.total < ITEMS * len(VALUE) / 4


async def test_large_results_are_read_some_at_a_time() -> None:
    world, store = weighed()
    job_id = await ended(world, ITEMS, VALUE)
    store.most = 0
    text = "".join([piece async for piece in world.verbs.result(job_id)])
    assert json.loads(text) == {"results": [json.loads(VALUE)] * ITEMS}
    assert store.most < ITEMS * len(VALUE) / 4


@pytest.mark.parametrize("count", [1, 7, 8, 9, 71, 72, 73, 1100])
async def test_pieces_make_the_whole(count: int) -> None:
    world, _ = weighed()
    job_id = await ended(world, count, '"v"')
    text = "".join([piece async for piece in world.verbs.result(job_id)])
    assert json.loads(text) == {"results": ["v"] * count}
    assert (await world.job(job_id)).result == {"results": ["v"] * count}


async def test_the_keys_of_few_jobs_are_remembered_where_they_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(desk, "KEYS_MOST", 100)
    world, _ = weighed()
    leases = [await world.start(items=list(range(40))) for _ in range(5)]
    for lease in leases:
        assert (await world.beat(lease, checkpoints=(item("0", "1"),))).status == "ok"
        assert (await world.beat(lease, checkpoints=(item("40", "1"),))).status == "invalid"
        assert sum(map(len, world.verbs._keys.values())) <= 100
    large = await world.start(items=list(range(101)))
    assert (await world.beat(large, checkpoints=(item("100", "1"),))).status == "ok"


async def test_items_together_past_the_longest_text_of_the_database_are_read(tmp_path: Path) -> None:
    store: Any = SqliteStore(f"sqlite:///{tmp_path / 'inbox.db'}", clock=(clock := ManualClock()))
    world = World(Desk(store, SETTINGS, jitter=lambda: 1.0), store, clock)
    await world.verbs.open()
    job_id = await ended(world, 10, VALUE)
    store._open.reader._near.limit(apsw.SQLITE_LIMIT_LENGTH, 2 * len(VALUE))  # a gigabyte in real life
    page = await world.verbs.items(job_id)
    assert [view.value for view in page.items] == [json.loads(VALUE)] * 10
    await world.verbs.close()
