"""The service killed every two seconds under fifty submissions a second, for minutes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.flood import Flooded, check
from tests.faults.ground import Faults

KILLS = int(os.environ.get("CAMPAIGN_KILLS", "60"))


@pytest.mark.timeout(60 + 10 * KILLS)
async def test_the_service_is_killed_every_two_seconds_under_load(
    short_path: Path, free_port: int, faults: Faults
) -> None:
    flooded = Flooded(short_path, free_port, faults, per_second=50.0)
    try:
        await flooded.run(KILLS, jobs_between=1, seconds_between=2.0)
        check(flooded.told, await flooded.found(), faults)
        print(f"\n{KILLS} kills: {faults.words()}")
    finally:
        flooded.close()
