"""The nouns: frozen values that every room passes to the next.

Times are float seconds since the epoch on the store's clock; durations are float seconds; JSON values are kept as
JSON text (``JsonText``) from the door to the handler, so that what was recorded comes back byte for byte.

Three families:

* what is kept: `Job` (the hot row), `Payload`, `Checkpoint`, `Line` (of the journal);
* what somebody wants: the intents `Draft`, `Beat`, `Outcome`, `Cancel`, `Replay`, `Rescue`, `Expire`;
* what lifecycle decided: a `Change`, which a store writes whole or not at all.

`Line` and `Change` are named tuples, because each transition makes one of each and a frozen dataclass takes three times
as long.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar

Kept = TypeVar("Kept")

JsonText = str
"""A JSON value as text: UTF-8 safe, no NaN, no lone surrogate."""

DEFAULT_OWNER = "local"
"""The owner of jobs while there are no access keys."""

MOST_ATTEMPTS = 1000
MOST_SECONDS = 10**9
"""What a job, or its handler, may ask for: up to so many attempts, and limits below so many seconds."""


class State(StrEnum):
    """Where a job stands. There is no sixth."""

    QUEUED = "queued"
    """Waiting; due at ``run_at``. Delay, retry and hold are this too."""
    RUNNING = "running"
    """Held by a worker under a lease."""
    SUCCEEDED = "succeeded"
    """Ended with a result."""
    FAILED = "failed"
    """Ended with an error: a dead letter until somebody replays it."""
    CANCELLED = "cancelled"
    """Ended because somebody said so, or because it could not start before ``expires_at``."""

    @property
    def is_final(self) -> bool:
        """True for the states that only a replay leaves."""
        return self in _FINAL


_FINAL = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})


class Priority(StrEnum):
    """Who goes first. How long a lower one can be overtaken is bounded (OVERTAKE_SECONDS)."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"

    @property
    def rank(self) -> int:
        """0 for high, 1 for normal, 2 for low: what stores sort by."""
        return _RANKS[self]


_RANKS = {Priority.HIGH: 0, Priority.NORMAL: 1, Priority.LOW: 2}


class Event(StrEnum):
    """What a journal line tells."""

    SUBMITTED = "submitted"
    """The job was accepted."""
    CLAIMED = "claimed"
    """A worker took it under a new epoch."""
    PROGRESS = "progress"
    """Items ended, or a whole handler reported progress; thinned to about one a second."""
    OUTPUT = "output"
    """What the handler emitted."""
    RETRIED = "retried"
    """A run ended by an error and the job waits for its next attempt."""
    HELD = "held"
    """A run ended because something it needs is not to be had now; not charged."""
    RELEASED = "released"
    """A worker that drains gave it back; not charged."""
    CRASHED = "crashed"
    """The worker was lost and the job is queued again."""
    CANCEL_REQUESTED = "cancel_requested"
    """Somebody asked a running job to stop."""
    SUCCEEDED = "succeeded"
    """It ended with a result."""
    FAILED = "failed"
    """It ended with an error."""
    CANCELLED = "cancelled"
    """It ended because somebody said so."""
    EXPIRED = "expired"
    """It ended because it had not started before ``expires_at``."""
    REPLAYED = "replayed"
    """A person queued it again: a new life."""


@dataclass(frozen=True)
class Job:
    """One piece of work: the hot row. Payload, item values and results live apart.

    ``version`` rises with every change of the row and is what optimistic writes compare; ``epoch`` rises with every
    claim and is what a worker's writes compare. ``settled`` remembers the last accepted outcome (epoch and digest),
    so that a repeat whose answer was lost is recognised. ``start_by`` is ``expires_at`` until the first start of this
    life, then None. ``lines`` is the number of journal lines, so the next one's ``n``. ``kept`` sums up its checkpoints
    (see `postroom.seals.kept_after`), so that one that was changed or lost is noticed.
    """

    job_id: str
    owner: str
    kind: str
    sender: str
    topic: str
    priority: Priority
    queue: str
    state: State
    version: int
    epoch: int
    life: int
    lines: int
    attempts: int
    max_attempts: int | None
    crashes: int
    crashes_in_row: int
    interruptions: int
    holds: int
    done: int
    total: int
    failed_items: int
    has_items: bool
    worker: str | None
    lease_expires_at: float | None
    lease_seconds: float | None
    beat_seq: int
    settled: str | None
    cancel_requested: bool
    reason: str | None
    created_at: float
    updated_at: float
    run_at: float
    started_at: float | None
    progress_at: float | None
    finished_at: float | None
    expires_at: float | None
    start_by: float | None
    timeout_seconds: float | None
    stall_timeout_seconds: float | None
    allow_failed_items: float | None
    error: JsonText | None
    result_bytes: int | None
    params: JsonText
    metadata: JsonText
    usage: JsonText | None
    kept: str | None

    @property
    def is_final(self) -> bool:
        """True once the job ended (a replay may start it again)."""
        return self.state in _FINAL


