"""Every order of events up to a depth: the real rules hold, and each protection that is taken away shows its fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from postroom import lifecycle
from postroom.lifecycle import TRANSITIONS
from postroom.model import Change, Job, Limits, State, evolve
from tests.lifecycle.world import POLICY, Explorer, Held, Rules, World, first

DEPTH = 8


def whatever_runs(world: World, held: Held) -> int:
    """No fence: a write is taken as if it came from the run that goes on."""
    return world.job.epoch


def by_attempt(world: World, held: Held) -> int:
    """A fence on the number of the attempt, which a hold, a release and a crash give back."""
    return world.job.epoch if held.attempt == world.job.attempts else -1


NO_FENCE = Rules("no fence", whatever_runs)
FENCE_ON_ATTEMPTS = Rules("fence on attempts", by_attempt)
NO_CAP = Rules("no crash cap", policy=replace(POLICY, max_crashes=10**9, max_crashes_total=10**9))
NO_BUDGET = Rules("no budget of attempts", limits=Limits(max_attempts=10**9))

WORLDS: dict[str, Callable[[], World]] = {
    "content": first,
    "item": lambda: first(items=1),
    "expiring": lambda: first(expires_at=2.0),
    "delayed": lambda: first(run_at=1.0),
}


@pytest.mark.parametrize("name", WORLDS)
def test_the_real_rules_hold_in_every_order_of_events(name: str) -> None:
    explorer = Explorer(Rules(), DEPTH, WORLDS[name]()).explore()
    print(f"{name}: {len(explorer.seen)} worlds, {len(explorer.edges)} edges, depth {DEPTH}")  # noqa: T201  # pytest -s shows it
    assert explorer.fault is None, explorer.counterexample()
    assert len(explorer.seen) > 1000


def test_the_check_walks_every_edge_of_the_table() -> None:
    """What is never walked is not checked."""
    walked: set[tuple[State, State]] = set()
    for make in WORLDS.values():
        walked |= Explorer(Rules(), 7, make()).explore().edges
    assert walked == {(state, to) for (state, _), states in TRANSITIONS.items() if state for to in states}


@pytest.mark.parametrize(
    ("rules", "name", "fault"),
    [
        (NO_FENCE, "content", "I03"),
        (NO_FENCE, "item", "I03"),
        (FENCE_ON_ATTEMPTS, "content", "I03"),
        (FENCE_ON_ATTEMPTS, "item", "I03"),
        (NO_CAP, "content", "I16"),
        (NO_CAP, "item", "I16"),
        (NO_BUDGET, "content", "I15"),
    ],
    ids=lambda each: getattr(each, "name", each),
)
def test_without_a_protection_its_fault_is_found(rules: Rules, name: str, fault: str) -> None:
    explorer = Explorer(rules, DEPTH, WORLDS[name]()).explore()
    print(explorer.counterexample())  # noqa: T201  # pytest -s shows it
    assert explorer.fault is not None
    assert explorer.fault.startswith(fault)
    assert 3 <= len(explorer.path) <= DEPTH + 1


def spoil_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rescue that does not look at the lease."""
    rescue = lifecycle.rescue
    monkeypatch.setattr(
        lifecycle, "rescue", lambda job, i, facts: rescue(job, replace(i, is_proven=True), facts)
    )


def spoil_cancel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hold that forgets that somebody asked the job to stop."""
    hold = lifecycle._hold

    def forgetful(run: Any, outcome: Any) -> Change:
        return hold(run._replace(job=evolve(run.job, cancel_requested=False)), outcome)

    monkeypatch.setattr(lifecycle, "_hold", forgetful)


def spoil_conflicts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints that take the last value."""
    monkeypatch.setattr(lifecycle._Offer, "_is_new", lambda self, offered, before, facts: True)


def spoil_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay that starts the epochs anew."""
    replay = lifecycle.replay

    def anew(job: Job, intent: Any, facts: Any) -> Any:
        change = replay(job, intent, facts)
        return change._replace(job=evolve(change.job, epoch=0))

    monkeypatch.setattr(lifecycle, "replay", anew)


@pytest.mark.parametrize(
    ("spoil", "name", "fault"),
    [
        (spoil_sweep, "content", "I01"),
        (spoil_cancel, "content", "I19"),
        (spoil_conflicts, "content", "I26"),
        (spoil_conflicts, "item", "I29"),
        (spoil_epochs, "content", "I02"),
    ],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_a_spoilt_rule_is_found(spoil: Any, name: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch)
    explorer = Explorer(Rules(), DEPTH, WORLDS[name]()).explore()
    print(explorer.counterexample())  # noqa: T201  # pytest -s shows it
    assert explorer.fault is not None
    assert explorer.fault.startswith(fault)
