"""`postroom worker` as a process: signals, exit codes, several processes under a supervisor."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys

import psutil
import pytest

from postroom import Client
from tests.cli.conftest import Cli, Start, Started

FAST = {"POSTROOM_POLL_SECONDS": "0.05", "POSTROOM_BACKOFF_BASE_SECONDS": "0.05"}


def ready(start: Start, *words: str, **environment: str) -> Started:
    worker = start("worker", "--app", "handlers:inbox", *words, **FAST, **environment)
    worker.until("is ready")
    return worker


def started_job(cli: Cli, seconds: str = "60") -> str:
    """A job that a worker has begun to run."""
    job_id = cli("submit", "nap", "--content", seconds).out.strip()
    with Client("sqlite:///postroom.db") as client:
        for line in client.follow(job_id):
            if line.event == "claimed":
                return job_id
    raise AssertionError("it ended before it began")


def job_of(job_id: str) -> dict[str, object]:
    with Client("sqlite:///postroom.db") as client:
        return client.get(job_id).to_json()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_worker_ends_with_0_when_told_once(start: Start, number: signal.Signals) -> None:
    worker = ready(start)
    worker.tell(number)
    assert worker.end() == 0
    assert "Traceback" not in worker.text


def test_a_worker_that_drains_lets_a_run_end(cli: Cli, start: Start) -> None:
    worker = ready(start)
    job_id = started_job(cli, "0.5")
    worker.tell()
    assert worker.end() == 0
    assert [job_of(job_id)[name] for name in ("state", "attempts", "interruptions")] == ["succeeded", 1, 0]


def test_what_does_not_end_within_the_drain_is_handed_back_uncharged(cli: Cli, start: Start) -> None:
    worker = ready(start, POSTROOM_DRAIN_SECONDS="0.2")
    job_id = started_job(cli)
    worker.tell()
    assert worker.end() == 0
    assert [job_of(job_id)[name] for name in ("state", "attempts", "interruptions")] == ["queued", 0, 1]


def test_a_second_signal_hands_back_within_a_second_and_ends_with_1(cli: Cli, start: Start) -> None:
    worker = ready(start)
    job_id = started_job(cli)
    worker.tell()
    worker.until("draining")
    worker.tell(signal.SIGINT)
    assert worker.end() == 1
    assert [job_of(job_id)[name] for name in ("state", "attempts", "interruptions")] == ["queued", 0, 1]


def without_a_reader(*words: str) -> subprocess.Popen[bytes]:
    """A command whose error output nobody reads any more, once it was ready: as when the log's disk is full."""
    command = [sys.executable, "-m", "postroom", *words, "--app", "handlers:inbox"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env={**os.environ, **FAST})
    assert process.stderr is not None
    with process.stderr as lines:
        assert any(b"is ready" in line for line in lines)
    return process


@pytest.mark.parametrize("words", [(), ("--processes", "2")], ids=["one", "supervised"])
def test_a_worker_whose_lines_cannot_be_written_drains_all_the_same(cli: Cli, words: tuple[str, ...]) -> None:
    process = without_a_reader("worker", *words)
    try:
        job_id = started_job(cli, "1")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
    assert [job_of(job_id)[name] for name in ("state", "crashes", "interruptions")] == ["succeeded", 0, 0]


def test_a_worker_that_is_told_to_end_while_it_starts_ends_at_once(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        worker = start("worker", "--app", "handlers:inbox", "--store", url, **FAST)
        caller, _ = silent.accept()
        with caller:
            worker.tell()
            assert worker.end() == 0  # without that it is 3, once the answer is given up
    assert "Traceback" not in worker.text


def test_kinds_and_queues_narrow_what_it_takes(cli: Cli, start: Start) -> None:
    ready(start, "--kinds", "echo", "--queue", "slow", "--queue", "slower")
    other = cli("submit", "nap", "--content", "0", "--queue", "slow").out.strip()
    default = cli("submit", "echo", "--content", "a").out.strip()
    ran = cli("submit", "echo", "--content", "a", "--queue", "slower", "--wait", "--timeout", "20")
    assert (ran.code, ran.out) == (0, "a\n")
    assert [job_of(job_id)["state"] for job_id in (other, default)] == ["queued", "queued"]


def test_submit_waits_and_prints_the_result_or_the_error(cli: Cli, start: Start) -> None:
    ready(start)
    good = cli("submit", "echo", "--content", "hello", "--wait", "--timeout", "20")
    assert (good.code, good.out) == (0, "hello\n")
    assert "waiting: 1 of 1, succeeded" in good.err
    bad = cli("submit", "break", "--content", "it", "--wait", "--timeout", "20")
    assert (bad.code, bad.out) == (1, "")
    assert "failed: no_luck: no luck with it" in bad.err
    late = cli("submit", "nap", "--content", "60", "--wait", "--timeout", "0.2")
    assert late.code == 5
    assert json.loads(cli("workers", "--json").out)["items"][0]["kinds"][:3] == [
        "assistant",
        "break",
        "classify",
    ]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["--app", "handlers:inbox", "--kinds", "ecko"],
            "no handler for kind 'ecko'; there are: assistant, break",
        ),
        (["--app", "handlers"], "--app takes module:inbox"),
        (["--kinds", ","], "--kinds takes names"),
        (["--processes", "2", "--store", "memory://"], "a memory store lives in one process"),
        (["--processes", "0"], "--processes"),
        (["--store", "sqlite:////nowhere/at/all.db"], "the folder /nowhere/at does not exist"),
    ],
)
def test_a_worker_that_cannot_start_says_why(cli: Cli, words: list[str], says: str) -> None:
    ran = cli("worker", *words)
    assert ran.code == (3 if "folder" in says else 2)
    assert says in ran.err
    assert "Traceback" not in ran.err


