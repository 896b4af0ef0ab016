"""The examples do what they say, also when they are killed in the middle."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

EXAMPLES = ROOT / "examples"


def start(example: str, folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "POSTROOM_STORE": f"sqlite:///{folder}/inbox.db"}
    command = [sys.executable, str(EXAMPLES / example)]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def run(example: str, folder: Path) -> str:
    process = start(example, folder)
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 0, output
    return output


def answered(output: str) -> Counter[str]:
    return Counter(re.findall(r"answering (mail-\d\d)", output))


def test_every_example_is_listed():
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert all(f"({path.name})" in listed for path in EXAMPLES.glob("*.py"))


def test_a_batch_of_mails_is_answered(short_path):
    output = run("batch_of_mails.py", short_path)
    assert "succeeded: 20 of 20 done, 1 failed" in output
    assert "mail-13: empty_mail: the mail is empty" in output
    assert "retried: " in output
    calls = answered(output)
    assert calls.pop("mail-07") == 2
    assert set(calls.values()) == {1}
    assert len(calls) == 18


def test_a_batch_that_is_killed_goes_on_where_it_was(short_path):
    process = start("batch_of_mails.py", short_path)
    assert process.stdout is not None
    first = ""
    for line in process.stdout:
        first += line
        if "answering mail-05" in line:
            process.kill()
            break
    first += process.stdout.read()
    process.wait()
    process.stdout.close()
    second = run("batch_of_mails.py", short_path)
    assert "succeeded: 20 of 20 done, 1 failed" in second
    assert "crashes 1" in second
    both = answered(first) + answered(second)
    again = {mail for mail in answered(first) if mail in answered(second)}
    assert len(again) <= 2, "no more than the two in flight"
    assert len(both) == 19


def test_a_second_call_on_the_same_day_makes_no_second_report(short_path):
    first = run("nightly_report.py", short_path)
    assert "held: 429 from the provider" in first
    assert "attempts 1, holds 1" in first
    assert re.search(
        r"made: fetch 1, send 1, summarise billing 1, summarise login 2, summarise shipping 1$", first, re.M
    )
    second = run("nightly_report.py", short_path)
    assert "sent as <" in second
    assert re.search(r"made:\s*$", second, re.M)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_says_how_to_run_it(path):
    assert f"python examples/{path.name}" in path.read_text(encoding="utf-8")
