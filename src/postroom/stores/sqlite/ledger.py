"""What is written in one transaction: submissions, changes, claims. Belongs to the writer's thread.

Everything arrives as lists, and each kind of row is written by one statement for all of them. Nothing here decides
about states but `claimed`, the port's one exception.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import apsw

from postroom.model import (
    Change,
    Checkpoint,
    Job,
    Lease,
    Payload,
    State,
    evolve,
    job_from_row,
    row_values,
)
from postroom.stores.port import Claimed, ClaimRequest, Submission, Submitted
from postroom.stores.sqlite.book import Book, listed
from postroom.stores.sqlite.line import Line as WaitingLine
from postroom.stores.sqlite.line import Standing
from postroom.stores.sqlite.rows import (
    SMALL_BYTES,
    STATES,
    checkpoint_from,
    checkpoint_values,
    data_text,
    failure_of,
    first_line_text,
    keys_from,
    keys_text,
    line_values,
    mutable_values,
)

CLAIM_MOST = 1000
UNREADABLE = (apsw.SQLError, apsw.MismatchError, ValueError, KeyError)
"""What a payload or checkpoint that cannot be read ends in; `KeyError`: it is missing."""

_STATE_INDEX = {state: index for index, state in enumerate(STATES)}
_QUEUED = _STATE_INDEX[State.QUEUED]
_lane_of = attrgetter("queue", "kind")
_owner_of = attrgetter("owner")


class _Row(NamedTuple):
    """A job as it stands in the file: its number, and what a change must have been decided on."""

    seq: int
    version: int
    standing: Standing


class Ledger:
    """Writes into the transaction that its book has begun."""

    def __init__(self, book: Book, line: WaitingLine, clock: Callable[[], float]) -> None:
        self._book = book
        self._line = line
        self._clock = clock

    # ---- submit

    def submit(self, submissions: Sequence[Submission], *, is_careful: bool) -> list[Submitted]:
        """Insert jobs that are new; answers in order.

        Args:
            is_careful: look up the ids too. Without, an id that exists already is an `apsw.ConstraintError`: ids are
                made to be unique, so looking for them is for the second try.
        """
        now = self._clock()
        answers, new = self._sort_out(submissions, is_careful=is_careful)
        if new:
            self._insert(new, now)
        return answers

    def _sort_out(
        self, submissions: Sequence[Submission], *, is_careful: bool
    ) -> tuple[list[Submitted], list[Submission]]:
        """Tell the new ones from repeats of what is stored, and of each other."""
        keyed = [
            (s.draft.owner, s.draft.idempotency_key)
            for s in submissions
            if s.draft.idempotency_key is not None
        ]
        if not keyed and not is_careful:
            return [Submitted(s.change.job.job_id) for s in submissions], list(submissions)
        by_key, by_id = self._look_up(keyed, [s.draft.job_id for s in submissions] if is_careful else [])
        answers, new = [], []
        for submission in submissions:
            draft = submission.draft
            key = None if draft.idempotency_key is None else (draft.owner, draft.idempotency_key)
            first = (by_key.get(key) if key is not None else None) or by_id.get(draft.job_id)
            if first is not None:
                answers.append(first)
                continue
            new.append(submission)
            answers.append(Submitted(draft.job_id))
            repeat = Submitted(draft.job_id, False, draft.body_digest)
            by_id[draft.job_id] = repeat
            if key is not None:
                by_key[key] = repeat
        return answers, new

    def _look_up(
        self, keyed: Sequence[tuple[str, str | None]], ids: Sequence[str]
    ) -> tuple[dict[tuple[str, str], Submitted], dict[str, Submitted]]:
        by_key, by_id = {}, {}
        asked = set(ids)
        for owner, key, job_id, body_digest in self._book.gathered(
            "known_jobs", json.dumps(keyed), json.dumps(ids)
        ):
            first = Submitted(job_id, False, body_digest)
            if key is not None:
                by_key[owner, key] = first
            if job_id in asked:
                by_id[job_id] = first
        return by_key, by_id

    def _insert(self, submissions: Sequence[Submission], now: float) -> None:
        book, line = self._book, self._line
        jobs = [submission.change.job for submission in submissions]
        stands = line.enqueue_new(jobs, now)
        lanes = book.lanes(map(_lane_of, jobs), create=True)
        seqs = book.next_seqs(len(jobs))
        rows, payloads = [], []
        for seq, job, lane, stand, (change, draft) in zip(
            seqs, jobs, lanes, stands, submissions, strict=True
        ):
            rows.append((seq, *row_values(job), lane, *stand, draft.idempotency_key, draft.body_digest))
            payload = draft.payload
            payloads.append((seq, first_line_text(change.lines), keys_text(payload), payload.body))
        for owner, number in Counter(map(_owner_of, jobs)).items():
            book.count(owner, _QUEUED, number)
        book.write("insert_jobs", rows)
        book.write("insert_payloads", payloads)

    # ---- commit

    def commit(self, changes: Sequence[Change]) -> list[bool]:
        """Write the changes whose row has not moved; which of them were written."""
        now = self._clock()
        rows = self._versions({change.job.job_id for change in changes})
        answers, wave = [], _Wave(now)
        for change in changes:
            job_id = change.job.job_id
            row = rows.get(job_id)
            is_written = row is not None and row.version == change.before_version
            answers.append(is_written)
            if row is None or not is_written:
                continue
            if row.seq in wave.seqs:  # decided on the change before it: written after it
                self._write(wave)
                wave = _Wave(now)
            standing = self._standing(change, row.standing, now)
            wave.add(row.seq, change, standing)
            rows[job_id] = _Row(row.seq, change.job.version, standing)
        self._write(wave)
        return answers

    def _versions(self, job_ids: Iterable[str]) -> dict[str, _Row]:
        asked = json.dumps(list(job_ids))
        found = self._book.gathered("versions", asked)
        return {job_id: _Row(seq, version, Standing(*place)) for job_id, seq, version, *place in found}

    def _standing(self, change: Change, held: Standing, now: float) -> Standing:
        job = change.job
        if job.state is change.before_state:
            return held
        if job.state is not State.QUEUED:
            return Standing(held.rank, held.place, None)
        return self._line.enqueue(job, now, held if change.before_state is State.RUNNING else None)

    def _write(self, wave: _Wave) -> None:
        """Write changes of jobs that are all different."""
        book = self._book
        book.write("update_jobs", wave.jobs)
        if wave.drops_errors:
            book.run("drop_item_errors", json.dumps(wave.drops_errors))
        if wave.drops_results:
            book.run("drop_results", json.dumps(wave.drops_results))
        book.write("save_checkpoints", wave.checkpoints)
        book.write("save_results", wave.results)
        book.write("insert_ends", wave.ends)
        self._append(wave.lines)
        for (owner, state), step in wave.counts.items():
            book.count(owner, _STATE_INDEX[state], step)

    def _append(self, lines: Sequence[tuple[Any, ...]]) -> None:
        numbers = self._book.next_lines(len(lines))
        self._book.write(
            "insert_journal", [(number, *line) for number, line in zip(numbers, lines, strict=True)]
        )

    # ---- claim

    def claim(self, request: ClaimRequest) -> _Taken:
        """Give the first jobs of the worker's lanes to it; what they work on is read by `lease` after the commit."""
        now = self._clock()
        is_more = self._line.wake(now)
        lanes = json.dumps(
            self._book.lanes(product(dict.fromkeys(request.queues), dict.fromkeys(request.kinds)))
        )
        wave, jobs = _Wave(now), {}
        reached: dict[tuple[str, int], float] = {}
        for place, seq, waiting in self._pick(lanes, min(request.limit, CLAIM_MOST), now):
            job, line = claimed(waiting, request.worker, request.lease_seconds, now)
            wave.add_claim(seq, job, line)
            jobs[seq] = job
            reached[job.queue, place[0]] = place[1]  # in the order of the line, so the last is the farthest
        for (queue, rank), farthest in reached.items():
            self._book.pass_place(queue, rank, farthest)
        for owner in {job.owner for job in jobs.values()}:
            self._book.note_claim(owner, now)
        if jobs:
            seqs = json.dumps(list(jobs))
            self._book.run("claim_jobs", seqs, request.worker, request.lease_seconds, now)
        self._write(wave)
        (next_due_at,) = self._book.row("next_due", lanes, now)
        return _Taken(now, jobs, now if is_more and not jobs else next_due_at)

    def _pick(self, lanes: str, limit: int, now: float) -> list[tuple[_Place, int, Job]]:
        """The first jobs of some lanes in order; others instead of those that cannot be read, which are set aside."""
        while True:
            picked: list[tuple[_Place, int, Job]] = []
            broken = []
            for (seq, *place), row in self._picked(lanes, limit, now):
                try:
                    if isinstance(row, Exception):
                        raise row
                    picked.append((tuple(place), seq, job_from_row(row)))
                except (apsw.Error, ValueError) as error:
                    broken.append((seq, f"it cannot be read: {error}"))
            if not broken:
                picked.sort(key=itemgetter(0))
                return picked
            self._book.write("set_aside", broken)

    def _picked(self, lanes: str, limit: int, now: float) -> list[tuple[Sequence[Any], Any]]:
        """Number, rank, place and id of the first jobs, with their rows; in a row's stead why it cannot be fetched."""
        try:
            rows, stands = self._book.row("pick", lanes, limit, now)
            return list(zip(listed(stands), listed(rows), strict=True))
        except (apsw.SQLError, apsw.MismatchError, UnicodeDecodeError):
            numbers = self._book.rows("pick_one_by_one", lanes, limit, now)
            return [self._alone(seq) for (seq,) in numbers]

    def _alone(self, seq: int) -> tuple[Sequence[Any], Any]:
        try:
            row, stand = self._book.row("row", seq)
            return json.loads(stand), json.loads(row)
        except (apsw.SQLError, apsw.MismatchError, UnicodeDecodeError) as error:
            return (seq, 0, 0.0, ""), error

    def lease(self, taken: _Taken) -> Claimed:
        """Read what the claimed jobs work on. Nobody but their worker changes it now, so it needs no transaction.

        A job whose payload or checkpoints cannot be read is left out: it comes back when its lease ends, and is a dead
        letter after as many of these as a job has crashes. `verify` tells what is wrong with it.
        """
        seqs = list(taken.jobs)
        try:
            leases = self._leases(taken.jobs, seqs)
        except UNREADABLE:
            leases = [lease for seq in seqs for lease in self._lease_alone(taken.jobs, seq)]
        return Claimed(taken.now, tuple(leases), taken.next_due_at)

    def _lease_alone(self, jobs: Mapping[int, Job], seq: int) -> list[Lease]:
        try:
            return self._leases(jobs, [seq])
        except UNREADABLE:
            return []

    def _leases(self, jobs: Mapping[int, Job], seqs: Sequence[int]) -> list[Lease]:
        payloads = self._payloads(seqs)
        checkpoints = self._checkpoints([seq for seq in seqs if jobs[seq].epoch > 1])
        return [Lease(jobs[seq], payloads[seq], tuple(checkpoints.get(seq, ()))) for seq in seqs]

    def _payloads(self, seqs: Sequence[int]) -> dict[int, Payload]:
        if not seqs:
            return {}
        found = {}
        for seq, *parts in self._book.gathered("small_payloads", json.dumps(seqs), SMALL_BYTES):
            if parts:
                keys, body = parts
            else:
                body, keys = self._book.row("payload_by_seq", seq)
            found[seq] = Payload(body, keys_from(keys))
        return found

    def _checkpoints(self, seqs: Sequence[int]) -> dict[int, list[Checkpoint]]:
        found: dict[int, list[Checkpoint]] = {}
        if seqs:
            for seq, *columns in self._book.rows("checkpoints_of_jobs", json.dumps(seqs)):
                found.setdefault(seq, []).append(checkpoint_from(columns))
        return found


