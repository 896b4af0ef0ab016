"""What is done now and then: sweeping, attending, purging, keeping small values."""

from __future__ import annotations

import json
from collections.abc import Collection

from postroom.model import Expire, JsonText, Rescue, State, WorkerInfo
from postroom.stores.port import Retention, Sweep
from postroom.stores.sqlite.book import BEFORE_ALL_ENDS, Book
from postroom.stores.sqlite.browsing import HOUR_SECONDS, jobs_by_id
from postroom.stores.sqlite.reader import Glance
from postroom.stores.sqlite.rows import STATES, worker_from

ENDS_MOST = 10_000
"""Old ends that one purge looks at; the next one goes on behind them, and after the last begins anew. Ends are kept as
long as their jobs: to look at all of them would hold up everybody who writes."""

WORKERS_SECONDS = 7 * 86_400.0
"""How long a worker stays on record that was not seen since and was never proven gone (its machine restarted)."""

PROCESS_GONE = "process gone"


# ---- the sweep


def expired(
    glance: Glance, now: float, limit: int, gone: Collection[str], standstill: tuple[float, float, float]
) -> Sweep:
    """Leases that ended or whose holder is among the gone; starts that came too late; rows that are broken."""
    intents: dict[str, tuple[float, str]] = {}
    for at, job_id in glance.rows("late_to_start", now, limit):
        intents[job_id] = (at, "late")
    for at, job_id in glance.rows("expired", now, limit, *standstill):
        intents[job_id] = (at, "expired")
    if gone:
        for at, job_id in glance.rows("held_by", json.dumps(list(gone)), limit):
            intents[job_id] = (at, "gone")
    jobs, unreadable = jobs_by_id(glance, intents)
    found: list[tuple[float, str, Rescue | Expire]] = []
    for job_id, job in jobs.items():
        at, why = intents[job_id]
        if why == "late":
            found.append((at, job_id, Expire(job_id)))
        elif why == "expired":
            found.append((at, job_id, Rescue(job_id, job.epoch)))
        elif job.worker in gone:  # still: each question is answered as things stand by then
            found.append((at, job_id, Rescue(job_id, job.epoch, PROCESS_GONE, is_proven=True)))
    found.sort(key=lambda each: each[:2])
    broken = {**dict(glance.rows("without_lease", limit)), **unreadable}
    return Sweep(
        now, tuple((jobs[job_id], intent) for _, job_id, intent in found[:limit]), tuple(broken.items())
    )


# ---- workers


def workers(glance: Glance) -> list[tuple[WorkerInfo, str | None]]:
    """All workers on record, with the lock that proves each."""
    return [worker_from(row) for row in glance.rows("workers")]


def forget_workers(book: Book, names: Collection[str]) -> list[str]:
    """Strike out workers that are gone and hold nothing any more; which those were."""
    return [name for (name,) in book.rows("forget_workers", json.dumps(list(names)))]


# ---- retention


def purge(book: Book, now: float, retention: Retention, limit: int) -> int:
    """Remove jobs that ended long enough ago with all that belongs to them; a mark stays. How many."""
    never = float("-inf")
    succeeded = never if retention.succeeded_seconds is None else now - retention.succeeded_seconds
    failed = never if retention.failed_seconds is None else now - retention.failed_seconds
    rows = book.rows("purgeable", succeeded, failed, limit)
    seqs = json.dumps([seq for seq, _, _, _ in rows])
    for _, _, owner, state in rows:
        book.count(owner, STATES.index(State(state)), -1)
    if rows:
        book.run("keep_numbers")
        book.run("purge_own_ends", seqs, now - HOUR_SECONDS)
        for table in ("jobs", "payloads", "results", "checkpoints", "journal"):
            book.run(f"purge_{table}", seqs)
        book.write("mark_purged", [(job_id, now) for _, job_id, _, _ in rows])
    book.run("drop_old_workers", now - WORKERS_SECONDS)
    _purge_ends(book, now - HOUR_SECONDS)
    book.forget_turns()
    return len(rows)


def _purge_ends(book: Book, until: float) -> None:
    looked_at = (*book.ends_seen, until, ENDS_MOST)
    last = book.rows("last_of_ends", *looked_at)
    book.run("purge_ends", *looked_at)
    book.ends_seen = last[0] if last else BEFORE_ALL_ENDS


# ---- small values


def keep(book: Book, name: str, value: JsonText | None, before: JsonText | None) -> bool:
    """Put a value in the place of another, if that is what stands."""
    rows = book.rows("kept_value", name)
    stands = rows[0][0] if rows else None
    if stands != before:
        return False
    if value is None:
        book.run("drop_value", name)
    else:
        book.run("keep_value", name, value)
    return True
