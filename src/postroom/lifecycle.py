"""The state machine: one table, pure functions, and nothing else.

A job is in one of five states. Whoever wants something of it brings an *intent*; a function here takes the job as it
stands, the intent and the facts (time, earlier checkpoints, budgets) and returns the `Change` that follows from it, or
`Kept` where nothing has to be written, or raises. No I/O, no clock, no randomness: the caller brings time and jitter.

Three ideas carry it:

* **The epoch is the fence.** Each claim raises it by one and nothing ever lowers it. A worker's write names the epoch
  that it was given; where that is not the current one of a running job, the worker has lost the job, and the answer
  is `LeaseLost`, whatever else may be wrong with the write.
* **Four ways to end a run badly are counted apart.** An *error* was the job's (or the provider's) doing and counts as
  an attempt. A *crash* is a lost worker: it has a budget of its own, which a new checkpoint refills. An
  *interruption* (drain, deploy) and a *hold* (provider down, limit reached) are nobody's fault and cost nothing.
* **Cancel is a request.** A running job is asked to stop; it is cancelled when its run ends in any way but success,
  and a success that is committed first wins.

`TRANSITIONS` is the whole table. `_move` builds every change and refuses an edge that the table does not have, so a
new rule that leads somewhere new must be written into the table first.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from postroom.errors import CheckpointConflict, LeaseLost, OutcomeInvalid, TransitionRefused
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
    Intent,
    Job,
    JsonText,
    Limits,
    Line,
    Outcome,
    OutcomeKind,
    Payload,
    Priority,
    Replay,
    Rescue,
    State,
    digest,
    evolve,
)
from postroom.policy import Policy, backoff
from postroom.seals import ROW, SEAL, canonical, kept_after, kept_without_errors, line_seal, row_seal

QUEUED, RUNNING, SUCCEEDED, FAILED, CANCELLED = State

TRANSITIONS: Mapping[tuple[State | None, str], frozenset[State]] = {
    (None, "submit"): frozenset({QUEUED}),
    (QUEUED, "claim"): frozenset({RUNNING}),
    (QUEUED, "cancel"): frozenset({CANCELLED}),
    (QUEUED, "expire"): frozenset({CANCELLED}),
    (RUNNING, "heartbeat"): frozenset({RUNNING}),
    (RUNNING, "cancel"): frozenset({RUNNING}),
    (RUNNING, "succeed"): frozenset({SUCCEEDED, FAILED}),
    (RUNNING, "error"): frozenset({QUEUED, FAILED, CANCELLED, SUCCEEDED}),
    (RUNNING, "hold"): frozenset({QUEUED, CANCELLED}),
    (RUNNING, "release"): frozenset({QUEUED, CANCELLED}),
    (RUNNING, "crash"): frozenset({QUEUED, FAILED, CANCELLED}),
    (RUNNING, "confirm"): frozenset({CANCELLED}),
    (FAILED, "replay"): frozenset({QUEUED}),
    (CANCELLED, "replay"): frozenset({QUEUED}),
}
"""(state, verb) -> the states that it may lead to. What is not here does not happen.

``succeed`` leads to failed where more items failed than are allowed; ``error`` leads to succeeded where the last
attempt ended all items and few enough of them failed.
"""

BORN_WITH = (
    "expires_at",
    "max_attempts",
    "timeout_seconds",
    "stall_timeout_seconds",
    "allow_failed_items",
)
"""What a submitter may say and a later change may set: the first line tells it where it was said."""

_born_with = attrgetter(*BORN_WITH)
_WITHOUT = (None,) * len(BORN_WITH)

CheckpointId = tuple[CheckpointKind, str]

HOLD_MOST_SECONDS = 1e9
"""The longest hold. Somebody else's ``Retry-After`` may be any number, and a time past the calendar cannot be shown."""

WORKER_LOST = "worker_lost"
ITEMS_FAILED = "items_failed"
TIMEOUT = "timeout"
STALLED = "stalled"


