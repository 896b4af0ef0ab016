"""What ``postroom verify`` does: hold every job's row, values and result against its journal.

A journal is written in the same transaction as the row, so it can be replayed: the *fold* walks the lines, checks each
step against the table of transitions, and knows in the end what the row must say. What no line tells is sealed (see
`postroom.seals`): by the line that ends a run for a row at rest, by the row's sum for its checkpoints, by the first
line for everything that a job was submitted with.

Nothing is changed, and workers may go on meanwhile: a job that moved between two reads is read again. Memory does not
grow with the store: jobs come page by page, journals and checkpoints in pieces.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from postroom.deadletters import mask
from postroom.drafting import numbered_keys
from postroom.lifecycle import BORN_WITH, TRANSITIONS, WORKER_LOST, content_digest
from postroom.model import (
    JOB_FIELDS,
    Checkpoint,
    CheckpointKind,
    Event,
    Job,
    Line,
    State,
    digest,
)
from postroom.seals import ROW, SEAL, kept_after, line_seal, row_seal
from postroom.stores.port import Query, Store
from postroom.views import format_time

PAGE = 200
LINES = 500
CHECKPOINTS = 100
"""Read at once; a value has a mebibyte at most unless somebody raised that."""

AT_ONCE = 8
"""Jobs that are looked at side by side."""

READINGS = 20
"""How often a job that keeps moving is read again."""

GROUPS_MOST = 1_000_000


@dataclass(frozen=True)
class Finding:
    """Something that does not agree: in a job, or (``job_id`` None) in the store itself.

    ``where`` is the part: a column of the row, ``line N``, ``payload``, ``result``, ``checkpoints``, ``store``.
    """

    job_id: str | None
    where: str
    text: str

    def __str__(self) -> str:
        return f"{f'job {self.job_id}: ' if self.job_id else ''}{self.where}: {self.text}"

    def to_json(self) -> dict[str, Any]:
        return {"job_id": self.job_id, "where": self.where, "text": self.text}


@dataclass(frozen=True)
class Step:
    """How far verification is, and what was found since the last step. ``total`` is what there was at the start."""

    done: int
    total: int | None
    what: str
    findings: tuple[Finding, ...] = ()


async def verify_store(store: Store) -> AsyncIterator[Step]:
    """Verify all jobs, oldest first, then the store itself; a step for every page.

    Args:
        store: an open one.
    """
    total = sum((await store.count()).states.values())
    done = 0
    groups: Counter[tuple[str, str, str]] = Counter()
    cursor: str | None = None
    while True:
        page = await store.find(Query(limit=PAGE, cursor=cursor, oldest_first=True))
        found = [Finding(job_id, "row", f"cannot be read: {why}") for job_id, why in page.broken]
        for start in range(0, len(page.jobs), AT_ONCE):
            some = page.jobs[start : start + AT_ONCE]
            for findings in await asyncio.gather(*(verify_job(store, job) for job in some)):
                found += findings
            groups.update(_group(job) for job in some if job.state is State.FAILED)
        done += len(page.jobs) + len(page.broken)
        cursor = page.next_cursor
        yield Step(done, max(total, done), "", tuple(found))
        if cursor is None:
            break
    yield Step(done, done, "the store itself", tuple(await _verify_parts(store, groups)))


async def _verify_parts(store: Store, groups: Counter[tuple[str, str, str]]) -> list[Finding]:
    """What belongs to no single job: the store's own check, and the groups of dead letters."""
    found = [Finding(None, "store", text) for text in await store.verify()]
    shown = {(g.kind, g.code, g.message): g.count for g in await store.dead_letters(limit=GROUPS_MOST)}
    failed = (await store.count()).states.get(State.FAILED, 0)
    if failed != groups.total():
        return found  # jobs failed or were replayed meanwhile
    for group in sorted(groups.keys() | shown.keys()):
        if groups[group] != shown.get(group, 0):
            kind, code, message = group
            counts = f"{shown.get(group, 0)} are listed, {groups[group]} jobs failed so"
            found.append(Finding(None, "dead letters", f"of kind {kind!r}, {code}: {message!r}: {counts}"))
    return found


def _group(job: Job) -> tuple[str, str, str]:
    """What makes this failure like others, from its own error."""
    try:
        error = json.loads(job.error or "{}")
        return job.kind, str(error.get("code", "")), mask(str(error.get("message", "")))
    except (ValueError, AttributeError):
        return job.kind, "", ""


