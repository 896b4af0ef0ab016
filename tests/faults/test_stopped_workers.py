"""Workers that stand still past their lease and go on after another took their job over."""

from __future__ import annotations

from tests.faults import scenarios
from tests.faults.ground import Ground

WRITES = {"heartbeat", "progress", "checkpoint", "step"}
ENDS = {"result", "success", "failure", "hold", "release", "crash", "cancelled"}


async def test_all_writes_of_a_worker_that_stood_still_are_refused_and_nothing_changes(
    ground: Ground,
) -> None:
    answers, has_changed = await scenarios.stopped_past_its_lease(ground)
    assert answers == dict.fromkeys(WRITES | ENDS, "lease_lost")
    assert not has_changed
    await scenarios.nothing_is_wrong(ground)


async def test_control_without_the_fence_a_late_write_wins(ground: Ground) -> None:
    answers, has_changed = await scenarios.stopped_past_its_lease(ground, "--no-fence")
    assert answers["checkpoint"] == "ok"
    assert has_changed
    ground.faults.fired("late write that won without the fence")


async def test_a_worker_that_stood_still_loses_its_job_although_its_guardian_lives(ground: Ground) -> None:
    await scenarios.stopped_worker(ground)
    await scenarios.nothing_is_wrong(ground)
