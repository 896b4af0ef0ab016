"""Which URL opens which store, and what is said about the others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from postroom.errors import SettingsInvalid
from postroom.stores.memory import MemoryStore
from postroom.stores.opening import open_store
from postroom.stores.sqlite.store import SqliteStore
from postroom.testing import ManualClock


def test_memory_is_a_store_of_its_own_each_time() -> None:
    one, two = open_store("memory://"), open_store("memory://")
    assert isinstance(one, MemoryStore)
    assert one is not two
    assert one.url == "memory://"


def test_options_reach_the_store() -> None:
    clock = ManualClock(5.0)
    assert open_store("memory://", clock=clock, fair_by="none").now() == 5.0
    with pytest.raises(ValueError, match="owner, sender or none"):
        open_store("memory://", fair_by="luck")


async def test_sqlite_takes_a_path_and_opens_again_by_its_own_url(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/inbox.db")
    assert isinstance(store, SqliteStore)
    await store.open()
    await store.close()
    assert (tmp_path / "inbox.db").exists()
    again = open_store(store.url)
    assert isinstance(again, SqliteStore)
    assert again.path == store.path


def test_a_relative_path_is_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store("sqlite:///inbox.db")
    assert isinstance(store, SqliteStore)
    assert store.path.resolve() == tmp_path / "inbox.db"


@pytest.mark.parametrize("url", ["http://host:8000", "https://host/inbox", "HTTP://host"])
def test_a_service_is_no_store_and_the_message_says_who_opens_it(url: str) -> None:
    with pytest.raises(SettingsInvalid, match="Inbox"):
        open_store(url)


@pytest.mark.parametrize(
    "url", ["", "inbox.db", "sqlite:", "sqlite://", "memory", "memory://x", "mysql://host", "://"]
)
def test_a_url_of_no_store_is_refused_by_name(url: str) -> None:
    with pytest.raises(SettingsInvalid) as refused:
        open_store(url)
    assert repr(url) in str(refused.value)
    assert "sqlite:///path" in str(refused.value)


def test_a_store_is_imported_only_when_it_is_asked_for() -> None:
    told = "import sys, postroom.stores.opening as o; o.open_store('memory://'); print('apsw' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", told], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "False"
