"""Submissions with idempotency keys and repeats against a service that is killed again and again.

What must hold in the end (contract, section 1: "what is answered as accepted is committed"): every acknowledged job is
there, and there is one job per key, however often and through whatever break it was sent.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from tests.faults.ground import ROOT, Faults

CLIENTS = 16
READY_SECONDS = 60.0
ANSWER_SECONDS = 30.0


@dataclass
class Flooded:
    """A service on one store file, its callers, and what they were told.

    Attributes:
        url: where the service answers.
        told: by number of the job, the ids that were answered.
        has_keys: False switches the protection off, for controls.
        per_second: how many new submissions are made at most.
    """

    folder: Path
    port: int
    faults: Faults
    has_keys: bool = True
    per_second: float = float("inf")
    told: dict[int, set[str]] = field(default_factory=dict)
    sent: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def store(self) -> str:
        return f"sqlite:///{self.folder}/jobs.db"

    # ---- the service

    def start(self) -> None:
        """Start ``postroom serve`` without a worker; a process group of its own."""
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "postroom", "serve", "--no-worker", "--port", str(self.port)],
                cwd=ROOT,
                env={**os.environ, "POSTROOM_STORE": self.store},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """``kill -9`` in the middle of whatever it does."""
        assert self.process is not None
        log = (self.folder / "log").read_text(errors="replace")[-2000:]
        assert self.process.poll() is None, f"the service ended by itself:\n{log}"
        self.process.kill()
        self.process.wait()
        self.faults.fired("kill -9 of the service")

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    async def until_ready(self, client: httpx2.AsyncClient) -> None:
        async with asyncio.timeout(READY_SECONDS):
            while True:
                try:
                    if (await client.get("/health")).status_code == 200:
                        return
                except httpx2.TransportError:
                    await asyncio.sleep(0.05)  # it has not begun to listen

    # ---- the callers

    def client(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(base_url=self.url, timeout=ANSWER_SECONDS, trust_env=False)

    async def submit(self, client: httpx2.AsyncClient, number: int) -> None:
        """Send one job until it is acknowledged; note the id that was answered."""
        headers = {"Idempotency-Key": f"key-{number}"} if self.has_keys else {}
        body = {"kind": "note", "content": number, "topic": "flood"}
        while True:
            try:
                answer = await client.post("/jobs", json=body, headers=headers)
            except (httpx2.ConnectError, httpx2.ConnectTimeout):
                await asyncio.sleep(0.05)  # it is down
                continue
            except httpx2.TransportError:
                self.faults.fired("answer lost in a kill")
                continue
            assert answer.status_code == 202, answer.text
            self.told.setdefault(number, set()).add(answer.json()["job_id"])
            return

    async def caller(self, is_over: asyncio.Event, draw: random.Random) -> None:
        """New jobs, and now and then one again that was acknowledged before."""
        async with self.client() as client:
            while not is_over.is_set():
                if self.has_keys and self.told and draw.random() < 0.2:
                    await self.submit(client, draw.choice(list(self.told)))
                    self.faults.fired("repeat of an acknowledged job")
                    continue
                number, self.sent = self.sent, self.sent + 1
                await self.submit(client, number)
                if self.per_second != float("inf"):
                    await asyncio.sleep(CLIENTS / self.per_second)  # the load that is asked for

    async def run(self, kills: int, jobs_between: int, *, seconds_between: float = 0.0) -> None:
        """Flood the service, and kill it so often: each time after so many more jobs (and seconds)."""
        self.start()
        is_over = asyncio.Event()
        async with self.client() as client:
            await self.until_ready(client)
            callers = [asyncio.create_task(self.caller(is_over, random.Random(i))) for i in range(CLIENTS)]
            try:
                for _ in range(kills):
                    await asyncio.sleep(seconds_between)
                    await self._until_told(len(self.told) + jobs_between, callers)
                    self.kill()
                    self.start()
                    await self.until_ready(client)
                await self._until_told(len(self.told) + jobs_between, callers)
            finally:
                is_over.set()
                ended = await asyncio.gather(*callers, return_exceptions=True)
            for error in ended:
                if isinstance(error, BaseException):
                    raise error

    async def _until_told(self, count: int, callers: list[asyncio.Task[None]]) -> None:
        async with asyncio.timeout(READY_SECONDS):
            while len(self.told) < count:
                assert not any(caller.done() for caller in callers), [c for c in callers if c.done()]
                await asyncio.sleep(0.01)  # a kill must not wait for a quiet moment

    # ---- what is there in the end

    async def found(self) -> dict[int, list[str]]:
        """By number, the ids of the jobs that the store has, asked of the service."""
        numbers: dict[int, list[str]] = {}
        async with self.client() as client:
            await self.until_ready(client)
            cursor: str | None = None
            while True:
                params: dict[str, Any] = {"limit": 500} | ({"cursor": cursor} if cursor else {})
                page = (await client.get("/inbox/tasks", params=params)).json()
                for task in page["items"]:
                    numbers.setdefault(task["content"], []).append(task["id"])
                cursor = page["next_cursor"]
                if cursor is None:
                    return numbers


def check(told: Mapping[int, set[str]], found: Mapping[int, list[str]], faults: Faults) -> None:
    """Acknowledged = present, one job per key; prints the counts."""
    lost = {n: ids for n, ids in told.items() if not ids <= set(found.get(n, []))}
    doubled = {n: ids for n, ids in found.items() if len(ids) > 1}
    changed = {n: ids for n, ids in told.items() if len(ids) > 1}
    faults.fired("jobs acknowledged", len(told))
    assert not lost, f"acknowledged and not there: {lost}"
    assert not doubled, f"more than one job for a key: {doubled}"
    assert not changed, f"more than one id for a key: {changed}"
    assert found.keys() == told.keys(), f"nobody was told of {found.keys() - told.keys()}"