@dataclass(frozen=True, slots=True)
class _Taken:
    """Jobs that a claim gave, by number, in the order of the line."""

    now: float
    jobs: dict[int, Job]
    next_due_at: float | None


_Place = tuple[Any, ...]
"""Rank, place and id: what the line is ordered by."""


class _Wave:
    """The rows that some changes of different jobs become."""

    def __init__(self, now: float) -> None:
        self._now = now
        self.seqs: set[int] = set()
        self.jobs: list[tuple[Any, ...]] = []
        self.lines: list[tuple[Any, ...]] = []
        self.checkpoints: list[tuple[Any, ...]] = []
        self.results: list[tuple[int, str]] = []
        self.ends: list[tuple[Any, ...]] = []
        self.drops_errors: list[int] = []
        self.drops_results: list[int] = []
        self.counts: Counter[tuple[str, State]] = Counter()

    def add(self, seq: int, change: Change, standing: Standing) -> None:
        job = change.job
        self.seqs.add(seq)
        place = (standing.rank, standing.place, standing.wake_at)
        self.jobs.append((seq, *mutable_values(job), *place, *failure_of(job)))
        self.lines += [(seq, *line_values(line)) for line in change.lines]
        if change.checkpoints:
            self.checkpoints += [checkpoint_values(seq, checkpoint) for checkpoint in change.checkpoints]
        if change.drops_errors:
            self.drops_errors.append(seq)
        if change.drops_result:
            self.drops_results.append(seq)
        if change.result is not None:
            self.results.append((seq, change.result))
        if job.state is not change.before_state:
            self._note_move(seq, change)

    def add_claim(self, seq: int, job: Job, line: tuple[Any, ...]) -> None:
        """What the claim of a job adds beside its row."""
        self.lines.append((seq, *line))
        self.counts[job.owner, State.QUEUED] -= 1
        self.counts[job.owner, State.RUNNING] += 1

    def _note_move(self, seq: int, change: Change) -> None:
        job = change.job
        if change.before_state is not None:
            self.counts[job.owner, change.before_state] -= 1
        self.counts[job.owner, job.state] += 1
        if job.is_final:
            ended = self._now if job.finished_at is None else job.finished_at
            started = ended if job.started_at is None else job.started_at
            self.ends.append((ended, seq, job.version, job.owner, job.state, ended - started))


def claimed(job: Job, worker: str, lease_seconds: float, now: float) -> tuple[Job, tuple[Any, ...]]:
    """A job as its claim leaves it, and its line: those of `postroom.lifecycle.claim`, as a test holds.

    ``claim_jobs`` writes the same into the row.
    """
    spans = [span for span in (job.timeout_seconds, job.stall_timeout_seconds) if span is not None]
    at = max(now, job.updated_at)
    after = evolve(
        job,
        state=State.RUNNING,
        version=job.version + 1,
        epoch=job.epoch + 1,
        attempts=job.attempts + 1,
        lines=job.lines + 1,
        worker=worker,
        lease_seconds=lease_seconds,
        lease_expires_at=now + min(lease_seconds, *spans) if spans else now + lease_seconds,
        beat_seq=0,
        started_at=now,
        progress_at=now,
        start_by=None,
        reason=None,
        updated_at=at,
    )
    states = ("claimed", "queued", "running")
    data = data_text({"started_at": now} if now < at else {})
    return after, (job.lines, at, *states, after.epoch, after.attempts, after.life, worker, None, data)
