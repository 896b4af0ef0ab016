"""Where faults are tried: a store, worker processes over it, and the trace that their handlers leave."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from postroom import Inbox
from postroom.desk import Desk
from postroom.model import Checkpoint, Job, Line
from postroom.settings import load_settings
from postroom.stores.port import Store

ROOT = Path(__file__).resolve().parent.parent.parent

QUICK = {
    "LEASE_SECONDS": "1",
    "HEARTBEAT_SECONDS": "0.2",
    "POLL_SECONDS": "0.05",
    "RESCUE_SECONDS": "0.1",
    "BACKOFF_BASE_SECONDS": "0.1",
    "BACKOFF_CAP_SECONDS": "0.3",
    "DRAIN_SECONDS": "0.2",
}


@dataclass
class Faults:
    """How often which fault fired. A test under which none did shows nothing."""

    counts: Counter[str] = field(default_factory=Counter)

    def fired(self, name: str, times: int = 1) -> None:
        self.counts[name] += times

    def words(self) -> str:
        return ", ".join(f"{name}: {count}" for name, count in sorted(self.counts.items())) or "none"


@dataclass
class Ground:
    """One store file and all that happens to it. `close` ends every process that it started."""

    folder: Path
    faults: Faults
    environment: dict[str, str] = field(default_factory=dict)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.url = f"sqlite:///{self.folder}/jobs.db"
        self.trace_file = self.folder / "trace"
        self.trace_file.touch()
        self.log_file = self.folder / "log"
        values = {**QUICK, **self.environment}
        self.environment = {f"POSTROOM_{name}": value for name, value in values.items()}
        self.inbox = Inbox(self.url, settings=load_settings({"store": self.url}, environ=self.environment))

    @property
    def lease_seconds(self) -> float:
        return self.inbox.settings.lease_seconds

    async def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGCONT)
                process.kill()
            process.wait()
        await self.inbox.close()

    # ---- workers

    def start(self, **environment: str) -> subprocess.Popen[bytes]:
        """Start ``postroom worker`` over the handlers of `tests.faults.works`."""
        return self.run("postroom", "worker", "--app", "tests.faults.works:inbox", **environment)

    def start_without_guardian(self) -> subprocess.Popen[bytes]:
        """The same with this one protection switched off: for controls."""
        return self.run("tests.faults.unguarded")

    def run(self, module: str, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start a module as a process of its own."""
        told = {**self.environment, **{f"POSTROOM_{n}": v for n, v in environment.items()}}
        with open(self.log_file, "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=ROOT,
                env={**os.environ, **told, "POSTROOM_STORE": self.url, "FAULTS_TRACE": str(self.trace_file)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """``kill -9``."""
        assert process.poll() is None, f"it had ended before it could be killed; its log:\n{self.log()}"
        process.kill()
        process.wait()
        self.faults.fired("kill -9 of a worker")

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        """SIGSTOP; returns when it stands still."""
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        self.faults.fired("SIGSTOP of a worker")

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")[-4000:]

    # ---- looking

    def trace(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.trace_file.read_text().splitlines()]

    def starts(self, job_id: str | None = None) -> list[dict[str, Any]]:
        return [t for t in self.trace() if t["event"] == "start" and job_id in (None, t["job"])]

    def ends(self, job_id: str) -> list[dict[str, Any]]:
        return [t for t in self.trace() if t["event"] == "end" and t["job"] == job_id]

    async def store(self) -> Store:
        verbs = await self.inbox.verbs()
        assert isinstance(verbs, Desk)
        return verbs.store

    async def job(self, job_id: str) -> Job:
        return (await (await self.store()).get([job_id])).jobs[job_id]

    async def checkpoints(self, job_id: str) -> dict[str, Checkpoint]:
        return {c.key: c for c in await (await self.store()).checkpoints(job_id)}

    async def journal(self, job_id: str) -> list[Line]:
        return await (await self.store()).journal(job_id, limit=10_000)

    async def events(self, job_id: str) -> Counter[str]:
        return Counter(str(line.event) for line in await self.journal(job_id))

    async def until(self, condition: Callable[[], Any], what: str, *, seconds: float = 60.0) -> Any:
        """Wait until something is so that no event tells of: a trace, a foreign process. The condition may be async."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while True:
            found = condition()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return found
            if loop.time() > deadline:
                raise AssertionError(f"{what}: not so within {seconds:g} s; the log:\n{self.log()}")
            await asyncio.sleep(0.01)

    def descendants(self) -> Iterator[psutil.Process]:
        """All live processes of this ground's workers, and theirs."""
        mark = f"FAULTS_TRACE={self.trace_file}"
        for process in psutil.process_iter():
            try:
                if f"{process.environ().get('FAULTS_TRACE')}" == mark.partition("=")[2]:
                    yield process
            except psutil.Error:
                continue

    async def everything(self) -> dict[str, list[Any]]:
        """Every row of every table of the store but the list of workers, for comparing before and after."""
        import apsw

        connection = apsw.Connection(str(self.folder / "jobs.db"))
        try:
            found = {}
            tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
            for (name,) in list(tables):
                if "worker" not in name:
                    found[name] = sorted(connection.execute(f'SELECT * FROM "{name}"'), key=repr)
            return found
        finally:
            connection.close()