# ---- several


def workers_of(supervisor: Started) -> list[int]:
    children = psutil.Process(supervisor.process.pid).children()
    return [child.pid for child in children if "worker" in child.cmdline()]


def test_a_supervisor_starts_workers_and_all_drain_together(cli: Cli, start: Start) -> None:
    supervisor = start("worker", "--app", "handlers:inbox", "--processes", "2", **FAST)
    supervisor.until("is ready", 2)
    assert len(workers_of(supervisor)) == 2
    job_id = started_job(cli, "0.5")
    supervisor.tell()
    assert supervisor.end() == 0
    assert job_of(job_id)["state"] == "succeeded"


def test_a_worker_that_dies_is_started_again(cli: Cli, start: Start) -> None:
    supervisor = start("worker", "--app", "handlers:inbox", "--processes", "2", **FAST)
    supervisor.until("is ready", 2)
    before = workers_of(supervisor)
    os.kill(before[0], signal.SIGKILL)
    assert "signal 9" in supervisor.until("starting it again")
    supervisor.until("is ready")
    after = workers_of(supervisor)
    assert before[1] in after
    assert len(set(after) - set(before)) == 1
    supervisor.tell()
    assert supervisor.end() == 0


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs to limit another process")
def test_a_worker_that_cannot_be_started_again_does_not_cost_the_others(cli: Cli, start: Start) -> None:
    supervisor = start("worker", "--app", "handlers:inbox", "--processes", "2", **FAST)
    supervisor.until("is ready", 2)
    before = workers_of(supervisor)
    _, most = resource.prlimit(supervisor.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(supervisor.process.pid, resource.RLIMIT_NOFILE, (4, most))
    os.kill(before[0], signal.SIGKILL)
    assert "starting it again in 1 s" in supervisor.until("could not be started")
    assert workers_of(supervisor) == before[1:]
    resource.prlimit(supervisor.process.pid, resource.RLIMIT_NOFILE, (most, most))
    supervisor.until("is ready")
    supervisor.tell()
    assert supervisor.end() == 0


def test_a_second_signal_to_the_supervisor_is_passed_on(cli: Cli, start: Start) -> None:
    supervisor = start("worker", "--app", "handlers:inbox", "--processes", "2", **FAST)
    supervisor.until("is ready", 2)
    job_id = started_job(cli)
    supervisor.tell(signal.SIGINT)
    supervisor.until("draining", 2)
    supervisor.tell(signal.SIGINT)
    assert supervisor.end() == 1
    assert job_of(job_id)["interruptions"] == 1


def test_workers_drain_when_their_supervisor_is_killed(start: Start) -> None:
    supervisor = start("worker", "--app", "handlers:inbox", "--processes", "2", **FAST)
    supervisor.until("is ready", 2)
    workers = [psutil.Process(pid) for pid in workers_of(supervisor)]
    os.kill(supervisor.process.pid, signal.SIGKILL)
    gone, left = psutil.wait_procs(workers, timeout=20)
    assert not left
    assert len(gone) == 2


def test_a_supervisor_of_workers_that_cannot_start_ends(start: Start) -> None:
    supervisor = start("worker", "--app", "handlers:inbox", "--processes", "2", "--kinds", "ecko")
    assert supervisor.end() == 2
    assert "no handler for kind 'ecko'" in supervisor.text


def test_a_job_that_kills_its_worker_is_a_dead_letter_after_three(cli: Cli, start: Start) -> None:
    start("worker", "--app", "handlers:inbox", "--processes", "1", **FAST).until("is ready")
    supervisor = start("worker", "--app", "handlers:inbox", "--processes", "2", **FAST)
    supervisor.until("is ready", 2)
    ran = cli("submit", "die", "--content", "a", "--wait", "--timeout", "60")
    assert ran.code == 1
    assert re.search(r"worker_lost: its worker was lost 3 times", ran.err)
