"""run.py, the script that a newcomer meets first: what it understands, what it trusts, what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import run

ROOT = Path(run.__file__).parent


# ---------------------------------------------------------------- what is asked


@pytest.mark.parametrize(
    ("words", "action", "arguments"),
    [
        ([], "postroom", ("serve",)),
        (["--port", "9000"], "postroom", ("serve", "--port", "9000")),
        (["serve", "--port", "9000"], "postroom", ("serve", "--port", "9000")),
        (["submit", "classify", "--help"], "postroom", ("submit", "classify", "--help")),
        (["--version"], "postroom", ("--version",)),
        (["help"], "postroom", ("--help",)),
        (["help", "submit"], "postroom", ("submit", "--help")),
        (["--help"], "usage", ()),
        (["test", "-k", "lease"], "test", ("-k", "lease")),
        (["check"], "check", ()),
        (["campaign", "-s"], "campaign", ("-s",)),
        (["bench", "--quick"], "bench", ("--quick",)),
    ],
)
def test_words_that_are_not_ours_belong_to_the_command(words, action, arguments):
    assert run.understand(words) == run.Plan(action, arguments)


def test_the_service_installs_no_tools_for_developers():
    assert "dev" not in run.understand([]).extras
    assert "dev" in run.understand(["test"]).extras


# ---------------------------------------------------------------- what is locked


def test_a_locked_version_becomes_a_constraint_and_we_ourselves_none():
    registry = {"registry": "https://pypi.org/simple"}
    lock = {
        "package": [
            {"name": "postroom", "version": "0.1.0", "source": {"editable": "."}},
            {"name": "b", "version": "2", "source": registry},
            {"name": "a", "version": "1.5", "source": registry},
        ]
    }
    assert run.constraints_from_lock(lock) == ["a==1.5", "b==2"]


def test_a_package_locked_twice_keeps_the_marker_of_each_version():
    lock = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
    names = [package["name"] for package in lock["package"]]
    twice = {name for name in names if names.count(name) > 1}
    lines = [Requirement(line) for line in run.constraints_from_lock(lock)]
    assert {line.name for line in lines} == set(names) - {"postroom"}
    for name in twice:
        holding = [line for line in lines if line.name == name and line.marker and line.marker.evaluate()]
        assert len(holding) == 1, f"exactly one version of {name} must hold for this Python"


def test_only_what_is_installed_changes_the_digest():
    project = {"project": {"name": "x"}, "tool": {"ruff": {"line-length": 100}}}
    other_linter = {"project": {"name": "x"}, "tool": {"ruff": {"line-length": 110}}}
    other_package = {"project": {"name": "x", "dependencies": ["y"]}}
    assert run.digest_of(project, "lock") == run.digest_of(other_linter, "lock")
    assert run.digest_of(project, "lock") != run.digest_of(other_package, "lock")
    assert run.digest_of(project, "lock") != run.digest_of(project, "another lock")


# ---------------------------------------------------------------- what is trusted


@pytest.fixture
def environment(tmp_path: Path) -> run.Environment:
    """An environment that looks complete; its Python is a link to ours."""
    environment = run.Environment(tmp_path)
    environment.bin.mkdir(parents=True)
    environment.python.symlink_to(sys.executable)
    return environment


def stamp(environment: run.Environment, **changes: object) -> None:
    told = {"root": str(environment.root), "digest": "d", "extras": ["dev", "local"], "made_here": True}
    environment.stamp_file.write_text(json.dumps({**told, **changes}), encoding="utf-8")


def test_a_stamped_environment_is_ready_for_fewer_extras_too(environment):
    stamp(environment)
    assert environment.is_ready("d", ["local"])
    assert environment.is_ready("d", ["local", "dev"])


@pytest.mark.parametrize(
    "changes", [{"digest": "other"}, {"root": "/elsewhere"}, {"extras": ["local"]}, {"extras": None}]
)
def test_an_environment_that_holds_something_else_is_not_ready(environment, changes):
    stamp(environment, **changes)
    assert not environment.is_ready("d", ["local", "dev"])


@pytest.mark.parametrize("content", ["", "{", "[]", '{"root": 1}'])
def test_a_torn_stamp_is_no_stamp(environment, content):
    environment.stamp_file.write_text(content, encoding="utf-8")
    assert environment.stamp() is None
    assert not environment.is_ready("d", [])


def test_an_environment_whose_python_was_removed_is_not_ready(environment):
    stamp(environment)
    environment.python.unlink()
    environment.python.symlink_to(environment.root / "removed-python")
    assert not environment.is_ready("d", [])
    assert environment.is_ours_to_delete()


def test_an_interrupted_set_up_of_ours_is_made_anew(environment):
    environment.unfinished_file.write_text("made", encoding="utf-8")
    assert not environment.is_ready("d", [])
    environment.clear_if_untrusted()
    assert not environment.folder.exists()
    assert list(environment.root.glob(".venv*")) == []


def test_an_environment_that_we_did_not_make_is_never_deleted(environment):
    (environment.folder / "somebodys-work").touch()
    environment.make()
    assert environment.unfinished_file.read_text(encoding="utf-8") == "found"
    environment.clear_if_untrusted()
    environment.finish("d", ["local"])
    assert environment.is_ready("d", ["local"])
    stamp_of_found = environment.stamp()
    assert stamp_of_found is not None
    assert not stamp_of_found.made_here
    stamp(environment, made_here=False, root="/elsewhere")
    environment.clear_if_untrusted()
    assert (environment.folder / "somebodys-work").exists()


def test_a_folder_without_python_that_is_not_ours_is_refused_with_a_sentence(tmp_path):
    environment = run.Environment(tmp_path)
    environment.folder.mkdir()
    (environment.folder / "somebodys-work").touch()
    with pytest.raises(run.Failed, match="did not make it: remove it"):
        environment.make()


def test_a_finished_set_up_is_ready_and_a_broken_off_one_is_not(environment):
    environment.unfinished_file.write_text("made", encoding="utf-8")
    environment.finish("d", ["local", "dev"])
    assert environment.is_ready("d", ["dev"])
    environment.make()  # the next install begins: until it ends, nothing is trusted
    assert not environment.is_ready("d", ["dev"])


# ---------------------------------------------------------------- what it says


def test_a_step_that_failed_shows_its_last_lines():
    with pytest.raises(run.Failed, match=r"(?s)the reason.*it went wrong"):
        run.run_quietly([sys.executable, "-c", "print('the reason'); raise SystemExit(3)"], "it went wrong")


def test_a_missing_network_is_told_from_other_troubles():
    said = "print('ERROR: Could not find a version that satisfies hatchling (from versions: none)'); exit(1)"
    with pytest.raises(run.NetworkMissing, match="no package index could be reached"):
        run.run_quietly([sys.executable, "-c", said], "the install failed")


def test_a_python_without_venv_is_told_which_package_to_install(monkeypatch):
    monkeypatch.setattr(run.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(run.Failed, match="apt-get install python3-venv"):
        run.need_venv()


def test_a_name_on_the_path_that_does_not_start_is_no_newer_python(tmp_path, monkeypatch):
    for name, code in (("python3.14", 127), ("python3.13", 0)):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {code}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run.newer_python() == str(tmp_path / "python3.13")


def test_no_newer_python_is_no_answer(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run.newer_python() is None


def test_every_failed_step_is_named_and_none_stops_the_others(capfd):
    def script(text: str) -> list[str]:
        return [sys.executable, "-c", text]

    steps = [("one", script("exit(1)")), ("two", script("print('ran')")), ("three", script("exit(2)"))]
    assert run.run_steps(steps) == ["one", "three"]
    assert "ran" in capfd.readouterr().out


def test_help_needs_no_environment(tmp_path):
    copy = tmp_path / "run.py"
    copy.write_bytes((ROOT / "run.py").read_bytes())
    answer = subprocess.run(
        [sys.executable, copy, "--help"], capture_output=True, text=True, check=True, cwd="/"
    )
    assert "python3 run.py test" in answer.stdout
    assert not (tmp_path / ".venv").exists()


def test_a_ready_environment_becomes_the_command_where_one_stands(tmp_path, environment):
    """From another folder, with the words passed on, the exit code the command's own, and no install."""
    for name in ("run.py", "pyproject.toml", "uv.lock"):
        (environment.root / name).write_bytes((ROOT / name).read_bytes())
    stamp(environment, digest=run.digest_of(*run.read_project(ROOT)))
    command = environment.bin / "postroom"
    command.write_text('#!/bin/sh\necho "$PWD" "$@"\nexit 5\n', encoding="utf-8")
    command.chmod(0o755)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    words = [sys.executable, environment.root / "run.py", "wait", "some id"]
    answer = subprocess.run(words, capture_output=True, text=True, cwd=elsewhere, check=False)
    assert (answer.stdout, answer.returncode) == (f"{os.path.realpath(elsewhere)} wait some id\n", 5)
    assert answer.stderr == ""
