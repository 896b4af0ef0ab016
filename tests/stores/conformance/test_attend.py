"""Workers that say they live."""

from __future__ import annotations

from dataclasses import replace

from postroom.model import WorkerInfo
from tests.stores.office import TICK, Office


def info(office: Office, name: str, **fields: object) -> WorkerInfo:
    now = office.clock()
    worker = WorkerInfo(name, ("a", "b"), ("default", "slow"), 8, "host", 4711, now, now, False, "1.0")
    return replace(worker, **fields)  # type: ignore[arg-type]


async def test_a_worker_is_listed_as_it_introduced_itself(office: Office) -> None:
    worker = info(office, "w1")
    await office.store.attend(worker)
    assert await office.store.workers() == [worker]


async def test_workers_are_listed_oldest_first(office: Office) -> None:
    for name in ("w3", "w1", "w2"):
        await office.store.attend(info(office, name))
        office.clock.advance(1.0)
    assert [worker.worker for worker in await office.store.workers()] == ["w3", "w1", "w2"]


async def test_a_worker_that_attends_again_is_one_worker_seen_later(office: Office) -> None:
    worker = info(office, "w1")
    await office.store.attend(worker)
    office.clock.advance(5.0)
    await office.store.attend(replace(worker, concurrency=9, seen_at=office.clock()))
    assert await office.store.workers() == [replace(worker, concurrency=9, seen_at=office.clock())]


async def test_seen_is_told_by_the_clock_of_the_store(office: Office) -> None:
    await office.store.attend(info(office, "w1", seen_at=office.clock() - 3600.0))
    [worker] = await office.store.workers()
    assert worker.seen_at == office.clock()


async def test_a_worker_is_left_out_once_it_was_not_seen_for_too_long(office: Office) -> None:
    await office.store.attend(info(office, "w1"))
    office.clock.advance(90.0)
    assert len(await office.store.workers(90.0)) == 1
    office.clock.advance(TICK)
    assert await office.store.workers(90.0) == []
    assert len(await office.store.workers(1000.0)) == 1


async def test_a_worker_that_left_is_not_listed(office: Office) -> None:
    for name in ("w1", "w2"):
        await office.store.attend(info(office, name))
    await office.store.leave("w1")
    await office.store.leave("nobody")
    assert [worker.worker for worker in await office.store.workers()] == ["w2"]
