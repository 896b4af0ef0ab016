"""Random lives of one job, held against a plain account of what happened to it.

The account counts for itself; it knows nothing of lifecycle but its words. Writes come under the right epoch and under
wrong ones, with checkpoints that are new, repeated, clashing or unknown.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from postroom import lifecycle
from postroom.errors import CheckpointConflict, LeaseLost, OutcomeInvalid, TransitionRefused
from postroom.lifecycle import TRANSITIONS
from postroom.model import Change, Checkpoint, Event, Job, OutcomeKind, State
from postroom.policy import JITTER_HIGH, JITTER_LOW, Policy, backoff
from tests.lifecycle.life import ITEM, STEP, Life, born

POLICY = Policy(max_attempts=2, max_crashes=2, max_crashes_total=4, progress_line_seconds=0.0)
EDGES = {(before, to) for (before, _), states in TRANSITIONS.items() for to in states}
ENDS = {Event.SUCCEEDED, Event.FAILED, Event.CANCELLED, Event.EXPIRED}
REFUSALS = (LeaseLost, CheckpointConflict, OutcomeInvalid, TransitionRefused)


class Account(RuleBasedStateMachine):
    """What one job should have come to."""

    def __init__(self) -> None:
        super().__init__()
        self.life: Life = born()
        self.claims = self.free = self.crashes = self.holds = self.interruptions = 0
        self.lives = 1
        self.values: dict[str, str | None] = {}
        self.before: Job = self.life.job

    @initialize(
        items=st.sampled_from([0, 1, 3]),
        max_attempts=st.sampled_from([None, 1, 3]),
        timeout=st.sampled_from([None, 5.0]),
        expires=st.sampled_from([None, 1004.0]),
        delay=st.sampled_from([None, 1003.0]),
    )
    def submit(
        self, items: int, delay: float | None, timeout: float | None, expires: float | None, **draft: Any
    ) -> None:
        self.life = born(
            items=items, policy=POLICY, run_at=delay, timeout_seconds=timeout, expires_at=expires, **draft
        )
        self.before = self.life.job

    def attempt(self, act: Any) -> Change | None:
        """Do something; None where it was refused or changed nothing. A refusal leaves no trace."""
        self.before = self.life.job
        lines, checkpoints, result = list(self.life.lines), dict(self.life.checkpoints), self.life.result
        try:
            decision = act()
        except REFUSALS:
            decision = None
        if isinstance(decision, Change):
            return decision
        assert self.life.job == self.before
        assert (self.life.lines, self.life.checkpoints, self.life.result) == (lines, checkpoints, result)
        return None

    # ---- what may happen

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 2.0, 4.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.life.after(seconds)

    @precondition(lambda self: self.life.job.state is State.QUEUED and self.life.job.run_at > self.life.now)
    @rule()
    def it_becomes_due(self) -> None:
        self.life.now = self.life.job.run_at

    @precondition(lambda self: self.life.job.state is State.QUEUED)
    @rule(worker=st.sampled_from(["w1", "w2"]), lease=st.sampled_from([1.0, 10.0]))
    def claim(self, worker: str, lease: float) -> None:
        may = self.life.job.run_at <= self.life.now and (
            self.life.job.start_by is None or self.life.now < self.life.job.start_by
        )
        claimed = self.attempt(lambda: lifecycle.claim(self.life.job, worker, lease, self.life.now))
        assert (claimed is not None) == may
        if claimed is not None:
            self.life.apply(claimed)
            self.claims += 1

    OFF = st.sampled_from([0, 0, 0, 0, -1, 1])
    OFFERS = st.lists(
        st.tuples(
            st.integers(0, 3),
            st.sampled_from(["a", "a", "b"]),
            st.sampled_from(["value", "value", "error", "final"]),
        ),
        max_size=3,
    )

    def offers(self, told: list[tuple[int, str, str]]) -> tuple[Checkpoint, ...]:
        if not self.life.job.has_items:
            return tuple(Checkpoint(STEP, f"s{n}", value=f'"{v}"', input_digest="d") for n, v, _ in told)
        made = []
        for n, value, what in told:
            if what == "value":
                made.append(Checkpoint(ITEM, str(n), value=f'"{value}"'))
            else:
                made.append(Checkpoint(ITEM, str(n), error=f'"{value}"', is_final=what == "final"))
        return tuple(made)

    @precondition(lambda self: self.life.job.epoch > 0)
    @rule(off=OFF, told=OFFERS, done=st.integers(0, 9), output=st.sampled_from([(), ("1",)]))
    def beat(self, off: int, told: list[tuple[int, str, str]], done: int, output: tuple[str, ...]) -> None:
        offers, epoch = self.offers(told), self.life.job.epoch + off
        change = self.attempt(lambda: self.life.beat(*offers, epoch=epoch, done=done, total=9, output=output))
        if change is not None:
            assert off == 0
            assert self.before.state is State.RUNNING
            assert change.status == ("cancel_requested" if self.before.cancel_requested else "ok")
            lease = self.life.job.lease_expires_at
            assert lease is not None
            assert lease <= lifecycle.limit_at(self.life.job, POLICY)

    @precondition(lambda self: self.life.job.epoch > 0)
    @rule(
        off=OFF,
        kind=st.sampled_from(OutcomeKind),
        told=OFFERS,
        is_permanent=st.booleans(),
        jitter=st.floats(JITTER_LOW, JITTER_HIGH),
        everything=st.booleans(),
    )
    def settle(
        self, off: int, kind: OutcomeKind, told: list[tuple[int, str, str]], is_permanent: bool, jitter: float,
        everything: bool,
    ) -> None:  # fmt: skip
        life, epoch = self.life, self.life.job.epoch + off
        life.jitter = jitter
        if everything:
            told = [(n, "a", "value") for n in range(life.job.total)]
        if kind is OutcomeKind.FAILED:
            code = "items_failed" if everything else "E"
            change = self.attempt(
                lambda: life.fail(*self.offers(told), is_permanent=is_permanent, code=code, epoch=epoch)
            )
        else:
            result = "1" if kind is OutcomeKind.SUCCEEDED and not life.job.has_items else None
            change = self.attempt(
                lambda: life.settle(kind, *self.offers(told), epoch=epoch, result=result, after_seconds=3.0)
            )
        if change is not None:
            assert off == 0
            self.enter(change, jitter)

    @rule(proven=st.booleans())
    def rescue(self, proven: bool) -> None:
        change = self.attempt(lambda: self.life.rescue(is_proven=proven))
        if change is not None:
            assert self.before.lease_expires_at is not None
            assert proven or self.before.lease_expires_at <= self.life.now
            self.enter(change, self.life.jitter)

    @rule()
    def cancel(self) -> None:
        change = self.attempt(self.life.cancel)
        if change is not None:
            assert self.before.state in (State.QUEUED, State.RUNNING)

    @rule()
    def expire(self) -> None:
        change = self.attempt(self.life.expire)
        if change is not None:
            assert self.before.start_by is not None
            assert self.before.start_by <= self.life.now

    @rule(life=st.sampled_from([None, 1, 2, 3]))
    def replay(self, life: int | None) -> None:
        change = self.attempt(lambda: self.life.replay(life=life))
        if change is not None:
            assert self.before.state in (State.FAILED, State.CANCELLED)
            self.lives += 1
            self.claims = self.free = self.crashes = 0

    def enter(self, change: Change, jitter: float) -> None:
        """Book what the end of a run should cost."""
        event, job = change.lines[-1].event, change.job
        if event is Event.HELD:
            self.holds, self.free = self.holds + 1, self.free + 1
        elif event is Event.RELEASED:
            self.interruptions, self.free = self.interruptions + 1, self.free + 1
        elif event is Event.CRASHED or (event is Event.FAILED and change.lines[-1].reason == "worker_lost"):
            self.crashes, self.free = self.crashes + 1, self.free + 1
        if event is Event.RETRIED:
            assert job.run_at == self.life.now + backoff(job.attempts, POLICY, jitter=jitter)
        if event is Event.CRASHED:
            assert job.run_at == self.life.now + backoff(job.crashes_in_row, POLICY, jitter=jitter)
        if self.before.cancel_requested:
            assert event in (Event.CANCELLED, Event.SUCCEEDED) or (event is Event.FAILED and job.has_items)

    # ---- what must hold

    @invariant()
    def the_account_is_right(self) -> None:
        job = self.life.job
        assert job.attempts == self.claims - self.free
        assert (job.crashes, job.holds, job.interruptions) == (self.crashes, self.holds, self.interruptions)
        assert job.life == self.lives
        budget = POLICY.max_attempts if job.max_attempts is None else job.max_attempts
        assert 0 <= job.attempts <= budget
        assert job.crashes_in_row < POLICY.max_crashes or job.state is not State.QUEUED
        assert job.crashes < POLICY.max_crashes_total or job.state is not State.QUEUED

    @invariant()
    def holder_and_lease_belong_to_running(self) -> None:
        job = self.life.job
        is_running = job.state is State.RUNNING
        assert (job.worker is not None, job.lease_expires_at is not None) == (is_running, is_running)
        assert job.is_final == (job.finished_at is not None)
        assert is_running or not job.cancel_requested

    @invariant()
    def done_is_what_ended(self) -> None:
        job = self.life.job
        assert 0 <= job.failed_items <= job.done <= job.total
        if job.has_items:
            ended = [c for c in self.life.checkpoints.values() if c.kind is ITEM and c.is_final]
            assert (job.done, job.failed_items) == (len(ended), sum(c.error is not None for c in ended))
            assert job.state is not State.SUCCEEDED or job.done == job.total
        if job.life == self.before.life and job.has_items:
            assert job.done >= self.before.done

    @invariant()
    def a_value_stands_for_ever(self) -> None:
        now = {key: c.value for (kind, key), c in self.life.checkpoints.items() if c.value is not None}
        assert self.values.items() <= now.items()
        self.values = dict(now)

    @invariant()
    def the_journal_is_the_row(self) -> None:
        job, lines = self.life.job, self.life.lines
        assert [line.n for line in lines] == list(range(job.lines))
        assert lines[0].event is Event.SUBMITTED
        for before, after in pairwise(lines):
            assert after.at >= before.at
            assert after.from_state is before.to_state
            assert (after.from_state, after.to_state) in EDGES
            assert after.epoch - before.epoch == (after.event is Event.CLAIMED)
            assert after.life - before.life == (after.event is Event.REPLAYED)
            assert before.event not in ENDS or after.event is Event.REPLAYED
        last = lines[-1]
        assert (last.to_state, last.epoch, last.attempt, last.life) == (
            job.state,
            job.epoch,
            job.attempts,
            job.life,
        )

    @invariant()
    def a_failure_says_why(self) -> None:
        job = self.life.job
        if job.state is State.FAILED:
            error = json.loads(job.error or "{}")
            assert error["code"]
            assert error["message"]
            assert error["epoch"] == job.epoch
        if job.state is State.SUCCEEDED:
            assert job.error is None
            assert (self.life.result is None) == job.has_items


Account.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestRandomLives = Account.TestCase