JOB_FIELDS: tuple[str, ...] = tuple(f.name for f in fields(Job))
"""The names of `Job`'s fields in order: the column order of every store."""


def evolve(value: Kept, **sets: Any) -> Kept:
    """A copy of a job or draft with some fields set; 30 times faster than ``dataclasses.replace``.

    Raises:
        TypeError: a name is not a field of the value.
    """
    known = value.__dict__
    copy = object.__new__(type(value))
    values = copy.__dict__
    values.update(known)
    values.update(sets)
    if len(values) != len(known):
        raise TypeError(
            f"{type(value).__name__} has no field {', '.join(sorted(sets.keys() - known.keys()))}"
        )
    return copy


def job_from_row(row: Sequence[Any]) -> Job:
    """Build a `Job` from values in the order of `JOB_FIELDS`, with plain numbers and text for flags and enums."""
    job = object.__new__(Job)
    values = job.__dict__
    values.update(zip(JOB_FIELDS, row, strict=True))
    values["state"] = State(values["state"])
    values["priority"] = Priority(values["priority"])
    values["has_items"] = bool(values["has_items"])
    values["cancel_requested"] = bool(values["cancel_requested"])
    return job


def row_values(job: Job) -> Collection[Any]:
    """The values of a `Job` in the order of `JOB_FIELDS`, as they are: every way to make a job keeps that order."""
    return job.__dict__.values()


def job_to_row(job: Job) -> list[Any]:
    """The values of a `Job` in the order of `JOB_FIELDS`; flags as 0 and 1, enums as their text."""
    row = list(row_values(job))
    row[_STATE] = str(job.state)
    row[_PRIORITY] = str(job.priority)
    row[_HAS_ITEMS] = int(job.has_items)
    row[_CANCEL] = int(job.cancel_requested)
    return row


_STATE = JOB_FIELDS.index("state")
_PRIORITY = JOB_FIELDS.index("priority")
_HAS_ITEMS = JOB_FIELDS.index("has_items")
_CANCEL = JOB_FIELDS.index("cancel_requested")


@dataclass(frozen=True)
class Payload:
    """What a job works on: the content, or an array of item inputs with their keys.

    ``keys`` is None where items are numbered ``"0"``, ``"1"``, … and for content.
    """

    body: JsonText
    keys: tuple[str, ...] | None = None


class CheckpointKind(StrEnum):
    """Whose value a checkpoint keeps."""

    ITEM = "item"
    STEP = "step"


@dataclass(frozen=True)
class Checkpoint:
    """A value (or error) kept during a run, for the next run and through replay.

    Exactly one of ``value`` and ``error`` is set. ``is_final`` False marks the error of an item that may be retried:
    it is shown, and the next run's checkpoint takes its place. ``input_digest`` belongs to steps.
    """

    kind: CheckpointKind
    key: str
    value: JsonText | None = None
    error: JsonText | None = None
    is_final: bool = True
    input_digest: str | None = None
    usage: JsonText | None = None
    epoch: int = 0


class Line(NamedTuple):
    """One line of a job's journal; ``n`` counts from 0 without gaps per job."""

    n: int
    at: float
    event: Event
    from_state: State | None
    to_state: State
    epoch: int
    attempt: int
    life: int
    actor: str
    reason: str | None
    data: Mapping[str, Any]


@dataclass(frozen=True)
class ErrorInfo:
    """Why a run or an item did not succeed, as a worker reports it."""

    code: str
    message: str
    detail: Any = None
    is_permanent: bool = False


@dataclass(frozen=True)
class Limits:
    """What a handler was registered with; stands where the job itself says nothing."""

    max_attempts: int | None = None
    timeout_seconds: float | None = None
    stall_timeout_seconds: float | None = None
    allow_failed_items: float | None = None


# ---- intents: what somebody wants of a job


@dataclass(frozen=True)
class Draft:
    """A job to be, complete and checked: what `lifecycle.submit` takes."""

    job_id: str
    kind: str
    payload: Payload
    total: int = 1
    has_items: bool = False
    owner: str = DEFAULT_OWNER
    sender: str = "unknown"
    topic: str = "default"
    priority: Priority = Priority.NORMAL
    queue: str = "default"
    run_at: float | None = None
    expires_at: float | None = None
    max_attempts: int | None = None
    timeout_seconds: float | None = None
    stall_timeout_seconds: float | None = None
    allow_failed_items: float | None = None
    params: JsonText = "{}"
    metadata: JsonText = "{}"
    idempotency_key: str | None = None
    body_digest: str | None = None
    actor: str = DEFAULT_OWNER