class Facts(NamedTuple):
    """What a decision needs to know beside the job and the intent.

    Attributes:
        now: the store's clock, one reading for this decision.
        policy: budgets and delays.
        checkpoints: those that stand already, of the kinds and keys that the intent names (more does no harm).
        item_keys: the keys of the job's items where they must be checked; None where the writer is trusted.
        jitter: the factor for a backoff, from policy.JITTER_LOW to JITTER_HIGH.
    """

    now: float
    policy: Policy = Policy()
    checkpoints: Mapping[CheckpointId, Checkpoint] = MappingProxyType({})
    item_keys: frozenset[str] | None = None
    jitter: float = 1.0


@dataclass(frozen=True)
class Kept:
    """Nothing to write: what was asked is so already. ``status`` as in `Change`."""

    job: Job
    status: str = "ok"


def decide(job: Job, intent: Intent, facts: Facts) -> Change | Kept:
    """What follows from an intent; dispatches to the function of its kind.

    Raises:
        LeaseLost: a worker's write whose epoch is not the current one of a running job.
        CheckpointConflict: another value stands under a key already.
        OutcomeInvalid: a worker's write that does not fit the job it holds.
        TransitionRefused: from this state the verb leads nowhere.
    """
    match intent:
        case Beat():
            return heartbeat(job, intent, facts)
        case Outcome():
            return settle(job, intent, facts)
        case Cancel():
            return cancel(job, intent, facts)
        case Replay():
            return replay(job, intent, facts)
        case Rescue():
            return rescue(job, intent, facts)
        case Expire():
            return expire(job, facts)


# ---- birth and claim


def submit(draft: Draft, now: float) -> Change:
    """A new job, queued, due now or at the draft's ``run_at``."""
    run_at = now if draft.run_at is None or draft.run_at < now else draft.run_at
    limits = _limits_of(draft)
    job = evolve(
        _NEW,
        job_id=draft.job_id,
        owner=draft.owner,
        kind=draft.kind,
        sender=draft.sender,
        topic=draft.topic,
        priority=draft.priority,
        queue=draft.queue,
        total=draft.total,
        has_items=draft.has_items,
        created_at=now,
        updated_at=now,
        run_at=run_at,
        start_by=draft.expires_at,
        params=draft.params,
        metadata=draft.metadata,
        **limits,
    )
    data: dict[str, Any] = {"run_at": run_at}
    if limits:
        data["limits"] = limits
    if draft.idempotency_key is not None or draft.body_digest is not None:
        data["key"] = digest(draft.idempotency_key, draft.body_digest)
    data["digest"] = content_digest(job, draft.payload, draft.actor, data)
    line = Line(0, now, Event.SUBMITTED, None, QUEUED, 0, 0, 1, draft.actor, None, data)
    return Change(job, None, None, (line,))


def _limits_of(draft: Draft) -> dict[str, Any]:
    """Those of `BORN_WITH` that the submitter said."""
    limits = _born_with(draft)
    if limits == _WITHOUT:
        return {}
    return {name: limit for name, limit in zip(BORN_WITH, limits, strict=True) if limit is not None}


_NEW = Job(
    job_id="",
    owner="",
    kind="",
    sender="",
    topic="",
    priority=Priority.NORMAL,
    queue="",
    state=QUEUED,
    version=1,
    epoch=0,
    life=1,
    lines=1,
    attempts=0,
    max_attempts=None,
    crashes=0,
    crashes_in_row=0,
    interruptions=0,
    holds=0,
    done=0,
    total=1,
    failed_items=0,
    has_items=False,
    worker=None,
    lease_expires_at=None,
    lease_seconds=None,
    beat_seq=0,
    settled=None,
    cancel_requested=False,
    reason=None,
    created_at=0.0,
    updated_at=0.0,
    run_at=0.0,
    started_at=None,
    progress_at=None,
    finished_at=None,
    expires_at=None,
    start_by=None,
    timeout_seconds=None,
    stall_timeout_seconds=None,
    allow_failed_items=None,
    error=None,
    result_bytes=None,
    params="{}",
    metadata="{}",
    usage=None,
    kept=None,
)
"""What every job starts from."""


