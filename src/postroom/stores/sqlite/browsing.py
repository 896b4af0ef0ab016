"""Reading: rows by id, listings, counts, dead letters, and what `verify` looks at. Questions for a `Glance`."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from postroom.deadletters import mask
from postroom.model import Checkpoint, CheckpointKind, Job, Line, digest, job_from_row
from postroom.stores.cursors import decode_cursor, encode_cursor
from postroom.stores.port import DeadLetterGroup, Page, Query, Stats
from postroom.stores.sqlite.reader import TEXT_ERRORS, Glance
from postroom.stores.sqlite.rows import SMALL_BYTES, STATES, checkpoint_from, line_from

HOUR_SECONDS = 3600.0
GROUP_IDS = 20
SPANS_MOST = 50_000
"""Jobs of the last hour from which its 95th percentile (and, up to so many, its mean) is computed exactly."""
FEW = 20_000
"""Jobs in some states up to which looking through them beats looking through all ages."""
FAULTS_MOST = 1000
IDS_MOST = 1000
"""Jobs by id whose rows are read in one text."""

INFINITE = math.inf

Named = Mapping[str, Collection[tuple[CheckpointKind, str]]]


# ---- rows


def jobs_by_id(glance: Glance, job_ids: Iterable[str]) -> tuple[dict[str, Job], dict[str, str]]:
    """Jobs that exist, by id; beside them the ids whose row cannot be read, with the reason."""
    ids = list(job_ids)
    if len(ids) > IDS_MOST:
        return _jobs_in_parts(glance, ids)
    try:
        rows = [(row[0], row) for row in glance.gathered("jobs_by_id", json.dumps(ids))]
    except TEXT_ERRORS:
        rows = [(job_id, None) for job_id in ids]
    jobs, broken = {}, {}
    for job_id, row in rows:
        try:
            values = _row_alone(glance, job_id) if row is None else row
            if values is not None:
                jobs[job_id] = job_from_row(values)
        except TEXT_ERRORS as error:
            broken[job_id] = f"it cannot be read: {error}"
    return jobs, broken


def _jobs_in_parts(glance: Glance, ids: Sequence[str]) -> tuple[dict[str, Job], dict[str, str]]:
    """As `jobs_by_id`, some at a time: the rows of thousands could be longer than a text may be."""
    jobs: dict[str, Job] = {}
    broken: dict[str, str] = {}
    for start in range(0, len(ids), IDS_MOST):
        some, unreadable = jobs_by_id(glance, ids[start : start + IDS_MOST])
        jobs |= some
        broken |= unreadable
    return jobs, broken


def _row_alone(glance: Glance, job_id: str) -> list[Any] | None:
    row = glance.row("job_by_id", job_id)
    return None if row is None else json.loads(row[0])


def named_checkpoints(glance: Glance, named: Named) -> dict[str, tuple[Checkpoint, ...]]:
    """Of the checkpoints that are named, those that exist."""
    asked = [(job_id, kind, key) for job_id, names in named.items() for kind, key in names]
    found: dict[str, list[Checkpoint]] = {}
    if asked:
        for job_id, seq, kind, key, *rest in glance.gathered(
            "named_checkpoints", json.dumps(asked), SMALL_BYTES
        ):
            columns = (kind, key, *rest) if rest else glance.row("checkpoint_alone", seq, kind, key)
            if columns is not None:  # else it was removed since
                found.setdefault(job_id, []).append(checkpoint_from(columns))
    return {job_id: tuple(checkpoints) for job_id, checkpoints in found.items()}


def journal(glance: Glance, job_id: str, after: int, limit: int) -> list[Line]:
    """Lines with n above ``after``, in order. The first lies with the payload, the others together."""
    first = [json.loads(text) for (text,) in glance.rows("first_line", job_id)] if after < 0 else []
    rows = [*first, *glance.rows("journal", job_id, after, limit)]
    return [line_from(row) for row in rows[:limit]]


# ---- listings


def find(glance: Glance, query: Query, now: float) -> Page:
    """A page of a listing."""
    after = decode_cursor(query.cursor) if query.cursor is not None else None
    if query.oldest_first:
        name, edge = "find_oldest", after or (-INFINITE, "")
    else:
        name, edge = "find_newest", after or (INFINITE, "")
    states = [str(state) for state in query.states]
    if states and _are_few(glance, states):
        name = name.replace("find", "find_few")
    asked = (query.owner, _list(states), _list(query.kinds), query.sender, query.topic, query.queue)
    since = -INFINITE if query.since is None else query.since
    ages = glance.rows(name, *asked, since, *edge, query.limit + 1)
    page = ages[: query.limit]
    jobs, broken = jobs_by_id(glance, [job_id for _, job_id in page])
    cursor = encode_cursor(*page[-1]) if page and len(ages) > query.limit else None
    found = tuple(jobs[job_id] for _, job_id in page if job_id in jobs)
    return Page(now, found, cursor, tuple(broken.items()))


def _are_few(glance: Glance, states: Sequence[str]) -> bool:
    """Whether these are states with an index of their own, and few jobs are in them."""
    if not set(states) <= {"queued", "running", "failed"}:
        return False
    counted = dict(zip(map(str, STATES), glance.rows("counts", None)[0], strict=False))
    few: bool = sum(counted[state] for state in states) <= FEW
    return few


def _list(values: Collection[str]) -> str | None:
    return json.dumps([str(value) for value in values]) if values else None


# ---- counts


def count(glance: Glance, owner: str | None, now: float) -> Stats:
    """Jobs by state, and a picture of the last hour."""
    *counted, claimed_at = glance.rows("counts", owner)[0]
    since = now - HOUR_SECONDS
    ends = {state: (number, seconds) for state, number, seconds in glance.rows("last_hour", owner, since)}
    succeeded, together = ends.get("succeeded", (0, 0.0))
    spans = sorted(json.loads(glance.rows("last_spans", owner, since, SPANS_MOST)[0][0]))
    if succeeded and succeeded == len(spans):
        together = math.fsum(spans)
    (oldest,) = glance.rows("oldest_due", owner, now)[0]
    return Stats(
        states={str(state): number for state, number in zip(STATES, counted, strict=True)},
        oldest_due_seconds=None if oldest is None else now - oldest,
        mean_seconds=together / succeeded if succeeded else None,
        p95_seconds=spans[math.ceil(0.95 * len(spans)) - 1] if spans else None,
        succeeded_last_hour=succeeded,
        failed_last_hour=ends.get("failed", (0, 0.0))[0],
        stale=glance.rows("stale", owner, now)[0][0],
        last_claimed_at=claimed_at,
    )


# ---- dead letters


def dead_letters(
    glance: Glance, owner: str | None, since: float | None, kind: str | None, limit: int
) -> list[DeadLetterGroup]:
    """Failed jobs in groups, largest first."""
    groups = glance.rows("dead_letters", owner, kind, since, limit, GROUP_IDS)
    return [
        DeadLetterGroup(kind, code or "", message or "", number, first_at, last_at, tuple(ids.split(",")))
        for kind, code, message, number, first_at, last_at, ids in groups
    ]


def failed(
    glance: Glance,
    owner: str | None,
    kind: str | None,
    code: str | None,
    message: str | None,
    since: float | None,
    limit: int,
) -> list[Job]:
    """Failed jobs by group, oldest first; those that cannot be read are left out (`find` lists them)."""
    masked = None if message is None else mask(message)
    ids = [job_id for (job_id,) in glance.rows("failed", owner, kind, since, code, masked, limit)]
    jobs, _ = jobs_by_id(glance, ids)
    return [jobs[job_id] for job_id in ids if job_id in jobs]


# ---- verify


def verify(glance: Glance) -> list[str]:
    """What is wrong inside the file."""
    wrong = [f"SQLite finds: {text}" for (text,) in glance.pragma("integrity_check") if text != "ok"]
    for owner, *differences in glance.rows("recount"):
        told = [f"{state} by {n:+d}" for state, n in zip(STATES, differences, strict=True) if n]
        wrong.append(f"the counts of {owner} differ from its jobs: {', '.join(told)}")
    for job_id, lines, state, number, last, last_state in glance.rows("broken_journals", FAULTS_MOST):
        if number != lines or last != lines - 1:
            wrong.append(f"job {job_id} has {lines} journal lines, found are {number} up to number {last}")
        else:
            wrong.append(f"job {job_id} is {state}, its journal ends {last_state}")
    wrong += [text for (text,) in glance.rows("lost_parts", FAULTS_MOST)]
    wrong += [f"job {job_id} {text}" for job_id, text in glance.rows("out_of_line", FAULTS_MOST)]
    return wrong + _changed_keys(glance) + _unknown_states(glance)


def _changed_keys(glance: Glance) -> list[str]:
    """Jobs whose idempotency key or body digest is not what line 0 of their journal sealed, in pieces."""
    wrong: list[str] = []
    seq = -1
    while rows := glance.rows("submission_keys", seq, FAULTS_MOST):
        seq = rows[-1][0]
        for _, job_id, key, body_digest, sealed in rows:
            if sealed != (None if key is None and body_digest is None else digest(key, body_digest)):
                wrong.append(
                    f"job {job_id} has another idempotency key or body digest than it was submitted with"
                )
    return wrong[:FAULTS_MOST]


def _unknown_states(glance: Glance) -> list[str]:
    known = ", ".join(STATES)
    rows = glance.rows("unknown_states", json.dumps(STATES), FAULTS_MOST)
    return [f"job {job_id} is in state {state!r}, which is none of {known}" for job_id, state in rows]
