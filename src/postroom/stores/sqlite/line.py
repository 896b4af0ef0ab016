"""The order of the line: who stands where. The memory store says in prose what is decided here.

A place is given by start-time fair queueing per (queue, rank, share); the order itself comes from an index.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import apsw

from postroom.model import Job, Priority
from postroom.policy import next_place
from postroom.stores.sqlite.book import Book, Turn

WAKE_MOST = 1000
"""Jobs that become due or move up within one claim. More wait for the next one, which is told to come at once."""

_turn_of = attrgetter("queue", "priority", "owner", "sender")


class Standing(NamedTuple):
    """Where a job stands: no place = not in line. ``wake_at`` = when it becomes due or moves up a rank."""

    rank: int
    place: float | None
    wake_at: float | None


class Line:
    """Gives places in line within the transaction of a book."""

    def __init__(self, book: Book, *, overtake_seconds: float, fair_by: str) -> None:
        self._book = book
        self._overtake_seconds = overtake_seconds
        self._fair_by = fair_by

    def share(self, owner: str, sender: str) -> str:
        """Whose jobs take turns with whose."""
        if self._fair_by == "owner":
            return owner
        return sender if self._fair_by == "sender" else ""

    def enqueue_new(self, jobs: Sequence[Job], now: float) -> list[Standing]:
        """Where jobs stand that were never queued before, in order: as `enqueue` says of each, for all at once."""
        groups = [
            ((queue, priority.rank, self.share(owner, sender)), list(alike))
            for (queue, priority, owner, sender), alike in groupby(jobs, _turn_of)
        ]
        self._book.look_up_turns({turn for turn, _ in groups})
        return [standing for turn, alike in groups for standing in self._follow_on(turn, alike, now)]

    def _follow_on(self, turn: Turn, jobs: Iterable[Job], now: float) -> list[Standing]:
        """Give jobs of one share the places behind its last one, but those that are not due yet."""
        queue, rank, _ = turn
        clock, place = self._book.clock(queue, rank), self._book.turn(turn)
        wake_at = self._moves_up_at(rank, now)
        standings = []
        for job in jobs:
            if job.run_at > now:
                standings.append(Standing(rank, None, job.run_at))
            else:
                place = next_place(clock, place)
                standings.append(Standing(rank, place, wake_at))
        if place is not None:
            self._book.set_turn(turn, place)
        return standings

    def enqueue(self, job: Job, now: float, held: Standing | None = None) -> Standing:
        """Where a job stands that was queued just now.

        Args:
            held: where it stood until it ran, if it comes back from a run: due at once, it takes that place again.
        """
        if job.run_at > now:
            return Standing(job.priority.rank, None, job.run_at)
        if held is not None and held.place is not None:
            return self._stand(held.rank, held.place, now)
        return self._line_up(job.queue, job.priority.rank, self.share(job.owner, job.sender), now)

    def _line_up(self, queue: str, rank: int, share: str, since: float) -> Standing:
        turn: Turn = (queue, rank, share)
        place = next_place(self._book.clock(queue, rank), self._book.turn(turn))
        self._book.set_turn(turn, place)
        return self._stand(rank, place, since)

    def _stand(self, rank: int, place: float, since: float) -> Standing:
        return Standing(rank, place, self._moves_up_at(rank, since))

    def _moves_up_at(self, rank: int, since: float) -> float | None:
        return since + self._overtake_seconds if rank > 0 else None

    def wake(self, now: float) -> bool:
        """Let delayed jobs that are due step into line, and jobs that waited long move up; whether more could."""
        try:
            rows = self._book.gathered("waking", now, WAKE_MOST)
        except (apsw.Error, UnicodeDecodeError) as error:
            if not self._set_aside_unreadable(now):
                raise error
            rows = self._book.gathered("waking", now, WAKE_MOST)
        if not rows:
            return False
        is_more = len(rows) == WAKE_MOST
        moved = self._walk([_Waiting(*row) for row in rows], rows[-1][0] if is_more else now)
        self._book.write("move_in_line", [(seq, s.rank, s.place, s.wake_at) for seq, s in moved.items()])
        return is_more

    def _walk(self, waiting: list[_Waiting], until: float) -> dict[int, Standing]:
        """Give each its place in the order of time; one that may move up again within that time comes again."""
        moved: dict[int, Standing] = {}
        broken: list[tuple[int, str]] = []
        heapify(waiting)
        while waiting:
            job = heappop(waiting)
            try:
                rank = job.rank - 1 if job.is_placed else Priority(job.priority).rank
            except ValueError as error:
                broken.append((job.seq, f"it cannot be read: {error}"))
                continue
            standing = self._line_up(job.queue, rank, self.share(job.owner, job.sender), job.wake_at)
            moved[job.seq] = standing
            if standing.wake_at is not None and standing.wake_at <= until:
                heappush(waiting, job._replace(wake_at=standing.wake_at, rank=rank, is_placed=1))
        self._book.write("set_aside", broken)
        return moved

    def _set_aside_unreadable(self, now: float) -> int:
        """Find among the jobs that wake those whose row cannot be read, and take them out of the way; how many."""
        broken = []
        for (seq,) in self._book.rows("waking_one_by_one", now, WAKE_MOST):
            try:
                self._book.row("row", seq)
            except (apsw.Error, UnicodeDecodeError) as error:
                broken.append((seq, f"it cannot be read: {error}"))
        self._book.write("set_aside", broken)
        return len(broken)


class _Waiting(NamedTuple):
    """A job that wakes; what comes first tells any two apart."""

    wake_at: float
    job_id: str
    seq: int
    queue: str
    priority: str
    owner: str
    sender: str
    rank: int
    is_placed: int
