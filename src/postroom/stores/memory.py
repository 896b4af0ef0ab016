"""The reference store: everything in dictionaries of one process, under one lock.

It is the shortest store that keeps the whole port, so it is the model that the others are compared with. What it
decides itself is the order of the line:

* A queue has three ranks (high, normal, low), and each rank hands out *places* by `policy.next_place`, per share (the
  owner, or the sender). The next job is the one with the lowest rank, then place, then id.
* A delayed job gets its place when it is due. A job that has waited ``overtake_seconds`` moves up one rank and gets a
  new place there, behind its own share's. Both happen in the next claim, before it chooses.
* A job whose run ended and that is due at once (its worker drained) takes the place that it had.
* Ready jobs stand in one heap per lane, (queue, kind), so that kinds nobody asks for are never in the way. Entries of
  heaps are dropped when they come up and are found to be outdated by their serial number.
"""

from __future__ import annotations

import json
import math
import threading
import time
from bisect import bisect_left, bisect_right, insort
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count, islice, product

from postroom.deadletters import mask
from postroom.errors import TransitionRefused
from postroom.lifecycle import claim
from postroom.model import (
    Change,
    Checkpoint,
    CheckpointKind,
    Expire,
    Job,
    JsonText,
    Lease,
    Line,
    Payload,
    Rescue,
    State,
    WorkerInfo,
)
from postroom.policy import next_place
from postroom.stores.cursors import decode_cursor, encode_cursor
from postroom.stores.hints import Hub, HubWatch
from postroom.stores.port import (
    WORK,
    Capabilities,
    Claimed,
    ClaimRequest,
    DeadLetterGroup,
    Page,
    Query,
    Reading,
    Retention,
    Stats,
    Submission,
    Submitted,
    Sweep,
    Watch,
)

CLAIM_MOST = 1000
HOUR_SECONDS = 3600.0
GROUP_IDS = 20

Lane = tuple[str, str]
"""Queue and kind."""


@dataclass
class _Row:
    """A job with all that belongs to it, and where it stands in line."""

    job: Job
    payload: Payload
    idempotency_key: str | None
    body_digest: str | None
    lines: list[Line]
    checkpoints: dict[tuple[CheckpointKind, str], Checkpoint] = field(default_factory=dict)
    result: JsonText | None = None
    group: tuple[str, str] = ("", "")
    rank: int = 0
    place: float | None = None
    serial: int = 0


@dataclass(frozen=True)
class _End:
    """One end of a job, for the picture of the last hour."""

    at: float
    owner: str
    state: State
    seconds: float


