"""Posting jobs and looking at them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from postroom import Client
from tests.cli.conftest import Cli, Start, work_off

ID = re.compile(r"[0-9a-f]{32}\n")


def stored(job_id: str) -> dict[str, object]:
    with Client("sqlite:///postroom.db") as client:
        return client.get(job_id.strip()).to_json()


def test_submit_prints_the_id_and_nothing_else(cli: Cli) -> None:
    ran = cli("submit", "echo", "--content", "hello")
    assert ran.code == 0
    assert ID.fullmatch(ran.out)
    assert ran.err == ""


def test_submit_takes_every_option_of_a_job(cli: Cli) -> None:
    ran = cli(
        *"submit echo --content hello --priority high --sender mail --topic bills --queue slow".split(),
        *"--max-attempts 7".split(),
        *"--timeout-seconds 5 --stall-timeout-seconds 2.5 --expires-at 2d --run-at 10m".split(),
        "--params",
        '{"labels": ["a"]}',
        "--metadata",
        '{"page": 3}',
        "--json",
    )
    answer = json.loads(ran.out)
    assert answer == {"job_id": answer["job_id"], "state": "queued"}
    job = stored(answer["job_id"])
    assert [job[name] for name in ("priority", "sender", "topic", "queue", "max_attempts")] == [
        "high",
        "mail",
        "bills",
        "slow",
        7,
    ]
    assert [job["timeout_seconds"], job["stall_timeout_seconds"], job["params"], job["metadata"]] == [
        5,
        2.5,
        {"labels": ["a"]},
        {"page": 3},
    ]
    assert job["waiting_for"]["reason"] == "run_at"  # type: ignore[index]


@pytest.mark.parametrize(
    ("name", "text", "items"),
    [
        ("a.txt", "one\n\n 2 \nthree\n", ["one", "2", "three"]),
        ("a.txt", '{"a": 1}\n["b"]\n"c"\n', [{"a": 1}, ["b"], "c"]),
        ("a.jsonl", "1\nnull\ntrue\n", [1, None, True]),
        ("a.json", '["x", {"y": [2]}]', ["x", {"y": [2]}]),
        ("a.txt", "\ufeffwith a mark\n", ["with a mark"]),
    ],
)
def test_items_come_from_a_file_of_lines_or_json(
    cli: Cli, folder: Path, name: str, text: str, items: list[object]
) -> None:
    (folder / name).write_text(text, encoding="utf-8")
    ran = cli("submit", "echo", "--items", name)
    assert ran.code == 0, ran.err
    work_off()
    assert json.loads(cli("result", ran.out.strip()).out) == {"results": items}


def test_items_and_content_come_from_stdin(cli: Cli) -> None:
    piped = cli("submit", "echo", "--items", "-", "--item-keys", "a,b", stdin="one\ntwo\n")
    content = cli("submit", "echo", stdin="a whole letter\n")
    work_off()
    assert cli("items", piped.out.strip()).out.splitlines()[1:] == [
        "a    succeeded  one",
        "b    succeeded  two",
    ]
    assert cli("result", content.out.strip()).out == "a whole letter\n"


def test_item_keys_come_from_a_file(cli: Cli, folder: Path) -> None:
    (folder / "keys.txt").write_text("x,1\ny\n", encoding="utf-8")
    ran = cli("submit", "echo", "--items", "-", "--item-keys", "keys.txt", stdin="one\ntwo\n")
    items = json.loads(cli("items", ran.out.strip(), "--json").out)["items"]
    assert [item["key"] for item in items] == ["x,1", "y"]


def test_the_same_idempotency_key_gives_the_first_job_again(cli: Cli) -> None:
    first = cli("submit", "echo", "--content", "hello", "--idempotency-key", "monday")
    assert cli("submit", "echo", "--content", "hello", "--idempotency-key", "monday").out == first.out
    other = cli("submit", "echo", "--content", "bye", "--idempotency-key", "monday")
    assert other.code == 2
    assert first.out.strip() in other.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["submit", "echo", "--content", "a", "--items", "-"], "not both"),
        (["submit", "echo", "--content", "a", "--item-keys", "a"], "goes with --items"),
        (["submit", "echo", "--items", "nowhere.txt"], "cannot be read: No such file"),
        (["submit", "echo"], "stdin was empty"),
        (["submit", "echo", "--content", "a", "--params", "{"], "--params: not valid JSON"),
        (["submit", "echo", "--content", "a", "--params", "[1]"], "takes a JSON object"),
        (["submit", "echo", "--content", "a", "--priority", "urgent"], "one of high, normal, low"),
        (["submit", "echo", "--content", "a", "--run-at", "soon"], "takes 90s, 15m"),
        (["submit", "echo", "--content", "a", "--timeout", "3"], "goes with --wait"),
        (["submit", "echo", "--content", "a", "--max-attempts", "0", "--sender", ""], "max_attempts"),
        (["list", "--state", "done"], "one of queued, running"),
        (["list", "--since", "yesterday"], "takes 90s, 15m"),
        (["list", "--limit", "501"], "less than or equal to 500"),
        (["list", "--cursor", "x"], "cursor"),
        (["replay"], "say which jobs"),
        (["replay", "0" * 32, "--kind", "echo"], "say which jobs"),
        (["frobnicate"], "No such command"),
        (["get"], "Missing argument"),
        (["list", "--store", "mysql://here"], "no store has the URL"),
        (["verify", "--store", "http://127.0.0.1:9"], "works on the store itself"),
        (
            ["submit", "echo", "--content", "a", "--store", "memory://"],
            "a memory store lives and ends with one",
        ),
    ],
)
def test_what_cannot_be_asked_is_refused_in_a_sentence(cli: Cli, words: list[str], says: str) -> None:
    cli("submit", "echo", "--content", "hello")
    ran = cli(*words)
    assert ran.code == 2
    assert says in ran.err
    assert "Traceback" not in ran.err
    assert ran.out == ""


@pytest.mark.parametrize(
    "words",
    [
        ["list"],
        ["get", "0" * 32],
        ["stats"],
        ["dead"],
        ["workers"],
        ["verify"],
        ["prune"],
        ["wait", "0" * 32],
    ],
)
def test_a_command_that_reads_makes_no_store(cli: Cli, folder: Path, words: list[str]) -> None:
    ran = cli(*words)
    assert ran.code == 3
    assert "there is no store at" in ran.err
    assert not list(folder.glob("postroom.db*"))


def test_a_service_that_is_not_there_is_a_store_that_cannot_be_reached(cli: Cli) -> None:
    ran = cli("list", "--store", "http://127.0.0.1:9")
    assert ran.code == 3
    assert "127.0.0.1:9" in ran.err
    assert len(ran.err.splitlines()) <= 2


@pytest.mark.parametrize("command", ["get", "items", "result", "cancel", "replay", "wait", "follow"])
def test_a_job_that_does_not_exist_is_exit_code_4(cli: Cli, command: str) -> None:
    cli("submit", "echo", "--content", "hello")
    ran = cli(command, "0" * 32)
    assert (ran.code, ran.out) == (4, "")
    assert ran.err == f"postroom: there is no job {'0' * 32}\n"


def test_get_shows_what_a_job_waits_for_and_what_it_came_to(cli: Cli) -> None:
    job_id = cli("submit", "echo", "--content", "hello", "--sender", "mail").out.strip()
    waiting = dict(re.split("  +", line, maxsplit=1) for line in cli("get", job_id).out.splitlines())
    assert waiting["state"] == "queued"
    assert waiting["waits for"].startswith("no live worker takes kind 'echo'")
    work_off()
    done = cli("get", job_id).out
    assert "succeeded" in done
    assert done.rstrip().endswith("hello")
    assert json.loads(cli("get", job_id, "--json").out)["result"] == "hello"


def test_list_filters_and_goes_on(cli: Cli) -> None:
    ids = [cli("submit", "echo", "--content", str(n), "--sender", "mail").out.strip() for n in range(3)]
    cli("submit", "nap", "--content", "1")
    page = json.loads(cli("list", "--kind", "echo", "--limit", "2", "--json").out)
    assert [job["job_id"] for job in page["items"]] == [ids[2], ids[1]]
    rest = json.loads(cli("list", "--kind", "echo", "--cursor", page["next_cursor"], "--json").out)
    assert [job["job_id"] for job in rest["items"]] == [ids[0]]
    shown = cli("list", "--sender", "mail", "--since", "1h")
    assert len(shown.out.splitlines()) == 4
    nothing = cli("list", "--topic", "other")
    assert (nothing.out, nothing.err) == ("", "no jobs match\n")


def test_wait_and_follow_end_with_the_jobs_own_end(cli: Cli) -> None:
    good = cli("submit", "echo", "--content", "hello").out.strip()
    bad = cli("submit", "break", "--content", "it").out.strip()
    gone = cli("submit", "nap", "--content", "1").out.strip()
    cli("cancel", gone, "--reason", "not needed")
    work_off()
    assert [cli("wait", job_id).code for job_id in (good, bad, gone)] == [0, 1, 1]
    assert json.loads(cli("wait", good, "--json").out)["state"] == "succeeded"
    followed = cli("follow", bad)
    assert followed.code == 1
    assert [line.split()[1] for line in followed.out.splitlines()] == ["submitted", "claimed", "failed"]
    assert "no_luck: no luck with it" in followed.out
    lines = [json.loads(line) for line in cli("follow", good, "--json", "--after", "0").out.splitlines()]
    assert [line["event"] for line in lines] == ["claimed", "succeeded"]


def test_a_wait_that_is_over_first_is_exit_code_5(cli: Cli) -> None:
    job_id = cli("submit", "nap", "--content", "1").out.strip()
    ran = cli("wait", job_id, "--timeout", "0.05")
    assert ran.code == 5
    assert "still queued" in ran.err


def test_cancel_of_a_job_that_ended_is_refused(cli: Cli) -> None:
    job_id = cli("submit", "nap", "--content", "1").out.strip()
    assert cli("cancel", job_id).out == f"{job_id} is cancelled\n"
    again = cli("cancel", job_id)
    assert again.code == 2
    assert "is cancelled" in again.err


def test_a_result_that_is_not_there_is_exit_code_1(cli: Cli) -> None:
    job_id = cli("submit", "nap", "--content", "1").out.strip()
    ran = cli("result", job_id)
    assert (ran.code, ran.out) == (1, "")
    assert "has no result" in ran.err


def test_stats_and_workers_answer_as_the_service_does(cli: Cli) -> None:
    cli("submit", "echo", "--content", "hello")
    work_off()
    stats = json.loads(cli("stats", "--json").out)
    assert stats["states"]["succeeded"] == 1
    assert stats["failure_ratio"] == 0
    assert "succeeded  1" in re.sub(" +", "  ", cli("stats").out)
    assert json.loads(cli("workers", "--json").out) == {"items": [], "next_cursor": None}
    assert "no live workers" in cli("workers").err


def test_text_in_wide_letters_keeps_the_columns(cli: Cli) -> None:
    cli("submit", "echo", "--content", "a", "--sender", "邮件")
    cli("submit", "echo", "--content", "a", "--sender", "mail")
    rows = cli("list").out.splitlines()
    assert rows[1].index("mail") == rows[2].index("邮件")


def test_a_reader_that_goes_away_is_no_failure(cli: Cli, start: Start) -> None:
    for n in range(3):
        cli("submit", "echo", "--content", str(n))
    listing = start("list")
    assert listing.process.stdout is not None
    listing.until("JOB")
    assert listing.end() == 0
    reader, writer = os.pipe()
    os.close(reader)
    ran = subprocess.run(
        [sys.executable, "-m", "postroom", "list"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_wait_that_is_interrupted_ends_as_the_shell_expects(cli: Cli, start: Start) -> None:
    job_id = cli("submit", "nap", "--content", "1").out.strip()
    waiting = start("wait", job_id)
    waiting.until("queued")
    waiting.tell(signal.SIGINT)
    assert waiting.end() == 130
    assert f"the job goes on; wait again with: postroom wait {job_id}" in waiting.text
    assert "Traceback" not in waiting.text
