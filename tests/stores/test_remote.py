"""What is truly the remote desk's own: repeats over a lossy line, problems as errors, loops, clocks, cuts, hints.

That it keeps the verbs' promises is shown by running them over a real service beside the desk that it stands for.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from postroom import Inbox, errors
from postroom.model import (
    Beat,
    Checkpoint,
    CheckpointKind,
    Draft,
    ErrorInfo,
    Limits,
    Outcome,
    OutcomeKind,
    Payload,
    Priority,
    State,
    WorkerInfo,
    new_job_id,
)
from postroom.seals import unsealed
from postroom.settings import Settings
from postroom.stores.port import WORK, ClaimRequest, Query
from postroom.stores.remote import RemoteDesk, _parts
from postroom.verbs import Receipt, ReplayRequest
from tests.api.live import QUICK, LiveService, live_service

ITEM, STEP = CheckpointKind.ITEM, CheckpointKind.STEP


@pytest.fixture
def live() -> Iterator[LiveService]:
    with live_service() as live:
        yield live


@asynccontextmanager
async def remote_desk(url: str, **options: Any) -> AsyncIterator[RemoteDesk]:
    desk = RemoteDesk(url, options.pop("settings", QUICK), **options)
    await desk.open()
    try:
        yield desk
    finally:
        await desk.close()


@pytest.fixture
async def desk(live: LiveService) -> AsyncIterator[RemoteDesk]:
    async with remote_desk(live.url) as desk:
        yield desk


def draft(kind: str = "note", body: str = '"hello"', **fields: Any) -> Draft:
    return Draft(new_job_id(), kind, Payload(body), **fields)


async def submitted(desk: RemoteDesk, *drafts: Draft) -> list[str]:
    receipts = await desk.submit(drafts or [draft()])
    assert all(isinstance(receipt, Receipt) for receipt in receipts), receipts
    return [receipt.job_id for receipt in receipts if isinstance(receipt, Receipt)]


async def claimed(desk: RemoteDesk, *kinds: str, **fields: Any) -> Any:
    return (await desk.claim(ClaimRequest("w1", kinds or ("note",), **fields))).leases


# ---- the same values at both ends


async def test_a_job_arrives_as_it_was_drafted(live, desk):
    full = draft(
        body='{"b":1.5,"a":"é"}',
        sender="mail",
        topic="t",
        priority=Priority.HIGH,
        queue="slow",
        run_at=4_000_000_000.25,
        expires_at=4_100_000_000.5,
        max_attempts=7,
        timeout_seconds=1.5,
        stall_timeout_seconds=2.0,
        allow_failed_items=0.25,
        params='{"labels":["a","b"]}',
        metadata='{"x":null}',
    )
    [job_id] = await submitted(desk, full)
    there = await live.inbox.verbs()
    row = there.store._rows[job_id].job
    names = "kind sender topic priority queue run_at expires_at max_attempts timeout_seconds stall_timeout_seconds"
    for name in [*names.split(), "allow_failed_items", "params", "metadata"]:
        assert getattr(row, name) == getattr(full, name), name
    assert there.store._rows[job_id].payload == full.payload
    assert await desk.payload(job_id) == full.payload


async def test_a_lease_arrives_as_the_desk_there_gives_it(live, desk):
    keyed = draft(body='["x",{"y":1}]', total=2, has_items=True, params='{"p":1}')
    keyed = replace(keyed, payload=Payload(keyed.payload.body, ("k1", "k2")))
    await submitted(desk, keyed)
    [lease] = await claimed(desk, lease_seconds=9.0)
    kept = (
        Checkpoint(ITEM, "k1", value='{"b":1.0,"a":"é"}', usage='{"tokens":3}'),
        Checkpoint(
            ITEM, "k2", error='{"code":"e","message":"m","detail":null,"epoch":1,"attempt":1}', is_final=False
        ),
        Checkpoint(STEP, "fetch:1", value="[1]", input_digest="d1"),
    )
    limits = Limits(max_attempts=9, timeout_seconds=50.0)
    beat = Beat(
        lease.job.job_id, 1, checkpoints=kept, usage={"tokens": 3}, limits=limits, seq=1, output=('"o"',)
    )
    [answer] = await desk.heartbeat([beat])
    assert answer.status == "ok"
    await desk.settle([Outcome(lease.job.job_id, 1, OutcomeKind.CRASHED, reason="signal 9")])
    await asyncio.sleep(0)
    leases = ()
    while not leases:
        leases = (await desk.claim(ClaimRequest("w2", ("note",), lease_seconds=9.0), wait_seconds=5)).leases
    there = (await live.inbox.verbs()).store._rows[lease.job.job_id]
    assert leases[0].payload == there.payload == keyed.payload
    assert leases[0].checkpoints == tuple(there.checkpoints[at] for at in sorted(there.checkpoints))
    for name in (
        "job_id epoch life attempts kind sender topic priority queue state has_items done total failed_items crashes "
        "crashes_in_row interruptions holds worker cancel_requested params metadata timeout_seconds max_attempts "
        "stall_timeout_seconds allow_failed_items lease_seconds"
    ).split():
        assert getattr(leases[0].job, name) == getattr(there.job, name), name
    for name in ("created_at", "started_at", "lease_expires_at"):
        assert getattr(leases[0].job, name) == pytest.approx(getattr(there.job, name), abs=1e-5)


async def test_every_read_gives_what_the_desk_there_gives(live, desk):
    there = await live.inbox.verbs()
    job_id, failing = await submitted(desk, draft(), draft("bad"))
    [lease] = await claimed(desk)
    await desk.settle([Outcome(job_id, 1, OutcomeKind.SUCCEEDED, result='{"text":"é"}')])
    await claimed(desk, "bad")
    error = ErrorInfo("Broken", "no 17", {"a": 1}, is_permanent=True)
    await desk.settle([Outcome(failing, 1, OutcomeKind.FAILED, error=error)])
    assert await desk.get(job_id) == await there.get(job_id)
    assert await desk.find(Query()) == await there.find(Query())
    query = Query(states=(State.FAILED,), kinds=("bad", "note"), sender="unknown", limit=1, oldest_first=True)
    assert await desk.find(query) == await there.find(query)
    assert await desk.items(job_id) == await there.items(job_id)
    [group], [other] = await desk.dead_letters(kind="bad"), await there.dead_letters(kind="bad")
    assert replace(group, first_at=0, last_at=0) == replace(other, first_at=0, last_at=0)
    assert (group.first_at, group.last_at) == pytest.approx((other.first_at, other.last_at), abs=1e-5)
    assert [view.job_ids for view in await desk.workers()] == [view.job_ids for view in await there.workers()]
    ours, theirs = await desk.stats(), await there.stats()
    assert replace(ours, last_claimed_at=None) == replace(theirs, last_claimed_at=None)
    assert (await desk.health()).durability == (await there.health()).durability
    assert "".join([piece async for piece in desk.result(job_id)]) == '{"text":"é"}'
    lines = await desk.journal(job_id)
    for line, other in zip(lines, await there.journal(job_id), strict=True):
        told, seen = unsealed(other.data), dict(line.data)
        for name in [name for name in told if name.endswith("_at")]:
            assert seen.pop(name) == pytest.approx(told.pop(name), abs=1e-5)
        assert line._replace(at=0.0, data=seen) == other._replace(at=0.0, data=told)
        assert line.at == pytest.approx(other.at, abs=1e-5)
    assert lease.job.job_id == job_id


async def test_every_verb_that_changes_something_does(desk):
    first, second = await submitted(desk, draft(), draft("bad"))
    assert (await desk.cancel(first, reason="not needed")).state is State.CANCELLED
    assert (await desk.replay(first)).state is State.QUEUED
    await claimed(desk, "bad")
    await desk.settle([Outcome(second, 1, OutcomeKind.FAILED, error=ErrorInfo("x", "y", None, True))])
    [group] = await desk.dead_letters()
    assert await desk.replay_dead(ReplayRequest(kind=group.kind, code=group.code, message=group.message)) == 1
    info = WorkerInfo("w9", ("a",), ("q",), 4, "host", 7, desk.now() - 5, 0.0, is_local=True, version="1")
    await desk.attend(info)
    view = next(view for view in await desk.workers() if view.info.worker == "w9")
    assert (view.info.kinds, view.info.queues, view.info.concurrency, view.info.pid) == (("a",), ("q",), 4, 7)
    assert not view.info.is_local
    assert view.info.started_at == pytest.approx(desk.now() - 5, abs=2)
    await desk.leave("w9")
    assert "w9" not in {view.info.worker for view in await desk.workers()}
    assert (await desk.sweep()).changed == 0


async def test_a_worker_of_ours_works_over_http(live):
    async with Inbox(live.url, settings=replace(QUICK, store=live.url)) as inbox:

        @inbox.handler("double", item_concurrency=2)
        async def double(item: Any, run: Any) -> Any:
            run.emit({"saw": item})
            return item * 2

        @inbox.handler("steps", whole=True)
        async def steps(run: Any) -> Any:
            return [await run.step("a", lambda x: x + 1, run.content), run.effect_key("mail")]

        async with inbox.worker(concurrency=4):
            many = await inbox.submit("double", items=list(range(20)), item_keys=[f"k{i}" for i in range(20)])
            whole = await inbox.submit("steps", 4)
            done = await inbox.wait(many.job_id, timeout_seconds=30)
            stepped = await inbox.wait(whole.job_id, timeout_seconds=30)
        assert done.result == {"results": [i * 2 for i in range(20)]}
        assert stepped.result == [5, f"{whole.job_id}:mail"]
        events = [line.event async for line in inbox.follow(many.job_id)]
        assert events[0] == "submitted"
        assert events[-1] == "succeeded"
        assert events.count("output") == 20


async def test_a_follower_and_a_waiter_hear_of_the_end(live):
    async with Inbox(live.url, settings=replace(QUICK, store=live.url, poll_seconds=30.0)) as inbox:
        job = await inbox.submit("note", "x")
        following = asyncio.create_task(collected(inbox.follow(job.job_id)))
        waiting = asyncio.create_task(inbox.wait(job.job_id, timeout_seconds=60))
        await asyncio.sleep(0.1)  # both are being held back by now; if not, the test is only easier to pass
        await inbox.cancel(job.job_id)
        async with asyncio.timeout(20):
            assert (await waiting).state is State.CANCELLED
            assert await following == ["submitted", "cancelled"]


async def collected(lines: AsyncIterator[Any]) -> list[str]:
    return [str(line.event) async for line in lines]


async def test_a_wait_over_http_times_out(live):
    async with Inbox(live.url, settings=replace(QUICK, store=live.url)) as inbox:
        job = await inbox.submit("note", "x")
        with pytest.raises(errors.WaitTimedOut):
            await inbox.wait(job.job_id, timeout_seconds=0.2)


# ---- errors


async def test_errors_are_the_same_as_beside_the_store(desk):
    [job_id] = await submitted(desk)
    for lost in ("0" * 32, "x", "", "../stats", "a/b", "%00"):
        with pytest.raises(errors.JobNotFound):
            await desk.get(lost)
    with pytest.raises(errors.ResultMissing):
        await anext(desk.result(job_id))
    with pytest.raises(errors.TransitionRefused) as refused:
        await desk.replay(job_id)
    assert refused.value.state == "queued"
    with pytest.raises(errors.DraftInvalid):
        await desk.find(Query(cursor="nonsense"))
    with pytest.raises(errors.DraftInvalid):
        await desk.replay_dead(ReplayRequest())


async def test_a_batch_tells_which_were_refused(desk):
    keyed = draft(idempotency_key="k", body="1", body_digest="x")
    other = draft(idempotency_key="k", body="2", body_digest="y")
    too_large = draft(body=json.dumps("x" * 2_000_000))
    first, again, duplicate, large, plain = await desk.submit([keyed, keyed, other, too_large, draft()])
    assert isinstance(first, Receipt)
    assert isinstance(again, Receipt)
    assert (again.job_id, first.is_replayed, again.is_replayed) == (first.job_id, False, True)
    assert isinstance(duplicate, errors.DuplicateJob)
    assert duplicate.job_id == first.job_id
    assert isinstance(large, errors.TooLarge)
    assert isinstance(plain, Receipt)


async def test_over_http_nobody_says_whose_jobs_are_meant(desk):
    with pytest.raises(errors.AccessRefused):
        await desk.get("0" * 32, owner="somebody")
    with pytest.raises(errors.AccessRefused):
        await desk.submit([draft(owner="somebody")])


async def test_nothing_that_answers_is_unavailable(free_port):
    desk = RemoteDesk(f"http://127.0.0.1:{free_port}", QUICK, retry_seconds=0.2)
    with pytest.raises(errors.StoreUnavailable, match="no service answers"):
        await desk.open()
    assert (await desk.health()).status == "unavailable"
    await desk.close()


# ---- a line that loses answers


class Line:
    """A proxy to a service, which loses answers as it is told: the request is heard, and the connection then cut."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.lose: Callable[[bytes], bool] = lambda request: False
        self.lost: list[bytes] = []
        self.heard: list[bytes] = []
        self.carrying: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Line:
        self.server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *error: object) -> None:
        self.server.close()
        for task in self.carrying:
            task.cancel()
        await asyncio.gather(*self.carrying, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.carrying.add(task)
        there_reader, there = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            while request := await message(reader):
                self.heard.append(request.partition(b"\r\n")[0])
                there.write(request)
                answer = await message(there_reader)
                if self.lose(request):
                    self.lost.append(request.partition(b"\r\n")[0])
                    return
                writer.write(answer)
                await writer.drain()
        finally:
            self.carrying.discard(task)
            there.close()
            writer.close()


async def message(reader: asyncio.StreamReader) -> bytes:
    """One HTTP message with a declared length; nothing at the end."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""
    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
    return head + (await reader.readexactly(int(length)) if length else b"")


@pytest.fixture
async def line(live: LiveService) -> AsyncIterator[Line]:
    async with Line(live.port) as line:
        yield line


def first_of(path: bytes, line: Line) -> Callable[[bytes], bool]:
    """Lose the first answer to this path."""
    return lambda request: path in request and not line.lost


async def test_a_submission_whose_answer_was_lost_makes_one_job(line):
    async with remote_desk(line.url) as desk:
        line.lose = first_of(b"/jobs/batch", line)
        [receipt] = await desk.submit([draft()])
        assert line.lost
        assert isinstance(receipt, Receipt)
        assert not receipt.is_replayed
        assert [job.job_id for job in (await desk.find(Query())).jobs] == [receipt.job_id]


async def test_without_a_key_of_its_own_it_would_make_two(line, monkeypatch):
    """The control: it is the key made of the draft's id that saves from doubling."""
    monkeypatch.setattr("postroom.stores.remote._keyed", lambda draft: draft)
    async with remote_desk(line.url) as desk:
        line.lose = first_of(b"/jobs/batch", line)
        await desk.submit([draft()])
        assert len((await desk.find(Query())).jobs) == 2


async def test_a_beat_whose_answer_was_lost_adds_nothing_twice(line):
    async with remote_desk(line.url) as desk:
        await submitted(desk)
        [lease] = await claimed(desk)
        line.lose = first_of(b"/leases/heartbeat", line)
        beat = Beat(lease.job.job_id, 1, seq=1, usage={"tokens": 5.0}, output=('"once"',))
        [answer] = await desk.heartbeat([beat])
        assert line.lost
        assert answer.status == "ok"
        assert (await desk.get(lease.job.job_id)).usage == {"tokens": 5}
        assert [str(each.event) for each in await desk.journal(lease.job.job_id)].count("output") == 1


async def test_a_beat_that_is_not_counted_is_not_repeated(line):
    async with remote_desk(line.url) as desk:
        await submitted(desk)
        [lease] = await claimed(desk)
        line.lose = first_of(b"/leases/heartbeat", line)
        with pytest.raises(errors.StoreUnavailable, match="not known"):
            await desk.heartbeat([Beat(lease.job.job_id, 1, usage={"tokens": 5.0})])


async def test_a_settle_whose_answer_was_lost_is_ok(line):
    async with remote_desk(line.url) as desk:
        [job_id] = await submitted(desk)
        await claimed(desk)
        line.lose = first_of(b"/leases/settle", line)
        [answer] = await desk.settle([Outcome(job_id, 1, OutcomeKind.SUCCEEDED, result="1")])
        assert line.lost
        assert (answer.status, answer.state) == ("ok", State.SUCCEEDED)


async def test_a_cancel_whose_answer_was_lost_is_not_asked_again(line):
    async with remote_desk(line.url) as desk:
        [job_id] = await submitted(desk)
        line.lose = first_of(b"/cancel", line)
        with pytest.raises(errors.StoreUnavailable, match="not known"):
            await desk.cancel(job_id)
        assert len([request for request in line.heard if b"/cancel" in request]) == 1


async def test_a_claim_whose_answer_was_lost_is_not_asked_again(line):
    async with remote_desk(line.url) as desk:
        await submitted(desk, draft(), draft())
        line.lose = first_of(b"/leases/claim", line)
        with pytest.raises(errors.StoreUnavailable, match="not known"):
            await claimed(desk)
        assert len([request for request in line.heard if b"/leases/claim" in request]) == 1


async def test_a_service_that_comes_back_in_time_is_waited_for(free_port):
    settings = replace(QUICK, port=free_port)
    desk = RemoteDesk(f"http://127.0.0.1:{free_port}", QUICK, retry_seconds=20)
    opening = asyncio.create_task(desk.open())
    await asyncio.sleep(0.2)  # it is refused a few times first
    assert not opening.done()
    with live_service(settings):
        await opening
        await submitted(desk)
        await desk.close()


# ---- loops, cuts, clocks


async def test_it_serves_several_loops_and_threads_at_once(desk):
    found: list[int] = []

    def elsewhere() -> None:
        async def look() -> None:
            await submitted(desk)
            found.append(len((await desk.find(Query())).jobs))

        asyncio.run(look())

    threads = [threading.Thread(target=elsewhere) for _ in range(4)]
    for thread in threads:
        thread.start()
    await submitted(desk)
    await asyncio.to_thread(lambda: [thread.join() for thread in threads])
    assert len(found) == 4
    assert len((await desk.find(Query())).jobs) == 5
    assert len(desk._connection._clients) == 1  # those of loops that ended are closed and forgotten


async def test_connections_are_kept_and_used_again(line):
    async with remote_desk(line.url) as desk:
        for _ in range(5):
            await desk.stats()
        [kept] = desk._connection._clients.values()
        assert len(kept.client._transport._pool.connections) == 1


async def test_a_large_batch_is_cut_into_bodies_that_pass():
    settings = Settings(**{**QUICK.__dict__, "max_body_bytes": 50_000})
    with live_service(settings) as live:
        async with remote_desk(live.url, settings=settings) as desk:
            drafts = [draft(body=json.dumps("x" * 900)) for _ in range(200)]
            assert len(set(await submitted(desk, *drafts))) == 200
        async with remote_desk(live.url) as desk:  # knows nothing of the smaller limit there
            assert len(set(await submitted(desk, *drafts[:100]))) == 100


async def test_what_is_too_large_for_any_body_is_an_answer_and_no_end(live):
    live.service.lease_body_bytes = 10_000
    async with remote_desk(live.url) as desk:
        one, two = await submitted(desk, draft(), draft())
        await claimed(desk, limit=2)
        outcomes = [
            Outcome(one, 1, OutcomeKind.SUCCEEDED, result=json.dumps("x" * 20_000)),
            Outcome(two, 1, OutcomeKind.SUCCEEDED, result="1"),
        ]
        large, small = await desk.settle(outcomes)
        assert (large.status, small.status) == ("invalid", "ok")
        assert "10000 bytes" in (large.detail or "")


def test_parts_are_cut_by_size_and_number():
    assert _parts([], 10) == []
    assert _parts(["aaaa"] * 5, 10) == [(0, 2), (2, 4), (4, 5)]
    assert _parts(["a" * 50, "a", "a"], 10) == [(0, 1), (1, 3)]
    assert _parts(["é" * 4, "a" * 4], 10) == [(0, 1), (1, 2)]
    assert _parts(["a"] * 10_001, 10**9) == [(0, 5000), (5000, 10000), (10000, 10001)]


async def test_its_clock_is_the_services(live, desk):
    there = await live.inbox.verbs()
    there.store._clock = lambda: 1_234_567_890.0
    await claimed(desk)
    assert desk.now() == pytest.approx(1_234_567_890.0, abs=1)


async def test_hints_that_are_not_to_be_had_are_polled_for(desk):
    with desk.watch(WORK) as watch:
        assert await watch.wait(0.01) is False
    with desk.watch("0" * 32) as watch:
        assert await watch.wait(0.01) is False


async def test_a_key_is_sent_and_not_told(live):
    settings = replace(QUICK, key="secret-key")
    async with remote_desk(live.url, settings=settings) as desk:
        assert desk._connection._client().headers["authorization"] == "Bearer secret-key"
    with pytest.raises(errors.StoreUnavailable) as failed:
        await RemoteDesk("http://127.0.0.1:9", settings, retry_seconds=0.01).open()
    assert "secret" not in str(failed.value)
