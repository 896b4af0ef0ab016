"""A small world for a breadth-first check: one job, two workers, a clock that ticks, every order of events.

The events are decided by lifecycle itself, so what is checked is the code and not a copy of it. A worker never learns
that it lost a job: whatever it says after that is the late write of a worker that was paused. A protection is switched
off by a `Rules` that bends what lifecycle is asked; the real one bends nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from postroom import lifecycle
from postroom.errors import CheckpointConflict, LeaseLost, OutcomeInvalid, TransitionRefused
from postroom.lifecycle import TRANSITIONS, Facts, Kept
from postroom.model import (
    Beat,
    Cancel,
    Change,
    Checkpoint,
    CheckpointKind,
    Draft,
    ErrorInfo,
    Event,
    Expire,
    Job,
    Limits,
    Outcome,
    OutcomeKind,
    Payload,
    Replay,
    Rescue,
    State,
)
from postroom.policy import Policy

POLICY = Policy(
    backoff_base_seconds=0.0,
    max_attempts=2,
    max_crashes=2,
    max_crashes_total=3,
    hold_seconds=0.0,
    progress_line_seconds=0.0,
)
LEASE = 1.0
REFUSALS = (LeaseLost, CheckpointConflict, OutcomeInvalid, TransitionRefused)
ENDS = frozenset({Event.SUCCEEDED, Event.FAILED, Event.CANCELLED, Event.EXPIRED})


@dataclass(frozen=True)
class Rules:
    """The protections: which epoch a worker's write is taken under, and the budgets."""

    name: str = "the real one"
    epoch_of: Callable[[World, Held], int] = lambda world, held: held.epoch
    policy: Policy = POLICY
    limits: Limits | None = None


@dataclass(frozen=True)
class Held:
    """What a worker believes to hold."""

    epoch: int
    attempt: int


@dataclass(frozen=True)
class Past:
    """What happened so far, as far as an invariant needs it; kept apart from the row, so that it cannot err with it."""

    claims: int = 0
    runs_lost_in_row: int = 0
    permanent_in: int = 0
    cancelled_queued_in: int = 0
    ended_in: int = 0
    values: tuple[str | None, str | None] = (None, None)


@dataclass(frozen=True)
class World:
    job: Job
    now: float = 0.0
    held: tuple[Held | None, Held | None] = (None, None)
    checkpoint: Checkpoint | None = None
    result: str | None = None
    past: Past = Past()

    def key(self) -> tuple[Any, ...]:
        """What tells worlds apart: versions, line numbers and absolute times do not."""
        j = self.job
        times = (j.run_at, j.lease_expires_at, j.start_by, j.started_at, j.progress_at)
        ahead = tuple(None if at is None else max(at - self.now, -1.0) for at in times)
        counts = (j.epoch, j.life, j.attempts, j.crashes, j.crashes_in_row, j.done, j.failed_items)
        asked = (j.state, j.worker, j.cancel_requested, j.settled, j.error is None)
        return counts, asked, ahead, self.held, self.checkpoint, self.result, self.past


@dataclass(frozen=True)
class Step:
    """An event that changed something."""

    told: str
    world: World
    change: Change | None = None
    writer: int | None = None
    is_sweep: bool = False


def first(*, items: int = 0, **draft: Any) -> World:
    given: dict[str, Any] = {"job_id": "job", "kind": "k", "payload": Payload("1"), **draft}
    if items:
        given |= {"has_items": True, "total": items}
    return World(lifecycle.submit(Draft(**given), 0.0).job)


NAMES = ("Ann", "Bob")


