"""A job's journal as server-sent events: over a real connection, resumed, waited for, and closed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from postroom.api.routes.events import PAGE
from tests.api.conftest import Caller, held
from tests.api.live import LiveService


@dataclass
class Event:
    id: int
    name: str
    line: dict[str, Any]


async def events_of(answer: httpx2.Response) -> AsyncIterator[Event | str]:
    """The events of a stream; comments as text."""
    fields: dict[str, str] = {}
    async for line in answer.aiter_lines():
        if line.startswith(":"):
            yield line
        elif line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif fields:
            yield Event(int(fields["id"]), fields["event"], json.loads(fields["data"]))
            fields = {}


@pytest.fixture
async def remote(live: LiveService) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=live.url, timeout=20, trust_env=False) as client:
        yield client


@pytest.fixture
def caller(remote: httpx2.AsyncClient) -> Caller:
    return Caller(remote)


async def test_events_are_numbered_from_0_and_end_with_the_job(remote, caller):
    lease = await caller.start()
    async with remote.stream("GET", f"/jobs/{lease['job_id']}/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        seen = []
        async for event in events_of(answer):
            seen.append(event)
            if event.name == "claimed":
                await caller.beat({**held(lease), "output": [{"text": "half"}]})
            if event.name == "output":
                await caller.succeed(lease)
    assert [(e.id, e.name) for e in seen] == [
        (0, "submitted"),
        (1, "claimed"),
        (2, "output"),
        (3, "succeeded"),
    ]
    assert all(e.line["n"] == e.id and e.line["event"] == e.name for e in seen)
    wanted = {"n", "at", "event", "from", "to", "epoch", "attempt", "life", "actor", "reason", "data"}
    assert set(seen[2].line) == wanted
    assert seen[2].line["data"]["output"] == {"text": "half"}
    assert (seen[0].line["from"], seen[0].line["to"]) == (None, "queued")


async def test_a_stream_is_resumed_where_it_broke(remote, caller):
    lease = await caller.start()
    await caller.succeed(lease)
    path = f"/jobs/{lease['job_id']}/events"
    async with remote.stream("GET", path, headers={"Last-Event-ID": "0"}) as answer:
        assert [event.id async for event in events_of(answer)] == [1, 2]
    async with remote.stream("GET", f"{path}?after=1") as answer:
        assert [event.id async for event in events_of(answer)] == [2]
    async with remote.stream("GET", f"{path}?after=1", headers={"Last-Event-ID": "-1"}) as answer:
        assert [event.id async for event in events_of(answer)] == [0, 1, 2]


async def test_who_has_seen_the_end_is_told_not_to_come_again(remote, caller):
    lease = await caller.start()
    await caller.succeed(lease)
    for seen in ("2", "99"):
        answer = await remote.get(f"/jobs/{lease['job_id']}/events", headers={"Last-Event-ID": seen})
        assert (answer.status_code, answer.content) == (204, b"")


@pytest.mark.parametrize("seen", ["0", "7", "4000000000"])
async def test_an_id_past_the_end_waits_for_what_comes(remote, caller, seen):
    job_id = await caller.submit()
    async with remote.stream("GET", f"/jobs/{job_id}/events", headers={"Last-Event-ID": seen}) as answer:
        assert answer.status_code == 200
        await remote.post(f"/jobs/{job_id}/cancel")
        assert [(event.id, event.name) async for event in events_of(answer)] == [(1, "cancelled")]


async def test_a_replayed_job_goes_on_in_the_same_journal(remote, caller):
    lease = await caller.start()
    await caller.fail(lease)
    await remote.post(f"/jobs/{lease['job_id']}/replay")
    async with remote.stream(
        "GET", f"/jobs/{lease['job_id']}/events", headers={"Last-Event-ID": "2"}
    ) as answer:
        [again] = await caller.claim()
        await caller.succeed(again)
        names = [event.name async for event in events_of(answer)]
    assert names == ["replayed", "claimed", "succeeded"]


@pytest.mark.parametrize("seen", ["x", "1.5", "-2", "9" * 30])
async def test_an_id_that_is_none_is_refused(remote, caller, seen):
    answer = await remote.get(f"/jobs/{await caller.submit()}/events", headers={"Last-Event-ID": seen})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["path"] == "Last-Event-ID"


async def test_a_quiet_stream_says_that_it_lives(live, remote, caller):
    live.service.comment_seconds = 0.05
    job_id = await caller.submit()
    async with remote.stream("GET", f"/jobs/{job_id}/events") as answer:
        stream = events_of(answer)
        assert (await anext(stream)).id == 0
        assert await anext(stream) == ": still here"
        assert await anext(stream) == ": still here"
        await stream.aclose()


async def test_a_follower_that_goes_away_is_let_go_of(live, remote, caller):
    job_id = await caller.submit()
    store = (await live.inbox.verbs()).store
    async with remote.stream("GET", f"/jobs/{job_id}/events") as answer:
        await anext(events_of(answer))
        assert store._hub._watches
    async with asyncio.timeout(5):
        while store._hub._watches:
            await asyncio.sleep(0.01)  # nothing tells when the other side of a connection has noticed


async def test_a_long_journal_is_streamed_whole(remote, caller):
    lease = await caller.start()
    for start in range(0, 1200, 300):
        await caller.beat({**held(lease), "output": list(range(start, start + 300))})
    await caller.succeed(lease)
    async with remote.stream("GET", f"/jobs/{lease['job_id']}/events") as answer:
        assert [event.id async for event in events_of(answer)] == list(range(1203))
    past = await remote.get(f"/jobs/{lease['job_id']}/events", headers={"Last-Event-ID": "5000"})
    assert past.status_code == 204


async def test_the_journal_is_given_as_json_too(remote, caller):
    lease = await caller.start()
    path = f"/jobs/{lease['job_id']}/journal"
    page = (await remote.get(f"{path}?limit=1")).json()
    assert ([line["event"] for line in page["items"]], page["next_cursor"]) == (["submitted"], None)
    held_back = asyncio.create_task(remote.get(f"{path}?after=1", headers={"Prefer": "wait=20"}))
    await caller.succeed(lease)
    assert [line["event"] for line in (await held_back).json()["items"]] == ["succeeded"]
    nothing = await remote.get(f"{path}?after=2", headers={"Prefer": "wait=0.05"})
    assert nothing.json()["items"] == []


@pytest.mark.parametrize("lines", [PAGE - 1, PAGE, PAGE + 1, 2 * PAGE])
async def test_a_stream_is_closed_after_the_final_event_however_many_there_are(remote, caller, lines):
    lease = await caller.start()
    await caller.beat({**held(lease), "output": list(range(lines - 3))})
    await caller.succeed(lease)
    async with asyncio.timeout(10), remote.stream("GET", f"/jobs/{lease['job_id']}/events") as answer:
        assert [event.id async for event in events_of(answer)] == list(range(lines))


@pytest.mark.parametrize("past", [0, 1, 10, 2**50])
async def test_who_comes_back_does_not_have_a_long_journal_read_again(
    live, remote, caller, monkeypatch, past
):
    lease = await caller.start()
    await caller.beat({**held(lease), "output": list(range(5_000))})
    await caller.succeed(lease)
    desk, read = await live.inbox.verbs(), 0
    journal = desk.journal

    async def counting(*args, **options):
        nonlocal read
        lines = await journal(*args, **options)
        read += len(lines)
        return lines

    monkeypatch.setattr(desk, "journal", counting)
    answer = await remote.get(f"/jobs/{lease['job_id']}/events", headers={"Last-Event-ID": str(5_002 + past)})
    assert answer.status_code == 204
    assert read <= 60
