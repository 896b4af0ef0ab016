"""A slip in a call of the Python API is told by the argument's name, on every road; and harms nothing beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from postroom import Inbox, RetryLater
from postroom.errors import DraftInvalid
from postroom.settings import Settings

SETTINGS = Settings(store="memory://", poll_seconds=60.0)
NAN = float("nan")


@pytest.fixture
async def inbox() -> AsyncIterator[Inbox]:
    async with Inbox(settings=SETTINGS) as inbox:
        yield inbox


async def drained(stream: Any) -> list[Any]:
    return [each async for each in stream]


SLIPS: list[tuple[str, Callable[[Any], Awaitable[object]]]] = [
    ("kind", lambda i: i.submit(5, "x")),
    ("Idempotency-Key", lambda i: i.submit("k", "x", idempotency_key=5)),
    ("timeout_seconds", lambda i: i.submit("k", "x", timeout_seconds="5")),
    ("item_keys", lambda i: i.submit("k", items=["a"], item_keys=5)),
    ("items", lambda i: i.submit("k", items="abc")),
    ("expires_at", lambda i: i.submit("k", "x", expires_at=timedelta(hours=1))),
    ("params", lambda i: i.submit("k", "x", params={1: 2})),
    ("job_id", lambda i: i.get(5)),
    ("job_id", lambda i: i.get(None)),
    ("job_id", lambda i: i.result(b"x")),
    ("job_id", lambda i: drained(i.items(5))),
    ("job_id", lambda i: drained(i.follow(5))),
    ("after", lambda i: drained(i.follow("x", after="0"))),
    ("job_id", lambda i: i.wait(5)),
    ("timeout_seconds", lambda i: i.wait("x", timeout_seconds="5")),
    ("timeout_seconds", lambda i: i.wait("x", timeout_seconds=NAN)),
    ("timeout_seconds", lambda i: i.wait("x", timeout_seconds=timedelta(seconds=5))),
    ("job_id", lambda i: i.cancel(5)),
    ("reason", lambda i: i.cancel("x", 5)),
    ("job_id", lambda i: i.replay(5)),
    ("state", lambda i: i.find(state=5)),
    ("state", lambda i: i.find(state=["nonsense"])),
    ("state", lambda i: i.find(state=[["queued"]])),
    ("kind", lambda i: i.find(kind=5)),
    ("sender", lambda i: i.find(sender=["a"])),
    ("topic", lambda i: i.find(topic=5)),
    ("queue", lambda i: i.find(queue=5)),
    ("since", lambda i: i.find(since=timedelta(hours=1))),
    ("since", lambda i: i.find(since="2026-01-31T08:00:00Z")),
    ("since", lambda i: i.find(since=datetime(2026, 1, 31))),  # noqa: DTZ001
    ("limit", lambda i: i.find(limit="5")),
    ("limit", lambda i: i.find(limit=0)),
    ("limit", lambda i: i.find(limit=2.5)),
    ("cursor", lambda i: i.find(cursor=5)),
    ("since", lambda i: i.dead_letters(since=5)),
    ("kind", lambda i: i.dead_letters(kind=5)),
    ("job_ids", lambda i: i.replay_dead("0" * 32)),
    ("job_ids", lambda i: i.replay_dead([5])),
    ("code", lambda i: i.replay_dead(code=5)),
    ("since", lambda i: i.replay_dead(since=5)),
    ("canary", lambda i: i.replay_dead(kind="k", canary="1")),
    ("canary", lambda i: i.replay_dead(kind="k", canary=0)),
    ("per_second", lambda i: i.replay_dead(kind="k", per_second="1")),
    ("per_second", lambda i: i.replay_dead(kind="k", per_second=NAN)),
]


@pytest.mark.parametrize(("name", "call"), SLIPS)
async def test_a_slip_names_its_argument(
    inbox: Inbox, name: str, call: Callable[[Any], Awaitable[object]]
) -> None:
    with pytest.raises(DraftInvalid) as refused:
        await call(inbox)
    assert name in str(refused.value)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("queues", {"queues": "default"}),
        ("queues", {"queues": [5]}),
        ("queues", {"queues": 5}),
        ("kinds", {"kinds": "echo"}),
        ("kinds", {"kinds": [5]}),
        ("concurrency", {"concurrency": 0}),
        ("concurrency", {"concurrency": "8"}),
        ("concurrency", {"concurrency": 2.5}),
        ("concurrency", {"concurrency": True}),
        ("concurrency", {"concurrency": 10**9}),
    ],
)
def test_a_workers_options_are_checked_where_they_are_given(name: str, options: dict[str, Any]) -> None:
    inbox = Inbox(settings=SETTINGS)
    inbox.handler("echo")(lambda item, run: item)
    with pytest.raises(DraftInvalid, match=name):
        inbox.worker(**options)


async def test_one_entry_that_is_no_job_harms_no_other(inbox: Inbox) -> None:
    good = {"kind": "k", "content": "x"}
    answers = await inbox.submit_many([good, 5, good, {5: 6}, None, good])  # type: ignore[list-item, dict-item]
    assert [isinstance(answer, DraftInvalid) for answer in answers] == [False, True, False, True, True, False]
    assert len((await inbox.find()).jobs) == 3


@pytest.mark.parametrize(("after", "reason"), [("soon", "x"), (None, "x"), (True, "x"), (5, 6), (5, None)])
def test_a_hold_of_no_number_is_refused_where_it_is_made(after: Any, reason: Any) -> None:
    with pytest.raises(TypeError, match=r"RetryLater\(after_seconds, reason\)"):
        RetryLater(after, reason)
