"""Steps of a run: made once, matched by name and input, kept through retry and replay."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from postroom import PermanentError
from tests.worker.workbench import ended, run_to_end


async def test_a_step_that_was_made_is_not_made_again_by_the_next_attempt(inbox):
    made = []

    async def fetch(url):
        made.append(url)
        return {"url": url, "size": 3}

    @inbox.handler("report", whole=True)
    async def report(run):
        rows = await run.step("fetch", fetch, run.content)
        if run.attempt < 3:
            raise ValueError("after the step")
        return rows

    job = await run_to_end(inbox, "report", "a")
    assert (job.state, job.attempts) == ("succeeded", 3)
    assert job.result == {"url": "a", "size": 3}
    assert made == ["a"]


async def test_steps_of_one_name_are_told_apart_by_their_input_whatever_their_order(inbox):
    made = []

    def square(n):
        made.append(n)
        return n * n

    @inbox.handler("loop", whole=True)
    async def loop(run):
        numbers = [1, 2, 3] if run.attempt == 1 else [3, 4, 1, 2]
        squares = [await run.step("square", square, n) for n in numbers]
        if run.attempt == 1:
            raise ValueError("again")
        return squares

    job = await run_to_end(inbox, "loop", "x")
    assert job.result == [9, 16, 1, 4]
    assert made == [1, 2, 3, 4]


async def test_the_same_step_twice_in_one_run_is_made_once_also_at_the_same_time(inbox):
    made = []
    go_on = asyncio.Event()

    async def slow(n):
        made.append(n)
        await go_on.wait()
        return n

    @inbox.handler("twice", whole=True)
    async def twice(run):
        first = asyncio.ensure_future(run.step("slow", slow, 1))
        second = asyncio.ensure_future(run.step("slow", slow, 1))
        await asyncio.sleep(0)
        go_on.set()
        return [await first, await second, await run.step("slow", slow, 1)]

    job = await run_to_end(inbox, "twice", "x")
    assert job.result == [1, 1, 1]
    assert made == [1]


async def test_a_step_gives_what_json_reads_the_first_time_as_well(inbox):
    @inbox.handler("shape", whole=True)
    async def shape(run):
        value = await run.step("pair", lambda: (1, 2))
        return [type(value).__name__, value]

    job = await run_to_end(inbox, "shape", "x")
    assert job.result == ["list", [1, 2]]


async def test_steps_of_different_items_are_different_steps(inbox):
    made = []

    @inbox.handler("per-item")
    async def per_item(item, run):
        return await run.step("same", lambda: made.append(item) or item)

    job = await run_to_end(inbox, "per-item", items=["a", "b"])
    assert made == ["a", "b"]
    assert [i.value async for i in inbox.items(job.job_id)] == ["a", "b"]


async def test_a_plain_handler_calls_steps_plainly(inbox):
    made = []

    async def asynchronous(n):
        return n + 1

    def plain(n):
        made.append(n)
        return n * 10

    @inbox.handler("plain", whole=True)
    def handle(run):
        value = run.step("plain", plain, 4)
        if run.attempt == 1:
            raise ValueError("again")
        return [value, run.step("asynchronous", asynchronous, 1)]

    job = await run_to_end(inbox, "plain", "x")
    assert job.result == [40, 2]
    assert made == [4]


@pytest.mark.parametrize("whole", [True, False])
async def test_a_step_that_several_threads_ask_for_at_once_is_made_once(inbox, whole):
    made = []
    barrier = threading.Barrier(5)

    def make(n):
        made.append(n)
        return [n, len(made)]

    def ask(run):
        barrier.wait(20)
        return run.step("make", make, 1)

    def handle(*args):
        with ThreadPoolExecutor(5) as pool:
            return list(pool.map(ask, [args[-1]] * 5))

    inbox.handler("threads", whole=whole)(
        (lambda run: handle(run)) if whole else (lambda item, run: handle(run))
    )
    job = await run_to_end(inbox, "threads", "x", max_attempts=1)
    assert (job.state, job.result) == ("succeeded", [[1, 1]] * 5)
    assert made == [1]


async def test_steps_with_different_inputs_run_beside_each_other_in_threads(inbox):
    barrier = threading.Barrier(3)

    @inbox.handler("threads", whole=True, max_attempts=1)
    def handle(run):
        with ThreadPoolExecutor(3) as pool:
            return list(pool.map(lambda n: run.step("meet", lambda m: barrier.wait(20) * 0 + m, n), range(3)))

    assert (await run_to_end(inbox, "threads", "x")).result == [0, 1, 2]


async def test_a_step_that_fails_in_one_thread_fails_for_those_that_wait_and_is_made_anew_later(inbox):
    made = []
    barrier = threading.Barrier(3)

    def make():
        made.append(1)
        if len(made) == 1:
            time.sleep(0.05)  # until the others ask: what they wait for has no signal
            raise ValueError("first")
        return "made"

    def ask(run):
        barrier.wait(20)
        try:
            return run.step("make", make)
        except ValueError:
            return None

    @inbox.handler("threads", whole=True)
    def handle(run):
        with ThreadPoolExecutor(3) as pool:
            first = list(pool.map(ask, [run] * 3))
        return [first.count(None) > 0, run.step("make", make)]

    assert (await run_to_end(inbox, "threads", "x")).result == [True, "made"]
    assert len(made) == 2


async def test_a_step_within_itself_is_refused_and_does_not_hang(inbox):
    @inbox.handler("threads", whole=True, max_attempts=1)
    def handle(run):
        def again():
            return run.step("make", again)

        return again()

    @inbox.handler("tasks", whole=True, max_attempts=1)
    async def handle_async(run):
        async def again():
            return await run.step("make", again)

        return await again()

    for kind in ("threads", "tasks"):
        job = await run_to_end(inbox, kind, "x")
        assert (job.state, job.error["code"]) == ("failed", "RuntimeError")
        assert "within itself" in job.error["message"]


async def test_steps_are_kept_through_replay(inbox):
    made = []

    @inbox.handler("replayed", whole=True)
    async def replayed(run):
        value = await run.step("make", lambda: made.append(run.life) or run.life)
        if run.life == 1:
            raise PermanentError("no")
        return value

    job = await run_to_end(inbox, "replayed", "x")
    assert job.state == "failed"
    await inbox.replay(job.job_id)
    async with inbox.worker():
        job = await ended(inbox, job.job_id)
    assert (job.result, made) == (1, [1])


@pytest.mark.parametrize("argument", [object(), float("nan"), b"bytes"])
async def test_arguments_that_are_no_json_are_refused_with_a_sentence(inbox, argument):
    @inbox.handler("odd", whole=True)
    async def odd(run):
        await run.step("odd", print, argument)

    job = await run_to_end(inbox, "odd", "x")
    assert (job.state, job.attempts, job.error["code"]) == ("failed", 1, "not_serialisable")
    assert "'odd' is matched by name and input" in job.error["message"]


async def test_a_plain_step_of_an_async_handler_leaves_the_event_loop_free(inbox):
    @inbox.handler("threads", whole=True)
    async def threads(run):
        return await run.step("where", lambda: threading.current_thread() is threading.main_thread())

    assert (await run_to_end(inbox, "threads", "x")).result is False


async def test_an_effect_key_is_the_same_over_attempts_and_lives_and_differs_between_items(inbox):
    keys: dict[tuple[int, int], list[str]] = {}

    @inbox.handler("mail")
    async def mail(item, run):
        keys.setdefault((run.life, run.attempt), []).append(run.effect_key("send"))
        if run.life == 1:
            raise (ValueError if run.attempt == 1 else PermanentError)("again")

    job = await run_to_end(inbox, "mail", items=["x", "y"], item_keys=["a", "b"])
    await inbox.replay(job.job_id)
    async with inbox.worker():
        await ended(inbox, job.job_id)
    expected = [f"{job.job_id}:a:send", f"{job.job_id}:b:send"]
    assert keys == {(1, 1): expected, (1, 2): expected, (2, 1): expected}


async def test_no_two_effects_have_one_key_whatever_items_and_names_hold(inbox):
    texts = ["a", "b", "a:b", ":", "%", "%3A", "%253A", "a%3Ab", "b:c", "c", "é", "0"]

    @inbox.handler("mail")
    async def mail(item, run):
        return [run.effect_key(name) for name in texts]

    @inbox.handler("whole", whole=True)
    async def whole(run):
        return [run.effect_key(name) for name in texts]

    job = await run_to_end(inbox, "mail", items=texts, item_keys=texts)
    keys = [key.removeprefix(job.job_id) async for item in inbox.items(job.job_id) for key in item.value]
    job = await run_to_end(inbox, "whole", "x")
    keys += [key.removeprefix(job.job_id) for key in job.result]
    assert len(set(keys)) == len(keys) == len(texts) * (len(texts) + 1)
    assert {":a:b", ":a:b%3Ac", ":a%3Ab:c", ":%25:%253A", ":é:é", ":a", ":a%3Ab"} <= set(keys)


async def test_the_effect_key_of_a_whole_handler_names_the_job(inbox):
    @inbox.handler("whole", whole=True)
    async def whole(run):
        return run.effect_key("pay")

    job = await run_to_end(inbox, "whole", "x")
    assert job.result == f"{job.job_id}:pay"
