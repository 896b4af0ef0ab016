"""The service killed in the middle of submissions: acknowledged is present, and one job per key."""

from __future__ import annotations

from pathlib import Path

from tests.faults.flood import Flooded, check
from tests.faults.ground import Faults


async def test_what_was_acknowledged_is_there_once_however_often_the_service_is_killed(
    short_path: Path, free_port: int, faults: Faults
) -> None:
    flooded = Flooded(short_path, free_port, faults)
    try:
        await flooded.run(kills=4, jobs_between=60)
        check(flooded.told, await flooded.found(), faults)
        assert faults.counts["kill -9 of the service"] == 4
    finally:
        flooded.close()


async def test_control_without_keys_a_lost_answer_makes_a_second_job(
    short_path: Path, free_port: int, faults: Faults
) -> None:
    """It is the key that makes a repeat harmless: without it some jobs are doubled, as soon as answers are lost."""
    flooded = Flooded(short_path, free_port, faults, has_keys=False)
    doubled: list[int] = []
    try:
        for _ in range(20):
            await flooded.run(kills=1, jobs_between=20)
            doubled = [number for number, ids in (await flooded.found()).items() if len(ids) > 1]
            flooded.close()
            if doubled:
                break
        assert doubled, f"no job was doubled: {faults.words()}"
        faults.fired("job doubled without a key", len(doubled))
    finally:
        flooded.close()
