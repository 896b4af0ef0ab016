"""The public object: submitting in bulk, waiting, following, and being opened again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest

from postroom.desk import Desk
from postroom.errors import (
    AccessRefused,
    DraftInvalid,
    DuplicateJob,
    JobNotFound,
    PostroomError,
    ResultMissing,
    StoreUnavailable,
    TooLarge,
    TransitionRefused,
    WaitTimedOut,
)
from postroom.inbox import BULK, Inbox
from postroom.model import Draft, ErrorInfo, Lease, Outcome, OutcomeKind, State
from postroom.settings import Settings
from postroom.stores.memory import MemoryStore
from postroom.stores.port import ClaimRequest, Submission, Submitted, Watch
from postroom.stores.sqlite.store import SqliteStore
from postroom.verbs import Receipt
from postroom.views import INLINE_RESULT_BYTES
from tests.api.live import live_service

SETTINGS = Settings(store="memory://", poll_seconds=60.0)
"""Whoever waits is woken by a hint, or the test does not end."""


@pytest.fixture(params=["memory", "sqlite", "http"])
async def inbox(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Inbox]:
    with ExitStack() as stack:
        if request.param == "http":
            url = stack.enter_context(live_service(SETTINGS)).url
        else:
            url = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path / 'inbox.db'}"}[request.param]
        async with asyncio.timeout(30), Inbox(url, settings=SETTINGS) as inbox:
            yield inbox


async def claim(inbox: Inbox, kind: str = "note") -> Lease:
    [lease] = (await (await inbox.verbs()).claim(ClaimRequest("w1", (kind,)))).leases
    return lease


async def settle(inbox: Inbox, lease: Lease, kind: OutcomeKind, **fields: Any) -> None:
    outcome = Outcome(lease.job.job_id, lease.job.epoch, kind, **fields)
    [answer] = await (await inbox.verbs()).settle([outcome])
    assert answer.status == "ok", answer


async def succeed(inbox: Inbox, result: str = '"done"') -> None:
    await settle(inbox, await claim(inbox), OutcomeKind.SUCCEEDED, result=result)


async def fail(inbox: Inbox) -> None:
    error = ErrorInfo("Broken", "no luck", None, True)
    await settle(inbox, await claim(inbox), OutcomeKind.FAILED, error=error)


# ---- submitting


async def test_submit_gives_the_job(inbox: Inbox) -> None:
    job = await inbox.submit("note", {"a": 1}, sender="ann", priority="high", params={"p": 1})
    assert (job.state, job.kind, job.sender, job.priority, job.params) == (
        "queued",
        "note",
        "ann",
        "high",
        {"p": 1},
    )
    assert await inbox.get(job.job_id) == job


async def test_the_same_key_gives_the_same_job(inbox: Inbox) -> None:
    first = await inbox.submit("note", "a", idempotency_key="k")
    assert (await inbox.submit("note", "a", idempotency_key="k")).job_id == first.job_id
    with pytest.raises(DuplicateJob) as refused:
        await inbox.submit("note", "b", idempotency_key="k")
    assert refused.value.job_id == first.job_id


async def test_what_is_refused_is_raised_and_leaves_nothing(inbox: Inbox) -> None:
    with pytest.raises(DraftInvalid, match="max_attempt:"):
        await inbox.submit("note", "a", max_attempt=3)
    with pytest.raises(TooLarge):
        await inbox.submit("note", "x" * SETTINGS.max_item_bytes)
    assert (await inbox.find()).jobs == ()


async def test_many_are_answered_in_order(inbox: Inbox) -> None:
    count = 2 * BULK + 7
    jobs: list[Mapping[str, Any]] = [{"kind": "note", "content": n} for n in range(count)]
    jobs[5] = {"kind": "note"}
    jobs[BULK] = {"kind": "", "content": 1}
    jobs[-1] = {"content": "a", "idempotency_key": "k"}
    jobs[-2] = {"content": "a", "idempotency_key": "k"}
    answers = await inbox.submit_many(iter(jobs))
    assert len(answers) == count
    refused = [n for n, answer in enumerate(answers) if isinstance(answer, PostroomError)]
    assert refused == [5, BULK]
    receipts = {n: a for n, a in enumerate(answers) if isinstance(a, Receipt)}
    assert receipts[count - 1].job_id == receipts[count - 2].job_id
    verbs = await inbox.verbs()
    for n in (0, 4, 6, BULK - 1, BULK + 1, 2 * BULK):
        assert (await verbs.payload(receipts[n].job_id)).body == str(n)
    assert sum((await inbox.stats()).states.values()) == count - 3


async def test_none_are_answered_by_none(inbox: Inbox) -> None:
    assert await inbox.submit_many([]) == []


class Flaky(MemoryStore):
    """A store that is away for some of its submissions."""

    def __init__(self, away: Callable[[int], Exception | None]) -> None:
        super().__init__()
        self._away = away
        self.calls = 0

    async def submit(self, submissions: Sequence[Submission]) -> list[Submitted]:
        self.calls += 1
        error = self._away(self.calls)
        await asyncio.sleep(0)
        if error is not None:
            raise error
        return await super().submit(submissions)


def flaky(away: Callable[[int], Exception | None]) -> Inbox:
    return Inbox.over(Desk(Flaky(away), SETTINGS), SETTINGS)


async def test_a_store_that_is_away_in_the_middle_is_told_for_those_it_has_not() -> None:
    gone = StoreUnavailable("away")
    async with flaky(lambda call: gone if call == 2 else None) as inbox:
        answers = await inbox.submit_many({"content": n} for n in range(3 * BULK))
        kinds = [type(answer) for answer in answers]
        assert kinds == [Receipt] * BULK + [StoreUnavailable] * BULK + [Receipt] * BULK
        verbs = await inbox.verbs()
        for n in (0, BULK - 1, 2 * BULK, 3 * BULK - 1):
            receipt = answers[n]
            assert isinstance(receipt, Receipt)
            assert (await verbs.payload(receipt.job_id)).body == str(n)
        assert sum((await inbox.stats()).states.values()) == 2 * BULK


async def test_a_store_that_is_away_for_one_is_raised() -> None:
    async with flaky(lambda call: StoreUnavailable("away")) as inbox:
        with pytest.raises(StoreUnavailable):
            await inbox.submit("note", "a")


async def test_a_service_that_refuses_in_the_middle_is_told_for_those_it_has_not() -> None:
    """Whatever error of ours a batch ends with, the answers of the others are not lost with it."""
    async with flaky(lambda call: AccessRefused("no") if call == 1 else None) as inbox:
        answers = await inbox.submit_many({"content": n} for n in range(2 * BULK + 1))
        kinds = [type(answer) for answer in answers]
        assert kinds == [AccessRefused] * BULK + [Receipt] * (BULK + 1)


@pytest.mark.parametrize("where", [1, 2, 4])
async def test_an_error_of_nobodys_is_raised_after_what_is_under_way(where: int) -> None:
    async with flaky(lambda call: RuntimeError("a bug") if call == where else None) as inbox:
        with pytest.raises(RuntimeError):
            await inbox.submit_many({"content": n} for n in range(5 * BULK))
        assert not [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]


async def test_jobs_that_end_in_an_error_leave_nothing_under_way() -> None:
    def jobs() -> Iterator[Mapping[str, Any]]:
        for n in range(2 * BULK):
            yield {"content": n}
        raise RuntimeError("the file ended")

    async with flaky(lambda call: None) as inbox:
        with pytest.raises(RuntimeError, match="the file ended"):
            await inbox.submit_many(jobs())
        assert not [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        assert sum((await inbox.stats()).states.values()) == 2 * BULK


# ---- looking


async def test_a_listing_is_found_in_pages(inbox: Inbox) -> None:
    answers = await inbox.submit_many({"kind": "note", "content": n, "sender": "ann"} for n in range(7))
    ids = [answer.job_id for answer in answers if isinstance(answer, Receipt)]
    seen: list[str] = []
    cursor = None
    while True:
        page = await inbox.find(kind="note", sender="ann", state="queued", limit=3, cursor=cursor)
        seen += [job.job_id for job in page.jobs]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert sorted(seen) == sorted(ids)
    assert seen == sorted(seen, reverse=True)


async def test_a_listing_takes_one_state_or_several(inbox: Inbox) -> None:
    job = await inbox.submit("note", "a")
    for states in ("queued", State.QUEUED, ["running", "queued"], (State.QUEUED,), None):
        assert [j.job_id for j in (await inbox.find(state=states)).jobs] == [job.job_id]
    assert (await inbox.find(state=State.FAILED)).jobs == ()
    assert (await inbox.find(since=datetime(2999, 1, 1, tzinfo=UTC))).jobs == ()


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"state": "done"}, "state: one of queued"),
        ({"state": ["queued", 7]}, "state"),
        ({"limit": 0}, "limit: a whole number from 1 to 500"),
        ({"limit": 501}, "limit"),
    ],
)
async def test_a_listing_that_cannot_be_is_refused(inbox: Inbox, asked: dict[str, Any], told: str) -> None:
    with pytest.raises(DraftInvalid, match=told):
        await inbox.find(**asked)


async def test_a_listing_may_have_one_or_five_hundred(inbox: Inbox) -> None:
    await inbox.submit_many({"content": n} for n in range(501))
    assert len((await inbox.find(limit=1)).jobs) == 1
    page = await inbox.find(limit=500)
    assert len(page.jobs) == 500
    assert len((await inbox.find(limit=500, cursor=page.next_cursor)).jobs) == 1


async def test_a_large_result_is_read_whole(inbox: Inbox) -> None:
    job = await inbox.submit("note", "a")
    with pytest.raises(ResultMissing):
        await inbox.result(job.job_id)
    value = {"text": "é" * INLINE_RESULT_BYTES, "n": [1, 2.5, None]}
    await succeed(inbox, json.dumps(value))
    seen = await inbox.get(job.job_id)
    assert (seen.result, seen.result_url) == (None, f"/jobs/{job.job_id}/result")
    assert await inbox.result(job.job_id) == value


async def test_all_items_are_given_however_many(inbox: Inbox) -> None:
    job = await inbox.submit("note", items=list(range(1001)))
    keys = [item.key async for item in inbox.items(job.job_id)]
    assert keys == [str(n) for n in range(1001)]


# ---- waiting


@pytest.mark.parametrize("end", ["succeeded", "failed", "cancelled"])
async def test_a_wait_ends_when_the_job_does(inbox: Inbox, end: str) -> None:
    job = await inbox.submit("note", "a")
    waiting = asyncio.create_task(inbox.wait(job.job_id))
    await asyncio.sleep(0)
    if end == "cancelled":
        await inbox.cancel(job.job_id)
    else:
        await (succeed if end == "succeeded" else fail)(inbox)
    assert (await waiting).state == end
    assert (await inbox.wait(job.job_id, timeout_seconds=0)).state == end


async def test_a_wait_that_ends_before_the_job_says_so(inbox: Inbox) -> None:
    job = await inbox.submit("note", "a")
    for seconds in (0, 0.01):
        with pytest.raises(WaitTimedOut) as timed_out:
            await inbox.wait(job.job_id, timeout_seconds=seconds)
        assert (timed_out.value.job_id, timed_out.value.state) == (job.job_id, "queued")
    assert (await inbox.get(job.job_id)).state == "queued"


async def test_waiting_for_no_job_is_told(inbox: Inbox) -> None:
    with pytest.raises(JobNotFound):
        await inbox.wait("0" * 32)
    with pytest.raises(JobNotFound):
        await anext(inbox.follow("0" * 32))


async def test_a_wait_begun_in_a_second_life_waits_for_its_end(inbox: Inbox) -> None:
    job = await inbox.submit("note", "a")
    await fail(inbox)
    await inbox.replay(job.job_id)
    waiting = asyncio.create_task(inbox.wait(job.job_id))
    await asyncio.sleep(0)
    await succeed(inbox)
    assert ((await waiting).state, (await waiting).replays) == ("succeeded", 1)


# ---- following


async def told(inbox: Inbox, job_id: str, after: int = -1) -> list[str]:
    return [f"{line.n} {line.event}" async for line in inbox.follow(job_id, after=after)]


async def test_a_follower_hears_all_and_ends_with_the_job(inbox: Inbox) -> None:
    job = await inbox.submit("note", "a")
    following = asyncio.create_task(told(inbox, job.job_id))
    await asyncio.sleep(0)
    await succeed(inbox)
    assert await following == ["0 submitted", "1 claimed", "2 succeeded"]
    assert await told(inbox, job.job_id) == ["0 submitted", "1 claimed", "2 succeeded"]


async def test_a_follower_goes_on_from_a_line(inbox: Inbox) -> None:
    job = await inbox.submit("note", "a")
    await succeed(inbox)
    assert await told(inbox, job.job_id, after=0) == ["1 claimed", "2 succeeded"]
    assert await told(inbox, job.job_id, after=2) == []


class _Seen:
    """A watch that tells when somebody begins to wait on it: by then they have looked."""

    def __init__(self, watch: Callable[..., Watch], has_begun: asyncio.Event, *topics: str) -> None:
        self._watch = watch(*topics)
        self._has_begun = has_begun

    def __enter__(self) -> Self:
        self._watch.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._watch.__exit__(*error)

    async def wait(self, timeout_seconds: float) -> bool:
        self._has_begun.set()
        return await self._watch.wait(timeout_seconds)


@pytest.mark.parametrize("after", [0, 7, 1000])
async def test_a_line_past_the_end_waits_for_what_comes(
    inbox: Inbox, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await inbox.submit("note", "a")
    verbs, has_looked = await inbox.verbs(), asyncio.Event()
    monkeypatch.setattr(verbs, "watch", partial(_Seen, verbs.watch, has_looked))
    following = asyncio.create_task(told(inbox, job.job_id, after=after))
    await has_looked.wait()
    await succeed(inbox)
    assert await following == ["1 claimed", "2 succeeded"]


async def test_a_line_past_the_end_of_a_job_that_ended_is_the_end(inbox: Inbox) -> None:
    job = await inbox.submit("note", "a")
    await succeed(inbox)
    assert await told(inbox, job.job_id, after=1000) == []


async def test_a_follower_who_is_late_hears_a_replay_as_well(inbox: Inbox) -> None:
    """The line that ended the first life is not the last one by the time that it is heard."""
    job = await inbox.submit("note", "a")
    lines = inbox.follow(job.job_id)
    assert (await anext(lines)).event == "submitted"
    await fail(inbox)
    await inbox.replay(job.job_id)
    heard = [(await anext(lines)).event for _ in range(3)]
    assert heard == ["claimed", "failed", "replayed"]
    following = asyncio.create_task(_rest(lines))
    await asyncio.sleep(0)
    await succeed(inbox)
    assert await following == ["claimed", "succeeded"]


async def _rest(lines: AsyncIterator[Any]) -> list[str]:
    return [str(line.event) async for line in lines]


async def test_a_follower_hears_a_long_journal_in_order(inbox: Inbox) -> None:
    job = await inbox.submit("note", "a")
    lease = await claim(inbox)
    output = tuple(str(n) for n in range(1200))
    await settle(inbox, lease, OutcomeKind.SUCCEEDED, result="1", output=output)
    heard = [line.n async for line in inbox.follow(job.job_id)]
    assert heard == list(range(1203))


async def test_a_follower_may_leave(inbox: Inbox) -> None:
    job = await inbox.submit("note", "a")
    lines = inbox.follow(job.job_id)
    await anext(lines)
    await lines.aclose()  # type: ignore[attr-defined]


# ---- acting


async def test_acting_twice_is_refused(inbox: Inbox) -> None:
    job = await inbox.submit("note", "a")
    assert (await inbox.cancel(job.job_id, "enough")).reason == "enough"
    with pytest.raises(TransitionRefused):
        await inbox.cancel(job.job_id)
    assert (await inbox.replay(job.job_id)).state == "queued"
    with pytest.raises(TransitionRefused):
        await inbox.replay(job.job_id)


async def test_dead_letters_are_grouped_and_replayed(inbox: Inbox) -> None:
    for n in range(3):
        await inbox.submit("note", n)
        await fail(inbox)
    [group] = await inbox.dead_letters(kind="note")
    assert (group.count, group.message) == (3, "no luck")
    assert await inbox.replay_dead(kind="note", code=group.code, message=group.message) == 3
    assert await inbox.dead_letters() == []


# ---- opening and closing


async def test_nothing_is_opened_before_it_is_used(tmp_path: Path) -> None:
    path = tmp_path / "inbox.db"
    inbox = Inbox(f"sqlite:///{path}", settings=SETTINGS)
    assert not inbox.is_open
    assert not path.exists()
    await inbox.submit("note", "a")
    assert inbox.is_open
    await inbox.close()
    assert not inbox.is_open
    await inbox.close()


async def test_an_inbox_opens_again(tmp_path: Path) -> None:
    inbox = Inbox(f"sqlite:///{tmp_path / 'inbox.db'}", settings=SETTINGS)
    async with inbox:
        first = await inbox.submit("note", "a")
    async with inbox:
        assert (await inbox.get(first.job_id)).job_id == first.job_id
    assert len((await inbox.find()).jobs) == 1  # and by itself at its next use
    await inbox.close()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_an_inbox_over_a_store_of_ones_own_opens_that_one_again(kind: str, tmp_path: Path) -> None:
    store = MemoryStore() if kind == "memory" else SqliteStore(f"sqlite:///{tmp_path / 'inbox.db'}")
    inbox = Inbox.over(Desk(store, SETTINGS), SETTINGS)
    async with inbox:
        first = await inbox.submit("note", "a")
    async with inbox:
        assert (await inbox.get(first.job_id)).job_id == first.job_id
        assert (await inbox.verbs()).now() == pytest.approx(store.now(), abs=5)


async def test_many_first_uses_at_once_open_it_once(tmp_path: Path) -> None:
    inbox = Inbox(f"sqlite:///{tmp_path / 'inbox.db'}", settings=SETTINGS)
    opened = await asyncio.gather(*(inbox.verbs() for _ in range(20)))
    assert len({id(verbs) for verbs in opened}) == 1
    await inbox.close()


async def test_a_block_that_fails_closes_it_all_the_same(tmp_path: Path) -> None:
    inbox = Inbox(f"sqlite:///{tmp_path / 'inbox.db'}", settings=SETTINGS)
    with pytest.raises(RuntimeError):
        async with inbox:
            raise RuntimeError
    assert not inbox.is_open


async def test_two_inboxes_over_one_file_see_each_other(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'inbox.db'}"
    async with (
        asyncio.timeout(30),
        Inbox(url, settings=SETTINGS) as one,
        Inbox(url, settings=SETTINGS) as other,
    ):
        job = await one.submit("note", "a")
        waiting = asyncio.create_task(one.wait(job.job_id))
        await asyncio.sleep(0)
        await succeed(other)
        assert (await waiting).result == "done"


def test_a_draft_is_as_the_settings_allow() -> None:
    inbox = Inbox(settings=Settings(store="memory://", max_item_bytes=16))
    assert isinstance(inbox.draft({"content": "x" * 14}, now=0.0), Draft)
    with pytest.raises(TooLarge):
        inbox.draft({"content": "x" * 15}, now=0.0)
