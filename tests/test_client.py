"""The synchronous client, over stores of every kind and from several threads."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from postroom import (
    Client,
    DraftInvalid,
    DuplicateJob,
    Inbox,
    JobNotFound,
    PermanentError,
    ResultMissing,
    State,
    TransitionRefused,
    WaitTimedOut,
)
from tests.api.live import live_service


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'inbox.db'}"


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url) as client:
        yield client


@pytest.fixture
def work(url: str) -> Iterator[None]:
    """A worker of another event loop, in another thread, while the test runs."""
    is_ready, is_over = threading.Event(), threading.Event()

    async def run() -> None:
        inbox = Inbox(url)

        @inbox.handler("double")
        async def double(item: int, run: object) -> int:
            return item * 2

        @inbox.handler("break", max_attempts=1)
        async def broken(item: object, run: object) -> None:
            raise PermanentError("no luck", code="no_luck")

        async with inbox, inbox.worker():
            is_ready.set()
            await asyncio.to_thread(is_over.wait)

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    assert is_ready.wait(30)
    yield
    is_over.set()
    thread.join()


def test_it_submits_waits_and_reads(client: Client, work: None) -> None:
    job = client.submit("double", items=[1, 2, 3], item_keys=["a", "b", "c"], sender="test")
    done = client.wait(job.job_id, timeout_seconds=30)
    assert (done.state, done.result) == (State.SUCCEEDED, {"results": [2, 4, 6]})
    assert [(item.key, item.value) for item in client.items(job.job_id)] == [("a", 2), ("b", 4), ("c", 6)]
    assert client.result(job.job_id) == {"results": [2, 4, 6]}
    assert [str(line.event) for line in client.follow(job.job_id) if line.event != "progress"] == [
        "submitted",
        "claimed",
        "succeeded",
    ]
    assert client.stats().states["succeeded"] == 1
    assert client.workers()[0].info.kinds == ("break", "double")
    assert [
        found.job_id
        for found in client.find(kind="double", since=datetime.now(UTC) - timedelta(hours=1)).jobs
    ] == [job.job_id]


def test_dead_letters_are_read_and_replayed(client: Client, work: None) -> None:
    job = client.submit("break", "a")
    assert client.wait(job.job_id, timeout_seconds=30).state is State.FAILED
    [group] = client.dead_letters(kind="break")
    assert (group.code, group.count) == ("no_luck", 1)
    assert client.replay_dead(kind="break", code="no_luck", message=group.message) == 1
    assert client.wait(job.job_id, timeout_seconds=30).replays == 1
    assert client.replay(job.job_id).replays == 2


def test_errors_are_those_of_the_inbox(client: Client) -> None:
    with pytest.raises(JobNotFound):
        client.get("0" * 32)
    with pytest.raises(DraftInvalid, match="max_attempt"):
        client.submit("nobody", "a", max_attempt=3)
    job = client.submit("nobody", "a", idempotency_key="k")
    with pytest.raises(DuplicateJob):
        client.submit("nobody", "b", idempotency_key="k")
    with pytest.raises(WaitTimedOut):
        client.wait(job.job_id, timeout_seconds=0.01)
    with pytest.raises(ResultMissing):
        client.result(job.job_id)
    assert client.cancel(job.job_id, "not needed").reason == "not needed"
    with pytest.raises(TransitionRefused):
        client.cancel(job.job_id)


def test_many_are_answered_one_by_one(client: Client) -> None:
    answers = client.submit_many({"kind": "nobody", "content": c} for c in ("a", None, "c"))
    assert [isinstance(answer, DraftInvalid) for answer in answers] == [False, True, False]


def test_a_stream_that_is_left_early_is_closed(client: Client) -> None:
    job = client.submit("nobody", "a")
    for line in client.follow(job.job_id):
        assert line.n == 0
        break
    assert client.get(job.job_id).state is State.QUEUED


def test_several_threads_share_one_client(client: Client) -> None:
    with ThreadPoolExecutor(8) as pool:
        jobs = list(pool.map(lambda n: client.submit("nobody", n), range(40)))
    assert len({job.job_id for job in jobs}) == 40


def test_a_closed_client_opens_again_at_its_next_use(client: Client) -> None:
    job = client.submit("nobody", "a")
    client.close()
    client.close()
    assert client.get(job.job_id).job_id == job.job_id


def test_nothing_starts_before_the_first_use(url: str, tmp_path: Path) -> None:
    before = threading.active_count()
    client = Client(url)
    assert client.url == url
    assert threading.active_count() == before
    assert not list(tmp_path.iterdir())
    client.close()


def test_inside_its_own_loop_it_refuses_instead_of_hanging(client: Client) -> None:
    loop_of: Callable[[], asyncio.AbstractEventLoop] = client._running_loop

    async def call() -> None:
        client.get("0" * 32)

    with pytest.raises(RuntimeError, match=r"use postroom\.Inbox"):
        asyncio.run_coroutine_threadsafe(call(), loop_of()).result(10)


ENDS = {
    "with a job": "client.submit('nobody', 'x')",
    "in a stream": "stream = client.follow(client.submit('nobody', 'x').job_id); next(stream)",
    "by an error": "client.submit('nobody', 'x'); sys.exit(3)",
    "after a fork": "client.submit('nobody', 'x'); os.fork() or sys.exit(3)",
    "closed already": "client.submit('nobody', 'x'); client.close()",
}


@pytest.mark.parametrize("road", ["sqlite", "http"])
@pytest.mark.parametrize("end", ENDS)
def test_a_script_that_ends_without_close_ends_in_silence(url: str, end: str, road: str) -> None:
    script = f"import os, sys\nfrom postroom import Client\nclient = Client(sys.argv[1])\n{ENDS[end]}\n"

    def run(where: str) -> tuple[int, str, str]:
        words = [sys.executable, "-c", script, where]
        ran = subprocess.run(words, capture_output=True, text=True, timeout=15, check=False)
        return ran.returncode, ran.stdout, ran.stderr

    if road == "http":
        with live_service() as live:
            ended = run(live.url)
    else:
        ended = run(url)
    assert ended == (3 if end == "by an error" else 0, "", "")
