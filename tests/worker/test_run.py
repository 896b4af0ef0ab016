"""What a handler is told, and how the end of its one call is named."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import time
from decimal import Decimal
from fractions import Fraction

import pytest

from postroom import PermanentError, RetryLater
from postroom.model import Event
from tests.worker.workbench import ended, run_to_end


async def test_a_run_tells_all_about_its_job(inbox):
    @inbox.handler("tell", whole=True)
    async def tell(run):
        return {
            "ids": [run.job_id, run.epoch, run.attempt, run.life],
            "labels": [run.kind, run.topic, run.sender],
            "inputs": [run.content, run.items],
            "notes": [run.params, run.metadata],
            "ends": [run.cancelled, run.deadline is not None and run.deadline > time.monotonic()],
        }

    fields = {"sender": "email", "topic": "billing", "params": {"a": 1}, "metadata": {"b": 2}}
    job = await run_to_end(inbox, "tell", {"x": 1}, timeout_seconds=60, **fields)
    assert job.result == {
        "ids": [job.job_id, 1, 1, 1],
        "labels": ["tell", "billing", "email"],
        "inputs": [{"x": 1}, None],
        "notes": [{"a": 1}, {"b": 2}],
        "ends": [False, True],
    }


async def test_a_handler_for_items_takes_content_as_its_one_item(inbox):
    @inbox.handler("one")
    async def one(item, run):
        return [item, run.effect_key("k").split(":")[1:]]

    job = await run_to_end(inbox, "one", "text")
    assert (job.state, job.result) == ("succeeded", ["text", ["0", "k"]])


async def test_an_error_is_named_after_its_class_with_the_last_lines_of_code_and_no_values(inbox):
    @inbox.handler("broken", whole=True, max_attempts=1)
    async def broken(run):
        secret = run.content
        raise LookupError("not found" + secret[:0])

    job = await run_to_end(inbox, "broken", "my secret content")
    assert (job.state, job.attempts) == ("failed", 1)
    assert (job.error["code"], job.error["message"]) == ("LookupError", "not found")
    trace = job.error["detail"]["traceback"]
    assert "in broken" in trace
    assert "attempt.py" not in trace
    assert "my secret content" not in trace


async def test_a_traceback_keeps_its_last_frames_within_four_kilobytes(inbox):
    def dig(depth):
        if depth == 0:
            raise RuntimeError("at the bottom")
        dig(depth - 1)

    @inbox.handler("deep", whole=True, max_attempts=1)
    async def deep(run):
        dig(200)

    trace = (await run_to_end(inbox, "deep", "x")).error["detail"]["traceback"]
    assert "at the bottom" in trace
    assert 1000 < len(trace.encode()) <= 4096


async def test_a_permanent_error_ends_the_job_at_once_with_its_code_and_detail(inbox):
    @inbox.handler("no")
    async def no(item, run):
        raise PermanentError("wrong address", code="bounced", detail={"status": 550})

    job = await run_to_end(inbox, "no", "x")
    assert (job.state, job.attempts) == ("failed", 1)
    assert {k: job.error[k] for k in ("code", "message", "detail")} == {
        "code": "bounced",
        "message": "wrong address",
        "detail": {"status": 550},
    }


async def test_a_hold_waits_and_is_not_charged(inbox):
    @inbox.handler("later")
    async def later(item, run):
        if run.epoch < 4:
            raise RetryLater(0.01, "busy")
        return "done"

    job = await run_to_end(inbox, "later", "x")
    assert (job.state, job.attempts, job.holds) == ("succeeded", 1, 3)


@pytest.mark.parametrize("raised", [SystemExit(3), asyncio.CancelledError()], ids=["exit", "cancelled"])
async def test_what_would_end_the_worker_is_only_an_error_of_the_job(inbox, raised):
    @inbox.handler("rude", max_attempts=1)
    async def rude(item, run):
        raise raised

    @inbox.handler("polite")
    async def polite(item, run):
        return "still here"

    other = await inbox.submit("polite", "x")
    job = await inbox.submit("rude", "x")
    async with inbox.worker(concurrency=1):
        assert (await ended(inbox, job.job_id)).error["code"] == "RuntimeError"
        assert (await ended(inbox, other.job_id)).result == "still here"


async def test_sys_exit_in_a_thread_is_only_an_error_of_the_job(inbox):
    @inbox.handler("rude", max_attempts=1)
    def rude(item, run):
        raise SystemExit(3)

    assert (await run_to_end(inbox, "rude", "x")).error["message"] == "the handler called sys.exit(3)"


async def test_texts_that_no_store_could_keep_are_mended_in_errors(inbox):
    @inbox.handler("garbled", max_attempts=1)
    async def garbled(item, run):
        raise ValueError("nul \x00 surrogate \ud800 end")

    assert (await run_to_end(inbox, "garbled", "x")).error["message"] == "nul \ufffd surrogate ? end"


class Panic(BaseException):
    """As libraries in Rust raise it, and some test tools: past every ``except Exception``."""


async def test_what_is_no_exception_is_an_error_all_the_same(inbox):
    @inbox.handler("async")
    async def panics(item, run):
        raise Panic("rusty")

    @inbox.handler("plain")
    def panics_in_thread(item, run):
        raise Panic("rusty")

    for kind in ("async", "plain"):
        job = await run_to_end(inbox, kind, "x", max_attempts=1)
        assert (job.state, job.error["code"], job.error["message"]) == ("failed", "Panic", "rusty")
        assert "raise Panic" in job.error["detail"]["traceback"]


@pytest.mark.parametrize("raised", [asyncio.CancelledError, KeyboardInterrupt, GeneratorExit])
async def test_what_would_end_the_loop_is_an_error_of_the_job_where_a_plain_handler_raises_it(inbox, raised):
    @inbox.handler("odd")
    def odd(item, run):
        raise raised

    job = await run_to_end(inbox, "odd", "x", max_attempts=1)
    assert (job.state, job.error["code"]) == ("failed", "RuntimeError")
    assert raised.__name__ in job.error["message"]


@pytest.mark.parametrize("raised", [KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("where", ["handler", "step", "plain step", "item"])
async def test_what_an_async_handler_raises_to_end_a_process_is_an_error_of_its_job_alone(
    inbox, raised, where
):
    def rude():
        raise raised("mine")

    async def rude_async():
        rude()

    @inbox.handler("rude", max_attempts=1, item_concurrency=2)
    async def handler(item, run):
        if where == "step":
            await run.step("s", rude_async)
        if where == "plain step":
            await run.step("s", rude)
        rude()

    @inbox.handler("polite")
    async def polite(item, run):
        return "still here"

    async with inbox.worker(concurrency=1):
        asked = {"items": [1, 2, 3]} if where == "item" else {"content": "x"}
        job = await inbox.submit("rude", **asked)
        job = await ended(inbox, job.job_id)
        assert job.state == "failed"
        if where == "item":
            async for each in inbox.items(job.job_id):
                assert (each.error["code"], each.error["message"]) == (raised.__name__, "mine")
        else:
            assert job.error["code"] in (raised.__name__, "RuntimeError")
        other = await inbox.submit("polite", "x")
        assert (await ended(inbox, other.job_id)).result == "still here"


INTERRUPTED = """
import asyncio, os, signal
from postroom import Inbox
from postroom.settings import Settings

