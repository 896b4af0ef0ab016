"""The clock that tests move."""

from __future__ import annotations

import pytest

from postroom.testing import ManualClock


def test_it_stands_still_until_it_is_told_to_go_on() -> None:
    clock = ManualClock(100.0)
    assert [clock(), clock()] == [100.0, 100.0]
    assert clock.advance(2.5) == 102.5
    assert clock() == 102.5


def test_it_goes_back_only_where_that_is_said() -> None:
    clock = ManualClock(100.0)
    with pytest.raises(ValueError, match="not back"):
        clock.advance(-1.0)
    clock.set_to(50.0)
    assert clock() == 50.0