class MemoryStore:
    """Implements `port.Store` without any durability: for tests, for trying out, and as the model of the others.

    Args:
        clock: gives the time in seconds since the epoch; tests pass a `ManualClock`.
        overtake_seconds: how long a ready job waits before it moves up one rank.
        fair_by: whose jobs take turns: ``owner``, ``sender``, or ``none`` for first come first served.
    """

    capabilities = Capabilities(
        name="memory",
        durability="none: everything is gone when the process ends",
        shares_processes=False,
        hints_across_processes=False,
        proves_death=False,
    )
    url = "memory://"

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.time,
        overtake_seconds: float = 600.0,
        fair_by: str = "owner",
    ) -> None:
        if fair_by not in ("owner", "sender", "none"):
            raise ValueError(f"fair_by is owner, sender or none, got {fair_by!r}")
        self._clock = clock
        self._overtake_seconds = overtake_seconds
        self._fair_by = fair_by
        self._lock = threading.RLock()
        self._hub = Hub()
        self._serials = count(1)
        self._rows: dict[str, _Row] = {}
        self._by_age: list[tuple[float, str]] = []
        self._keys: dict[tuple[str, str], str] = {}
        self._running: dict[str, _Row] = {}
        self._queued: dict[str, _Row] = {}
        self._starting: dict[str, _Row] = {}  # queued, and to be started by some time
        self._failed: dict[str, _Row] = {}
        self._ready: dict[Lane, list[tuple[int, float, str, int]]] = {}  # rank, place, id, serial
        self._waking: list[tuple[float, str, int]] = []  # at, id, serial: becomes due, or moves up a rank
        self._delayed: dict[Lane, list[tuple[float, str, int]]] = {}  # run_at, id, serial
        self._clocks: dict[tuple[str, int], float] = {}  # queue and rank -> the last place claimed
        self._places: dict[tuple[str, int, str], float] = {}  # queue, rank, share -> the last place given
        self._counts: Counter[tuple[str, State]] = Counter()
        self._ends: deque[_End] = deque()
        self._claimed_at: dict[str, float] = {}
        self._workers: dict[str, WorkerInfo] = {}
        self._kept: dict[str, JsonText] = {}
        self._purged: dict[str, float] = {}

    def now(self) -> float:
        return self._clock()

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def migrate(self) -> list[str]:
        return []

    # ---- writing

    async def submit(self, submissions: Sequence[Submission]) -> list[Submitted]:
        with self._lock:
            now = self._clock()
            answers = [self._insert(submission, now) for submission in submissions]
        self._hub.hint({WORK, *(answer.job_id for answer in answers if answer.is_new)})
        return answers

    def _insert(self, submission: Submission, now: float) -> Submitted:
        draft, change = submission.draft, submission.change
        key = None if draft.idempotency_key is None else (draft.owner, draft.idempotency_key)
        first = draft.job_id if key is None else self._keys.get(key, draft.job_id)
        if first in self._rows:
            return Submitted(first, False, self._rows[first].body_digest)
        row = _Row(change.job, draft.payload, draft.idempotency_key, draft.body_digest, list(change.lines))
        self._rows[first] = row
        insort(self._by_age, (row.job.created_at, first))
        if key is not None:
            self._keys[key] = first
        self._index(row, now)
        return Submitted(first)

    async def commit(self, changes: Sequence[Change]) -> list[bool]:
        with self._lock:
            now = self._clock()
            answers = [self._apply(change, now) for change in changes]
        written = [change for change, answer in zip(changes, answers, strict=True) if answer]
        topics = {change.job.job_id for change in written}
        if any(change.job.state is State.QUEUED for change in written):
            topics.add(WORK)
        self._hub.hint(topics)
        return answers

    def _apply(self, change: Change, now: float) -> bool:
        row = self._rows.get(change.job.job_id)
        if row is None or row.job.version != change.before_version:
            return False
        if change.drops_errors:
            kept = row.checkpoints.items()
            row.checkpoints = {
                at: c for at, c in kept if c.kind is not CheckpointKind.ITEM or c.error is None
            }
        row.checkpoints.update({(c.kind, c.key): c for c in change.checkpoints})
        if change.drops_result:
            row.result = None
        if change.result is not None:
            row.result = change.result
        self._replace(row, change.job, change.lines, now)
        return True

    def _replace(self, row: _Row, job: Job, lines: Sequence[Line], now: float) -> None:
        """Put another version of a job in the place of the one that stands."""
        before, row.job = row.job, job
        row.lines.extend(lines)
        if job.state is before.state:
            return
        for index in (self._queued, self._running, self._starting, self._failed):
            index.pop(job.job_id, None)
        self._counts[before.owner, before.state] -= 1
        self._index(row, now, was_running=before.state is State.RUNNING)

    def _index(self, row: _Row, now: float, *, was_running: bool = False) -> None:
        """Enter a row that is new in its state everywhere it is looked for."""
        job = row.job
        self._counts[job.owner, job.state] += 1
        row.serial = next(self._serials)
        if job.state is State.QUEUED:
            self._queued[job.job_id] = row
            if job.start_by is not None:
                self._starting[job.job_id] = row
            self._enqueue(row, now, was_running=was_running)
        elif job.state is State.RUNNING:
            self._running[job.job_id] = row
        else:
            ended = now if job.finished_at is None else job.finished_at
            started = ended if job.started_at is None else job.started_at
            self._ends.append(_End(ended, job.owner, job.state, ended - started))
        if job.state is State.FAILED:
            self._failed[job.job_id] = row
            row.group = _group(job)

    # ---- the line

    def _enqueue(self, row: _Row, now: float, *, was_running: bool) -> None:
        job = row.job
        if job.run_at > now:
            row.place = None
            heappush(self._waking, (job.run_at, job.job_id, row.serial))
            heappush(self._delayed.setdefault(_lane(job), []), (job.run_at, job.job_id, row.serial))
        elif was_running and row.place is not None:
            self._stand(row, row.rank, row.place, now)
        else:
            self._line_up(row, job.priority.rank, now)

    def _line_up(self, row: _Row, rank: int, since: float) -> None:
        """Give the job the next place of its share in a rank."""
        share = (row.job.queue, rank, self._share(row.job))
        place = next_place(self._clocks.get(share[:2], 0.0), self._places.get(share))
        self._places[share] = place
        self._stand(row, rank, place, since)

    def _stand(self, row: _Row, rank: int, place: float, since: float) -> None:
        job = row.job
        row.rank, row.place, row.serial = rank, place, next(self._serials)
        heappush(self._ready.setdefault(_lane(job), []), (rank, place, job.job_id, row.serial))
        if rank > 0:
            heappush(self._waking, (since + self._overtake_seconds, job.job_id, row.serial))

    def _share(self, job: Job) -> str:
        return {"owner": job.owner, "sender": job.sender, "none": ""}[self._fair_by]

    def _current(self, job_id: str, serial: int) -> _Row | None:
        """The row that an entry of a heap is about, None where the entry is outdated."""
        row = self._rows.get(job_id)
        return row if row is not None and row.serial == serial else None

    def _wake(self, now: float) -> None:
        """Let delayed jobs that are due step into line, and jobs that waited long move up."""
        while self._waking and self._waking[0][0] <= now:
            at, job_id, serial = heappop(self._waking)
            row = self._current(job_id, serial)
            if row is not None:
                self._line_up(row, row.job.priority.rank if row.place is None else row.rank - 1, at)

    async def claim(self, request: ClaimRequest) -> Claimed:
        lanes = list(dict.fromkeys(product(request.queues, request.kinds)))
        with self._lock:
            now = self._clock()
            self._wake(now)
            leases = self._take(lanes, request, now)
            next_due_at = min((at for lane in lanes for at in self._next_due(lane)), default=None)
        self._hub.hint([lease.job.job_id for lease in leases])
        return Claimed(now, leases, next_due_at)

    def _take(self, lanes: Sequence[Lane], request: ClaimRequest, now: float) -> tuple[Lease, ...]:
        """Claim the jobs of some lanes one after the other, in the order of the line."""
        leases: list[Lease] = []
        refused: list[_Row] = []
        while len(leases) < min(request.limit, CLAIM_MOST) and (heap := self._first(lanes)):
            rank, place, job_id, serial = heappop(heap)
            row = self._current(job_id, serial)
            if row is None:
                continue
            try:
                change = claim(row.job, request.worker, request.lease_seconds, now)
            except (
                TransitionRefused
            ):  # it should have started by now, or the clock was set back: it stays in line
                refused.append(row)
                continue
            at = (row.job.queue, rank)
            self._clocks[at] = max(self._clocks.get(at, 0.0), place)
            self._claimed_at[row.job.owner] = now
            self._replace(row, change.job, change.lines, now)
            leases.append(Lease(row.job, row.payload, _sorted(row)))
        for row in refused:
            assert row.place is not None
            heappush(self._ready[_lane(row.job)], (row.rank, row.place, row.job.job_id, row.serial))
        return tuple(leases)

    def _first(self, lanes: Sequence[Lane]) -> list[tuple[int, float, str, int]] | None:
        """The lane whose first job comes before those of the others."""
        heaps = [heap for lane in lanes if (heap := self._ready.get(lane))]
        return min(heaps, key=lambda heap: heap[0], default=None)

    def _next_due(self, lane: Lane) -> list[float]:
        delayed = self._delayed.get(lane, [])
        while delayed and self._current(*delayed[0][1:]) is None:
            heappop(delayed)
        return [delayed[0][0]] if delayed else []

    # ---- sweeping, watching, attending

    async def expired(self, limit: int = 100) -> Sweep:
        found: list[tuple[float, Job, Rescue | Expire]] = []
        broken: list[tuple[str, str]] = []
        with self._lock:
            now = self._clock()
            for job_id, row in self._running.items():
                ends_at = row.job.lease_expires_at
                if ends_at is None:
                    broken.append((job_id, "it is running and has no lease"))
                elif ends_at <= now:
                    found.append((ends_at, row.job, Rescue(job_id, row.job.epoch)))
            for job_id, row in self._starting.items():
                start_by = row.job.start_by
                if start_by is not None and start_by <= now:
                    found.append((start_by, row.job, Expire(job_id)))
        found.sort(key=lambda each: (each[0], each[1].job_id))
        return Sweep(now, tuple((job, intent) for _, job, intent in found[:limit]), tuple(broken))

    def watch(self, *topics: str) -> Watch:
        return HubWatch(self._hub, topics)

    async def attend(self, info: WorkerInfo) -> None:
        with self._lock:
            self._workers[info.worker] = replace(info, seen_at=self._clock())

    async def leave(self, worker: str) -> None:
        with self._lock:
            self._workers.pop(worker, None)

    async def workers(self, seen_within_seconds: float = 90.0) -> list[WorkerInfo]:
        with self._lock:
            since = self._clock() - seen_within_seconds
            seen = [info for info in self._workers.values() if info.seen_at >= since]
        return sorted(seen, key=lambda info: (info.started_at, info.worker))

    async def purge(self, retention: Retention, limit: int = 1000) -> int:
        with self._lock:
            now = self._clock()
            ended = sorted(
                (row.job.finished_at, row.job.job_id)
                for row in self._rows.values()
                if row.job.finished_at is not None and _is_old(row.job, retention, now)
            )
            for _, job_id in ended[:limit]:
                self._forget(self._rows.pop(job_id), now)
            return len(ended[:limit])

    def _forget(self, row: _Row, now: float) -> None:
        job = row.job
        self._failed.pop(job.job_id, None)
        self._counts[job.owner, job.state] -= 1
        self._by_age.pop(bisect_left(self._by_age, (job.created_at, job.job_id)))
        if row.idempotency_key is not None:
            self._keys.pop((job.owner, row.idempotency_key), None)
        self._purged[job.job_id] = now

    # ---- reading

    async def get(
        self,
        job_ids: Collection[str],
        *,
        checkpoints: Mapping[str, Collection[tuple[CheckpointKind, str]]] | None = None,
    ) -> Reading:
        with self._lock:
            rows = {job_id: self._rows[job_id] for job_id in job_ids if job_id in self._rows}
            found = {
                job_id: tuple(rows[job_id].checkpoints[at] for at in asked if at in rows[job_id].checkpoints)
                for job_id, asked in (checkpoints or {}).items()
                if job_id in rows
            }
            return Reading(self._clock(), {job_id: row.job for job_id, row in rows.items()}, found)

    async def find(self, query: Query) -> Page:
        with self._lock:
            start = 0 if query.since is None else bisect_left(self._by_age, (query.since, ""))
            end = len(self._by_age)
            if query.cursor is not None and query.oldest_first:
                start = max(start, bisect_right(self._by_age, decode_cursor(query.cursor)))
            elif query.cursor is not None:
                end = bisect_left(self._by_age, decode_cursor(query.cursor))
            ages = range(start, end) if query.oldest_first else range(end - 1, start - 1, -1)
            jobs = (self._rows[self._by_age[at][1]].job for at in ages)
            found = list(islice((job for job in jobs if _matches(job, query)), query.limit + 1))
            page = tuple(found[: query.limit])
            more = len(found) > query.limit and page
            return Page(
                self._clock(), page, encode_cursor(page[-1].created_at, page[-1].job_id) if more else None
            )

    async def count(self, owner: str | None = None) -> Stats:
        def is_asked(other: str) -> bool:
            return owner is None or owner == other

        with self._lock:
            now = self._clock()
            while self._ends and self._ends[0].at <= now - HOUR_SECONDS:
                self._ends.popleft()
            states = dict.fromkeys((str(state) for state in State), 0)
            for (whose, state), number in self._counts.items():
                states[state] += number if is_asked(whose) else 0
            ends = [end for end in self._ends if is_asked(end.owner) and end.at > now - HOUR_SECONDS]
            queued = [row.job for row in self._queued.values() if is_asked(row.job.owner)]
            waits = [job.run_at for job in queued if job.run_at <= now]
            leases = [row.job.lease_expires_at for row in self._running.values() if is_asked(row.job.owner)]
            claims = [at for whose, at in self._claimed_at.items() if is_asked(whose)]
        spans = sorted(end.seconds for end in ends if end.state is State.SUCCEEDED)
        return Stats(
            states=states,
            oldest_due_seconds=now - min(waits) if waits else None,
            mean_seconds=math.fsum(spans) / len(spans) if spans else None,
            p95_seconds=spans[math.ceil(0.95 * len(spans)) - 1] if spans else None,
            succeeded_last_hour=len(spans),
            failed_last_hour=sum(end.state is State.FAILED for end in ends),
            stale=sum(at is None or at <= now for at in leases),
            last_claimed_at=max(claims, default=None),
        )

    async def journal(self, job_id: str, *, after: int = -1, limit: int = 500) -> list[Line]:
        with self._lock:
            row = self._rows.get(job_id)
            return row.lines[after + 1 : after + 1 + limit] if row else []

    async def payload(self, job_id: str) -> Payload | None:
        row = self._rows.get(job_id)
        return row.payload if row else None

    async def item_keys(self, job_id: str) -> tuple[str, ...] | None:
        row = self._rows.get(job_id)
        return row.payload.keys if row else None

    async def checkpoints(
        self,
        job_id: str,
        *,
        kind: CheckpointKind | None = None,
        after_key: str | None = None,
        limit: int | None = None,
    ) -> list[Checkpoint]:
        with self._lock:
            row = self._rows.get(job_id)
            every = _sorted(row) if row else ()
        found = [c for c in every if kind in (None, c.kind) and (after_key is None or c.key > after_key)]
        return found[:limit]

    async def result(self, job_id: str) -> JsonText | None:
        row = self._rows.get(job_id)
        return row.result if row else None

    async def dead_letters(
        self,
        *,
        owner: str | None = None,
        since: float | None = None,
        kind: str | None = None,
        limit: int = 100,
    ) -> list[DeadLetterGroup]:
        groups: dict[tuple[str, str, str], list[Job]] = {}
        for row in self._failures(owner=owner, kind=kind, since=since):
            groups.setdefault((row.job.kind, *row.group), []).append(row.job)
        found = [
            DeadLetterGroup(
                *alike,
                len(jobs),
                jobs[0].finished_at or 0.0,
                jobs[-1].finished_at or 0.0,
                tuple(job.job_id for job in jobs[:GROUP_IDS]),
            )
            for alike, jobs in groups.items()
        ]
        return sorted(found, key=lambda g: (-g.count, g.kind, g.code, g.message))[:limit]

    async def failed(
        self,
        *,
        owner: str | None = None,
        kind: str | None = None,
        code: str | None = None,
        message: str | None = None,
        since: float | None = None,
        limit: int = 10_000,
    ) -> list[Job]:
        rows = self._failures(owner=owner, kind=kind, since=since)
        masked = None if message is None else mask(message)
        alike = [r.job for r in rows if code in (None, r.group[0]) and masked in (None, r.group[1])]
        return alike[:limit]

    def _failures(self, *, owner: str | None, kind: str | None, since: float | None) -> list[_Row]:
        """Failed jobs, those that failed first before the others."""
        with self._lock:
            failures = list(self._failed.values())
        failures.sort(key=lambda row: (row.job.finished_at or 0.0, row.job.job_id))
        return [
            row
            for row in failures
            if owner in (None, row.job.owner)
            and kind in (None, row.job.kind)
            and (since is None or (row.job.finished_at or 0.0) >= since)
        ]

    async def keep(self, name: str, value: JsonText | None, *, before: JsonText | None) -> bool:
        with self._lock:
            if self._kept.get(name) != before:
                return False
            if value is None:
                self._kept.pop(name, None)
            else:
                self._kept[name] = value
            return True

    async def kept(self, prefix: str) -> dict[str, JsonText]:
        with self._lock:
            return {name: self._kept[name] for name in sorted(self._kept) if name.startswith(prefix)}

    async def purged_at(self, job_id: str) -> float | None:
        return self._purged.get(job_id)

    async def verify(self) -> list[str]:
        with self._lock:
            recount = Counter((row.job.owner, row.job.state) for row in self._rows.values())
            wrong = [
                f"{whose} has {recount[whose, state]} jobs {state}, counted are {self._counts[whose, state]}"
                for whose, state in recount.keys() | self._counts.keys()
                if recount[whose, state] != self._counts[whose, state]
            ]
            for row in self._rows.values():
                job, numbers = row.job, [line.n for line in row.lines]
                if numbers != list(range(job.lines)):
                    wrong.append(f"job {job.job_id} has {job.lines} journal lines, found are {numbers}")
                elif row.lines[-1].to_state is not job.state:
                    wrong.append(
                        f"job {job.job_id} is {job.state}, its journal ends {row.lines[-1].to_state}"
                    )
            return wrong


def _lane(job: Job) -> Lane:
    return job.queue, job.kind


def _sorted(row: _Row) -> tuple[Checkpoint, ...]:
    return tuple(row.checkpoints[at] for at in sorted(row.checkpoints))


def _group(job: Job) -> tuple[str, str]:
    """What makes this failure like others: its code and masked message."""
    error = json.loads(job.error or "{}")
    return error.get("code", ""), mask(error.get("message", ""))


def _is_old(job: Job, retention: Retention, now: float) -> bool:
    kept = retention.succeeded_seconds if job.state is State.SUCCEEDED else retention.failed_seconds
    return kept is not None and job.finished_at is not None and job.finished_at <= now - kept


def _matches(job: Job, query: Query) -> bool:
    return (
        query.owner in (None, job.owner)
        and (not query.states or job.state in query.states)
        and (not query.kinds or job.kind in query.kinds)
        and query.sender in (None, job.sender)
        and query.topic in (None, job.topic)
        and query.queue in (None, job.queue)
    )