@dataclass(frozen=True)
class Beat:
    """A heartbeat of one run: extends the lease, carries progress and checkpoints, learns of a cancel.

    ``seq`` counts the beats of one epoch from 1: a repeat (its answer was lost) adds nothing twice. None = not counted.
    ``usage`` and ``output`` are what came since the last beat. ``moved`` tells of progress that no count shows (inside
    an item that takes hours), so that the stall limit knows of it.
    """

    job_id: str
    epoch: int
    done: int | None = None
    total: int | None = None
    checkpoints: tuple[Checkpoint, ...] = ()
    output: tuple[JsonText, ...] = ()
    usage: Mapping[str, float] | None = None
    limits: Limits | None = None
    seq: int | None = None
    lease_seconds: float | None = None
    moved: bool = False


class OutcomeKind(StrEnum):
    """What a run ended with, before lifecycle judges it."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    HELD = "held"
    RELEASED = "released"
    CANCELLED = "cancelled"
    CRASHED = "crashed"


@dataclass(frozen=True)
class Outcome:
    """How one run ended. ``after_seconds`` belongs to holds; ``result`` to content jobs that succeeded."""

    job_id: str
    epoch: int
    kind: OutcomeKind
    result: JsonText | None = None
    checkpoints: tuple[Checkpoint, ...] = ()
    output: tuple[JsonText, ...] = ()
    error: ErrorInfo | None = None
    after_seconds: float | None = None
    reason: str | None = None
    usage: Mapping[str, float] | None = None
    limits: Limits | None = None


@dataclass(frozen=True)
class Cancel:
    """Somebody wants the job to stop."""

    job_id: str
    reason: str | None = None
    actor: str = DEFAULT_OWNER


@dataclass(frozen=True)
class Replay:
    """Somebody wants a failed or cancelled job to run again. ``life`` guards against pressing twice."""

    job_id: str
    actor: str = DEFAULT_OWNER
    life: int | None = None
    run_at: float | None = None


@dataclass(frozen=True)
class Rescue:
    """The sweep found the holder of this epoch gone: its lease expired, or its process is proven dead."""

    job_id: str
    epoch: int
    reason: str = "lease expired"
    is_proven: bool = False


@dataclass(frozen=True)
class Expire:
    """The sweep found a job that did not start before ``expires_at``."""

    job_id: str


Intent = Beat | Outcome | Cancel | Replay | Rescue | Expire


# ---- what lifecycle decided


class Change(NamedTuple):
    """One transition, decided: a store writes all of it or nothing.

    It is written only if the row's version is still ``before_version`` (None: the job must not exist yet).
    ``checkpoints`` replace what stands under the same kind and key. ``drops_errors`` removes the errors of items
    (a replay runs them anew).
    """

    job: Job
    before_version: int | None
    before_state: State | None
    lines: tuple[Line, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    result: JsonText | None = None
    drops_result: bool = False
    drops_errors: bool = False
    status: str = "ok"
    """What the one who asked is told: ``ok``, or for a beat ``cancel_requested``."""


@dataclass(frozen=True)
class Lease:
    """A worker's right to a job under one epoch, with all that its handler needs."""

    job: Job
    payload: Payload
    checkpoints: tuple[Checkpoint, ...] = ()


# ---- who works


@dataclass(frozen=True)
class WorkerInfo:
    """A live worker as it introduced itself. ``is_local`` = it holds the presence lock of its store itself."""

    worker: str
    kinds: tuple[str, ...]
    queues: tuple[str, ...]
    concurrency: int
    host: str
    pid: int
    started_at: float
    seen_at: float
    is_local: bool = False
    version: str = ""


def digest(*parts: str | None) -> str:
    """A short digest of texts, the same on every machine; None and "" differ; no text of ours has a NUL."""
    text = "\x00".join(["\x01" if part is None else part for part in parts])
    return blake2b(text.encode(), digest_size=12).hexdigest()


def new_job_id(now: float | None = None) -> str:
    """A new id: 32 hex digits, ordered by time (48 bits of milliseconds as in a UUID version 7, then randomness).

    Within one process ids only rise: those of the same millisecond count on from a random start in random steps.
    """
    milliseconds = int((time.time() if now is None else now) * 1000) & 0xFFFFFFFFFFFF
    with _ids.lock:
        if milliseconds > _ids.milliseconds:
            _ids.milliseconds, _ids.tail = milliseconds, _random.getrandbits(72)
        else:
            _ids.tail += 1 + _random.getrandbits(32)
            if _ids.tail >> 74:
                _ids.milliseconds, _ids.tail = _ids.milliseconds + 1, _random.getrandbits(72)
        tail, stamp = _ids.tail, _ids.milliseconds
    if abs(stamp - milliseconds) > 1000:
        stamp, tail = milliseconds, _random.getrandbits(74)
    return f"{stamp << 80 | 0x7 << 76 | (tail >> 62) << 64 | 0x2 << 62 | tail & 0x3FFFFFFFFFFFFFFF:032x}"


class _Ids:
    """The last id given in this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.milliseconds = -1
        self.tail = 0


_ids = _Ids()
_random = random.Random()
os.register_at_fork(after_in_child=_random.seed)
