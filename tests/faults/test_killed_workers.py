"""Workers killed in the middle of their work."""

from __future__ import annotations

import pytest

from tests.faults import scenarios
from tests.faults.ground import Ground

PATIENT = {"MAX_CRASHES": "100", "MAX_CRASHES_TOTAL": "1000"}


@pytest.mark.parametrize("quick", [PATIENT])
@pytest.mark.parametrize("kind", ["steady", "apart"])
async def test_killing_the_worker_in_the_middle_costs_the_items_in_flight_and_nothing_else(
    ground: Ground, kind: str
) -> None:
    await scenarios.killed_in_the_middle(ground, kind, 8, seed=1)
    await scenarios.nothing_is_wrong(ground)


async def test_a_job_that_kills_its_worker_each_time_is_claimed_three_times_and_fails(ground: Ground) -> None:
    """From its second run on it is in a child, and kills only that: its neighbours have their peace."""
    await scenarios.deadly_job(ground, "deadly", neighbours=5)
    await scenarios.nothing_is_wrong(ground)


async def test_also_one_that_kills_its_worker_out_of_a_child(ground: Ground) -> None:
    await scenarios.deadly_job(ground, "murderous", neighbours=0)
    assert ground.faults.counts["a job killed its worker"] >= 2
    await scenarios.nothing_is_wrong(ground)
