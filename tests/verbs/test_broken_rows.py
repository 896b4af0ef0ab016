"""A row that somebody else's hand made unreadable harms no other job of the same call (I35)."""

from __future__ import annotations

import pytest

from postroom.desk import Desk
from postroom.errors import StoreError
from postroom.model import Beat, Checkpoint, CheckpointKind, Outcome, OutcomeKind, evolve
from postroom.stores.memory import MemoryStore
from postroom.testing import ManualClock
from tests.verbs.conftest import SETTINGS, World


@pytest.mark.parametrize("broken", [{"usage": "{broken"}, {"kept": "broken"}, {"usage": "[]"}])
async def test_a_broken_row_harms_no_other_beat_or_settle(broken: dict[str, str]) -> None:
    store = MemoryStore(clock=(clock := ManualClock()))
    world = World(Desk(store, SETTINGS, jitter=lambda: 1.0), store, clock)
    jobs = [(await world.start(items=[1])).job for _ in range(2)]
    row = store._rows[jobs[0].job_id]
    row.job = evolve(row.job, **broken)
    kept = (Checkpoint(CheckpointKind.ITEM, "0", value="1"),)
    told = [Beat(job.job_id, job.epoch, checkpoints=kept, usage={"tokens": 1}, seq=1) for job in jobs]
    assert [answer.status for answer in await world.verbs.heartbeat(told)] == ["invalid", "ok"]
    ends = [
        Outcome(job.job_id, job.epoch, OutcomeKind.SUCCEEDED, None, kept, usage={"tokens": 1}) for job in jobs
    ]
    answers = await world.verbs.settle(ends)
    assert [answer.status for answer in answers] == ["invalid", "ok"]
    assert "cannot be read" in (answers[0].detail or "")


async def test_who_asks_for_a_broken_row_alone_is_told() -> None:
    store = MemoryStore(clock=(clock := ManualClock()))
    world = World(Desk(store, SETTINGS, jitter=lambda: 1.0), store, clock)
    job_id = await world.dead()
    row = store._rows[job_id]
    row.job = evolve(row.job, kept="broken")
    with pytest.raises(StoreError, match=f"job {job_id} cannot be read"):
        await world.verbs.replay(job_id)