inbox = Inbox("memory://", settings=Settings())

@inbox.handler("rude", max_attempts=1)
async def rude(item, run):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.kill(os.getpid(), signal.SIGINT)
    while True:
        pass

async def main():
    async with inbox.worker():
        await inbox.submit("rude", "x")
        await asyncio.sleep(60)

asyncio.run(main())
"""


def test_an_interrupt_that_really_came_ends_the_process(tmp_path):
    (tmp_path / "script.py").write_text(INTERRUPTED)
    ended = subprocess.run([sys.executable, str(tmp_path / "script.py")], capture_output=True, timeout=60)
    assert ended.returncode in (-2, 130), ended.stderr


def in_group(*errors):
    async def fail(error):
        raise error

    async def together(item, run):
        async with asyncio.TaskGroup() as group:
            for error in errors:
                group.create_task(fail(error))

    return together


@pytest.mark.parametrize(
    ("errors", "code", "message"),
    [
        ([KeyError("a")], "KeyError", "'a'"),
        ([ValueError("a"), ValueError("a")], "ValueError", "a (2 times)"),
        ([ValueError("a"), ValueError("b")], "ValueError", "a; b"),
        ([ValueError("a"), KeyError("b")], "ExceptionGroup", "ValueError: a; KeyError: 'b'"),
        ([ExceptionGroup("in", [ValueError("a")])], "ValueError", "a"),
        ([PermanentError("no", code="bounced")], "bounced", "no"),
    ],
    ids=["one", "same", "one kind", "kinds", "nested", "permanent"],
)
async def test_what_tasks_of_a_group_raised_is_named(inbox, errors, code, message):
    inbox.handler("group", max_attempts=1)(in_group(*errors))
    job = await run_to_end(inbox, "group", "x")
    assert job.error["code"] == code
    assert job.error["message"].endswith(message)
    if code != "bounced":
        assert (
            "in fail" in job.error["detail"]["traceback"] or "in together" in job.error["detail"]["traceback"]
        )


async def test_a_hold_that_a_task_of_a_group_raised_is_a_hold(inbox):
    inbox.handler("group", max_attempts=1)(in_group(RetryLater(1000, "busy"), RetryLater(10, "less")))
    job = await inbox.submit("group", "x")
    async with inbox.worker():
        while not (job := await inbox.get(job.job_id)).holds:
            await asyncio.sleep(0.01)
    assert (job.reason, job.attempts) == ("busy", 0)


async def test_the_permanent_error_of_one_task_is_not_all_that_a_group_says(inbox):
    inbox.handler("group", max_attempts=2)(in_group(PermanentError("no"), ValueError("x")))
    job = await run_to_end(inbox, "group", "x")
    assert (job.attempts, job.error["code"]) == (2, "ExceptionGroup")


async def test_output_progress_and_usage_are_seen_while_the_run_goes_on(inbox):
    seen = asyncio.Event()

    @inbox.handler("talks", whole=True)
    async def talks(run):
        run.progress(3, 10)
        run.emit({"token": "hel"})
        run.emit({"token": "lo"})
        run.usage(tokens=2)
        await seen.wait()
        run.emit("last words")
        run.usage(tokens=1)
        return "said"

    job = await inbox.submit("talks", "x")
    output = []
    async with inbox.worker():
        async for line in inbox.follow(job.job_id):
            if line.event is Event.OUTPUT:
                output.append(line.data["output"])
            if len(output) == 2 and not seen.is_set():
                now = await inbox.get(job.job_id)
                assert (now.state, now.done, now.total, now.usage) == ("running", 3, 10, {"tokens": 2})
                seen.set()
    job = await inbox.get(job.job_id)
    assert output == [{"token": "hel"}, {"token": "lo"}, "last words"]
    assert (job.result, job.usage) == ("said", {"tokens": 3})


async def test_the_log_of_a_run_names_the_job_and_no_content(inbox, caplog):
    @inbox.handler("logs")
    async def logs(item, run):
        run.log.warning("halfway through %d", 7)

    with caplog.at_level(logging.DEBUG, logger="postroom"):
        job = await run_to_end(inbox, "logs", "my secret content")
    assert f"job {job.job_id}: halfway through 7" in caplog.text
    assert "my secret content" not in caplog.text


async def test_content_that_cannot_be_read_fails_for_good(make_inbox):
    async with make_inbox() as inbox:

        @inbox.handler("any")
        async def any_content(item, run):
            return item

        job = await inbox.submit("any", "x")
        store = (await inbox.verbs()).store
        row = store._rows[job.job_id]
        row.payload = type(row.payload)("{broken")
        async with inbox.worker():
            job = await ended(inbox, job.job_id)
    assert (job.state, job.attempts, job.error["code"]) == ("failed", 1, "undecodable")


async def test_numbers_of_any_kind_are_counted_as_usage(inbox):
    @inbox.handler("pays", whole=True)
    async def pays(run):
        run.usage(cost=Decimal("0.25"), tokens=3)
        run.usage(cost=Fraction(1, 4), tokens=True)
        for wrong in (float("nan"), float("inf"), 1e300, 10**400, "3"):
            with pytest.raises(ValueError, match="finite number"):
                run.usage(cost=wrong)

    job = await run_to_end(inbox, "pays", "x", max_attempts=1)
    assert (job.state, job.usage) == ("succeeded", {"cost": 0.5, "tokens": 4})


async def test_a_count_past_64_bits_harms_no_run(inbox):
    told = asyncio.Event()

    @inbox.handler("counts", whole=True)
    async def counts(run):
        run.progress(10**30, 10**31)
        await told.wait()

    job = await inbox.submit("counts", "x", max_attempts=1)
    async with inbox.worker():
        while (await inbox.get(job.job_id)).done == 0:
            await asyncio.sleep(0.01)
        told.set()
        assert (await ended(inbox, job.job_id)).state == "succeeded"
