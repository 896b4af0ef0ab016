"""Health is proven by a write: a store that can only be read takes no work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from postroom.desk import Desk
from postroom.errors import StoreFull
from postroom.proof import PROOF_SECONDS, WriteProof
from postroom.settings import Settings
from postroom.stores.memory import MemoryStore
from postroom.stores.sqlite.store import SqliteStore
from postroom.testing import ManualClock


class Counted(MemoryStore):
    """Counts its writes, and fails them while it is full."""

    is_full = False
    writes = 0

    async def keep(self, name: str, value: str | None, *, before: str | None) -> bool:
        self.writes += 1
        if self.is_full:
            raise StoreFull("no room left")
        return await super().keep(name, value, before=before)


@pytest.fixture
async def sqlite(tmp_path: Path) -> AsyncIterator[Desk]:
    desk = Desk(SqliteStore(f"sqlite:///{tmp_path / 'inbox.db'}"), Settings())
    await desk.open()
    yield desk
    await desk.close()


async def test_a_store_whose_file_was_removed_is_unavailable(sqlite: Desk, tmp_path: Path) -> None:
    await sqlite.stats()
    for path in tmp_path.glob("inbox.db*"):
        if path.is_file():
            path.unlink()
    health = await sqlite.health()
    assert health.status == "unavailable"
    assert "nothing was written" in (health.detail or "")


async def test_a_store_that_takes_writes_is_ok(sqlite: Desk) -> None:
    assert (await sqlite.health()).status == "ok"
    assert (await sqlite.health()).status == "ok"


async def test_a_full_store_is_unavailable_until_there_is_room() -> None:
    store = Counted()
    desk = Desk(store, Settings())
    store.is_full = True
    for _ in range(2):
        assert ((await desk.health()).status, (await desk.health()).detail) == ("unavailable", "no room left")
    store.is_full = False
    assert (await desk.health()).status == "ok"


async def test_however_many_ask_there_is_one_write_in_a_while() -> None:
    clock, store = ManualClock(), Counted()
    proof = WriteProof(clock)
    await asyncio.gather(*(proof.write(store) for _ in range(20)))
    assert store.writes == 1
    clock.advance(PROOF_SECONDS)
    await proof.write(store)
    assert store.writes == 2


async def test_two_services_over_one_store_prove_it_side_by_side() -> None:
    clock, store = ManualClock(), Counted()
    proofs = [WriteProof(clock) for _ in range(5)]
    for _ in range(3):
        await asyncio.gather(*(proof.write(store) for proof in proofs))
        clock.advance(PROOF_SECONDS)
    assert len(await store.kept("")) == 1
