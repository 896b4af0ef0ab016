"""Looking: jobs, listings, items, results, payloads and journals."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import pytest

from postroom.errors import DraftInvalid, JobNotFound, PostroomError, ResultMissing
from postroom.model import Outcome, OutcomeKind, Payload, State
from postroom.stores.port import Query
from postroom.verbs import Verbs
from postroom.views import INLINE_RESULT_BYTES
from tests.verbs.conftest import NOBODY, World, item, item_error, outcome


async def read(verbs: Verbs, job_id: str) -> str:
    return "".join([piece async for piece in verbs.result(job_id)])


LOOKS: list[Callable[[Verbs, str], Awaitable[object]]] = [
    lambda verbs, job_id: verbs.get(job_id),
    lambda verbs, job_id: verbs.get(job_id, with_result=False),
    lambda verbs, job_id: verbs.items(job_id),
    lambda verbs, job_id: verbs.payload(job_id),
    read,
    lambda verbs, job_id: verbs.journal(job_id),
    lambda verbs, job_id: verbs.cancel(job_id),
    lambda verbs, job_id: verbs.replay(job_id),
]


@pytest.mark.parametrize("job_id", [NOBODY, "nonsense", "../x", "", "é" * 32])
async def test_a_job_that_does_not_exist_is_not_found_by_any_verb(world: World, job_id: str) -> None:
    for look in LOOKS:
        with pytest.raises(JobNotFound):
            await look(world.verbs, job_id)


# ---- results


async def test_there_is_no_result_before_there_is_one(world: World) -> None:
    job_id = await world.submit()
    with pytest.raises(ResultMissing) as missing:
        await read(world.verbs, job_id)
    assert (missing.value.job_id, missing.value.state) == (job_id, "queued")
    job = await world.job(job_id)
    assert (job.result, job.result_url) == (None, None)


@pytest.mark.parametrize("result", ['"done"', "null", "0", '{"b":1,"a":[1.0,"é"]}'])
async def test_a_small_result_stands_in_the_job(world: World, result: str) -> None:
    lease = await world.start()
    await world.succeed(lease, result)
    job = await world.job(lease.job.job_id)
    assert job.result == json.loads(result)
    assert job.result_url == f"/jobs/{lease.job.job_id}/result"
    assert await read(world.verbs, lease.job.job_id) == result
    assert (job.done, job.total, job.is_final) == (1, 1, True)


@pytest.mark.parametrize("letter", ["x", "é"])
async def test_a_result_past_the_inline_size_is_found_at_its_address(world: World, letter: str) -> None:
    width = len(letter.encode())
    fits = json.dumps(letter * ((INLINE_RESULT_BYTES - 2) // width), ensure_ascii=False)
    assert len(fits.encode()) == INLINE_RESULT_BYTES
    over = json.dumps(letter * (INLINE_RESULT_BYTES // width), ensure_ascii=False)
    for result, is_inline in ((fits, True), (over, False)):
        lease = await world.start()
        await world.succeed(lease, result)
        job = await world.job(lease.job.job_id)
        assert (job.result is not None) is is_inline
        assert job.result_url is not None
        assert await read(world.verbs, lease.job.job_id) == result


async def test_a_job_of_items_has_their_results_in_order(world: World) -> None:
    lease = await world.start(items=["a", "b", "c"], allow_failed_items=1)
    await world.beat(lease, checkpoints=(item("2", '"C"'),))
    with pytest.raises(ResultMissing):
        await read(world.verbs, lease.job.job_id)
    await world.succeed(lease, None, checkpoints=(item("0", '"A"'), item_error("1")))
    job = await world.job(lease.job.job_id)
    assert job.result == {"results": ["A", None, "C"]}
    assert (job.done, job.failed_items, job.state) == (3, 1, State.SUCCEEDED)
    assert await read(world.verbs, lease.job.job_id) == '{"results":["A",null,"C"]}'


async def test_a_failed_job_of_items_shows_the_results_that_it_has(world: World) -> None:
    lease = await world.start(items=["a", "b"])
    await world.beat(lease, checkpoints=(item("0", '"A"'), item_error("1")))
    [answer] = await world.verbs.settle([outcome(lease)])
    assert answer.status == "ok"
    job = await world.job(lease.job.job_id)
    assert (job.state, job.result) == (State.FAILED, {"results": ["A", None]})
    assert job.error is not None
    assert job.error["code"] == "items_failed"


async def test_many_results_come_in_pieces_and_whole(world: World) -> None:
    lease = await world.start(items=list(range(1200)))
    await world.succeed(lease, None, checkpoints=tuple(item(str(n), f'"{n}"') for n in range(1200)))
    assert json.loads(await read(world.verbs, lease.job.job_id)) == {"results": [str(n) for n in range(1200)]}


async def test_a_result_is_not_read_where_it_is_not_wanted(world: World) -> None:
    lease = await world.start()
    await world.succeed(lease)
    job = await world.verbs.get(lease.job.job_id, with_result=False)
    assert job.state is State.SUCCEEDED


# ---- items and payloads


async def test_items_are_seen_while_the_job_runs(world: World) -> None:
    lease = await world.start(items=["a", "b", "c", "d"], item_keys=["w", "x", "y", "z"])
    kept = (item("x", '{"n":1}'), item_error("y"), item_error("z", is_final=False))
    await world.beat(lease, checkpoints=kept)
    page = await world.verbs.items(lease.job.job_id)
    assert [(i.key, i.index, i.state, i.value) for i in page.items] == [
        ("w", 0, "pending", None),
        ("x", 1, "succeeded", {"n": 1}),
        ("y", 2, "failed", None),
        ("z", 3, "pending", None),
    ]
    assert page.items[3].error is not None
    assert page.items[3].error["message"] == "no"
    assert page.next_cursor is None


async def test_items_come_in_pages(world: World) -> None:
    job_id = await world.submit(items=list(range(7)))
    seen: list[str] = []
    cursor: str | None = None
    sizes = []
    while True:
        page = await world.verbs.items(job_id, cursor=cursor, limit=3)
        seen += [i.key for i in page.items]
        sizes.append(len(page.items))
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == [str(n) for n in range(7)]
    assert sizes == [3, 3, 1]


async def test_a_page_that_ends_exactly_has_no_next(world: World) -> None:
    job_id = await world.submit(items=list(range(6)))
    page = await world.verbs.items(job_id, limit=6)
    assert (len(page.items), page.next_cursor) == (6, None)
    past = await world.verbs.items(job_id, cursor="6", limit=6)
    assert (past.items, past.next_cursor) == ((), None)


@pytest.mark.parametrize("cursor", ["x", "-1", "1.5", "9" * 20, ""])
async def test_a_cursor_that_nobody_gave_is_refused(world: World, cursor: str) -> None:
    job_id = await world.submit(items=["a"])
    with pytest.raises(DraftInvalid, match="cursor"):
        await world.verbs.items(job_id, cursor=cursor)


async def test_content_is_one_item(world: World) -> None:
    lease = await world.start()
    [only] = (await world.verbs.items(lease.job.job_id)).items
    assert (only.key, only.index, only.state) == ("0", 0, "pending")
    await world.succeed(lease, '"done"')
    [only] = (await world.verbs.items(lease.job.job_id)).items
    assert (only.state, only.value) == ("succeeded", "done")
    assert (await world.verbs.items(lease.job.job_id, cursor="1")).items == ()


async def test_a_payload_is_what_was_submitted(world: World) -> None:
    content = await world.submit(content={"b": [1.0, "é"], "a": None})
    numbered = await world.submit(items=["a", {"b": 1}])
    named = await world.submit(items=["a", "b"], item_keys=["x", "y"])
    assert await world.verbs.payload(content) == Payload('{"b":[1.0,"é"],"a":null}')
    assert await world.verbs.payload(numbered) == Payload('["a",{"b":1}]', ("0", "1"))
    assert await world.verbs.payload(named) == Payload('["a","b"]', ("x", "y"))


# ---- listings


async def test_jobs_are_found_by_what_they_are(world: World) -> None:
    plain = await world.submit("note")
    other = await world.submit("mail", sender="ann", topic="t", queue="q")
    lease = await world.start("run")
    assert await world.found(kinds=("mail",)) == [other]
    assert await world.found(kinds=("mail", "note")) == [other, plain]
    for one in ({"sender": "ann"}, {"topic": "t"}, {"queue": "q"}):
        assert await world.found(**one) == [other]
    assert await world.found(states=(State.RUNNING,)) == [lease.job.job_id]
    assert await world.found(states=(State.QUEUED,)) == [other, plain]
    assert await world.found(kinds=("none",)) == []
    assert await world.found() == [lease.job.job_id, other, plain]
    assert await world.found(oldest_first=True) == [plain, other, lease.job.job_id]


async def test_since_counts_the_instant_itself(world: World) -> None:
    early = await world.submit()
    exact = await world.submit()
    at = world.clock()
    assert await world.found(since=at) == [exact]
    assert await world.found(since=at + 0.001) == []
    assert await world.found(since=at - 1) == [exact, early]


async def test_a_listing_is_asked_on_with_its_cursor(world: World) -> None:
    ids = [await world.submit(content=n) for n in range(7)]
    seen: list[str] = []
    cursor: str | None = None
    for _ in range(10):
        page = await world.verbs.find(Query(limit=3, cursor=cursor))
        seen += [job.job_id for job in page.jobs]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == ids[::-1]


async def test_a_listing_shows_jobs_as_they_are_shown_alone(world: World) -> None:
    lease = await world.start()
    await world.succeed(lease)
    [listed] = (await world.verbs.find(Query())).jobs
    alone = await world.verbs.get(lease.job.job_id, with_result=False)
    assert listed == alone


async def test_a_cursor_of_another_listing_is_refused(world: World) -> None:
    with pytest.raises(PostroomError, match="cursor"):
        await world.verbs.find(Query(cursor="nonsense"))


# ---- journals


async def test_a_journal_tells_a_life_without_gaps(world: World) -> None:
    lease = await world.start()
    await world.beat(lease, output=('{"a":1}',), seq=1)
    await world.succeed(lease)
    lines = await world.verbs.journal(lease.job.job_id)
    assert [line.n for line in lines] == list(range(len(lines)))
    assert [str(line.event) for line in lines] == ["submitted", "claimed", "output", "succeeded"]
    assert [line.to_state for line in lines] == ["queued", "running", "running", "succeeded"]
    assert lines[0].from_state is None
    assert lines[2].data["output"] == {"a": 1}
    assert [line.epoch for line in lines] == [0, 1, 1, 1]
    assert all(line.at == world.clock() for line in lines)


async def test_a_journal_is_read_from_a_line_on(world: World) -> None:
    lease = await world.start()
    await world.beat(lease, output=tuple(str(n) for n in range(10)), seq=1)
    job_id = lease.job.job_id
    assert [line.n for line in await world.verbs.journal(job_id, after=8)] == [9, 10, 11]
    assert [line.n for line in await world.verbs.journal(job_id, after=-1, limit=2)] == [0, 1]
    assert await world.verbs.journal(job_id, after=11) == []
    assert await world.verbs.journal(job_id, after=1000) == []


async def test_errors_are_shown_as_long_as_they_stand(world: World) -> None:
    lease = await world.start()
    await world.fail(lease, "first", permanent=False)
    job = await world.job(lease.job.job_id)
    assert job.error is None
    assert job.last_error is not None
    assert (job.last_error["message"], job.last_error["epoch"], job.last_error["attempt"]) == ("first", 1, 1)
    assert job.waiting_for is not None
    assert job.waiting_for.reason == "run_at"
    world.clock.advance(60)
    [lease] = await world.claim()
    await world.fail(lease, "second")
    job = await world.job(lease.job.job_id)
    assert job.error == job.last_error
    assert job.error is not None
    assert (job.error["message"], job.error["epoch"], job.error["attempt"]) == ("second", 2, 2)
    await world.verbs.replay(lease.job.job_id)
    [lease] = await world.claim()
    await world.succeed(lease)
    job = await world.job(lease.job.job_id)
    assert (job.error, job.last_error) == (None, None)


async def test_usage_is_summed_over_runs(world: World) -> None:
    lease = await world.start()
    await world.beat(lease, usage={"tokens": 5}, seq=1)
    await world.verbs.settle(
        [Outcome(lease.job.job_id, 1, OutcomeKind.SUCCEEDED, result="1", usage={"tokens": 2, "money": 0.5})]
    )
    assert (await world.job(lease.job.job_id)).usage == {"tokens": 7, "money": 0.5}
