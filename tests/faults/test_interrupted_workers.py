"""Workers that are told to end, or held up, in the middle of their work."""

from __future__ import annotations

import pytest

from tests.faults import scenarios
from tests.faults.ground import Ground


async def test_eight_restarts_during_one_job_cost_no_attempt(ground: Ground) -> None:
    await scenarios.restarts_during_one_job(ground, 8, items=60, seconds=0.1)
    await scenarios.nothing_is_wrong(ground)


USUAL_LEASE = {"LEASE_SECONDS": "60", "HEARTBEAT_SECONDS": "10"}
"""Where nothing is killed or held up, no lease may run out, however busy the machine is."""


@pytest.mark.parametrize("kind", ["busy", "busy-plain", "frozen"])
async def test_a_handler_that_holds_its_worker_up_keeps_its_lease(ground: Ground, kind: str) -> None:
    """By its event loop, by a busy thread, or by the interpreter's lock in a library."""
    claims, leases = await scenarios.blocked_worker(ground, kind, 4.5)
    assert claims == 1
    assert leases > 4
    ground.faults.fired("worker held up for four leases")
    await scenarios.nothing_is_wrong(ground)


async def test_a_regular_expression_that_holds_the_interpreters_lock_keeps_its_lease(ground: Ground) -> None:
    """No thread of the worker runs for four leases: the guardian speaks for it."""
    await scenarios.locked_worker(ground)
    await scenarios.nothing_is_wrong(ground)


async def test_control_without_a_guardian_such_a_handler_loses_it(ground: Ground) -> None:
    claims, _ = await scenarios.blocked_worker(ground, "frozen", 3.0, is_guarded=False)
    assert claims > 1
    ground.faults.fired("second claim without a guardian")


@pytest.mark.parametrize("quick", [USUAL_LEASE])
async def test_many_processes_claim_from_one_file_and_each_job_runs_once(ground: Ground) -> None:
    await scenarios.many_workers(ground, 6, 300)
    await scenarios.nothing_is_wrong(ground)