async def verify_job(store: Store, job: Job) -> list[Finding]:
    """What does not agree in one job; nothing for one that was removed meanwhile, or that moved at every reading.

    Args:
        store: an open one.
        job: its row as just read.
    """
    for _ in range(READINGS):
        found = await _verify_reading(store, job)
        if not found:
            return []
        reading = await store.get([job.job_id])
        again = reading.jobs.get(job.job_id)
        if again is None:
            return []
        if again == job:
            return found
        job = again
    return []


async def _verify_reading(store: Store, job: Job) -> list[Finding]:
    try:
        return await _compare(store, job)
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
    ) as error:  # what was written in by hand may be anything
        return [Finding(job.job_id, "row", f"a part of it cannot be read: {type(error).__name__}: {error}")]


async def _compare(store: Store, job: Job) -> list[Finding]:
    fold = Fold(job)
    after = -1
    while True:
        lines = await store.journal(job.job_id, after=after, limit=LINES)
        for line in lines:
            fold.add(line)
        if len(lines) < LINES:
            break
        after = max(lines[-1].n, after + 1)
    fold.finish()
    found = [Finding(job.job_id, where, text) for where, text in fold.wrong]
    found += [Finding(job.job_id, where, text) for where, text in await _parts(store, job, fold)]
    return found


_Wrong = tuple[str, str]


async def _parts(store: Store, job: Job, fold: Fold) -> list[_Wrong]:
    """What lies apart from the row: payload, checkpoints, result."""
    wrong: list[_Wrong] = []
    payload = await store.payload(job.job_id)
    keys: frozenset[str] | None = None
    if payload is None:
        wrong.append(("payload", "is missing"))
    else:
        if fold.first is not None:
            told = {name: value for name, value in fold.first.data.items() if name != "digest"}
            if content_digest(job, payload, fold.first.actor, told) != fold.first.data.get("digest"):
                text = "it, or another part of what was submitted (owner, kind, params …), is not what line 0 sealed"
                wrong.append(("payload", text))
        if job.has_items:
            keys, problem = _item_keys(job, payload.body, payload.keys)
            wrong += problem
    wrong += await _checkpoints(store, job, keys)
    wrong += _result(job, fold, await store.result(job.job_id))
    return wrong


def _item_keys(
    job: Job, body: str, named: Sequence[str] | None
) -> tuple[frozenset[str] | None, list[_Wrong]]:
    try:
        count = len(json.loads(body))
    except (ValueError, TypeError):
        return None, [("payload", "is no JSON array of items")]
    if count != job.total:
        return None, [("total", f"is {job.total}, the payload has {count} items")]
    keys = frozenset(numbered_keys(count) if named is None else named)
    if len(keys) != count:
        return None, [("payload", f"has {len(keys)} different keys for {count} items")]
    return keys, []


async def _checkpoints(store: Store, job: Job, keys: frozenset[str] | None) -> list[_Wrong]:
    """Count and sum up the checkpoints, and compare with what the row says of them."""
    wrong: list[_Wrong] = []
    kept: str | None = None
    done = failed = 0
    async for some in _pieces(store, job.job_id):
        kept = kept_after(kept, (), some)
        for c in some:
            if c.epoch > job.epoch:
                wrong.append(("checkpoints", f"{c.kind} {c.key!r} has epoch {c.epoch}, the job {job.epoch}"))
            if c.kind is CheckpointKind.ITEM:
                done += c.is_final
                failed += c.is_final and c.error is not None
                if keys is not None and c.key not in keys:
                    wrong.append(("checkpoints", f"there is no item {c.key!r}"))
    if kept != job.kept:
        wrong.append(("checkpoints", "they are not those that were written: one was changed, lost or added"))
    if job.has_items and (done, failed) != (job.done, job.failed_items):
        text = f"{job.done} done, {job.failed_items} failed; the checkpoints say {done} and {failed}"
        wrong.append(("done, failed_items", text))
    return wrong


async def _pieces(store: Store, job_id: str) -> AsyncIterator[list[Checkpoint]]:
    """A job's checkpoints in pieces; of most jobs in one."""
    first = await store.checkpoints(job_id, limit=CHECKPOINTS)
    if len(first) < CHECKPOINTS:
        yield first
        return
    for kind in CheckpointKind:
        after: str | None = None
        while some := await store.checkpoints(job_id, kind=kind, after_key=after, limit=CHECKPOINTS):
            yield some
            after = some[-1].key


