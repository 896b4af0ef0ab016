"""The stores under test. Another one joins by its line in `FACTORIES`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import apsw
import pytest

from postroom.model import evolve
from postroom.stores.memory import MemoryStore
from postroom.stores.port import Store
from postroom.stores.sqlite.store import SqliteStore
from postroom.testing import ManualClock
from tests.stores.office import Office


class Factory(Protocol):
    """Makes stores of one kind, and damages their rows."""

    def make(self, folder: Path, clock: Callable[[], float] | None, **options: Any) -> Store:
        """A new, empty store; ``clock`` None gives it its own."""

    async def spoil(self, store: Store, job_id: str, **fields: Any) -> None:
        """Overwrite fields of a row behind the store's back."""


class Memory:
    def make(self, folder: Path, clock: Callable[[], float] | None, **options: Any) -> Store:
        return MemoryStore(clock=clock or time.time, **options)

    async def spoil(self, store: Store, job_id: str, **fields: Any) -> None:
        assert isinstance(store, MemoryStore)
        fields.pop("priority", None)  # a row of objects cannot hold what is no priority
        row = store._rows[job_id]
        row.job = evolve(row.job, **fields)


class Sqlite:
    def make(self, folder: Path, clock: Callable[[], float] | None, **options: Any) -> Store:
        return SqliteStore(f"sqlite:///{folder / 'inbox.db'}", clock=clock or time.time, **options)

    async def spoil(self, store: Store, job_id: str, **fields: Any) -> None:
        assert isinstance(store, SqliteStore)
        connection = apsw.Connection(str(store.path))
        connection.set_busy_timeout(2000)
        for name, value in fields.items():
            connection.execute(f"UPDATE jobs SET {name} = ? WHERE job_id = ?", (value, job_id))
        connection.close()


FACTORIES: dict[str, Factory] = {"memory": Memory(), "sqlite": Sqlite()}

MakeOffice = Callable[..., Awaitable[Office]]


@pytest.fixture(params=FACTORIES)
def factory(request: pytest.FixtureRequest) -> Factory:
    return FACTORIES[request.param]


@pytest.fixture
async def make_office(factory: Factory, tmp_path: Path) -> AsyncIterator[MakeOffice]:
    """Opens offices with stores of their own; takes the store's options."""
    made: list[Store] = []

    async def make(**options: Any) -> Office:
        clock = ManualClock()
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(factory.make(folder, clock, **options))
        await made[-1].open()
        return Office(made[-1], clock)

    yield make
    for store in made:
        await store.close()


@pytest.fixture
async def office(make_office: MakeOffice) -> Office:
    return await make_office()


@pytest.fixture
def store(office: Office) -> Store:
    return office.store
