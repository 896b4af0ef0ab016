"""Help that helps: every command says what it does, shows an example, and names its exit codes."""

from __future__ import annotations

import re

import pytest
import typer.main

from postroom import errors
from postroom.cli.commands import app
from postroom.cli.failures import MEANINGS, exit_code
from postroom.errors import PostroomError
from tests.cli.conftest import Cli


def names() -> list[tuple[str, ...]]:
    root = typer.main.get_command(app)
    found: list[tuple[str, ...]] = []
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        found += [(name,)] if inner is None else [(name, each) for each in inner]
    return found


@pytest.mark.parametrize("words", names(), ids=" ".join)
def test_every_command_explains_itself(cli: Cli, words: tuple[str, ...]) -> None:
    ran = cli(*words, "--help")
    assert ran.code == 0
    assert re.search(rf"Usage: postroom {' '.join(words)}\b", ran.out)
    assert "Example" in ran.out
    assert f"postroom {' '.join(words)}" in ran.out.partition("Example")[2]
    codes = re.sub(r"\s+", " ", ran.out.partition("Exit codes: ")[2])
    assert re.findall(r"(?:^|, )(\d) ", codes)[:1] == ["0"]
    assert set(re.findall(r"(?:^|, )(\d) ", codes)) <= {str(code) for code in MEANINGS}


@pytest.mark.parametrize(
    "words", [w for w in names() if w not in {("serve",), ("worker",), ("models", "get")}], ids=" ".join
)
def test_every_reading_command_answers_in_json_too(cli: Cli, words: tuple[str, ...]) -> None:
    assert "--json" in cli(*words, "--help").out


def test_without_a_command_the_commands_are_listed(cli: Cli) -> None:
    ran = cli()
    assert ran.code == 2
    for words in names():
        assert f"  {words[0]} " in ran.out + ran.err
    assert cli("--version").out.startswith("postroom ")


def test_every_error_of_ours_has_an_exit_code() -> None:
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PostroomError)
    ]
    assert len(kinds) > 15
    codes = {kind.__name__: exit_code(kind.__new__(kind)) for kind in kinds}
    assert {name for name, code in codes.items() if code == 3} == {
        "StoreError",
        "StoreUnavailable",
        "StoreDamaged",
        "StoreFull",
        "StoreUnsuitable",
        "SchemaOutOfDate",
    }
    assert {name for name, code in codes.items() if code == 4} == {"JobNotFound", "JobPurged"}
    assert (codes["WaitTimedOut"], codes["ResultMissing"], codes["DraftInvalid"]) == (5, 1, 2)
