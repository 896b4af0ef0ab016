"""The writing connection, and what it remembers between transactions.

What is remembered (numbers of lanes, the last place of each share, the last number given) is read again whenever
another process has written, which SQLite tells by its data version: one process alone reads none of it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import apsw

from postroom.errors import StoreUnavailable
from postroom.stores.sqlite.schema import check_schema, schema_of
from postroom.stores.sqlite.statements import query

MOST_TURNS = 50_000
"""Shares whose last place is remembered; beyond them all are forgotten and read anew."""

BEFORE_ALL_ENDS = (float("-inf"), 0, 0)

Lane = tuple[str, str]
"""Queue and kind."""

Turn = tuple[str, int, str]
"""Queue, rank, share."""


class Book:
    """One transaction after another on one connection. Belongs to the writer's thread."""

    def __init__(self, connection: apsw.Connection, path: Path) -> None:
        self.connection = connection
        self.path = path
        self._file = _file_at(path)
        self._data_version = -1
        self._lanes: dict[Lane, int] | None = None
        self._turns: dict[Turn, float | None] = {}
        self._clocks: dict[tuple[str, int], float] | None = None
        self._numbers: list[int] | None = None
        self._moved_turns: dict[Turn, float] = {}
        self._moved_clocks: dict[tuple[str, int], float] = {}
        self._owners: dict[str, list[Any]] = {}
        self.ends_seen: tuple[Any, ...] = BEFORE_ALL_ENDS
        """Time, number and version of the last end that a purge looked at."""

    # ---- the transaction

    def begin(self, busy_seconds: float) -> None:
        """Take SQLite's write lock, and forget what others may have changed since.

        Raises:
            StoreUnavailable: our file is no longer the one at its path: what we write there, nobody would read.
            SchemaOutOfDate: a newer program migrated the file under us.
            apsw.Error: the lock could not be had in time.
        """
        if _file_at(self.path) != self._file:
            raise StoreUnavailable(
                f"{self.path} was moved, removed or replaced while it was open: nothing was written. "
                "Put it back, or start again"
            )
        self.connection.set_busy_timeout(max(1, int(busy_seconds * 1000)))
        self.connection.execute("BEGIN IMMEDIATE")
        if self.connection.data_version() != self._data_version:
            self._forget()
            check_schema(schema_of(self.connection), self.path)

    def commit(self) -> None:
        """Write what was gathered and make it all durable."""
        self.write("save_turns", [(*turn, place) for turn, place in self._moved_turns.items()])
        self.write("save_clocks", [(*at, place) for at, place in self._moved_clocks.items()])
        self.write("add_to_owners", [(owner, *counts) for owner, counts in self._owners.items()])
        self.connection.execute("COMMIT")
        self._data_version = self.connection.data_version()
        self._clear()

    def rollback(self) -> None:
        """Leave nothing of the transaction, here or in the file."""
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")
        self._clear()
        self._forget()

    def _clear(self) -> None:
        self._moved_turns.clear()
        self._moved_clocks.clear()
        self._owners.clear()

    def _forget(self) -> None:
        self._data_version = -1
        self._lanes = None
        self._turns.clear()
        self._clocks = None
        self._numbers = None

    # ---- statements

    def write(self, name: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement for all of its rows, many at a time."""
        if not rows:
            return
        statement = query(name)
        if len(rows) == 1:
            self.connection.execute(statement.one, rows[0])
            return
        start = 0
        for size in statement.sizes(len(rows)):
            values = tuple(chain.from_iterable(rows[start : start + size]))
            self.connection.execute(statement.sized(size), values)
            start += size

    def run(self, name: str, *values: Any) -> None:
        """Run a statement with plain parameters that gives no rows."""
        self.connection.execute(query(name).text, values)

    def rows(self, name: str, *values: Any) -> list[tuple[Any, ...]]:
        """All rows of a statement."""
        return self.connection.execute(query(name).text, values).fetchall()

    def row(self, name: str, *values: Any) -> tuple[Any, ...]:
        """The one row of a statement that has one."""
        return self.rows(name, *values)[0]

    def gathered(self, name: str, *values: Any) -> list[Any]:
        """The rows of a statement that gathers arrays into one text."""
        (text,) = self.row(name, *values)
        return listed(text)

    # ---- numbers

    def next_seqs(self, count: int) -> range:
        """The next numbers for so many jobs."""
        return self._next(0, count)

    def next_lines(self, count: int) -> range:
        """The next numbers for so many lines of the journal."""
        return self._next(1, count)

    def _next(self, which: int, count: int) -> range:
        if self._numbers is None:
            self._numbers = list(self.row("last_numbers"))
        first = self._numbers[which] + 1
        self._numbers[which] += count
        return range(first, first + count)

    # ---- lanes

    def lanes(self, lanes: Iterable[Lane], *, create: bool = False) -> list[int]:
        """The numbers of lanes, those that were never used left out or (``create``) numbered now."""
        lanes = list(lanes)
        known = self._known_lanes()
        new = [lane for lane in dict.fromkeys(lanes) if lane not in known] if create else []
        if new:
            self.write("insert_lanes", new)
            self._lanes = None
            known = self._known_lanes()
        return [number for number in map(known.get, lanes) if number is not None]

    def _known_lanes(self) -> dict[Lane, int]:
        if self._lanes is None:
            self._lanes = {(queue, kind): lane for queue, kind, lane in self.gathered("known_lanes")}
        return self._lanes

    # ---- places in line

    def look_up_turns(self, turns: Iterable[Turn]) -> None:
        """Read the last places of shares that are not known yet, all at once."""
        if len(self._turns) > MOST_TURNS:
            self._turns = dict(self._moved_turns)
        unknown = {turn for turn in turns if turn not in self._turns}
        if unknown:
            self._turns.update(dict.fromkeys(unknown))
            for queue, rank, share, place in self.gathered("known_turns", json.dumps(list(unknown))):
                self._turns[queue, rank, share] = place

    def turn(self, turn: Turn) -> float | None:
        """The last place given to a share, None if there was none."""
        if turn not in self._turns:
            self.look_up_turns([turn])
        return self._turns[turn]

    def set_turn(self, turn: Turn, place: float) -> None:
        self._turns[turn] = self._moved_turns[turn] = place

    def forget_turns(self) -> None:
        """Remove the places that the clocks have passed: they say nothing any more."""
        self.run("purge_turns")
        self._turns = dict(self._moved_turns)

    def clock(self, queue: str, rank: int) -> float:
        """The place that a rank of a queue has reached."""
        if self._clocks is None:
            self._clocks = {(q, r): place for q, r, place in self.gathered("known_clocks")}
        return self._clocks.get((queue, rank), 0.0)

    def pass_place(self, queue: str, rank: int, place: float) -> None:
        """Move a clock on to a place that was just claimed; it never goes back."""
        if place > self.clock(queue, rank):
            assert self._clocks is not None
            self._clocks[queue, rank] = self._moved_clocks[queue, rank] = place

    # ---- counts

    def count(self, owner: str, state: int, step: int) -> None:
        """Add to the number of an owner's jobs in a state (by its place in `STATES`)."""
        self._counts_of(owner)[state] += step

    def note_claim(self, owner: str, at: float) -> None:
        self._counts_of(owner)[-1] = at

    def _counts_of(self, owner: str) -> list[Any]:
        counts = self._owners.get(owner)
        if counts is None:
            counts = self._owners[owner] = [0, 0, 0, 0, 0, None]
        return counts


def _file_at(path: Path) -> tuple[int, int] | None:
    """What tells the file at a path from others, None where there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def listed(text: str | None) -> list[Any]:
    """What a statement gathered: JSON arrays with commas between them; None for none."""
    return [] if text is None else json.loads(f"[{text}]")
