"""Commands as a user runs them: in this process where only their answer matters, as processes where signals do."""

from __future__ import annotations

import asyncio
import io
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from postroom import Inbox
from postroom.cli.commands import app
from postroom.cli.failures import guarded

HANDLERS = """
import asyncio
import os
import signal

from postroom import Inbox, PermanentError

inbox = Inbox()


@inbox.handler("echo")
async def echo(item, run):
    return item


@inbox.handler("nap")
async def nap(item, run):
    run.emit("napping")
    await asyncio.sleep(float(item))
    return "slept"


@inbox.handler("break", max_attempts=1)
async def broken(item, run):
    raise PermanentError(f"no luck with {item}", code="no_luck")


@inbox.handler("die")
async def die(item, run):
    os.kill(os.getpid(), signal.SIGKILL)
"""
"""The module ``handlers`` in the folder that a test runs in."""

DEADLINE_SECONDS = 30.0


@dataclass(frozen=True)
class Ran:
    """What a command came to."""

    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory of every test: empty but for the handlers, and no setting of this machine's user."""
    for name in [name for name in os.environ if name.startswith("POSTROOM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(
        "POSTROOM_MODEL_URL", "http://127.0.0.1:9"
    )  # nothing answers there, and nothing is fetched
    monkeypatch.chdir(tmp_path)
    (tmp_path / "handlers.py").write_text(HANDLERS, encoding="utf-8")
    path = list(sys.path)
    yield tmp_path
    sys.path[:] = path
    sys.modules.pop("handlers", None)


Cli = Callable[..., Ran]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Runs a command in this process; ``stdin`` is what is piped into it."""

    def run(*words: str, stdin: str | None = None) -> Ran:
        piped = io.TextIOWrapper(io.BytesIO((stdin or "").encode()), encoding="utf-8")
        monkeypatch.setattr(sys, "stdin", piped)
        code = guarded(lambda: app(args=list(words), prog_name="postroom"))
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


def work_off(store: str = "sqlite:///postroom.db", *, until: str | None = None) -> None:
    """Run jobs of the handlers' kinds in a worker of its own, until that job has ended or none is left."""
    namespace: dict[str, Any] = {}
    exec(HANDLERS, namespace)
    inbox: Inbox = namespace["inbox"]
    inbox.url = store

    async def work() -> None:
        async with inbox, inbox.worker():
            left = [job.job_id for job in (await inbox.find(state=["queued", "running"])).jobs]
            for job_id in left if until is None else [until]:
                await inbox.wait(job_id, timeout_seconds=DEADLINE_SECONDS)

    asyncio.run(work())


class Started:
    """A command that goes on: its lines are read as they come."""

    def __init__(self, words: tuple[str, ...], **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "postroom", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
            process_group=0,
        )
        self.lines: list[str] = []
        self._news: queue.Queue[str | None] = queue.Queue()
        self._readers = [
            threading.Thread(target=self._read, args=(stream,))
            for stream in (self.process.stdout, self.process.stderr)
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: Any) -> None:
        for line in stream:
            self._news.put(line.rstrip("\n"))
        self._news.put(None)

    def until(self, text: str, count: int = 1) -> str:
        """Read on until a line has the text, for the count-th time from here."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        ended = 0
        while ended < 2:
            try:
                line = self._news.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if line is None:
                ended += 1
                continue
            self.lines.append(line)
            if text in line:
                count -= 1
                if not count:
                    return line
        raise AssertionError(f"no line with {text!r} came; there were:\n" + "\n".join(self.lines))

    def tell(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Wait for the end; the exit code. All its lines are in `lines` then."""
        code = self.process.wait(DEADLINE_SECONDS)
        for reader in self._readers:
            reader.join()
        while not self._news.empty():
            line = self._news.get()
            if line is not None:
                self.lines.append(line)
        return code

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.end()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


Start = Callable[..., Started]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a command as a process; whatever of it is left at the end of the test is killed."""
    started: list[Started] = []

    def begin(*words: str, **environment: str) -> Started:
        started.append(Started(words, **environment))
        return started[-1]

    yield begin
    for each in started:
        each.kill()
