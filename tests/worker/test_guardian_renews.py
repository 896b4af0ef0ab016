"""The guardian renews for a worker that lives and says nothing. Here that worker is this process, which never pings."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from postroom import Inbox, State
from postroom.desk import Desk
from postroom.model import Job, Lease
from postroom.settings import Settings
from postroom.stores.port import ClaimRequest
from postroom.worker.guardian import Guardian
from tests.worker.bench import until

QUICK = Settings(lease_seconds=1.0, heartbeat_seconds=0.2)


class Held:
    """A store file, a job claimed from it, and a guardian that was told of the lease."""

    def __init__(self, inbox: Inbox, lease: Lease, guardian: Guardian) -> None:
        self.inbox = inbox
        self.lease = lease
        self.guardian = guardian

    async def job(self) -> Job:
        verbs = await self.inbox.verbs()
        assert isinstance(verbs, Desk)
        return (await verbs.store.get([self.lease.job.job_id])).jobs[self.lease.job.job_id]

    async def is_renewed(self, *, after: float) -> bool:
        """Whether the lease reaches so many seconds beyond what the claim gave."""
        first = self.lease.job.lease_expires_at
        deadline = asyncio.get_running_loop().time() + after + 2 * QUICK.lease_seconds
        while asyncio.get_running_loop().time() < deadline:
            job = await self.job()
            assert job.lease_expires_at is not None
            assert first is not None
            if job.lease_expires_at > first + after:
                return True
            await asyncio.sleep(0.02)  # the store tells nobody of a bare heartbeat
        return False


@pytest.fixture
def guardian(short_path: Path) -> Iterator[Guardian]:
    guardian = Guardian(f"sqlite:///{short_path}/jobs.db", QUICK)
    yield guardian
    guardian.stop()


@pytest.fixture
async def held(guardian: Guardian) -> AsyncIterator[Held]:
    assert guardian.url is not None
    async with Inbox(guardian.url, settings=replace(QUICK, store=guardian.url)) as inbox:
        verbs = await inbox.verbs()
        guardian.start()
        await inbox.submit("mine", "x")
        (lease,) = (await verbs.claim(ClaimRequest("w1", ("mine",), lease_seconds=1.0))).leases
        guardian.hold([lease])
        yield Held(inbox, lease, guardian)


async def test_a_lease_is_renewed_while_its_worker_is_silent(held: Held) -> None:
    assert await held.is_renewed(after=1.5)
    job = await held.job()
    assert (job.state, job.epoch) == (State.RUNNING, 1)


async def test_a_lease_that_was_let_go_is_not(held: Held) -> None:
    held.guardian.let_go(held.lease.job.job_id, held.lease.job.epoch)
    assert not await held.is_renewed(after=1.0)


async def test_no_lease_is_renewed_past_the_runs_time_limit(guardian: Guardian) -> None:
    assert guardian.url is not None
    async with Inbox(guardian.url, settings=replace(QUICK, store=guardian.url)) as inbox:
        verbs = await inbox.verbs()
        guardian.start()
        await inbox.submit("mine", "x", timeout_seconds=1.5)
        (lease,) = (await verbs.claim(ClaimRequest("w1", ("mine",), lease_seconds=1.0))).leases
        guardian.hold([lease])
        held = Held(inbox, lease, guardian)
        assert await held.is_renewed(after=0.3)
        assert not await held.is_renewed(after=0.6)


async def test_a_guardian_that_was_killed_is_started_again_and_knows_what_is_held(held: Held) -> None:
    first = held.guardian.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)

    def is_back() -> bool:
        held.guardian.ping()
        return held.guardian.pid not in (None, first)

    await until(is_back)
    assert await held.is_renewed(after=1.5)


async def test_the_process_that_renews_ends_with_its_guardian(held: Held) -> None:
    assert await held.is_renewed(after=0.5)
    guardian = psutil.Process(held.guardian.pid)
    (renewer,) = guardian.children()
    guardian.kill()
    await until(lambda: not renewer.is_running() or renewer.status() == psutil.STATUS_ZOMBIE)


async def test_a_guardian_that_cannot_be_started_harms_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sys.executable", "/no/such/interpreter")
    guardian = Guardian("memory://", QUICK)
    guardian.start()
    guardian.ping()
    guardian.watch_group(os.getpgid(0))
    guardian.forget_group(os.getpgid(0))
    guardian.stop()
    assert "could not be started" in caplog.text


async def test_a_guardian_that_hangs_holds_nobody_up(held: Held) -> None:
    """Nothing is sent to it, so nothing can fill up."""
    assert held.guardian.pid is not None
    os.kill(held.guardian.pid, signal.SIGSTOP)
    for epoch in range(10_000):
        held.guardian.ping()
        held.guardian.hold([replace(held.lease, job=replace(held.lease.job, epoch=epoch))])
        held.guardian.let_go(held.lease.job.job_id, epoch)
    held.guardian.stop()
