"""What every test shares: a few fixtures, and two things that are watched for all of them.

- Nothing is left behind. A thread, child process, socket or asyncio task that a test started and did not end
  fails that test. What a fixture of a wider scope started (a server for a whole module) may stay for its scope.
- Nothing is left out in silence. Skipped tests are listed at the end of the run; in CI each is a failure,
  unless it stands in `SKIPS_ALLOWED_IN_CI` with its reason.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
import psutil
import pytest

# Beginning of a test's id -> why a CI machine can't run it.
SKIPS_ALLOWED_IN_CI: dict[str, str] = {}

# A slow machine is no fault that a test may find: no example has a deadline, and a failure prints how to repeat it.
# In CI the examples are the same at every run, so a change is judged by what it changed; elsewhere chance searches.
hypothesis.settings.register_profile(
    "postroom",
    deadline=None,
    print_blob=True,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("postroom")

# Settings of the person who runs the tests must not reach them; how many examples a campaign tries is none of those.
for name in [name for name in os.environ if name.startswith("POSTROOM_") and name != "POSTROOM_EXAMPLES"]:
    del os.environ[name]


# ---------------------------------------------------------------- fixtures


@pytest.fixture
def free_port() -> int:
    """A TCP port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A new folder with a short name: the path of a unix socket may have 107 bytes, and `tmp_path` is longer."""
    folder = Path(tempfile.mkdtemp(prefix="pr-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


# ---------------------------------------------------------------- nothing is left behind

GRACE_SECONDS = 3.0  # for what is ending already; it is waited for, not slept through


@dataclass
class Living:
    """What is alive in and below this process."""

    threads: set[threading.Thread] = field(default_factory=set)
    children: set[psutil.Process] = field(default_factory=set)
    sockets: set[str] = field(default_factory=set)

    @classmethod
    def now(cls) -> Living:
        own = {
            getattr(multiprocessing.resource_tracker._resource_tracker, "_pid", None),
            getattr(multiprocessing.forkserver._forkserver, "_forkserver_pid", None),
        }  # the standard library's own helpers: one for the life of this process
        children = {child for child in psutil.Process().children(recursive=True) if child.pid not in own}
        return cls(set(threading.enumerate()), children, open_sockets())

    def __sub__(self, other: Living) -> Living:
        return Living(
            self.threads - other.threads, self.children - other.children, self.sockets - other.sockets
        )

    def __or__(self, other: Living) -> Living:
        return Living(
            self.threads | other.threads, self.children | other.children, self.sockets | other.sockets
        )

    def __bool__(self) -> bool:
        return bool(self.threads or self.children or self.sockets)

    def words(self) -> str:
        told = [f"thread {thread.name!r}" for thread in self.threads]
        told += [f"process {child.pid} {described(child)}" for child in self.children]
        told += [f"open {name}" for name in self.sockets]
        return ", ".join(sorted(told))


def open_sockets() -> set[str]:
    """The sockets among this process's files, by inode; empty where the system does not tell."""
    found = set()
    try:
        numbers = os.listdir("/proc/self/fd")
    except OSError:
        return found
    for number in numbers:
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue  # the file through which we were listing
        if target.startswith("socket:"):
            found.add(target)
    return found


def described(child: psutil.Process) -> str:
    try:
        return " ".join(child.cmdline())[:120] or child.status()
    except psutil.Error:
        return "(gone)"


def left_behind(allowed: Living) -> Living:
    """What is alive beyond the allowed after a grace for what is ending; ended processes of it for good."""
    left = Living.now() - allowed
    if left:
        gc.collect()
        deadline = time.monotonic() + GRACE_SECONDS
        for thread in left.threads:
            thread.join(timeout=max(0.0, deadline - time.monotonic()))
        psutil.wait_procs(left.children, timeout=max(0.0, deadline - time.monotonic()))
        left = Living.now() - allowed
        while left and time.monotonic() < deadline:
            time.sleep(0.02)  # nothing tells when a socket closes
            left = Living.now() - allowed
    return left


SHARED = pytest.StashKey[Living]()  # by the session: what fixtures of a wider scope started
BEFORE = pytest.StashKey[Living]()  # by the test


class SharedWatch:
    """Notes what fixtures of a wider scope started.

    Registered by name: a hook of this file would not be asked about fixtures of the whole session, whose node is
    the repository's root and not this folder.
    """

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Iterator[None]:
        if fixturedef.scope == "function":
            return (yield)
        before = Living.now()
        answer = yield
        stash = request.session.stash
        stash[SHARED] = stash.get(SHARED, Living()) | (Living.now() - before)
        return answer


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    item.stash[BEFORE] = Living.now()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    answer = yield
    if BEFORE not in item.stash or item.get_closest_marker("may_leave"):
        return answer
    left = left_behind(item.stash[BEFORE] | item.session.stash.get(SHARED, Living()))
    if left:
        words = left.words()
        for child in left.children:  # it must not disturb the tests that follow
            child.kill()
        psutil.wait_procs(left.children, timeout=GRACE_SECONDS)
        pytest.fail(f"left behind by this test: {words}", pytrace=False)
    return answer


@pytest.fixture(autouse=True)
def no_task_is_left(request: pytest.FixtureRequest) -> None:
    """Asyncio tasks die with the loop, so they are looked for inside it, after all other fixtures ended."""
    function = getattr(request, "function", None)
    if inspect.iscoroutinefunction(inspect.unwrap(function) if function else None):
        request.getfixturevalue("no_task_is_left_in_the_loop")


@pytest.fixture
async def no_task_is_left_in_the_loop(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    if left and not request.node.get_closest_marker("may_leave"):
        _, pending = await asyncio.wait(left, timeout=GRACE_SECONDS)
        if pending:
            pytest.fail(f"asyncio tasks left behind: {sorted(map(repr, pending))}", pytrace=False)


# ---------------------------------------------------------------- nothing is left out in silence

SKIPPED = pytest.StashKey[dict[str, str]]()


class SkipWatch:
    """Notes every skip, in the process that reports (with pytest-xdist the one that hands tests out)."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}

    def note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self.reasons[report.nodeid] = text.removeprefix("Skipped: ")

    pytest_runtest_logreport = note
    pytest_collectreport = note

    def refused(self) -> dict[str, str]:
        """The skips that fail the run: in CI all that have no reason in the list above."""
        if not os.environ.get("CI"):
            return {}
        allowed = tuple(SKIPS_ALLOWED_IN_CI)
        return {test: why for test, why in self.reasons.items() if not test.startswith(allowed or ("\0",))}

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.refused() and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        refused = self.refused()
        if self.reasons:
            terminalreporter.section("left out")
        for test, why in sorted(self.reasons.items()):
            mark = "FAILED, no test may be skipped in CI: " if test in refused else ""
            terminalreporter.write_line(f"{mark}{test}: {why}")
        asked = any("campaigns" in Path(argument).parts for argument in terminalreporter.config.args)
        if Path(__file__).with_name("campaigns").is_dir() and not asked:
            terminalreporter.write_line("Not part of this run: the long campaigns (python3 run.py campaign)")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SkipWatch(), "skip-watch")
    config.pluginmanager.register(SharedWatch(), "shared-watch")
