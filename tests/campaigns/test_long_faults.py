"""The faults of `tests/faults` for longer and at full size: ``python3 run.py campaign``, some minutes."""

from __future__ import annotations

import os
import random

import pytest

from tests.faults import scenarios
from tests.faults.ground import Ground
from tests.faults.test_interrupted_workers import USUAL_LEASE
from tests.faults.test_killed_workers import PATIENT

KILLS = int(os.environ.get("CAMPAIGN_KILLS", "50"))
SEED = int(os.environ.get("CAMPAIGN_SEED", str(random.randrange(10**6))))

pytestmark = pytest.mark.timeout(3600)


@pytest.mark.parametrize("quick", [PATIENT])
@pytest.mark.parametrize("kind", ["steady", "apart"])
async def test_fifty_kills_in_the_middle_of_jobs_of_twenty_items(ground: Ground, kind: str) -> None:
    print(f"seed {SEED}")
    await scenarios.killed_in_the_middle(ground, kind, KILLS, seed=SEED)
    await scenarios.nothing_is_wrong(ground)


@pytest.mark.parametrize("kind", ["deadly", "murderous"])
async def test_twenty_jobs_that_kill_their_worker(ground: Ground, kind: str) -> None:
    for _ in range(20):
        await scenarios.deadly_job(ground, kind, neighbours=5 if kind == "deadly" else 0)
    await scenarios.nothing_is_wrong(ground)


async def test_eight_restarts_during_a_job_of_a_minute(ground: Ground) -> None:
    await scenarios.restarts_during_one_job(ground, 8, items=60, seconds=3.0)
    await scenarios.nothing_is_wrong(ground)


@pytest.mark.parametrize("quick", [{"LEASE_SECONDS": "1"}, {"LEASE_SECONDS": "6", "HEARTBEAT_SECONDS": "1"}])
@pytest.mark.parametrize("kind", ["busy", "busy-plain", "frozen"])
async def test_handlers_that_hold_their_worker_up_for_ten_leases(ground: Ground, kind: str) -> None:
    """With the longer lease, what renews is made ready only when it is needed."""
    claims, leases = await scenarios.blocked_worker(ground, kind, 10.5 * ground.lease_seconds)
    assert claims == 1
    assert leases > 10
    ground.faults.fired("worker held up for ten leases")
    await scenarios.nothing_is_wrong(ground)


async def test_regular_expressions_that_hold_the_interpreters_lock(ground: Ground) -> None:
    for _ in range(5):
        await scenarios.locked_worker(ground)
    await scenarios.nothing_is_wrong(ground)


async def test_workers_that_stand_still_past_their_lease(ground: Ground) -> None:
    for _ in range(5):
        await scenarios.stopped_worker(ground)
    await scenarios.nothing_is_wrong(ground)


@pytest.mark.parametrize("quick", [USUAL_LEASE])
async def test_sixteen_processes_claim_a_thousand_jobs_from_one_file(ground: Ground) -> None:
    await scenarios.many_workers(ground, 16, 1000)
    await scenarios.nothing_is_wrong(ground)
