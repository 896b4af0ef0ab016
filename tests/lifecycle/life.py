"""One job's life, driven by hand: holds what a store would hold, and applies what lifecycle decides."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from postroom import lifecycle
from postroom.lifecycle import Facts, Kept
from postroom.model import (
    Beat,
    Cancel,
    Change,
    Checkpoint,
    CheckpointKind,
    Draft,
    ErrorInfo,
    Expire,
    Intent,
    Job,
    Line,
    Outcome,
    OutcomeKind,
    Payload,
    Replay,
    Rescue,
)
from postroom.policy import Policy

START = 1000.0
LEASE = 60.0
TICK = 2.0**-10
POLICY = Policy(backoff_base_seconds=2.0, backoff_cap_seconds=64.0, progress_line_seconds=0.0)
ITEM = CheckpointKind.ITEM
STEP = CheckpointKind.STEP


@dataclass
class Life:
    """A job, its clock, and what was written for it."""

    job: Job
    now: float = START
    policy: Policy = POLICY
    checkpoints: dict[tuple[CheckpointKind, str], Checkpoint] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    result: str | None = None
    jitter: float = 1.0

    # ---- intents, decided and applied

    def want(self, intent: Intent) -> Change | Kept:
        decision = self.judge(intent)
        if isinstance(decision, Change):
            self.apply(decision)
        return decision

    def judge(self, intent: Intent) -> Change | Kept:
        keys = frozenset(map(str, range(self.job.total))) if self.job.has_items else None
        facts = Facts(self.now, self.policy, self.checkpoints, keys, self.jitter)
        return lifecycle.decide(self.job, intent, facts)

    def apply(self, change: Change) -> Change:
        assert change.before_version == self.job.version
        assert change.job.version == self.job.version + 1
        assert change.before_state == self.job.state
        self.job = change.job
        self.lines += change.lines
        if change.drops_errors:
            kept = self.checkpoints.items()
            self.checkpoints = {at: c for at, c in kept if c.kind is STEP or c.error is None}
        self.checkpoints |= {(c.kind, c.key): c for c in change.checkpoints}
        if change.result is not None:
            self.result = change.result
        return change

    def after(self, seconds: float) -> Life:
        self.now += seconds
        return self

    def claim(self, worker: str = "w1", lease_seconds: float = LEASE) -> Life:
        self.apply(lifecycle.claim(self.job, worker, lease_seconds, self.now))
        return self

    def beat(self, *checkpoints: Checkpoint, **fields: Any) -> Change | Kept:
        epoch = fields.pop("epoch", self.job.epoch)
        return self.want(Beat(self.job.job_id, epoch, checkpoints=checkpoints, **fields))

    def settle(self, kind: OutcomeKind, *checkpoints: Checkpoint, **fields: Any) -> Change | Kept:
        epoch = fields.pop("epoch", self.job.epoch)
        return self.want(Outcome(self.job.job_id, epoch, kind, checkpoints=checkpoints, **fields))

    def succeed(self, *checkpoints: Checkpoint, **fields: Any) -> Change | Kept:
        if not self.job.has_items:
            fields.setdefault("result", '"done"')
        return self.settle(OutcomeKind.SUCCEEDED, *checkpoints, **fields)

    def fail(self, *checkpoints: Checkpoint, is_permanent: bool = False, **fields: Any) -> Change | Kept:
        code, message = fields.pop("code", "Broken"), fields.pop("message", "no luck")
        error = ErrorInfo(code, message, fields.pop("detail", None), is_permanent)
        return self.settle(OutcomeKind.FAILED, *checkpoints, error=error, **fields)

    def hold(
        self, after_seconds: float | None = 5.0, reason: str | None = "limit", **fields: Any
    ) -> Change | Kept:
        return self.settle(OutcomeKind.HELD, after_seconds=after_seconds, reason=reason, **fields)

    def release(self, **fields: Any) -> Change | Kept:
        return self.settle(OutcomeKind.RELEASED, **fields)

    def crash(self, reason: str = "signal 9", **fields: Any) -> Change | Kept:
        return self.settle(OutcomeKind.CRASHED, reason=reason, **fields)

    def confirm(self, **fields: Any) -> Change | Kept:
        return self.settle(OutcomeKind.CANCELLED, **fields)

    def cancel(self, **fields: Any) -> Change | Kept:
        return self.want(Cancel(self.job.job_id, **fields))

    def replay(self, **fields: Any) -> Change | Kept:
        return self.want(Replay(self.job.job_id, **fields))

    def rescue(self, **fields: Any) -> Change | Kept:
        return self.want(Rescue(self.job.job_id, fields.pop("epoch", self.job.epoch), **fields))

    def expire(self) -> Change | Kept:
        return self.want(Expire(self.job.job_id))

    # ---- looking

    @property
    def events(self) -> list[str]:
        return [str(line.event) for line in self.lines]

    def counts(self) -> dict[str, int]:
        """The four budgets."""
        job = self.job
        return {
            "attempts": job.attempts,
            "crashes": job.crashes,
            "interruptions": job.interruptions,
            "holds": job.holds,
        }


def born(*, items: int = 0, policy: Policy = POLICY, **draft: Any) -> Life:
    """A job just submitted: of one content, or of so many items."""
    if items:
        draft |= {"payload": Payload("[]"), "total": items, "has_items": True}
    given: dict[str, Any] = {"job_id": "0" * 32, "kind": "note", "payload": Payload('"x"'), **draft}
    change = lifecycle.submit(Draft(**given), START)
    return Life(change.job, policy=policy, lines=list(change.lines))


def running(**fields: Any) -> Life:
    """A job just claimed by w1."""
    return born(**fields).claim()


def item(key: int | str, value: str = '"v"') -> Checkpoint:
    return Checkpoint(ITEM, str(key), value=value)


def item_error(key: int | str, *, is_final: bool = False, error: str = '{"code":"Broken"}') -> Checkpoint:
    return Checkpoint(ITEM, str(key), error=error, is_final=is_final)


def step(name: str, value: str = '"v"', input_digest: str = "d") -> Checkpoint:
    return Checkpoint(STEP, name, value=value, input_digest=input_digest)


def with_policy(life: Life, **policy: Any) -> Life:
    life.policy = replace(life.policy, **policy)
    return life
