"""The table: each of its cells is reached, and nothing that is not in it happens (I11)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from postroom import lifecycle
from postroom.errors import LeaseLost, TransitionRefused
from postroom.lifecycle import CANCELLED, FAILED, QUEUED, RUNNING, SUCCEEDED, TRANSITIONS, Kept
from postroom.model import Change, Event, OutcomeKind, State
from tests.lifecycle.life import LEASE, Life, born, item, item_error, running


def asked_to_stop(**fields: Any) -> Life:
    life = running(**fields)
    life.cancel()
    return life


def last_attempt(**fields: Any) -> Life:
    return running(max_attempts=1, **fields)


def crashed_out() -> Life:
    life = running()
    for _ in range(2):
        life.crash()
        life.after(100.0).claim()
    return life


def ended(state: State) -> Life:
    """A job in a final state."""
    life = running()
    match state:
        case State.SUCCEEDED:
            life.succeed()
        case State.FAILED:
            life.fail(is_permanent=True)
        case State.CANCELLED:
            life.cancel()
            life.confirm()
    assert life.job.state is state
    return life


def failed_items(life: Life, number: int = 1) -> Life:
    life.beat(*(item_error(n, is_final=n < number) if n < number else item(n) for n in range(life.job.total)))
    return life


Cell = tuple[State | None, str, State]

CELLS: dict[Cell, Callable[[], tuple[Life, Callable[[Life], Any]]]] = {
    (QUEUED, "claim", RUNNING): lambda: (born(), Life.claim),
    (QUEUED, "cancel", CANCELLED): lambda: (born(), Life.cancel),
    (QUEUED, "expire", CANCELLED): lambda: (born(expires_at=1010.0).after(10.0), Life.expire),
    (RUNNING, "heartbeat", RUNNING): lambda: (running(), Life.beat),
    (RUNNING, "cancel", RUNNING): lambda: (running(), Life.cancel),
    (RUNNING, "succeed", SUCCEEDED): lambda: (running(), Life.succeed),
    (RUNNING, "succeed", FAILED): lambda: (failed_items(running(items=2)), Life.succeed),
    (RUNNING, "error", QUEUED): lambda: (running(), Life.fail),
    (RUNNING, "error", FAILED): lambda: (last_attempt(), Life.fail),
    (RUNNING, "error", CANCELLED): lambda: (asked_to_stop(), Life.fail),
    (RUNNING, "error", SUCCEEDED): lambda: (
        last_attempt(items=2, allow_failed_items=1),
        lambda life: life.fail(item(0), item_error(1), code="items_failed"),
    ),
    (RUNNING, "hold", QUEUED): lambda: (running(), Life.hold),
    (RUNNING, "hold", CANCELLED): lambda: (asked_to_stop(), Life.hold),
    (RUNNING, "release", QUEUED): lambda: (running(), Life.release),
    (RUNNING, "release", CANCELLED): lambda: (asked_to_stop(), Life.release),
    (RUNNING, "crash", QUEUED): lambda: (running(), Life.crash),
    (RUNNING, "crash", FAILED): lambda: (crashed_out(), Life.crash),
    (RUNNING, "crash", CANCELLED): lambda: (asked_to_stop().after(LEASE), Life.rescue),
    (RUNNING, "confirm", CANCELLED): lambda: (asked_to_stop(), Life.confirm),
    (FAILED, "replay", QUEUED): lambda: (ended(FAILED), Life.replay),
    (CANCELLED, "replay", QUEUED): lambda: (ended(CANCELLED), Life.replay),
}


def cells() -> set[Cell]:
    return {(before, verb, to) for (before, verb), states in TRANSITIONS.items() for to in states}


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: "-".join(map(str, cell)))
def test_a_cell_of_the_table_is_reached(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    moves: list[Cell] = []
    move = lifecycle._move

    def noting(job: Any, verb: str, to: State, *args: Any, **fields: Any) -> Change:
        moves.append((job.state, verb, to))
        return move(job, verb, to, *args, **fields)

    life, act = CELLS[cell]()
    monkeypatch.setattr(lifecycle, "_move", noting)
    before, version = life.job.state, life.job.version
    act(life)
    assert (before, life.job.state) == (cell[0], cell[2])
    assert life.job.version == version + 1
    assert moves == ([] if cell[1] == "heartbeat" else [cell])


def test_every_cell_of_the_table_is_reached() -> None:
    assert set(CELLS) | {(None, "submit", QUEUED)} == cells()
    assert born().job.state is QUEUED


def test_an_edge_that_is_not_in_the_table_cannot_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the table: with a cell taken out, the verb that leads there is caught."""
    without = {**TRANSITIONS, (RUNNING, "hold"): frozenset({CANCELLED})}
    monkeypatch.setattr(lifecycle, "TRANSITIONS", without)
    with pytest.raises(AssertionError, match="hold may not lead from running to queued"):
        running().hold()


