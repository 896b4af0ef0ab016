"""Dead letters on the command line."""

from __future__ import annotations

import json
import shlex

from tests.cli.conftest import Cli, work_off


def fail(cli: Cli, *contents: str) -> list[str]:
    ids = [cli("submit", "break", "--content", content).out.strip() for content in contents]
    work_off()
    return ids


def test_dead_groups_what_failed_alike_and_prints_how_to_replay_it(cli: Cli) -> None:
    ids = fail(cli, "mail 1", "mail 2", "the printer")
    shown = cli("dead")
    assert "2 jobs of kind break: no_luck: no luck with mail <n>" in shown.out
    assert "1 job of kind break: no_luck: no luck with the printer" in shown.out
    groups = json.loads(cli("dead", "--json").out)["groups"]
    assert [group["count"] for group in groups] == [2, 1]
    assert groups[0]["job_ids"] == ids[:2]
    command = next(line.strip() for line in shown.out.splitlines() if "mail" in line and "replay" in line)
    assert cli(*shlex.split(command)[1:]).out == "replayed 2 jobs\n"
    assert json.loads(cli("list", "--state", "queued", "--json").out)["items"].__len__() == 2


def test_without_dead_letters_it_says_so(cli: Cli) -> None:
    cli("submit", "echo", "--content", "a")
    assert (cli("dead").out, cli("dead").err) == ("", "no dead letters\n")
    assert cli("replay", "--kind", "echo").out == "no dead letters match\n"


def test_replay_by_id_takes_failed_and_cancelled_jobs(cli: Cli) -> None:
    [failed] = fail(cli, "it")
    cancelled = cli("submit", "nap", "--content", "1").out.strip()
    cli("cancel", cancelled)
    assert json.loads(cli("replay", failed, cancelled, "--json").out) == {"replayed": 2}
    assert json.loads(cli("get", failed, "--json").out)["replays"] == 1


def test_replay_of_an_unknown_id_replays_none(cli: Cli) -> None:
    [failed] = fail(cli, "it")
    assert cli("replay", failed, "0" * 32).code == 4
    assert json.loads(cli("get", failed, "--json").out)["state"] == "failed"


def test_a_paced_replay_is_carried_on_by_those_who_work(cli: Cli) -> None:
    fail(cli, "mail 1", "mail 2")
    ran = cli("replay", "--kind", "break", "--canary", "1")
    assert ran.code == 0
    assert "a running service or worker carries it on" in ran.out
    assert json.loads(cli("stats", "--json").out)["states"] == {
        "queued": 1,
        "running": 0,
        "succeeded": 0,
        "failed": 1,
        "cancelled": 0,
    }
