"""migrate, verify, prune, doctor, models."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from postroom.assistant import fetch
from postroom.stores.sqlite.connections import as_ours
from tests.cli.conftest import Cli, work_off


def test_migrate_makes_a_store_and_finds_nothing_to_do_the_second_time(cli: Cli, folder: Path) -> None:
    first = json.loads(cli("migrate", "--json").out)
    assert first["store"] == f"sqlite:///{folder}/postroom.db"
    assert first["steps"]
    assert (folder / "postroom.db").exists()
    again = cli("migrate")
    assert (again.code, again.out) == (0, f"sqlite:///{folder}/postroom.db is up to date\n")


def test_verify_finds_nothing_and_then_the_row_that_was_edited(cli: Cli) -> None:
    job_id = cli("submit", "echo", "--content", "hello").out.strip()
    work_off()
    sound = cli("verify")
    assert (sound.code, sound.out) == (0, "1 job verified, nothing found\n")
    connection = apsw.Connection("postroom.db")
    connection.execute("UPDATE jobs SET attempts = 2")
    connection.close()
    found = cli("verify")
    assert found.code == 1
    assert f"job {job_id}: attempts: is 2, the journal makes it 1" in found.out
    report = json.loads(cli("verify", "--json").out)
    assert (report["jobs"], report["count"]) == (1, len(report["findings"]))
    assert report["findings"][0]["job_id"] == job_id


def broken_head(path: Path) -> None:
    path.write_bytes(b"nonsense" * 512 + path.read_bytes()[4096:])


def broken_middle(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xa5" * (len(data) - 4096)
    path.write_bytes(data)


def dropped_table(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA foreign_keys = OFF; DROP TABLE payloads")
    connection.close()


@pytest.mark.parametrize("damage", [broken_head, broken_middle, dropped_table])
def test_verify_tells_of_a_damaged_file_as_of_any_finding(
    cli: Cli, folder: Path, damage: Callable[[Path], None]
) -> None:
    cli("submit", "echo", "--content", "hello")
    damage(folder / "postroom.db")
    ran = cli("verify")
    assert ran.code == 1
    assert "store: " in ran.out
    assert "run postroom verify" not in ran.out + ran.err
    report = json.loads(cli("verify", "--json").out)
    assert report["count"] == len(report["findings"]) >= 1
    assert report["findings"][-1]["job_id"] is None


def test_a_store_that_may_not_be_written_says_what_to_do(tmp_path: Path) -> None:
    error = as_ours(apsw.ReadOnlyError("attempt to write a readonly database"), tmp_path / "postroom.db")
    assert "Give this user the right to write" in str(error)
    assert "Try again" not in str(error)


@pytest.mark.parametrize(
    "url", ["foo", "localhost:8080", "ftp://host/v1", "http://", "http://h:x/v1", "http://[::1"]
)
def test_doctor_tells_a_model_url_that_is_no_address(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("POSTROOM_MODEL_URL", url)
    checks = {check["name"]: check for check in json.loads(cli("doctor", "--json").out)["checks"]}
    assert checks["model"]["status"] == "bad"
    assert "is no address" in checks["model"]["text"]


def test_doctor_shows_no_login_of_the_model(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROOM_MODEL_URL", "https://ann:hunter2@example.org/v1")
    assert "hunter2" not in cli("doctor").out


def test_prune_removes_what_ended_long_enough_ago(cli: Cli) -> None:
    job_id = cli("submit", "echo", "--content", "hello").out.strip()
    waiting = cli("submit", "echo", "--content", "hello", "--run-at", "1h").out.strip()
    work_off(until=job_id)
    assert cli("prune").out == "removed 0 jobs\n"
    assert json.loads(cli("prune", "--succeeded-days", "0", "--json").out) == {"removed": 1}
    gone = cli("get", job_id)
    assert gone.code == 4
    assert "retention removed it" in gone.err
    assert cli("get", waiting).code == 0


# ---- doctor


def checks(cli: Cli, *words: str) -> dict[str, dict[str, str]]:
    return {check["name"]: check for check in json.loads(cli("doctor", *words, "--json").out)["checks"]}


def test_doctor_makes_no_store_and_looks_at_one_that_is_there(cli: Cli, folder: Path) -> None:
    assert "not made yet" in checks(cli)["store"]["text"]
    assert not list(folder.glob("postroom.db*"))
    cli("submit", "echo", "--content", "a")
    found = checks(cli)
    assert found["store"]["status"] == "ok"
    assert "power cut" in found["durability"]["text"]
    assert found["jobs"]["text"] == "1 queued"
    assert found["workers"] == {"name": "workers", "status": "warning", "text": "none live, and jobs wait"}
    assert found["sqlite"]["text"].startswith("3.")
    assert "GiB free" in found["disk"]["text"]


def test_doctor_prints_every_setting_with_its_source_and_masks_secrets(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROOM_KEY", "very-secret")
    monkeypatch.setenv("POSTROOM_POLL_SECOND", "1")
    (folder / "postroom.toml").write_text("max_attempts = 5\n", encoding="utf-8")
    ran = cli("doctor", "--store", "sqlite:///other.db")
    assert ran.code == 0
    assert "very-secret" not in ran.out
    rows = {line.split()[0]: line.split()[1:] for line in ran.out.splitlines() if line and line[0].islower()}
    assert rows["store"] == ["sqlite:///other.db", "flag"]
    assert rows["max_attempts"] == ["5", "postroom.toml"]
    assert rows["key"] == ["••••••", "environment"]
    assert rows["lease_seconds"] == ["60.0", "default"]
    assert "did you mean POSTROOM_POLL_SECONDS?" in ran.out


def test_doctor_ends_with_3_where_the_store_cannot_be_used(cli: Cli) -> None:
    ran = cli("doctor", "--store", "sqlite:////nowhere/at/all.db")
    assert ran.code == 0  # it is not made yet; the folder is what is wrong
    assert "/nowhere/at does not exist" in ran.out
    assert cli("doctor", "--store", "http://127.0.0.1:9").code == 3


def test_doctor_looks_at_the_app(cli: Cli) -> None:
    assert (
        checks(cli, "--app", "handlers:inbox")["app"]["text"] == "handlers:inbox: kinds break, die, echo, nap"
    )
    assert "there is no module" in checks(cli, "--app", "handler:inbox")["app"]["text"]


# ---- models


def test_models_says_what_is_here_and_what_to_do(cli: Cli, folder: Path) -> None:
    status = json.loads(cli("models", "status", "--model-dir", str(folder), "--json").out)
    assert status["model"] is False
    assert status["path"] == str(folder / fetch.MODEL_FILE)
    shown = cli("models", "status", "--model-dir", str(folder)).out
    assert "missing" in shown


def test_models_get_leaves_a_model_that_is_here(cli: Cli, folder: Path) -> None:
    with (folder / fetch.MODEL_FILE).open("wb") as file:
        file.truncate(fetch.MODEL_BYTES)
    ran = cli("models", "get", "--model-dir", str(folder))
    assert (ran.code, ran.out) == (0, f"the model is here: {folder / fetch.MODEL_FILE}\n")


def test_models_get_says_why_it_failed(cli: Cli, folder: Path) -> None:
    (folder / "taken").write_text("a file where the folder should be", encoding="utf-8")
    ran = cli("models", "get", "--model-dir", str(folder / "taken"))
    assert ran.code == 1
    assert "cannot write the model" in ran.err
