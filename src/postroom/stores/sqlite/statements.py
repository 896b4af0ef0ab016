"""The statements in ``queries/``, one file each, named like what they do.

``?*3`` in a statement stands for as many rows of three parameters as are given: a batch is written by few statements
instead of many, because SQLite's driver lets go of the interpreter lock once per statement, and a thread beside a
busy event loop may wait milliseconds to get it back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "queries"

_ROWS = re.compile(r"\?\*(\d+)")
_COMMENT = re.compile(r"\s*--[^\n]*")

LONGEST = 16_000
"""Characters of a statement that the driver still keeps prepared."""
MOST_ROWS = 128


class Query:
    """A statement of one file, without its comments."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = " ".join(_COMMENT.sub("", (FOLDER / f"{name}.sql").read_text(encoding="utf-8")).split())
        rows = _ROWS.search(self.text)
        self.width = int(rows.group(1)) if rows else 0
        self._row = "(" + ",".join("?" * self.width) + ")"
        self._sized: dict[int, str] = {}
        self.one = self.sized(1)
        self.most = MOST_ROWS
        while self.width and self.most > 1 and len(self.text) + self.most * (len(self._row) + 1) > LONGEST:
            self.most //= 2

    def sized(self, rows: int) -> str:
        """The statement for exactly so many rows."""
        text = self._sized.get(rows)
        if text is None:
            text = self._sized[rows] = _ROWS.sub(",".join([self._row] * rows), self.text)
        return text

    def sizes(self, rows: int) -> Iterator[int]:
        """How to part so many rows: powers of two, so that few different statements have to be kept prepared."""
        while rows > 0:
            size = min(self.most, 1 << rows.bit_length() - 1)
            yield size
            rows -= size


@cache
def query(name: str) -> Query:
    """The statement of a file, read once."""
    return Query(name)
