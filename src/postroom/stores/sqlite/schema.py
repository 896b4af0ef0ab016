"""Bringing the schema up to date: numbered files in ``migrations/``, each applied whole or not at all.

A migration and the number that says it was made are one transaction, so a process that is killed at any point leaves
the schema before or after it, never between; two processes that start at once apply it once, because the second reads
the number again when it holds the write lock. The number is ``PRAGMA user_version``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import apsw

from postroom.errors import SchemaOutOfDate, StoreUnsuitable
from postroom.stores.sqlite.statements import query
from postroom.stores.sqlite.suitability import APPLICATION_ID

FOLDER = Path(__file__).parent / "migrations"


@dataclass(frozen=True)
class Migration:
    """One step: its number, counted from 1 without gaps, its name and its statements."""

    number: int
    name: str
    text: str


def migrations(folder: Path = FOLDER) -> list[Migration]:
    """All steps in order."""
    found = []
    for path in sorted(folder.glob("*.sql")):
        number = int(re.match(r"\d+", path.name)[0])  # type: ignore[index]  # a file without a number is a mistake
        found.append(Migration(number, path.stem, path.read_text(encoding="utf-8")))
    if [step.number for step in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"migrations are numbered from 1 without gaps, found {[s.name for s in found]}")
    return found


NEWEST = len(list(FOLDER.glob("*.sql")))
"""The schema that this code knows."""


def schema_of(connection: apsw.Connection) -> int:
    """The number of the last step that was made here."""
    return int(connection.pragma("user_version"))


def check_schema(found: int, path: Path, newest: int = NEWEST) -> None:
    """Refuse a schema that is newer than this code.

    Raises:
        SchemaOutOfDate: a newer version of the program was here.
    """
    if found > newest:
        raise SchemaOutOfDate(
            f"{path} has schema {found}, this version of postroom knows {newest}: a newer one has been here. "
            "Update this program"
        )


def migrate(connection: apsw.Connection, path: Path, steps: list[Migration] | None = None) -> list[str]:
    """Apply the steps that are missing; the names of those.

    Raises:
        SchemaOutOfDate: the schema is newer than these steps.
        StoreUnsuitable: the file is another program's.
        apsw.Error: SQLite could not; nothing of the step at hand was made.
    """
    steps = migrations() if steps is None else steps
    made = []
    check_schema(schema_of(connection), path, len(steps))
    for step in steps:
        if schema_of(connection) >= step.number:
            continue
        connection.execute("BEGIN IMMEDIATE")
        try:
            if schema_of(connection) < step.number:
                _check_ours(connection, path, step)
                connection.execute(step.text)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {step.number}")
                made.append(step.name)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    return made


def _check_ours(connection: apsw.Connection, path: Path, step: Migration) -> None:
    """The first step is made in an empty file only, the others in one of ours."""
    marked = int(connection.pragma("application_id"))
    is_empty = connection.execute(query("count_tables").text).get == 0
    if (step.number == 1 and not is_empty) or (step.number > 1 and marked != APPLICATION_ID):
        raise StoreUnsuitable(f"{path} is another program's database: name another file")