def claim(job: Job, worker: str, lease_seconds: float, now: float) -> Change:
    """The claim: the one transition that stores write themselves, for speed; a test holds theirs equal to this.

    Raises:
        TransitionRefused: the job is not queued, not due, or should have started by now.
    """
    if job.state is not QUEUED or job.run_at > now or (job.start_by is not None and job.start_by <= now):
        raise TransitionRefused(f"job {job.job_id} cannot be claimed now", job_id=job.job_id, state=job.state)
    sets = {
        "epoch": job.epoch + 1,
        "attempts": job.attempts + 1,
        "worker": worker,
        "lease_seconds": lease_seconds,
        "lease_expires_at": now + min(lease_seconds, *_spans(job, None)),
        "beat_seq": 0,
        "started_at": now,
        "progress_at": now,
        "start_by": None,
        "reason": None,
    }
    # The line tells when the run started, also where the store's clock was set back and no line's time may fall.
    data = {"started_at": now} if now < job.updated_at else {}
    return _move(job, "claim", RUNNING, now, sets, Event.CLAIMED, worker, data=data)


def _spans(job: Job, policy: Policy | None) -> list[float]:
    """The job's time limits in seconds: of the whole run, and without progress."""
    stall = job.stall_timeout_seconds
    if stall is None and policy is not None:
        stall = policy.stall_timeout_seconds
    return [span for span in (job.timeout_seconds, stall) if span is not None] or [float("inf")]


# ---- what a worker writes: all of it is fenced by the epoch


def heartbeat(job: Job, beat: Beat, facts: Facts) -> Change:
    """Extend the lease, keep progress and checkpoints, tell of a cancel: one change."""
    _fence(job, beat.epoch)
    is_repeat = beat.seq is not None and beat.seq <= job.beat_seq
    output = () if is_repeat else beat.output
    usage = None if is_repeat else beat.usage
    offer = _Offer(job, beat.checkpoints, facts)
    job = _adopt(job, beat.limits)
    sets = offer.sets()
    done, total = _reported_progress(job, replace(beat, done=None) if is_repeat else beat, offer.done)
    moved = done > job.done or bool(offer.fresh) or bool(output) or (beat.moved and not is_repeat)
    if moved:
        sets["progress_at"] = facts.now
    sets |= {"done": done, "total": total, "usage": _add_usage(job.usage, usage)}
    if beat.seq is not None:
        sets["beat_seq"] = max(beat.seq, job.beat_seq)
    lease_seconds = beat.lease_seconds or job.lease_seconds or 0.0
    sets["lease_expires_at"] = min(facts.now + lease_seconds, limit_at(evolve(job, **sets), facts.policy))
    lines = _output_lines(job, output, facts.now)
    if (done, total) != (job.done, job.total) and _is_line_due(job, done, total, facts):
        lines.append(_line(job, len(lines), facts.now, Event.PROGRESS, {"done": done, "total": total}))
    after = evolve(
        job, **sets, version=job.version + 1, lines=job.lines + len(lines), updated_at=_later(job, facts.now)
    )
    status = "cancel_requested" if job.cancel_requested else "ok"
    return Change(after, job.version, RUNNING, tuple(lines), offer.fresh, status=status)


def settle(job: Job, outcome: Outcome, facts: Facts) -> Change | Kept:
    """End a run as its outcome says. A repeat of the outcome that was accepted last is answered the same again."""
    settled = f"{outcome.epoch}:{outcome_digest(outcome)}"
    if job.settled == settled:
        return Kept(job)
    _fence(job, outcome.epoch)
    offer = _Offer(job, outcome.checkpoints, facts)
    before = job
    job = evolve(
        _adopt(job, outcome.limits),
        settled=settled,
        usage=_add_usage(job.usage, outcome.usage),
        **offer.sets(),
    )
    output = _output_lines(job, outcome.output, facts.now)
    run = _Run(before, job, facts, output, offer)
    match outcome.kind:
        case OutcomeKind.SUCCEEDED:
            return _succeed(run, outcome)
        case OutcomeKind.FAILED:
            error = outcome.error or ErrorInfo("unknown", "the worker gave no error")
            return _error(run, error)
        case OutcomeKind.HELD:
            return _hold(run, outcome)
        case OutcomeKind.RELEASED:
            return _release(run, outcome.reason)
        case OutcomeKind.CANCELLED:
            if not job.cancel_requested:
                raise OutcomeInvalid(
                    f"job {job.job_id} was not asked to cancel: report failed, held or released instead"
                )
            return _confirm_cancel(run, "confirm")
        case OutcomeKind.CRASHED:
            return _crash(run, outcome.reason or "process gone")


