"""Jobs of items: each item is run, kept, and harms no other."""

from __future__ import annotations

import asyncio

import pytest

from postroom import Inbox, PermanentError, RetryLater
from postroom.model import Beat, Checkpoint, CheckpointKind, Outcome, OutcomeKind
from postroom.stores.port import ClaimRequest
from tests.worker.workbench import WeakDesk, ended, run_to_end


async def states(inbox: Inbox, job_id: str) -> list[str]:
    return [item.state async for item in inbox.items(job_id)]


async def test_each_item_is_called_once_and_its_result_kept_under_its_key(inbox):
    @inbox.handler("double")
    async def double(item, run):
        return item * 2

    job = await run_to_end(inbox, "double", items=[1, 2, 3], item_keys=["a", "b", "c"])
    assert (job.state, job.done, job.total) == ("succeeded", 3, 3)
    assert [(i.key, i.value) async for i in inbox.items(job.job_id)] == [("a", 2), ("b", 4), ("c", 6)]


async def test_a_result_is_durable_before_the_next_item_of_its_slot_starts(inbox):
    seen = []

    @inbox.handler("look")
    async def look(item, run):
        seen.append(await states(inbox, run.job_id))

    await run_to_end(inbox, "look", items=[0, 1, 2])
    assert seen == [
        ["pending", "pending", "pending"],
        ["succeeded", "pending", "pending"],
        ["succeeded", "succeeded", "pending"],
    ]


async def test_as_many_items_run_at_once_as_the_handler_says(inbox):
    running, most = 0, 0
    all_slots_taken = asyncio.Event()

    @inbox.handler("parallel", item_concurrency=3)
    async def parallel(item, run):
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            all_slots_taken.set()
        await all_slots_taken.wait()
        running -= 1

    job = await run_to_end(inbox, "parallel", items=list(range(10)))
    assert job.state == "succeeded"
    assert most == 3


async def test_the_other_items_go_on_after_an_error_and_the_retry_runs_only_what_failed(inbox):
    calls = []

    @inbox.handler("flaky")
    async def flaky(item, run):
        calls.append((run.attempt, item))
        if item == "b" and run.attempt == 1:
            raise ValueError("not today")
        return item

    job = await run_to_end(inbox, "flaky", items=["a", "b", "c"])
    assert (job.state, job.attempts, job.done) == ("succeeded", 2, 3)
    assert calls == [(1, "a"), (1, "b"), (1, "c"), (2, "b")]


async def test_an_item_that_may_be_retried_is_pending_and_shows_its_error(inbox):
    @inbox.handler("flaky")
    async def flaky(item, run):
        if item == "b":
            raise ValueError("not today")

    job = await inbox.submit("flaky", items=["a", "b"], max_attempts=2)
    async with inbox.worker():
        async for line in inbox.follow(job.job_id):
            if line.event == "retried":
                item = [i async for i in inbox.items(job.job_id)][1]
                break
    assert item.state in ("pending", "failed")
    assert item.error is not None
    assert (item.error["code"], item.error["message"]) == ("ValueError", "not today")
    assert "raise ValueError" in item.error["detail"]["traceback"]


async def test_items_that_failed_for_good_are_counted_and_replay_runs_only_them(inbox):
    calls = []

    @inbox.handler("strict")
    async def strict(item, run):
        calls.append((run.life, item))
        if item == "bad" and run.life == 1:
            raise PermanentError("no such thing", code="missing", detail={"seen": 1})
        return item

    job = await run_to_end(inbox, "strict", items=["good", "bad"])
    assert (job.state, job.error["code"], job.failed_items, job.done) == ("failed", "items_failed", 1, 2)
    item = [i async for i in inbox.items(job.job_id)][1]
    assert (item.state, item.error["code"], item.error["detail"]) == ("failed", "missing", {"seen": 1})
    await inbox.replay(job.job_id)
    async with inbox.worker():
        job = await ended(inbox, job.job_id)
    assert (job.state, job.done, job.replays) == ("succeeded", 2, 1)
    assert calls == [(1, "good"), (1, "bad"), (2, "bad")]


async def test_a_job_succeeds_within_its_allowance_of_failed_items(inbox):
    @inbox.handler("lenient", allow_failed_items=1)
    async def lenient(item, run):
        if item == 0:
            raise PermanentError("no")

    job = await run_to_end(inbox, "lenient", items=[0, 1])
    assert (job.state, job.failed_items) == ("succeeded", 1)


async def test_attempts_are_spent_on_an_item_that_always_fails(inbox):
    @inbox.handler("never")
    async def never(item, run):
        if item == 1:
            raise OSError("no")

    job = await run_to_end(inbox, "never", items=[0, 1, 2])
    assert (job.state, job.attempts, job.done, job.failed_items) == ("failed", 3, 3, 1)
    assert job.error["code"] == "items_failed"
    assert await states(inbox, job.job_id) == ["succeeded", "failed", "succeeded"]


async def test_a_hold_lets_running_items_finish_starts_no_other_and_is_not_charged(inbox):
    calls = []
    second_runs = asyncio.Event()

    @inbox.handler("limited", item_concurrency=2)
    async def limited(item, run):
        calls.append((run.epoch, item))
        if run.epoch > 1:
            return item
        if item == 0:
            await second_runs.wait()
            raise RetryLater(0.02, "provider is down")
        second_runs.set()
        return item

    job = await run_to_end(inbox, "limited", items=[0, 1, 2, 3])
    assert (job.state, job.attempts, job.holds) == ("succeeded", 1, 1)
    first = [item for epoch, item in calls if epoch == 1]
    assert first[:2] == [0, 1]
    assert 3 not in first
    later = [item for epoch, item in calls if epoch > 1]
    assert 0 in later
    assert 1 not in later