@dataclass
class Explorer:
    """Visits every world that can be reached within a number of events, nearest first.

    The first broken invariant ends the search, so the counterexample is one of the shortest.
    """

    rules: Rules
    depth: int
    start: World
    seen: dict[tuple[Any, ...], tuple[tuple[Any, ...] | None, str]] = field(default_factory=dict)
    edges: set[tuple[State, State]] = field(default_factory=set)
    fault: str | None = None
    path: list[str] = field(default_factory=list)

    def explore(self) -> Explorer:
        queue = deque([(self.start, 0)])
        self.seen[self.start.key()] = (None, "submitted")
        while queue:
            world, depth = queue.popleft()
            if depth == self.depth:
                continue
            for step in self.steps(world):
                fault = broken_by(world, step)
                key = step.world.key()
                if fault is not None:
                    self.fault, self.path = fault, [*self.way_to(world.key()), step.told]
                    return self
                if step.change is not None:
                    self.edges.add((world.job.state, step.world.job.state))
                if key not in self.seen:
                    self.seen[key] = (world.key(), step.told)
                    queue.append((step.world, depth + 1))
        return self

    def way_to(self, key: tuple[Any, ...] | None) -> list[str]:
        told = []
        while key is not None:
            key, event = self.seen[key]
            told.append(event)
        return told[::-1]

    def counterexample(self) -> str:
        return "\n".join(
            [f"{self.rules.name}: {self.fault}", *(f"  {n}. {told}" for n, told in enumerate(self.path))]
        )

    # ---- the events

    def steps(self, world: World) -> Iterator[Step]:
        yield Step("a second passes", replace(world, now=world.now + 1.0))
        for who in (0, 1):
            yield from self.claims(world, who)
            if world.held[who] is not None:
                yield from self.writes(world, who, world.held[who])
        job = world.job
        yield from self.wanted(world, "somebody cancels", Cancel("job"))
        if job.life < 2:
            yield from self.wanted(world, "somebody replays", Replay("job"))
        yield from self.wanted(world, "the sweep rescues", Rescue("job", job.epoch), is_sweep=True)
        yield from self.wanted(world, "the sweep expires", Expire("job"), is_sweep=True)

    def claims(self, world: World, who: int) -> Iterator[Step]:
        if who == 1 and world.past.claims == 0:
            return  # the two are alike: whoever comes first is called Ann
        try:
            change = lifecycle.claim(world.job, NAMES[who], LEASE, world.now)
        except TransitionRefused:
            return
        held = list(world.held)
        held[who] = Held(change.job.epoch, change.job.attempts)
        past = replace(world.past, claims=world.past.claims + 1)
        told = f"{NAMES[who]} claims it under epoch {change.job.epoch}"
        yield Step(told, replace(world, job=change.job, held=(held[0], held[1]), past=past), change)

    def writes(self, world: World, who: int, held: Held | None) -> Iterator[Step]:
        assert held is not None
        name, epoch = NAMES[who], self.rules.epoch_of(world, held)
        value = Checkpoint(CheckpointKind.ITEM, "0", value=f'"{name} {held.epoch}"')
        step = Checkpoint(CheckpointKind.STEP, "0", value=f'"{name} {held.epoch}"')
        offers = (value,) if world.job.has_items else (step,)
        said = f"{name} (epoch {held.epoch})"
        error, bad = ErrorInfo("E", "e"), ErrorInfo("E", "e", None, True)

        def settles(kind: OutcomeKind, **fields: Any) -> Outcome:
            return Outcome("job", epoch, kind, limits=self.rules.limits, **fields)

        result = None if world.job.has_items else f'"{name} {held.epoch}"'
        for told, intent in (
            (f"{said} beats", Beat("job", epoch)),
            (f"{said} keeps a checkpoint", Beat("job", epoch, checkpoints=offers)),
            (f"{said} succeeds", settles(OutcomeKind.SUCCEEDED, result=result)),
            (f"{said} reports an error", settles(OutcomeKind.FAILED, error=error)),
            (f"{said} reports a permanent error", settles(OutcomeKind.FAILED, error=bad)),
            (f"{said} holds it", settles(OutcomeKind.HELD)),
            (f"{said} gives it back", settles(OutcomeKind.RELEASED)),
            (f"{said} confirms the cancel", settles(OutcomeKind.CANCELLED)),
        ):
            yield from self.wanted(world, told, intent, writer=who)

    def wanted(self, world: World, told: str, intent: Any, **step: Any) -> Iterator[Step]:
        standing = world.checkpoint
        kept = {} if standing is None else {(standing.kind, standing.key): standing}
        facts = Facts(world.now, self.rules.policy, kept, frozenset({"0"}))
        try:
            change = lifecycle.decide(world.job, intent, facts)
        except REFUSALS:
            return
        if isinstance(change, Kept):
            return
        after = replace(world, job=change.job, past=remembered(world, change, step.get("writer")))
        if change.drops_errors and standing is not None and standing.error is not None:
            after = replace(after, checkpoint=None)
        for checkpoint in change.checkpoints:
            after = replace(after, checkpoint=checkpoint)
        if change.result is not None:
            after = replace(after, result=change.result)
        told = f"{told}: {change.before_state} -> {change.job.state}"
        yield Step(told, after, change, **step)


def remembered(world: World, change: Change, writer: int | None) -> Past:
    past, event, life = world.past, change.lines[-1].event if change.lines else None, world.job.life
    if change.checkpoints:
        past = replace(past, runs_lost_in_row=0)
    if event is Event.CRASHED or (event is Event.FAILED and change.lines[-1].reason == "worker_lost"):
        past = replace(past, runs_lost_in_row=past.runs_lost_in_row + 1)
    if event is Event.REPLAYED:
        past = replace(past, runs_lost_in_row=0)
    if event is Event.FAILED and writer is not None and '"message": "e"' in (change.job.error or ""):
        past = replace(past, permanent_in=life)
    if event is Event.CANCELLED and change.before_state is State.QUEUED:
        past = replace(past, cancelled_queued_in=life)
    if event in ENDS:
        past = replace(past, ended_in=life)
    return past


# ---- the invariants that are about one job


def broken_by(before: World, step: Step) -> str | None:
    """The invariant that a step broke, None where all hold."""
    if step.change is None:
        return None
    return next((told for check in CHECKS if (told := check(before, step)) is not None), None)