def _result(job: Job, fold: Fold, result: str | None) -> list[_Wrong]:
    has_one = job.state is State.SUCCEEDED and not job.has_items
    if not has_one:
        return [] if result is None else [("result", f"a job that is {job.state} has a result")]
    if result is None:
        return [("result", "is missing")]
    told = fold.last.data if fold.last is not None else {}
    if told.get("result") != digest(result) or told.get("bytes") != len(result.encode()):
        return [("result", "is not the one whose digest the journal has")]
    return []


# ---- the fold

_VERBS: Mapping[Event, tuple[str, ...]] = {
    Event.SUBMITTED: ("submit",),
    Event.CLAIMED: ("claim",),
    Event.PROGRESS: ("heartbeat",),
    Event.OUTPUT: ("heartbeat",),
    Event.RETRIED: ("error",),
    Event.HELD: ("hold",),
    Event.RELEASED: ("release",),
    Event.CRASHED: ("crash",),
    Event.CANCEL_REQUESTED: ("cancel",),
    Event.SUCCEEDED: ("succeed", "error"),
    Event.FAILED: ("succeed", "error", "crash"),
    Event.CANCELLED: ("cancel", "confirm", "error", "hold", "release", "crash"),
    Event.EXPIRED: ("expire",),
    Event.REPLAYED: ("replay",),
}
_ENDS_IN: Mapping[Event, State] = {
    Event.CLAIMED: State.RUNNING,
    Event.PROGRESS: State.RUNNING,
    Event.OUTPUT: State.RUNNING,
    Event.CANCEL_REQUESTED: State.RUNNING,
    Event.SUCCEEDED: State.SUCCEEDED,
    Event.FAILED: State.FAILED,
    Event.CANCELLED: State.CANCELLED,
    Event.EXPIRED: State.CANCELLED,
}
"""All others lead to queued."""

_UNCHARGED = frozenset({Event.HELD, Event.RELEASED, Event.CRASHED})


@dataclass
class _Counts:
    """What the row must count after the lines so far."""

    epoch: int = 0
    life: int = 1
    attempts: int = 0
    crashes: int = 0
    interruptions: int = 0
    holds: int = 0