async def test_the_longest_hold_of_several_items_counts(inbox):
    both = asyncio.Barrier(2)

    @inbox.handler("limited", item_concurrency=2)
    async def limited(item, run):
        await both.wait()
        raise RetryLater(item, f"wait {item}")

    job = await inbox.submit("limited", items=[300, 4000])
    async with inbox.worker():
        async for line in inbox.follow(job.job_id):
            if line.event == "held":
                assert line.reason == "wait 4000"
                break


@pytest.mark.parametrize("value", [object(), float("nan"), {"a": {1, 2}}])
async def test_a_result_that_is_not_json_fails_its_item_for_good(inbox, value):
    @inbox.handler("odd")
    async def odd(item, run):
        return value

    job = await run_to_end(inbox, "odd", items=[1])
    [item] = [i async for i in inbox.items(job.job_id)]
    assert (job.state, job.attempts, item.error["code"]) == ("failed", 1, "not_serialisable")


async def test_a_result_over_the_limit_fails_its_item_for_good_and_names_the_limit(make_inbox):
    async with make_inbox(max_result_bytes=100) as inbox:

        @inbox.handler("long")
        async def long(item, run):
            return "é" * item

        job = await run_to_end(inbox, "long", items=[49, 50])
        items = [i async for i in inbox.items(job.job_id)]
    assert [item.state for item in items] == ["succeeded", "failed"]
    assert items[1].error["code"] == "too_large"
    assert "100 bytes" in items[1].error["message"]


async def test_items_kept_by_an_earlier_run_are_not_run_again(inbox, desk):
    calls = []

    @inbox.handler("sum")
    async def keep(item, run):
        calls.append(item)
        return item

    job = await inbox.submit("sum", items=["a", "b", "c"])
    [lease] = (await desk.claim(ClaimRequest("earlier", ("sum",)))).leases
    kept = Checkpoint(CheckpointKind.ITEM, "1", value='"kept"')
    await desk.settle([Outcome(job.job_id, lease.job.epoch, OutcomeKind.RELEASED, checkpoints=(kept,))])
    async with inbox.worker():
        await ended(inbox, job.job_id)
    assert calls == ["a", "c"]
    assert [i.value async for i in inbox.items(job.job_id)] == ["a", "kept", "c"]


async def test_plain_handlers_run_items_in_threads(inbox):
    @inbox.handler("plain", item_concurrency=2)
    def plain(item, run):
        return item + 1

    job = await run_to_end(inbox, "plain", items=[1, 2, 3])
    assert job.state == "succeeded"
    assert [i.value async for i in inbox.items(job.job_id)] == [2, 3, 4]


async def test_a_whole_handler_over_items_returns_their_results_in_order(inbox):
    @inbox.handler("all", whole=True)
    async def all_at_once(run):
        return [item.upper() for item in run.items]

    job = await run_to_end(inbox, "all", items=["a", "b"])
    assert (job.state, job.done) == ("succeeded", 2)
    assert [i.value async for i in inbox.items(job.job_id)] == ["A", "B"]


@pytest.mark.parametrize("value", [["only one"], "ab", None])
async def test_a_whole_handler_over_items_that_returns_something_else_is_told_so(inbox, value):
    @inbox.handler("all", whole=True)
    async def all_at_once(run):
        return value

    job = await run_to_end(inbox, "all", items=["a", "b"])
    assert (job.state, job.attempts, job.error["code"]) == ("failed", 1, "permanent")
    assert "2 items returns a list" in job.error["message"]


async def test_usage_is_kept_per_item_and_summed_for_the_job(inbox):
    @inbox.handler("costly")
    async def costly(item, run):
        run.usage(tokens=item)
        run.usage(tokens=1, calls=1)

    job = await run_to_end(inbox, "costly", items=[10, 20])
    assert job.usage == {"tokens": 32, "calls": 2}
    assert [i.usage async for i in inbox.items(job.job_id)] == [
        {"tokens": 11, "calls": 1},
        {"tokens": 21, "calls": 1},
    ]


async def test_a_value_that_stands_already_is_left_and_harms_no_other_item(inbox, desk: WeakDesk):
    """The value under the key of item 1 is written behind the run's back, under its own epoch."""
    together = asyncio.Barrier(4)

    @inbox.handler("clash", item_concurrency=3)
    async def clash(item, run):
        await together.wait()
        return item

    job = await inbox.submit("clash", items=["a", "b", "c"], max_attempts=1)

    @inbox.handler("meddle")
    async def meddle(item, run):
        running = await inbox.get(job.job_id)
        other = Checkpoint(CheckpointKind.ITEM, "1", value='"other"')
        answer = await desk.heartbeat([Beat(job.job_id, running.epoch, checkpoints=(other,))])
        assert answer[0].status == "ok"

    async with inbox.worker():
        await inbox.wait((await inbox.submit("meddle", 1)).job_id)
        await together.wait()
        job = await ended(inbox, job.job_id)
    assert job.state == "succeeded"
    assert [i.value async for i in inbox.items(job.job_id)] == ["a", "other", "c"]
