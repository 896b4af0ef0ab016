"""An inbox over a real store, with intervals short enough to wait for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from postroom import Inbox
from postroom.settings import Settings
from postroom.stores.memory import MemoryStore
from postroom.stores.opening import open_store
from tests.worker.workbench import SETTINGS, WeakDesk


@pytest.fixture
def make_inbox(short_path: Path) -> Callable[..., Inbox]:
    """Makes inboxes over one store; options are settings. Call it again for another worker's view of the same store."""

    def make(url: str = "memory://", **settings: Any) -> Inbox:
        if url == "sqlite":
            url = f"sqlite:///{short_path}/jobs.db"
        chosen = Settings(**{**SETTINGS.__dict__, "store": url, **settings})
        store = MemoryStore() if url == "memory://" else open_store(url)
        return Inbox.over(WeakDesk(store, chosen), chosen)

    return make


@pytest.fixture(params=["memory://", "sqlite"])
async def inbox(request: pytest.FixtureRequest, make_inbox: Callable[..., Inbox]) -> AsyncIterator[Inbox]:
    async with make_inbox(request.param) as inbox:
        yield inbox


@pytest.fixture
async def desk(inbox: Inbox) -> WeakDesk:
    verbs = await inbox.verbs()
    assert isinstance(verbs, WeakDesk)
    return verbs