def only_edges_of_the_table(before: World, step: Step) -> str | None:
    pair = (before.job.state, step.world.job.state)
    edges = {(state, to) for (state, _), states in TRANSITIONS.items() for to in states}
    return None if pair in edges else f"I11 it went from {pair[0]} to {pair[1]}"


def a_write_is_the_holders(before: World, step: Step) -> str | None:
    if step.writer is None:
        return None
    held = before.held[step.writer]
    assert held is not None
    if before.job.state is not State.RUNNING:
        return "I03 a write was taken while the job was not running"
    if before.job.worker != NAMES[step.writer] or before.job.epoch != held.epoch:
        return (
            f"I03 {NAMES[step.writer]} wrote while {before.job.worker} held it under epoch {before.job.epoch}"
        )
    return None


def epochs_rise_with_claims_alone(before: World, step: Step) -> str | None:
    claimed = step.world.past.claims - before.past.claims
    risen = step.world.job.epoch - before.job.epoch
    return None if risen == claimed else f"I02 the epoch rose by {risen} with {claimed} claims"


def a_claim_over_a_run_is_after_its_lease(before: World, step: Step) -> str | None:
    lost = before.job.state is State.RUNNING and step.is_sweep
    if lost and (before.job.lease_expires_at or 0.0) > before.now:
        return "I01 a run was taken away within its lease"
    return None


def holder_and_lease_belong_to_running(before: World, step: Step) -> str | None:
    job = step.world.job
    has = (job.worker is not None, job.lease_expires_at is not None)
    return (
        None if has == (job.state is State.RUNNING,) * 2 else f"I14 {job.state} with holder and lease {has}"
    )


def attempts_stay_in_budget(before: World, step: Step) -> str | None:
    job = step.world.job
    if job.attempts < 0 or job.crashes < 0:
        return "I15 a count fell below 0"
    return (
        f"I15 attempt {job.attempts} of {POLICY.max_attempts}" if job.attempts > POLICY.max_attempts else None
    )


def crashes_stay_in_budget(before: World, step: Step) -> str | None:
    lost = step.world.past.runs_lost_in_row
    if lost >= POLICY.max_crashes and step.world.job.state is State.QUEUED:
        return f"I16 {lost} workers were lost in a row and the job is queued again"
    return None


def what_is_over_is_over(before: World, step: Step) -> str | None:
    if step.world.job.state is not State.RUNNING or before.job.state is State.RUNNING:
        return None
    life = step.world.job.life
    if step.world.past.permanent_in == life:
        return "I17 it was claimed after a permanent error"
    if step.world.past.cancelled_queued_in == life:
        return "I19 it was claimed after it was cancelled"
    return None


def a_life_ends_once(before: World, step: Step) -> str | None:
    ended = step.change is not None and any(line.event in ENDS for line in step.change.lines)
    return "I13 one life ended twice" if ended and before.past.ended_in == before.job.life else None


def success_is_the_holders_result(before: World, step: Step) -> str | None:
    job = step.world.job
    if job.state is not State.SUCCEEDED or job.has_items:
        return None
    wrote = f'"{before.job.worker} {before.job.epoch}"'
    return None if step.world.result == wrote else f"I12 the result is {step.world.result}, not {wrote}"


def values_are_never_replaced(before: World, step: Step) -> str | None:
    was, now = before.checkpoint, step.world.checkpoint
    if was is None or not was.is_final or was.value is None or was == now:
        return None
    return f"I26 {was.value} was replaced by {now.value if now else None}"


def success_needs_every_item(before: World, step: Step) -> str | None:
    job = step.world.job
    counted = int(step.world.checkpoint is not None and step.world.checkpoint.is_final)
    if job.has_items and job.done != counted:
        return f"I29 done is {job.done} and {counted} items ended"
    if job.has_items and job.state is State.SUCCEEDED and step.world.checkpoint is None:
        return "I12 it succeeded with an item pending"
    return None


def replay_is_a_new_life(before: World, step: Step) -> str | None:
    was, now = before.job, step.world.job
    if now.life == was.life:
        return None
    if (now.life, now.attempts, now.crashes, now.epoch) != (was.life + 1, 0, 0, was.epoch):
        return "I20 a replay is not life+1 with attempts and crashes 0 and the epoch as it was"
    return None


def a_cancel_is_heeded(before: World, step: Step) -> str | None:
    if before.job.cancel_requested and step.world.job.state in (State.QUEUED, State.FAILED):
        return f"I19 it was asked to stop and is {step.world.job.state}"
    return None


CHECKS = (
    only_edges_of_the_table,
    a_write_is_the_holders,
    epochs_rise_with_claims_alone,
    a_claim_over_a_run_is_after_its_lease,
    holder_and_lease_belong_to_running,
    attempts_stay_in_budget,
    crashes_stay_in_budget,
    what_is_over_is_over,
    a_life_ends_once,
    success_is_the_holders_result,
    values_are_never_replaced,
    success_needs_every_item,
    replay_is_a_new_life,
    a_cancel_is_heeded,
)