def ending(kind: OutcomeKind) -> Callable[[Life], Any]:
    return lambda life: life.settle(kind)


VERBS: dict[str, Callable[[Life], Any]] = {
    "claim": Life.claim,
    "heartbeat": Life.beat,
    "cancel": Life.cancel,
    "replay": Life.replay,
    "expire": Life.expire,
    "rescue": Life.rescue,
    **{str(kind): ending(kind) for kind in OutcomeKind},
}

LEADS_NOWHERE: dict[tuple[State, str], type[Exception] | None] = {
    **{
        (state, verb): LeaseLost
        for state in State
        if state is not RUNNING
        for verb in ("heartbeat", *OutcomeKind)
    },
    **{(state, "claim"): TransitionRefused for state in State if state is not QUEUED},
    **{(state, "cancel"): TransitionRefused for state in (SUCCEEDED, FAILED, CANCELLED)},
    **{(state, "replay"): TransitionRefused for state in (QUEUED, RUNNING, SUCCEEDED)},
    **{(state, "expire"): None for state in (RUNNING, SUCCEEDED, FAILED, CANCELLED)},
    **{(state, "rescue"): None for state in (QUEUED, SUCCEEDED, FAILED, CANCELLED)},
}
"""What each verb answers where it leads nowhere; None: it keeps the job as it is."""


def in_state(state: State) -> Life:
    match state:
        case State.QUEUED:
            return born()
        case State.RUNNING:
            return running()
        case _:
            return ended(state)


@pytest.mark.parametrize(("state", "verb"), LEADS_NOWHERE, ids=lambda each: str(each))
def test_a_verb_that_leads_nowhere_changes_nothing(state: State, verb: str) -> None:
    life = in_state(state).after(1e6)
    life.jitter = 0.9  # so that no outcome is the repeat of the one that ended it
    before = (life.job, list(life.lines), dict(life.checkpoints))
    refused = LEADS_NOWHERE[state, verb]
    act = VERBS[verb]
    if verb in tuple(OutcomeKind):
        act = lambda life: life.settle(OutcomeKind(verb), reason="another")  # noqa: E731
    if refused is None:
        assert isinstance(act(life), Kept)
    else:
        with pytest.raises(refused):
            act(life)
    assert (life.job, life.lines, life.checkpoints) == before


def test_every_state_and_verb_is_either_in_the_table_or_leads_nowhere() -> None:
    """No pair is forgotten: what is not refused is an edge."""
    spoken = {
        "error": "failed",
        "hold": "held",
        "release": "released",
        "crash": "crashed",
        "confirm": "cancelled",
    }
    spoken |= {"succeed": "succeeded"}
    leads = {(state, spoken.get(verb, verb)) for state, verb in TRANSITIONS if state is not None}
    leads |= {(RUNNING, "rescue")}
    every = {(state, verb) for state in State for verb in VERBS}
    assert leads | set(LEADS_NOWHERE) == every
    assert not leads & set(LEADS_NOWHERE)


def test_every_event_is_told_by_some_path() -> None:
    told: set[str] = set()
    for make in CELLS.values():
        life, act = make()
        act(life)
        told |= set(life.events)
    life = running(items=2)
    life.beat(item(0), output=('"said"',))
    assert told | set(life.events) == {str(event) for event in Event}