class _Run(NamedTuple):
    """A run about to end: the job as stored, the job with what the outcome brought, and what to write beside it."""

    before: Job
    job: Job
    facts: Facts
    output: Sequence[Line] = ()
    offer: _Offer | None = None

    def end(self, verb: str, to: State, sets: dict[str, Any], event: Event, **line: Any) -> Change:
        job = evolve(self.job, lines=self.job.lines + len(self.output)) if self.output else self.job
        sets = {"worker": None, "lease_expires_at": None, "lease_seconds": None, "beat_seq": 0, **sets}
        return _move(
            job,
            verb,
            to,
            self.facts.now,
            sets,
            event,
            self.before.worker or "sweep",
            before=self.before,
            output=self.output,
            checkpoints=self.offer.fresh if self.offer else (),
            **line,
        )


def _succeed(run: _Run, outcome: Outcome) -> Change:
    job = run.job
    if job.has_items:
        if outcome.result is not None:
            raise OutcomeInvalid(
                f"job {job.job_id} has items: its results are their checkpoints, not one result"
            )
        if job.done < job.total:
            raise OutcomeInvalid(
                f"job {job.job_id} has {job.total - job.done} of {job.total} items still pending"
            )
        return _judge_items(run, "succeed")
    result = "null" if outcome.result is None else outcome.result
    size = len(result.encode())
    data = {"result": digest(result), "bytes": size}
    sets = {"done": job.total, "finished_at": run.facts.now, "error": None, "result_bytes": size}
    return run.end("succeed", SUCCEEDED, _final(sets), Event.SUCCEEDED, data=data, result=result)


def _judge_items(run: _Run, verb: str) -> Change:
    """All items ended: succeeded, or failed where more of them failed than are allowed."""
    job = run.job
    if job.failed_items <= _allowance(job):
        data = {"done": job.done, "failed_items": job.failed_items}
        return run.end(
            verb, SUCCEEDED, _final({"finished_at": run.facts.now, "error": None}), Event.SUCCEEDED, data=data
        )
    message = f"{job.failed_items} of {job.total} items failed for good"
    return _fail(
        run, verb, ErrorInfo(ITEMS_FAILED, message, {"failed_items": job.failed_items, "total": job.total})
    )


def _allowance(job: Job) -> float:
    allowed = job.allow_failed_items or 0.0
    return allowed if allowed >= 1 else allowed * job.total + 1e-9  # 0.29 of 100 is 28.999999999999996


def _error(run: _Run, error: ErrorInfo) -> Change:
    """An attempt that counts: again after the backoff, or a dead letter."""
    job, facts = run.job, run.facts
    if job.cancel_requested:
        return _confirm_cancel(run, "error")
    max_attempts = facts.policy.max_attempts if job.max_attempts is None else job.max_attempts
    if error.is_permanent or job.attempts >= max_attempts:
        if job.has_items and error.code == ITEMS_FAILED and run.offer is not None:
            run = run._replace(job=evolve(job, **run.offer.finalise()))
            if run.job.done >= run.job.total:
                return _judge_items(run, "error")
        return _fail(run, "error", error)
    run_at = facts.now + backoff(job.attempts, facts.policy, jitter=facts.jitter)
    info = error_json(error, job)
    sets = {"run_at": run_at, "error": json.dumps(info), "reason": error.code}
    return run.end(
        "error", QUEUED, sets, Event.RETRIED, reason=error.code, data={"error": info, "run_at": run_at}
    )


def _fail(run: _Run, verb: str, error: ErrorInfo, **sets: Any) -> Change:
    info = error_json(error, run.job)
    sets |= {"finished_at": run.facts.now, "error": json.dumps(info)}
    data = {"error": info, "done": run.job.done, "failed_items": run.job.failed_items}
    return run.end(verb, FAILED, _final(sets), Event.FAILED, reason=error.code, data=data)


