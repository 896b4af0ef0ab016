"""The store's own look at itself: finds nothing after work, and finds a row that was changed by hand."""

from __future__ import annotations

from postroom.model import OutcomeKind
from postroom.stores.port import Retention
from tests.stores.conftest import Factory
from tests.stores.office import Office, item


async def work(office: Office) -> None:
    """A bit of everything."""
    await office.succeed_new()
    await office.fail_new(message="x", owner="ann")
    job = await office.start(items=["1", "2"])
    await office.beat(job, checkpoints=(item("0", "1"),))
    await office.settle(job, OutcomeKind.RELEASED)
    await office.claim()
    office.clock.advance(60.0)
    await office.sweep()
    await office.replay(office.submitted[1])
    await office.cancel(office.submitted[1])
    await office.submit(run_at=office.clock() + 100.0)
    await office.succeed_new("other")
    office.clock.advance(10.0)
    await office.store.purge(Retention(5.0, None), limit=1)


async def test_an_empty_store_is_sound(office: Office) -> None:
    assert await office.store.verify() == []


async def test_a_store_is_sound_after_work(office: Office) -> None:
    await work(office)
    assert await office.store.verify() == []


async def test_a_row_whose_journal_has_fewer_lines_is_found(office: Office, factory: Factory) -> None:
    await work(office)
    job_id = office.submitted[2]
    await factory.spoil(office.store, job_id, lines=99)
    assert any(job_id in wrong for wrong in await office.store.verify())
