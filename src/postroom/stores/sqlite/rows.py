"""Between our values and rows: what the statements take and give."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from postroom.deadletters import mask
from postroom.model import (
    JOB_FIELDS,
    Checkpoint,
    CheckpointKind,
    Event,
    Job,
    Line,
    Payload,
    State,
    WorkerInfo,
)

SMALL_BYTES = 65_536
"""Texts up to this size are read together; larger ones one by one, so that no text gets too long."""

STATES: tuple[State, ...] = tuple(State)
"""The order of the counts in ``owners``."""

FIXED = frozenset(
    {
        "job_id",
        "owner",
        "kind",
        "sender",
        "topic",
        "priority",
        "queue",
        "has_items",
        "created_at",
        "params",
        "metadata",
    }
)
"""What a job is, and so never changes."""

MUTABLE: tuple[str, ...] = tuple(name for name in JOB_FIELDS if name not in FIXED)
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

# Flags and states go as they are: the driver binds them as the numbers and texts that they also are.
mutable_values: Callable[[Job], tuple[Any, ...]] = attrgetter(*MUTABLE)
"""What ``update_jobs`` writes of a job."""


def failure_of(job: Job) -> tuple[str | None, str | None]:
    """What makes this failure like others: its code and masked message. Nothing for a job that did not fail."""
    if job.state is not State.FAILED:
        return None, None
    error = json.loads(job.error or "{}")
    return str(error.get("code", "")), mask(str(error.get("message", "")))


def line_values(line: Line) -> tuple[Any, ...]:
    """A line of the journal from ``n`` on."""
    return (*line[:-1], data_text(line.data))


def data_text(data: Mapping[str, Any]) -> str:
    """What a line of the journal tells, as it is stored."""
    return _encode(data) if data else "{}"


def first_line_text(lines: Sequence[Line]) -> str:
    """The line that a submission writes, as it is kept beside the payload."""
    [line] = lines
    return _encode(line)


def line_from(row: Sequence[Any]) -> Line:
    """A line of the journal from its values; its data as text or as what the text says."""
    n, at, event, from_state, to_state, epoch, attempt, life, actor, reason, data = row
    before = None if from_state is None else State(from_state)
    told = json.loads(data) if isinstance(data, str) else data
    return Line(n, at, Event(event), before, State(to_state), epoch, attempt, life, actor, reason, told)


def checkpoint_values(seq: int, c: Checkpoint) -> tuple[Any, ...]:
    """A checkpoint as ``save_checkpoints`` takes it."""
    return (seq, c.kind, c.key, int(c.is_final), c.epoch, c.input_digest, c.usage, c.error, c.value)


def checkpoint_from(row: Sequence[Any]) -> Checkpoint:
    """A checkpoint from its columns in the order of the model's fields."""
    kind, key, value, error, is_final, input_digest, usage, epoch = row
    return Checkpoint(CheckpointKind(kind), key, value, error, bool(is_final), input_digest, usage, epoch)


def keys_text(payload: Payload) -> str | None:
    """The keys of a payload's items as they are stored."""
    return None if payload.keys is None else _encode(payload.keys)


def keys_from(text: str | None) -> tuple[str, ...] | None:
    """The keys of a payload's items as they were."""
    return None if text is None else tuple(json.loads(text))


def worker_values(info: WorkerInfo, lock: str | None) -> tuple[Any, ...]:
    """A worker as ``save_worker`` takes it."""
    return (
        info.worker,
        json.dumps(info.kinds),
        json.dumps(info.queues),
        info.concurrency,
        info.host,
        info.pid,
        info.started_at,
        info.seen_at,
        int(info.is_local),
        info.version,
        lock,
    )


def worker_from(row: Sequence[Any]) -> tuple[WorkerInfo, str | None]:
    """A worker as ``workers`` gives it, and the lock that proves it."""
    worker, kinds, queues, concurrency, host, pid, started_at, seen_at, is_local, version, lock = row
    info = WorkerInfo(
        worker,
        tuple(json.loads(kinds)),
        tuple(json.loads(queues)),
        concurrency,
        host,
        pid,
        started_at,
        seen_at,
        bool(is_local),
        version,
    )
    return info, lock