def _hold(run: _Run, outcome: Outcome) -> Change:
    """Something that the job needs is not to be had now: it waits, uncharged."""
    job = run.job
    if job.cancel_requested:
        return _confirm_cancel(run, "hold")
    after = run.facts.policy.hold_seconds if outcome.after_seconds is None else outcome.after_seconds
    if not 0 <= after < float("inf"):
        raise OutcomeInvalid(f"a hold waits 0 seconds or more, got {after}")
    run_at = run.facts.now + min(after, HOLD_MOST_SECONDS)
    reason = outcome.reason or "held by its handler"
    sets = {"attempts": job.attempts - 1, "holds": job.holds + 1, "run_at": run_at, "reason": reason}
    return run.end("hold", QUEUED, sets, Event.HELD, reason=reason, data={"run_at": run_at})


def _release(run: _Run, reason: str | None) -> Change:
    """The worker drains and gives the job back: due at once, uncharged."""
    job = run.job
    if job.cancel_requested:
        return _confirm_cancel(run, "release")
    sets = {
        "attempts": job.attempts - 1,
        "interruptions": job.interruptions + 1,
        "run_at": run.facts.now,
        "reason": "released",
    }
    return run.end(
        "release",
        QUEUED,
        sets,
        Event.RELEASED,
        reason=reason or "worker drains",
        data={"run_at": run.facts.now},
    )


def _crash(run: _Run, reason: str) -> Change:
    """The worker was lost: again after a backoff while the crash budget lasts, then a dead letter that says so."""
    job, facts, policy = run.job, run.facts, run.facts.policy
    if job.cancel_requested:
        return _confirm_cancel(run, "crash")
    crashes, in_row = job.crashes + 1, job.crashes_in_row + 1
    counts = {"attempts": job.attempts - 1, "crashes": crashes, "crashes_in_row": in_row}
    times = "time" if crashes == 1 else "times"
    message = f"its worker was lost {crashes} {times} ({in_row} in a row), the last time: {reason}"
    error = ErrorInfo(
        WORKER_LOST, message, {"worker": job.worker, "reason": reason, "crashes": crashes, "in_row": in_row}
    )
    if in_row >= policy.max_crashes or crashes >= policy.max_crashes_total:
        return _fail(run, "crash", error, **counts)
    run_at = facts.now + backoff(in_row, policy, jitter=facts.jitter)
    info = error_json(error, job)
    sets = {**counts, "run_at": run_at, "error": json.dumps(info), "reason": WORKER_LOST}
    data = {"worker": job.worker, "crashes_in_row": in_row, "run_at": run_at}
    return run.end("crash", QUEUED, sets, Event.CRASHED, reason=reason, data=data)


def _confirm_cancel(run: _Run, verb: str) -> Change:
    sets = _final({"finished_at": run.facts.now, "reason": run.job.reason})
    return run.end(verb, CANCELLED, sets, Event.CANCELLED, reason=run.job.reason)


# ---- what callers and the sweep want


def cancel(job: Job, intent: Cancel, facts: Facts) -> Change | Kept:
    """Queued: cancelled at once. Running: asked to stop; asked twice is asked once. Ended: refused."""
    reason = intent.reason or "cancelled by the caller"
    if job.state is QUEUED:
        sets = _final({"finished_at": facts.now, "reason": reason})
        return _move(job, "cancel", CANCELLED, facts.now, sets, Event.CANCELLED, intent.actor, reason=reason)
    if job.state is RUNNING:
        if job.cancel_requested:
            return Kept(job, "cancel_requested")
        sets = {"cancel_requested": True, "reason": reason}
        event = Event.CANCEL_REQUESTED
        return _move(job, "cancel", RUNNING, facts.now, sets, event, intent.actor, reason=reason)
    raise TransitionRefused(
        f"job {job.job_id} is {job.state}: it ended and cannot be cancelled",
        job_id=job.job_id,
        state=job.state,
    )


