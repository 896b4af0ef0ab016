"""A claim that waits: it hears of work at once, and what nobody will ever hear of is given back uncharged."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator

import httpx2
import pytest

from postroom.api.routes import leases as lease_routes
from tests.api.conftest import Caller
from tests.api.live import LiveService


@pytest.fixture
async def remote(live: LiveService) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=live.url, timeout=20, trust_env=False) as client:
        yield client


@pytest.fixture
def caller(remote: httpx2.AsyncClient) -> Caller:
    return Caller(remote)


async def test_a_waiting_claim_hears_of_work_at_once(live, caller):
    waiting = asyncio.create_task(caller.claim(wait_seconds=20))
    await watched(live, 1)
    job_id = await caller.submit()
    assert [lease["job_id"] for lease in await waiting] == [job_id]


async def test_a_waiting_claim_takes_a_delayed_job_when_it_is_due(caller):
    from datetime import UTC, datetime, timedelta

    run_at = datetime.now(UTC) + timedelta(seconds=0.3)
    await caller.submit(run_at=run_at.isoformat())
    assert await caller.claim() == []
    [lease] = await caller.claim(wait_seconds=20)
    assert lease["started_at"] >= run_at.isoformat().replace("+00:00", "Z")


async def test_a_claim_that_waited_in_vain_is_empty(caller):
    assert await caller.claim(wait_seconds=0.1) == []


async def watched(live: LiveService, count: int) -> None:
    """Until so many hold an answer back."""
    hub = (await live.inbox.verbs()).store._hub
    async with asyncio.timeout(10):
        while sum(map(len, hub._watches.values())) != count:
            await asyncio.sleep(0.005)  # nothing tells when a request has begun to wait


async def claim_and_go(live: LiveService) -> None:
    """Ask for work with a long wait, and be gone while waiting."""
    _, writer = await asyncio.open_connection("127.0.0.1", live.port)
    body = json.dumps({"worker": "gone", "kinds": ["note"], "wait_seconds": 30}).encode()
    head = (
        f"POST /leases/claim HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    await writer.drain()
    await watched(live, 1)
    writer.close()
    await writer.wait_closed()


async def test_a_claimer_that_went_away_stops_waiting(live, caller):
    await claim_and_go(live)
    await watched(live, 0)
    job_id = await caller.submit()
    job = await caller.job(job_id)
    assert (job["state"], job["epoch"]) == ("queued", 0)


async def test_what_is_claimed_for_one_who_is_gone_is_given_back(live, monkeypatch):
    job = await claimed_in_vain(live, monkeypatch)
    assert (job["state"], job["attempts"], job["interruptions"], job["crashes"]) == ("queued", 0, 1, 0)
    assert job["epoch"] == 1


async def test_without_giving_back_it_waits_for_the_lease_to_end(live, monkeypatch):
    """The control: it is the giving back that saves the job."""

    async def nothing(*args: object) -> None:
        return

    monkeypatch.setattr(lease_routes, "give_back", nothing)
    job = await claimed_in_vain(live, monkeypatch)
    assert (job["state"], job["worker"]) == ("running", "gone")


async def claimed_in_vain(live: LiveService, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Let a claim take a job while its claimer goes away; the job after the claim was dealt with."""
    verbs = await live.inbox.verbs()
    claim = verbs.claim
    claiming, gone, dealt_with = asyncio.Event(), asyncio.Event(), asyncio.Event()
    here = asyncio.get_running_loop()

    async def slow(*args: object, **options: object) -> object:
        here.call_soon_threadsafe(claiming.set)
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(gone.wait(), here))
        answer = await claim(*args, **options)
        asyncio.get_running_loop().call_later(0.1, here.call_soon_threadsafe, dealt_with.set)
        return answer

    monkeypatch.setattr(verbs, "claim", slow)
    async with httpx2.AsyncClient(base_url=live.url, trust_env=False) as client:
        caller = Caller(client)
        job_id = await caller.submit()
        asking = asyncio.create_task(client.post("/leases/claim", json={"worker": "gone", "kinds": ["note"]}))
        await claiming.wait()
        asking.cancel()
        await asyncio.wait({asking})
        await no_claimer(live)
        gone.set()
        await dealt_with.wait()
        return await caller.job(job_id)


async def no_claimer(live: LiveService) -> None:
    """Until the service has seen that the connection of the claim is gone."""
    async with asyncio.timeout(10):
        while any(
            not connection.cycle.response_complete
            for connection in list(live.server.server_state.connections)
        ):
            await asyncio.sleep(0.005)  # nothing tells when the other side has noticed


async def test_many_can_wait_at_once_and_each_job_is_given_once(caller):
    claims = [asyncio.create_task(caller.claim(wait_seconds=20)) for _ in range(20)]
    started = time.monotonic()
    for index in range(20):
        await caller.submit(content=index)
    leases = [lease for given in await asyncio.gather(*claims) for lease in given]
    assert len({lease["job_id"] for lease in leases}) == 20
    assert time.monotonic() - started < 20
