"""The watch that tests/conftest.py keeps: each kind of leaving is seen, and tidy tests pass under it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

UNTIDY = """
    import asyncio, socket, subprocess, sys, threading
    import pytest

    stop = threading.Event()
    kept = []

    def sleeper():
        return subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)

    def test_thread():
        threading.Thread(target=stop.wait, name="forgotten", daemon=True).start()

    def test_process():
        kept.append(sleeper())

    def test_socket():
        kept.append(socket.socket())

    async def test_task():
        kept.append(asyncio.create_task(asyncio.Event().wait(), name="forgotten-task"))
"""

TIDY = """
    import asyncio, socket, subprocess, sys, threading
    import pytest

    def sleeper():
        return subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)

    @pytest.fixture(scope="module")
    def server():
        process = sleeper()
        yield process
        process.communicate()

    @pytest.fixture
    async def background():
        task = asyncio.create_task(asyncio.Event().wait())
        yield task
        task.cancel()

    def test_first_use_of_a_shared_server(server):
        assert server.poll() is None

    def test_second_use_of_a_shared_server(server):
        assert server.poll() is None

    def test_a_process_that_is_waited_for():
        sleeper().communicate()

    def test_a_thread_that_is_about_to_end():
        threading.Timer(0.05, lambda: None).start()

    async def test_a_task_that_its_fixture_ends(background):
        assert not background.done()

    async def test_a_task_that_is_about_to_end():
        asyncio.get_running_loop().create_task(asyncio.sleep(0.01))

    kept = []

    @pytest.mark.may_leave("the reason")
    def test_a_permitted_one():
        kept.append(socket.socket())
"""

SKIPPING = """
    import pytest

    def test_that_runs():
        pass

    @pytest.mark.skip(reason="no such server here")
    def test_that_is_left_out():
        pass

    @pytest.mark.xfail(reason="known, and followed")
    def test_that_is_expected_to_fail():
        assert False
"""


@pytest.fixture
def inner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project of its own under our conftest."""
    monkeypatch.delenv("CI", raising=False)
    conftest = Path(__file__).with_name("conftest.py").read_text(encoding="utf-8")
    pytester.makeconftest(conftest.replace("GRACE_SECONDS = 3.0", "GRACE_SECONDS = 0.5"))
    pytester.makeini(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
        "markers = may_leave(reason): as in our own\n"
    )
    return pytester


def test_whatever_a_test_leaves_behind_fails_it(inner: pytest.Pytester) -> None:
    inner.makepyfile(UNTIDY)
    outcome = inner.runpytest_subprocess()
    outcome.assert_outcomes(passed=4, errors=4)
    for seen in ("*thread 'forgotten'*", "*process * -c import sys*", "*open socket:*", "*forgotten-task*"):
        outcome.stdout.fnmatch_lines([seen])


def test_what_ends_or_is_shared_by_a_wider_fixture_is_no_leak(inner: pytest.Pytester) -> None:
    inner.makepyfile(TIDY)
    inner.runpytest_subprocess().assert_outcomes(passed=7)


def test_a_skip_is_listed_on_a_laptop(inner: pytest.Pytester) -> None:
    inner.makepyfile(SKIPPING)
    outcome = inner.runpytest_subprocess()
    assert outcome.ret == 0
    outcome.stdout.fnmatch_lines(["*left out*", "*test_that_is_left_out: no such server here*"])


@pytest.mark.parametrize("spread", [[], ["-n", "1"]])
def test_a_skip_fails_the_run_in_ci(
    inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, spread: list[str]
) -> None:
    monkeypatch.setenv("CI", "true")
    inner.makepyfile(SKIPPING)
    outcome = inner.runpytest_subprocess(*spread)
    assert outcome.ret == 1
    outcome.stdout.fnmatch_lines(["FAILED, no test may be skipped in CI: *test_that_is_left_out*"])


def test_a_whole_module_skipped_fails_the_run_in_ci(
    inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    inner.makepyfile("import pytest\npytest.importorskip('no_such_package_anywhere')")
    assert inner.runpytest_subprocess().ret == 1


def test_a_skip_with_a_named_reason_is_allowed_in_ci(
    inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    conftest = inner.path / "conftest.py"
    empty = "SKIPS_ALLOWED_IN_CI: dict[str, str] = {}"
    named = 'SKIPS_ALLOWED_IN_CI = {"test_skips.py::test_that_is_left_out": "why"}'
    conftest.write_text(conftest.read_text().replace(empty, named))
    inner.makepyfile(test_skips=SKIPPING)
    assert inner.runpytest_subprocess().ret == 0


def test_a_run_says_that_campaigns_are_no_part_of_it(inner: pytest.Pytester) -> None:
    inner.makepyfile("def test_that_runs(): pass")
    (inner.path / "campaigns").mkdir()
    (inner.path / "campaigns" / "test_long.py").write_text("def test_long(): pass")
    inner.makeini("[pytest]\nnorecursedirs = campaigns\nasyncio_default_fixture_loop_scope = function\n")
    short = inner.runpytest_subprocess()
    short.assert_outcomes(passed=1)
    short.stdout.fnmatch_lines(["Not part of this run: the long campaigns*"])
    long = inner.runpytest_subprocess("campaigns")
    long.assert_outcomes(passed=1)
    long.stdout.no_fnmatch_line("Not part of this run*")