def replay(job: Job, intent: Replay, facts: Facts) -> Change | Kept:
    """A new life: attempts and crashes from 0, the epoch goes on, checkpoints of what succeeded stay."""
    if intent.life is not None and intent.life < job.life:
        return Kept(job)
    if (job.state, "replay") not in TRANSITIONS:
        hint = "submit a new job to run it again" if job.state is SUCCEEDED else "it has not ended"
        raise TransitionRefused(
            f"job {job.job_id} is {job.state}: {hint}", job_id=job.job_id, state=job.state
        )
    run_at = facts.now if intent.run_at is None else max(facts.now, intent.run_at)
    sets = {
        "life": job.life + 1,
        "attempts": 0,
        "crashes": 0,
        "crashes_in_row": 0,
        "done": job.done - job.failed_items if job.has_items else 0,
        "failed_items": 0,
        "cancel_requested": False,
        "reason": None,
        "run_at": run_at,
        "started_at": None,
        "progress_at": None,
        "finished_at": None,
        "expires_at": None,
        "start_by": None,
        "error": None,
        "kept": kept_without_errors(job.kept),
    }
    data = {"run_at": run_at}
    return _move(
        job, "replay", QUEUED, facts.now, sets, Event.REPLAYED, intent.actor, data=data, drops_errors=True
    )


def rescue(job: Job, intent: Rescue, facts: Facts) -> Change | Kept:
    """Take a job back whose holder is gone. A run whose lease ended at its time limit is a timeout, not a crash.

    At a limit the holder is as a rule alive and busy ending the handler: for a grace it is waited for, so that the next
    run does not start beside the end of this one. The lease is over all the same, and no beat extends it.
    """
    if job.state is not RUNNING or job.epoch != intent.epoch or job.lease_expires_at is None:
        return Kept(job)
    has_ended = job.lease_expires_at <= facts.now
    if not has_ended and not intent.is_proven:
        return Kept(job)
    run = _Run(job, job, facts)
    limit = limit_error(job, facts._replace(now=job.lease_expires_at)) if has_ended else None
    grace_ends_at = job.lease_expires_at + facts.policy.limit_grace_seconds
    if limit is not None and facts.now < grace_ends_at and not intent.is_proven:
        return Kept(job)
    return _crash(run, intent.reason) if limit is None else _error(run, limit)


def expire(job: Job, facts: Facts) -> Change | Kept:
    """End a job that did not start before its ``expires_at``."""
    if job.state is not QUEUED or job.start_by is None or job.start_by > facts.now:
        return Kept(job)
    sets = _final({"finished_at": facts.now, "reason": "expired"})
    return _move(job, "expire", CANCELLED, facts.now, sets, Event.EXPIRED, "sweep", reason="expired")


# ---- time limits


def limit_at(job: Job, policy: Policy) -> float:
    """The instant past which no heartbeat extends the run: its whole time, or its time without progress, is over."""
    started = job.started_at if job.started_at is not None else job.updated_at
    progressed = job.progress_at if job.progress_at is not None else started
    stall = policy.stall_timeout_seconds if job.stall_timeout_seconds is None else job.stall_timeout_seconds
    whole = float("inf") if job.timeout_seconds is None else started + job.timeout_seconds
    return min(whole, progressed + stall)


def limit_error(job: Job, facts: Facts) -> ErrorInfo | None:
    """The error of a run that is past one of its time limits, None where it is not."""
    if facts.now < limit_at(job, facts.policy):
        return None
    if (
        job.timeout_seconds is not None
        and job.started_at is not None
        and facts.now >= job.started_at + job.timeout_seconds
    ):
        return ErrorInfo(TIMEOUT, f"the run took longer than timeout_seconds ({job.timeout_seconds:g} s)")
    stall = (
        facts.policy.stall_timeout_seconds if job.stall_timeout_seconds is None else job.stall_timeout_seconds
    )
    return ErrorInfo(STALLED, f"the run made no progress for stall_timeout_seconds ({stall:g} s)")


# ---- the parts


def _fence(job: Job, epoch: int) -> None:
    if job.state is not RUNNING or job.epoch != epoch:
        raise LeaseLost(
            f"epoch {epoch} of job {job.job_id} is not its running one (epoch {job.epoch}, {job.state})"
        )


