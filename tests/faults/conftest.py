"""A ground per test, and a count of the faults that fired: printed at the end, and none is a failure."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.ground import Faults, Ground

FIRED: dict[str, Faults] = {}


@pytest.fixture
def faults(request: pytest.FixtureRequest) -> Iterator[Faults]:
    faults = Faults()
    yield faults
    FIRED[request.node.nodeid] = faults
    if not faults.counts:
        pytest.fail("no fault fired: this run shows nothing", pytrace=False)


@pytest.fixture
def quick() -> dict[str, str]:
    """Settings of the workers beyond `QUICK`; tests override it by parametrising."""
    return {}


@pytest.fixture
async def ground(short_path: Path, faults: Faults, quick: dict[str, str]) -> AsyncIterator[Ground]:
    ground = Ground(short_path, faults, dict(quick))
    yield ground
    await ground.close()
    leftover = [f"{p.pid} {' '.join(p.cmdline())}" for p in await settled(ground)]
    assert not leftover, f"processes outlived their workers: {leftover}"


async def settled(ground: Ground) -> list[Any]:
    """What is still alive a moment after the workers ended."""
    try:
        await ground.until(lambda: not list(ground.descendants()), "all ended", seconds=5)
    except AssertionError:
        return list(ground.descendants())
    return []


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if FIRED:
        terminalreporter.section("faults that fired")
    for test, faults in FIRED.items():
        terminalreporter.write_line(f"{test.rpartition('::')[2]}: {faults.words()}")
