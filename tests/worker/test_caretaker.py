"""The chores of a worker: sweeping and purging."""

from __future__ import annotations

import logging

import pytest

from postroom import Inbox
from postroom.desk import Desk
from postroom.model import Outcome, OutcomeKind
from postroom.settings import Settings
from postroom.stores.memory import MemoryStore
from postroom.stores.port import ClaimRequest
from postroom.testing import ManualClock
from postroom.verbs import Swept
from postroom.worker.caretaker import Caretaker
from postroom.worker.heartbeat import StoreState

log = logging.getLogger("postroom.worker")
SETTINGS = Settings(store="memory://", retain_succeeded_days=1.0)


class Office:
    """An inbox on a clock that the test moves, and a caretaker whose worker's beats are as fresh as the test says."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.desk = Desk(MemoryStore(clock=self.clock), SETTINGS)
        self.inbox = Inbox.over(self.desk, SETTINGS)
        self.is_fresh = True

        async def is_fresh() -> bool:
            return self.is_fresh

        self.caretaker = Caretaker(
            self.desk, SETTINGS, is_fresh=is_fresh, state=StoreState(log, "w"), log=log
        )

    async def claimed(self, lease_seconds: float) -> str:
        job = await self.inbox.submit("any", "x")
        [lease] = (await self.desk.claim(ClaimRequest("w", ("any",), lease_seconds=lease_seconds))).leases
        assert lease.job.job_id == job.job_id
        return job.job_id


@pytest.fixture
def office() -> Office:
    return Office()


async def test_a_lease_is_left_alone_until_its_very_end_and_taken_back_then(office):
    job_id = await office.claimed(60)
    office.clock.advance(59.999)
    await office.caretaker.sweep()
    assert (await office.inbox.get(job_id)).state == "running"
    office.clock.advance(0.001)
    await office.caretaker.sweep()
    job = await office.inbox.get(job_id)
    assert (job.state, job.crashes, job.attempts) == ("queued", 1, 0)


async def test_nothing_is_swept_while_the_own_beats_are_not_known_to_have_arrived(office):
    job_id = await office.claimed(60)
    office.clock.advance(100)
    office.is_fresh = False
    await office.caretaker.sweep()
    assert (await office.inbox.get(job_id)).state == "running"
    office.is_fresh = True
    await office.caretaker.sweep()
    assert (await office.inbox.get(job_id)).state == "queued"


async def test_jobs_past_their_retention_are_purged_in_batches(office, monkeypatch):
    monkeypatch.setattr("postroom.worker.caretaker.PURGE_BATCH", 10)
    monkeypatch.setattr("postroom.worker.caretaker.PURGE_BATCHES", 2)
    for _ in range(25):
        job_id = await office.claimed(60)
        await office.desk.settle([Outcome(job_id, 1, OutcomeKind.SUCCEEDED, "1")])
    await office.caretaker.purge()
    assert (await office.inbox.stats()).states["succeeded"] == 25
    office.clock.advance(2 * 86_400)
    await office.caretaker.purge()
    assert (await office.inbox.stats()).states["succeeded"] == 5
    await office.caretaker.purge()
    assert (await office.inbox.stats()).states["succeeded"] == 0


async def test_a_row_that_cannot_be_read_is_told_of_once(office, monkeypatch, caplog):
    async def sweep():
        return Swept(broken=(("0" * 32, "no lease"),))

    monkeypatch.setattr(office.desk, "sweep", sweep)
    await office.caretaker.sweep()
    await office.caretaker.sweep()
    assert caplog.text.count("cannot be read") == 1


async def test_where_a_service_does_the_chores_there_are_none(office, monkeypatch):
    monkeypatch.setattr(office.desk, "is_remote", True, raising=False)
    job_id = await office.claimed(60)
    office.clock.advance(100)
    await office.caretaker.run()
    assert (await office.inbox.get(job_id)).state == "running"