def _move(
    job: Job,
    verb: str,
    to: State,
    now: float,
    sets: dict[str, Any],
    event: Event,
    actor: str,
    *,
    reason: str | None = None,
    data: Mapping[str, Any] | None = None,
    before: Job | None = None,
    output: Sequence[Line] = (),
    checkpoints: tuple[Checkpoint, ...] = (),
    result: JsonText | None = None,
    drops_errors: bool = False,
) -> Change:
    """Build the change of one edge of the table, with its journal line. ``before`` is the row as stored, where ``job``
    is it with something added already."""
    if to not in TRANSITIONS.get((job.state, verb), ()):
        raise AssertionError(f"{verb} may not lead from {job.state} to {to}: write it into TRANSITIONS first")
    stored = before or job
    at = _later(stored, now)
    after = evolve(job, **sets, state=to, version=stored.version + 1, lines=job.lines + 1, updated_at=at)
    told = dict(data) if data else {}
    line = Line(
        job.lines, at, event, job.state, to, after.epoch, after.attempts, after.life, actor, reason, told
    )
    if to is not RUNNING:
        told[ROW] = row_seal(after)
    if event is not Event.CLAIMED:
        told[SEAL] = line_seal(after.job_id, job.started_at, line)
    lines = (*output, line)
    return Change(after, stored.version, stored.state, lines, checkpoints, result, drops_errors=drops_errors)


def _line(job: Job, ahead: int, now: float, event: Event, data: Mapping[str, Any]) -> Line:
    """A line of a running job that stays running, ``ahead`` lines after those it has."""
    at, actor, told = _later(job, now), job.worker or "", dict(data)
    line = Line(
        job.lines + ahead, at, event, RUNNING, RUNNING, job.epoch, job.attempts, job.life, actor, None, told
    )
    told[SEAL] = line_seal(job.job_id, job.started_at, line)
    return line


def _later(job: Job, now: float) -> float:
    """Time never falls within a job, even where the store's clock was set back."""
    return now if now > job.updated_at else job.updated_at


def _final(sets: dict[str, Any]) -> dict[str, Any]:
    """What holds for every ended job: nobody runs it, nobody is asked to stop it, nothing is to start."""
    return {"cancel_requested": False, "start_by": None, "reason": None, **sets}


def _adopt(job: Job, limits: Limits | None) -> Job:
    """Take the handler's limits where the job itself says nothing."""
    if limits is None:
        return job
    names = ("max_attempts", "timeout_seconds", "stall_timeout_seconds", "allow_failed_items")
    sets = {
        n: getattr(limits, n) for n in names if getattr(job, n) is None and getattr(limits, n) is not None
    }
    return evolve(job, **sets) if sets else job


class _Offer:
    """The checkpoints of one write, held against those that stand: which are new, and what they count.

    A final value that stands is never replaced: the same again is nothing new, another is a conflict. A step under
    another input is another step. The error of an item that may be retried is not final and gives way.
    """

    def __init__(self, job: Job, offered: Sequence[Checkpoint], facts: Facts) -> None:
        self.job = job
        self.done = job.done
        self.failed_items = job.failed_items
        standing: dict[CheckpointId, Checkpoint] = {}
        for checkpoint in offered:
            at = (checkpoint.kind, checkpoint.key)
            before = standing.get(at) or facts.checkpoints.get(at)
            if self._is_new(checkpoint, before, facts):
                standing[at] = replace(checkpoint, epoch=job.epoch)
                self._count(checkpoint)
        self.fresh: tuple[Checkpoint, ...] = tuple(standing.values())
        self._replaced = [facts.checkpoints[at] for at in standing if at in facts.checkpoints]

    def _is_new(self, offered: Checkpoint, before: Checkpoint | None, facts: Facts) -> bool:
        if (offered.value is None) == (offered.error is None):
            raise OutcomeInvalid(f"checkpoint {offered.key!r} needs a value or an error, and not both")
        if offered.kind is CheckpointKind.ITEM:
            self._check_key(offered.key, facts)
        if before is None or not before.is_final:
            return True
        if offered.kind is CheckpointKind.STEP and offered.input_digest != before.input_digest:
            return True
        if (offered.value, offered.error) == (before.value, before.error):
            return False
        raise CheckpointConflict(f"another value stands under {offered.key!r} already", key=offered.key)

    def _check_key(self, key: str, facts: Facts) -> None:
        if not self.job.has_items:
            raise OutcomeInvalid(f"job {self.job.job_id} has no items: its result belongs into the outcome")
        if facts.item_keys is not None and key not in facts.item_keys:
            raise OutcomeInvalid(f"job {self.job.job_id} has no item {key[:80]!r}")

    def _count(self, checkpoint: Checkpoint) -> None:
        if checkpoint.kind is CheckpointKind.ITEM and checkpoint.is_final:
            self.done += 1
            self.failed_items += checkpoint.error is not None

    def sets(self) -> dict[str, Any]:
        """The counts, the sum, and the crash budget: it is refilled by any checkpoint that will not be made again."""
        if not self.fresh:
            return {}
        kept = kept_after(self.job.kept, self._replaced, self.fresh)
        sets: dict[str, Any] = {"done": self.done, "failed_items": self.failed_items, "kept": kept}
        if any(c.is_final for c in self.fresh):
            sets["crashes_in_row"] = 0
        return sets

    def finalise(self) -> dict[str, Any]:
        """Make the errors of items that will not be retried final, and count them."""
        fresh = []
        for checkpoint in self.fresh:
            if not checkpoint.is_final:
                checkpoint = replace(checkpoint, is_final=True)
                self._count(checkpoint)
            fresh.append(checkpoint)
        self.fresh = tuple(fresh)
        return self.sets()