@dataclass
class Fold:
    """One journal, walked once; `wrong` gathers (where, text).

    After `finish` the row was compared too. Only a part of what is compared can be told from the lines of a running
    job: see docs/reference/verify.md.
    """

    job: Job
    wrong: list[_Wrong] = field(default_factory=list)
    first: Line | None = None
    last: Line | None = None
    counts: _Counts = field(default_factory=_Counts)
    run_at: float | None = None
    started_at: float | None = None
    worker: str | None = None
    cancel_requested: bool = False
    reason: str | None = None
    error: Any = None
    has_replay: bool = False
    has_claim: bool = False

    def add(self, line: Line) -> None:
        """Take the next line."""
        self._check_order(line)
        self._check_edge(line)
        self._count(line)
        self._note(line)
        self._check_seal(line)
        self.last = line

    def _say(self, line: Line, text: str) -> None:
        self.wrong.append((f"line {line.n}", text))

    def _check_order(self, line: Line) -> None:
        if self.last is None:
            self.first = line
            if line.n != 0 or line.event is not Event.SUBMITTED:
                self._say(line, f"the journal begins with line {line.n}, {line.event}")
            return
        if line.n != self.last.n + 1:
            self._say(line, f"follows line {self.last.n}: lines are missing")
        if line.at < self.last.at:
            self._say(line, f"is older than line {self.last.n}")

    def _check_edge(self, line: Line) -> None:
        before = None if self.last is None else self.last.to_state
        if line.from_state is not before:
            self._say(line, f"leaves {line.from_state}, the line before it led to {before}")
        to = _ENDS_IN.get(line.event, State.QUEUED)
        leads = [TRANSITIONS.get((line.from_state, verb), frozenset()) for verb in _VERBS[line.event]]
        if line.to_state is not to or not any(to in states for states in leads):
            self._say(line, f"{line.event} does not lead from {line.from_state} to {line.to_state}")

    def _count(self, line: Line) -> None:
        counts = self.counts
        is_crash = line.event is Event.CRASHED
        match line.event:
            case Event.CLAIMED:
                counts.epoch += 1
                counts.attempts += 1
            case Event.REPLAYED:
                counts.life += 1
                counts.attempts = counts.crashes = 0
            case Event.FAILED if line.attempt == counts.attempts - 1:
                is_crash = _code(line) == WORKER_LOST
                counts.attempts -= is_crash
            case event if event in _UNCHARGED:
                counts.attempts -= 1
        counts.crashes += is_crash
        counts.holds += line.event is Event.HELD
        counts.interruptions += line.event is Event.RELEASED
        told = (line.epoch, line.attempt, line.life)
        if told != (counts.epoch, counts.attempts, counts.life):
            self._say(
                line,
                f"says epoch {line.epoch}, attempt {line.attempt}, life {line.life}; those before it make "
                f"{counts.epoch}, {counts.attempts}, {counts.life}",
            )

    def _note(self, line: Line) -> None:
        """What the row must hold after this line."""
        told = line.data
        if "run_at" in told:
            self.run_at = told["run_at"]
        if line.event is Event.CLAIMED:
            self._note_claim(line)
            return
        is_of_worker = line.from_state is State.RUNNING and line.event is not Event.CANCEL_REQUESTED
        if is_of_worker and line.actor != (self.worker or "sweep"):
            self._say(line, f"is by {line.actor}, the run is {self.worker}'s")
        if line.event in (Event.PROGRESS, Event.OUTPUT):
            return
        self.reason = self._reason_after(line)
        if line.event is Event.CANCEL_REQUESTED:
            self.cancel_requested = True
            return
        self.error = self._error_after(line)
        if line.event is Event.REPLAYED:
            self.started_at, self.has_replay = None, True
        self.worker, self.cancel_requested = None, False

    def _reason_after(self, line: Line) -> str | None:
        match line.event:
            case Event.RELEASED:
                return "released"
            case Event.CRASHED:
                return WORKER_LOST
            case Event.SUBMITTED | Event.SUCCEEDED | Event.FAILED | Event.REPLAYED:
                return None
        return line.reason

    def _error_after(self, line: Line) -> Any:
        match line.event:
            case Event.RETRIED | Event.FAILED:
                return line.data.get("error")
            case Event.CRASHED:
                return {"code": WORKER_LOST}  # its line tells no more; the seal of the row covers the rest
            case Event.SUCCEEDED | Event.REPLAYED:
                return None
        return self.error

    def _note_claim(self, line: Line) -> None:
        self.worker, self.cancel_requested, self.reason, self.has_claim = line.actor, False, None, True
        self.started_at = line.data.get("started_at", line.at)
        is_set_back = "started_at" in line.data
        has_fallen = (
            self.last is not None and is_set_back and not line.data["started_at"] < line.at == self.last.at
        )
        if line.reason is not None or line.data.keys() - {"started_at"} or has_fallen:
            self._say(line, "does not read as a claim writes it")

    def _check_seal(self, line: Line) -> None:
        if line.event is Event.SUBMITTED and line.reason is not None:
            self._say(line, "does not read as a submit writes it")
        if line.event in (Event.CLAIMED, Event.SUBMITTED):
            return  # sealed by the line that ends the run, and by the digest of what was submitted
        started_at = self.started_at
        if line.data.get(SEAL) != line_seal(self.job.job_id, started_at, line):
            self._say(line, "it, or the claim of its run, is not what was written")
        if line.to_state is not State.RUNNING and ROW not in line.data:
            self._say(line, "has no digest of the row")

    # ---- the row

    def finish(self) -> None:
        """Compare the row with what the lines make of it."""
        job, last = self.job, self.last
        if self.first is None or last is None:
            self.wrong.append(("journal", "is missing"))
            return
        for name, wanted in self._wanted(last):
            found = getattr(job, name)
            if found != wanted:
                self.wrong.append(
                    (name, f"is {_shown(name, found)}, the journal makes it {_shown(name, wanted)}")
                )
        is_crash = self.error == {"code": WORKER_LOST}
        if (_code_of(job.error) if is_crash else _parsed(job.error)) != self.error:
            self.wrong.append(("error", "is not the one in the journal"))
        if last.event is Event.SUBMITTED:
            self._compare_birth()
        elif job.state is not State.RUNNING and last.data.get(ROW) != row_seal(job):
            self.wrong.append(("row", f"is not as line {last.n} left it"))
        self._check_shape(last)

    def _wanted(self, last: Line) -> Iterator[tuple[str, Any]]:
        """Columns that the lines tell exactly."""
        counts = self.counts
        assert self.first is not None
        is_running = last.to_state is State.RUNNING
        yield "state", last.to_state
        yield "lines", last.n + 1
        yield "epoch", counts.epoch
        yield "life", counts.life
        yield "attempts", counts.attempts
        yield "crashes", counts.crashes
        yield "interruptions", counts.interruptions
        yield "holds", counts.holds
        yield "created_at", self.first.at
        yield "run_at", self.run_at
        yield "started_at", self.started_at
        yield "worker", self.worker if is_running else None
        yield "cancel_requested", self.cancel_requested if is_running else False
        yield "reason", self.reason
        expires_at = None if self.has_replay else _limits(self.first).get("expires_at")
        yield "expires_at", expires_at
        is_unstarted = last.to_state is State.QUEUED and not self.has_claim
        yield "start_by", expires_at if is_unstarted else None
        yield "result_bytes", last.data.get("bytes") if last.event is Event.SUCCEEDED else None
        if not is_running:
            yield "updated_at", last.at
            yield "lease_expires_at", None
            yield "lease_seconds", None
            yield "beat_seq", 0

    def _compare_birth(self) -> None:
        """A job that nothing happened to yet: everything is as submit made it."""
        assert self.first is not None
        limits = _limits(self.first)
        born: dict[str, Any] = {name: limits.get(name) for name in BORN_WITH}
        born |= dict.fromkeys(("settled", "progress_at", "finished_at", "error", "usage", "kept"))
        born |= {"version": 1, "done": 0, "failed_items": 0, "crashes_in_row": 0}
        if not self.job.has_items:
            born["total"] = 1
        for name, wanted in born.items():
            found = getattr(self.job, name)
            if found != wanted:
                self.wrong.append(
                    (name, f"is {_shown(name, found)}, it was submitted with {_shown(name, wanted)}")
                )

    def _check_shape(self, last: Line) -> None:
        """What must hold of a row whatever its history."""
        job = self.job
        for name, wanted in _limits(self.first).items() if self.first else ():
            if name != "expires_at" and getattr(job, name, None) != wanted:
                self.wrong.append(
                    (name, f"is {_shown(name, getattr(job, name, None))}, it was submitted with {wanted}")
                )
        if not 0 <= job.crashes_in_row <= job.crashes:
            self.wrong.append(("crashes_in_row", f"is {job.crashes_in_row} of {job.crashes} crashes"))
        if job.progress_at is not None and job.progress_at > job.updated_at:
            self.wrong.append(("progress_at", "is later than the last write"))
        if job.state is State.RUNNING:
            missing = [
                n
                for n in ("worker", "lease_expires_at", "lease_seconds", "progress_at")
                if getattr(job, n) is None
            ]
            if missing:
                self.wrong.append(("row", f"is running without {', '.join(missing)}"))
            if job.updated_at < last.at:
                self.wrong.append(("updated_at", "is older than the last line"))
            if job.finished_at is not None:
                self.wrong.append(("finished_at", "is set, and the job runs"))
        elif job.is_final != (job.finished_at is not None):
            self.wrong.append(
                ("finished_at", f"is {_shown('finished_at', job.finished_at)}, and the job is {job.state}")
            )
        if not 0 <= job.failed_items <= job.done <= job.total:
            text = f"{job.failed_items} failed of {job.done} done of {job.total}"
            self.wrong.append(("done, failed_items", text))
        if job.state is State.FAILED and job.error is None:
            self.wrong.append(("error", "is missing in a dead letter"))


def _limits(first: Line) -> Mapping[str, Any]:
    limits = first.data.get("limits", {})
    return limits if isinstance(limits, dict) else {}


def _code(line: Line) -> Any:
    error = line.data.get("error")
    return error.get("code") if isinstance(error, dict) else None


def _parsed(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text


def _code_of(text: str | None) -> Any:
    """A crash's line tells the code of its error alone."""
    error = _parsed(text)
    return {"code": error.get("code")} if isinstance(error, dict) else None


_TIMES = frozenset(name for name in JOB_FIELDS if name.endswith("_at") or name == "start_by")
_COLUMNS = frozenset(f.name for f in fields(Job))


def _shown(name: str, value: Any) -> str:
    """A value for a finding: never a content, since no column that is shown holds one."""
    if value is None:
        return "empty"
    if name in _TIMES and isinstance(value, int | float):
        return str(format_time(float(value)))
    return repr(value)[:80] if not isinstance(value, State) else str(value)
