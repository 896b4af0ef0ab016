"""HEAD gives the head of what GET gives, at every address."""

from __future__ import annotations

import httpx2
import pytest

ADDRESSES = [
    "/health",
    "/stats",
    "/jobs",
    "/jobs/{id}",
    "/jobs/{id}/journal",
    "/jobs/{id}/items",
    "/docs",
    "/inbox/tasks",
]


@pytest.mark.parametrize("address", [*ADDRESSES, "/jobs/" + "0" * 32, "/jobs?colour=red", "/nowhere"])
async def test_the_head_is_the_same_and_there_is_no_body(client, caller, address):
    address = address.format(id=await caller.submit())
    got, head = await client.get(address), await client.head(address)
    assert (head.status_code, head.content) == (got.status_code, b"")
    assert head.headers["content-type"] == got.headers["content-type"]


@pytest.mark.parametrize("address", ["/leases/claim", "/leases/settle"])
async def test_where_nothing_can_be_got_there_is_no_head(client, address):
    assert (await client.head(address)).status_code == 405


async def test_the_guard_looks_at_heads_too(client):
    assert (await client.head("/jobs", headers={"Host": "evil.example"})).status_code == 421


async def test_a_stream_is_over_with_its_head_and_the_connection_goes_on(live):
    async with httpx2.AsyncClient(base_url=live.url, timeout=10) as client:
        made = await client.post("/jobs", json={"kind": "later", "content": "x"})
        job_id = made.json()["job_id"]
        for _ in range(2):
            head = await client.head(f"/jobs/{job_id}/events")
            assert (head.status_code, head.content) == (200, b"")
            assert head.headers["content-type"].startswith("text/event-stream")
        assert (await client.get(f"/jobs/{job_id}")).status_code == 200
