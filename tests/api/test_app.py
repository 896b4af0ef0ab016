"""The app's life: it opens its inbox once, and closes only what it opened."""

from __future__ import annotations

from fastapi.testclient import TestClient

from postroom.api.app import create_app
from postroom.inbox import Inbox
from postroom.settings import Settings

SETTINGS = Settings(store="memory://", poll_seconds=0.05)
BASE = "http://127.0.0.1:8000"


def test_it_opens_its_inbox_and_closes_it():
    inbox = Inbox("memory://", settings=SETTINGS)
    app = create_app(inbox, SETTINGS)
    with TestClient(app, base_url=BASE) as client:
        assert inbox.is_open
        assert client.get("/health").status_code == 200
    assert not inbox.is_open


async def test_an_inbox_that_was_open_stays_open():
    async with Inbox("memory://", settings=SETTINGS) as inbox:
        app = create_app(inbox, SETTINGS)
        async with app.router.lifespan_context(app):
            verbs = await inbox.verbs()
        assert inbox.is_open
        assert await inbox.verbs() is verbs


def test_it_can_be_started_again():
    app = create_app(Inbox("memory://", settings=SETTINGS), SETTINGS)
    for _ in range(2):
        with TestClient(app, base_url=BASE) as client:
            waited = client.post("/jobs", json={"content": 1}, headers={"Prefer": "wait=0.1"})
            assert waited.status_code == 202
            assert not app.state.service.stopping.is_set()
        assert app.state.service.stopping.is_set()
