"""A worker is killed: nothing of its isolated runs outlives it. Real processes, really killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest

from postroom.worker.guard import Board
from tests.worker.bench import is_alive

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@contextmanager
def worker(
    kind: str, content: str = "x", *options: str
) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any]]]:
    """A worker's process in the middle of a run, and what its handler said."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.worker.worker_process", kind, content, *options],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    told: dict[str, Any] = {}
    try:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        yield process, told
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()  # survivors hold its other end
        for pid in told.get("pids", []):
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)


def gone(*pids: int, seconds: float = 10.0) -> bool:
    """True once none of them lives, False where one still does after so long."""
    deadline = time.monotonic() + seconds
    while any(map(is_alive, pids)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)  # nothing tells when a foreign process ends
    return True


def test_killing_a_worker_ends_its_children_and_all_they_started() -> None:
    with worker("family", "stay") as (process, told):
        assert all(map(is_alive, told["pids"]))
        process.kill()
        assert gone(*told["pids"], told["guardian"])


def test_killing_a_worker_ends_also_a_child_that_holds_its_interpreter() -> None:
    """Neither the child nor a thread in it can do anything here."""
    with worker("family-locked") as (process, told):
        process.kill()
        assert gone(*told["pids"], told["guardian"])


def test_control_without_a_guardian_what_such_a_child_started_survives() -> None:
    with worker("family-locked", "x", "--no-guardian") as (process, told):
        child, grandchild, own_session = told["pids"]
        process.kill()
        assert gone(child)  # the kernel kills the child with the thread that started it
        assert is_alive(grandchild)
        assert is_alive(own_session)


def test_without_a_guardian_a_child_ends_with_its_worker_all_the_same() -> None:
    with worker("family", "stay", "--no-guardian") as (process, told):
        child, _, _, own_session, _ = told["pids"]
        process.kill()
        assert gone(child)
        assert is_alive(own_session)  # only the guardian finds those


def test_a_guardian_that_is_stopped_does_not_keep_children_alive() -> None:
    with worker("family-locked") as (process, told):
        child, *others = told["pids"]
        os.kill(told["guardian"], signal.SIGSTOP)
        process.kill()
        assert gone(child)
        os.kill(told["guardian"], signal.SIGCONT)
        assert gone(*others, told["guardian"])


def test_a_guardian_ends_with_a_worker_that_ends_in_good_order() -> None:
    with worker("family", "return") as (process, told):
        assert process.wait(20) == 0
        assert gone(told["guardian"])


def test_signals_to_all_of_a_service_do_not_end_its_guardian_before_its_worker() -> None:
    with worker("family", "stay") as (process, told):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(told["guardian"], number)
        process.kill()
        assert gone(*told["pids"], told["guardian"])


def test_a_guardian_is_small() -> None:
    with worker("family", "stay") as (_, told):
        guardian = psutil.Process(told["guardian"])
        assert guardian.memory_info().rss < 18 * 1024 * 1024
        assert guardian.num_threads() == 1


# ---- the board


def test_a_board_tells_another_mapping_of_it_what_is_held() -> None:
    board = Board.create()
    reader = Board(os.dup(board.file))
    names = [f"{i:032x}" for i in range(300)]  # more than it has room for at first
    for i, name in enumerate(names):
        board.hold(name, i + 1)
    for i, name in enumerate(names[::2]):
        board.let_go(name, 2 * i + 1)
    board.hold("f" * 32, 2**40)
    board.watch_group(4_000_000)
    board.watch_group(4_000_001)
    board.forget_group(4_000_000)
    left = {(name, i + 1) for i, name in enumerate(names) if i % 2}
    assert set(reader.leases()) == left | {("f" * 32, 2**40)}
    assert reader.groups() == [4_000_001]
    board.close()
    reader.close()


def test_a_board_tells_how_long_the_worker_has_been_silent() -> None:
    board = Board.create()
    reader = Board(os.dup(board.file))
    assert reader.silent_seconds() > 0
    board.ping()
    assert 0 <= reader.silent_seconds() < 60
    board.close()
    reader.close()


def test_a_closed_board_takes_words_and_keeps_none() -> None:
    board = Board.create()
    board.close()
    board.close()
    board.ping()
    board.hold("0" * 32, 1)
    board.let_go("0" * 32, 1)
    board.watch_group(1)
    board.forget_group(1)
