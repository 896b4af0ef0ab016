"""The numbers: delays double, jitter stays in its window, places are fair whatever comes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.policy import JITTER_HIGH, JITTER_LOW, Policy, backoff, next_place


def test_delays_are_two_four_eight_up_to_the_cap() -> None:
    assert [backoff(n, Policy()) for n in range(1, 6)] == [2.0, 4.0, 8.0, 16.0, 32.0]
    assert backoff(11, Policy()) == 2048.0
    assert backoff(12, Policy()) == backoff(10**6, Policy()) == 3600.0


@pytest.mark.parametrize("count", [0, -1])
def test_a_delay_counts_from_one(count: int) -> None:
    with pytest.raises(ValueError, match="from 1"):
        backoff(count, Policy())


@given(st.integers(1, 10**9), st.floats(0.0, 1e6), st.floats(0.0, 1e6), st.floats(JITTER_LOW, JITTER_HIGH))
def test_a_delay_stays_within_the_jitter_of_the_cap(
    count: int, base: float, cap: float, jitter: float
) -> None:
    policy = Policy(backoff_base_seconds=base, backoff_cap_seconds=cap)
    delay = backoff(count, policy, jitter=jitter)
    assert 0.0 <= delay <= cap * JITTER_HIGH
    assert delay == pytest.approx(backoff(count, policy) * jitter)
    assert backoff(count + 1, policy) >= backoff(count, policy)


def test_the_first_place_is_after_the_clock_and_the_next_after_the_last() -> None:
    assert next_place(0.0, None) == 1.0
    assert next_place(5.0, None) == 6.0
    assert next_place(5.0, 9.0) == 10.0
    assert next_place(5.0, 5.0) == 6.0
    assert next_place(5.0, 4.0) == 6.0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=200))
def test_places_rise_per_share_and_no_share_is_ahead_by_more_than_one(steps: list[tuple[str, bool]]) -> None:
    """While several shares wait, what each got since they all wait differs by one at most."""
    clock, last = 0.0, dict[str, float]()
    waiting: list[tuple[float, int, str]] = []
    got: dict[str, int] = {}
    for n, (share, claims) in enumerate(steps):
        if claims and waiting:
            first = min(waiting)
            waiting.remove(first)
            clock = max(clock, first[0])
            got[first[2]] = got.get(first[2], 0) + 1
        else:
            place = next_place(clock, last.get(share))
            assert place > last.get(share, -1.0)
            assert place > clock
            if share not in {who for _, _, who in waiting}:
                got = {}  # the set of those who wait changed: count anew
            last[share] = place
            waiting.append((place, n, share))
        shares = {who for _, _, who in waiting}
        got = {who: number for who, number in got.items() if who in shares} if shares else {}
        if len(shares) > 1 and set(got) == shares:
            assert max(got.values()) - min(got.values()) <= 2
