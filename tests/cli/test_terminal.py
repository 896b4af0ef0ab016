"""Whatever a handler or a caller wrote: it is shown, and never acts on the terminal of the person who looks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from postroom import Client
from postroom.plaintext import UNSAFE
from tests.cli.conftest import Cli, work_off

NASTY = "\x1b[31mred \x1b]0;owned\x07 \x9b2J \u202edesrever\r"
ACTS = re.compile(f"[{UNSAFE}]")


def acts(text: str) -> list[str]:
    return ACTS.findall(text.replace("\n", ""))


@pytest.fixture
def job_id() -> str:
    """A job that failed with such a message, and whose journal, params and reason hold the same."""
    with Client("sqlite:///postroom.db") as client:
        job = client.submit("break", NASTY, params={"a": NASTY}, metadata={NASTY: NASTY})
        client.submit("break", items=[NASTY, "x"])
        kept = client.submit("break", "x", run_at="2999-01-01T00:00:00Z")
        client.cancel(kept.job_id, NASTY)
        client.submit("echo", NASTY)
    work_off()
    return str(job.job_id)


COMMANDS = [
    "get {id}",
    "list",
    "dead",
    "follow {id}",
    "items {id}",
    "wait {id}",
    "stats",
    "workers",
    "verify",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_no_plain_output_acts_on_a_terminal(cli: Cli, job_id: str, command: str) -> None:
    ran = cli(*command.format(id=job_id).split())
    assert acts(ran.out + ran.err) == []
    if command.split()[0] in ("get", "list", "dead", "follow", "items", "wait"):
        assert re.search(r"\\x1b\[(31|<n>)mred", ran.out + ran.err)


@pytest.mark.parametrize("command", ["get {id}", "list", "dead", "items {id}", "wait {id}"])
def test_json_says_the_same_and_does_not_act_either(cli: Cli, job_id: str, command: str) -> None:
    ran = cli(*command.format(id=job_id).split(), "--json")
    assert acts(ran.out) == []
    assert any("\x9b" in text for text in strings(json.loads(ran.out)))


def strings(value: Any) -> Iterator[str]:
    """All texts in a JSON value, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from strings(each)


def test_the_replay_that_a_dead_letter_names_works_as_it_is_pasted(cli: Cli, job_id: str) -> None:
    shown = next(line for line in cli("dead").out.splitlines() if "no_luck" in line and "--message" in line)
    words = ["bash", "-c", shown.replace("postroom", f"{sys.executable} -m postroom", 1)]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout) == (0, "replayed 1 job\n"), ran.stderr


def test_what_was_typed_is_not_repeated_raw(cli: Cli) -> None:
    for words in (("get", NASTY), ("list", "--since", NASTY), ("list", "--state", NASTY)):
        ran = cli(*words)
        assert ran.code
        assert acts(ran.err + ran.out) == []


def test_a_result_that_goes_into_a_file_is_as_it_is() -> None:
    with Client("sqlite:///postroom.db") as client:
        job = client.submit("echo", NASTY)
    work_off()
    ran = command("result", job.job_id)
    assert ran.stdout == NASTY.encode() + b"\n"


def test_a_wrong_state_is_told_as_it_was_typed(cli: Cli) -> None:
    cli("submit", "echo", "--content", "x")
    assert cli("list", "--state", "done").err.endswith("found 'done'\n")


# ---- outputs that cannot take it


def command(*words: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "postroom", *words],
        capture_output=True,
        env={**os.environ, **environment},
        timeout=60,
        check=False,
    )


def test_a_terminal_without_the_letters_gets_them_spelled() -> None:
    with Client("sqlite:///postroom.db") as client:
        client.submit("echo", "x", sender="Müller 中")
    ran = command("list", PYTHONIOENCODING="ascii", LC_ALL="C")
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert rb"M\xfcller \u4e2d" in ran.stdout


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has /dev/full")
@pytest.mark.parametrize("words", [["list"], ["list", "--json"], ["--help"], ["--version"]])
def test_an_output_without_room_is_told_in_a_sentence(words: list[str]) -> None:
    with Client("sqlite:///postroom.db") as client:
        client.submit("echo", "x")
    with open("/dev/full", "wb") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "postroom", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert ran.returncode == 2
    assert ran.stderr == b"postroom: the output cannot be written: No space left on device\n"