def _reported_progress(job: Job, beat: Beat, counted: int) -> tuple[int, int]:
    """Done and total after a beat. Items count themselves, whatever is said; elsewhere the handler's word is taken, but
    for a piece that is the only one: it is done when the run succeeds, and not while it runs.

    A run that starts again from the front says so: held at what an earlier run had reached, it would never seem to
    move, and be ended as stalled.
    """
    if job.has_items:
        return counted, job.total
    total = job.total if beat.total is None or beat.total <= 0 else beat.total
    done = job.done if beat.done is None else max(0, beat.done)
    return min(done, total) if total > 1 else 0, total


def _is_line_due(job: Job, done: int, total: int, facts: Facts) -> bool:
    """Thin progress lines by the clock alone, so that no column has to remember the last one."""
    if done >= total or job.progress_at is None:
        return True
    span = facts.policy.progress_line_seconds
    return span <= 0 or int(facts.now / span) != int(job.progress_at / span)


def _output_lines(job: Job, output: Sequence[JsonText], now: float) -> list[Line]:
    return [_line(job, i, now, Event.OUTPUT, {"output": json.loads(o)}) for i, o in enumerate(output)]


def _add_usage(before: JsonText | None, more: Mapping[str, float] | None) -> JsonText | None:
    if not more:
        return before
    sums: dict[str, float] = json.loads(before) if before else {}
    for name, number in more.items():
        sums[name] = _within(sums.get(name, 0) + number)
    return json.dumps(sums)


def _within(number: float) -> float:
    """The number, or the last one that JSON text can hold for everybody: 64 bits, and no infinity."""
    most = 2**63 - 1 if isinstance(number, int) else sys.float_info.max
    return max(-most, min(number, most))


def error_json(error: ErrorInfo, job: Job) -> dict[str, Any]:
    """An error as it is stored and shown: with the epoch and the attempt that it belongs to."""
    return {
        "code": error.code,
        "message": error.message,
        "detail": error.detail,
        "epoch": job.epoch,
        "attempt": job.attempts,
    }


def content_digest(job: Job, payload: Payload, actor: str, told: Mapping[str, Any]) -> str:
    """The digest of all that a job was submitted with: what ``verify`` compares.

    Args:
        job: of which only what never changes is taken.
        payload: what it works on.
        actor: who submitted it, as its first line says.
        told: the data of that line without the digest.
    """
    keys = None if payload.keys is None else "\x02".join(payload.keys)
    shape = f"{'items' if job.has_items else 'content'} {job.created_at!r} {canonical(told)}"
    names = (job.job_id, job.owner, job.kind, job.sender, job.topic, job.priority, job.queue)
    return digest(*names, job.params, job.metadata, actor, shape, payload.body, keys)


def outcome_digest(outcome: Outcome) -> str:
    """The digest by which a repeated outcome is recognised."""
    error = outcome.error
    parts = [outcome.kind, outcome.result, outcome.reason, repr(outcome.after_seconds)]
    if error is not None:
        detail = json.dumps(error.detail, sort_keys=True, default=repr)
        parts += [error.code, error.message, detail, str(error.is_permanent)]
    for c in outcome.checkpoints:
        parts += [c.kind, c.key, c.value, c.error]
    return digest(*parts)
