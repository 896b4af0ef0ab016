"""What must hold of one job at any time, as a program checks it over its row, journal and checkpoints."""

from __future__ import annotations

import json
from itertools import pairwise

from postroom.lifecycle import TRANSITIONS
from postroom.model import CheckpointKind, Event, Job, Line, State, digest
from tests.stores.office import Record

EDGES = {(before, to) for (before, _), states in TRANSITIONS.items() for to in states}
ENDS = {Event.SUCCEEDED, Event.FAILED, Event.CANCELLED, Event.EXPIRED}
UNCHARGED = {Event.HELD, Event.RELEASED, Event.CRASHED}


def faults_in(record: Record) -> list[str]:
    """Every broken invariant, by its number; empty for a job that is as it should be."""
    job = record.job
    if job is None:
        is_gone = record == Record(None, (), (), None, None, None)
        return [] if is_gone else ["I33 something is left of a job that is gone"]
    if record.payload is None:
        return ["I21 the job has no payload"]
    return [
        *_journal_faults(record.lines),
        *_row_faults(job),
        *_row_against_journal(job, record.lines),
        *_result_faults(job, record),
        *_item_faults(job, record),
    ]


def _journal_faults(lines: tuple[Line, ...]) -> list[str]:
    faults = []
    if [line.n for line in lines] != list(range(len(lines))):
        faults.append("I31 the journal has gaps")
    if not lines or lines[0].event is not Event.SUBMITTED:
        faults.append("I22 the journal does not begin with a submission")
    for before, after in pairwise(lines):
        if after.from_state is not before.to_state or (after.from_state, after.to_state) not in EDGES:
            faults.append(f"I11 line {after.n} goes from {after.from_state} to {after.to_state}")
        if after.epoch - before.epoch != (after.event is Event.CLAIMED):
            faults.append(f"I02 line {after.n} has epoch {after.epoch} after {before.epoch}")
        if after.life - before.life != (after.event is Event.REPLAYED):
            faults.append(f"I20 line {after.n} has life {after.life} after {before.life}")
        if after.at < before.at:
            faults.append(f"journal: time falls at line {after.n}")
        if before.event in ENDS and after.event is not Event.REPLAYED:
            faults.append(f"I11 line {after.n} comes after the end")
    lives = [line.life for line in lines if line.event in ENDS]
    if len(lives) != len(set(lives)):
        faults.append("I13 one life ended twice")
    return faults


def _row_faults(job: Job) -> list[str]:
    faults = []
    is_running = job.state is State.RUNNING
    if (job.worker is not None, job.lease_expires_at is not None) != (is_running, is_running):
        faults.append("I14 holder and lease do not fit the state")
    if job.max_attempts is not None and job.attempts > job.max_attempts:
        faults.append("I15 more attempts than the budget")
    if min(job.attempts, job.crashes, job.crashes_in_row, job.holds, job.interruptions) < 0:
        faults.append("I15 a count is negative")
    if not 0 <= job.failed_items <= job.done <= job.total:
        faults.append("I29 the counts of items do not fit together")
    if job.state is State.FAILED:
        error = json.loads(job.error or "{}")
        if set(error) != {"code", "message", "detail", "epoch", "attempt"}:
            faults.append("I13 a failure without its error")
    if job.is_final != (job.finished_at is not None):
        faults.append("an end without its time, or a time without an end")
    return faults


def _row_against_journal(job: Job, lines: tuple[Line, ...]) -> list[str]:
    last = lines[-1]
    told = (len(lines), last.to_state, last.epoch, last.attempt, last.life)
    stands = (job.lines, job.state, job.epoch, job.attempts, job.life)
    faults = [] if told == stands else [f"I31 the journal ends {told}, the row stands {stands}"]
    life = [line for line in lines if line.life == job.life]
    claims = sum(line.event is Event.CLAIMED for line in life)
    uncharged = sum(line.event in UNCHARGED for line in life)
    lost = sum(line.event is Event.FAILED and line.reason == "worker_lost" for line in life)
    if job.attempts != claims - uncharged - lost:
        faults.append(
            f"I15 {claims} claims and {uncharged + lost} that cost nothing are not {job.attempts} attempts"
        )
    if job.crashes != sum(line.event is Event.CRASHED for line in life) + lost:
        faults.append("I16 crashes are not those of the journal")
    for count, event in ((job.holds, Event.HELD), (job.interruptions, Event.RELEASED)):
        if count != sum(line.event is event for line in lines):
            faults.append(f"I15 {event} is counted {count} times")
    return faults


def _result_faults(job: Job, record: Record) -> list[str]:
    if job.state is not State.SUCCEEDED or job.has_items:
        return ["I12 a result without success"] if record.result is not None else []
    if record.result is None:
        return ["I12 success without a result"]
    told = record.lines[-1].data
    stands = {"result": digest(record.result), "bytes": len(record.result.encode())}
    return (
        []
        if {name: told.get(name) for name in stands} == stands
        else ["I12 the result is not the recorded one"]
    )


def _item_faults(job: Job, record: Record) -> list[str]:
    items = [c for c in record.checkpoints if c.kind is CheckpointKind.ITEM]
    if not job.has_items:
        return ["I26 items of a job that has none"] if items else []
    ended = [c for c in items if c.is_final]
    faults = []
    if (job.done, job.failed_items) != (len(ended), sum(c.error is not None for c in ended)):
        faults.append("I29 done is not the number of items that ended")
    if any(not 1 <= c.epoch <= job.epoch for c in record.checkpoints):
        faults.append("I26 a checkpoint of an epoch that never was")
    return faults
