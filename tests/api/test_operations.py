"""What operators and their tools read."""

from __future__ import annotations

import re

import pytest

from postroom.errors import StoreFull, StoreUnavailable
from tests.api.conftest import held


async def test_stats_count_states_and_the_last_hour(client, caller, clock):
    for _ in range(3):
        lease = await caller.start()
        clock.advance(2)
        await caller.succeed(lease)
    await caller.fail(await caller.start())
    await caller.submit()
    clock.advance(5)
    stats = (await client.get("/stats")).json()
    assert stats["states"] == {"queued": 1, "running": 0, "succeeded": 3, "failed": 1, "cancelled": 0}
    assert (stats["succeeded_last_hour"], stats["failed_last_hour"], stats["failure_ratio"]) == (3, 1, 0.25)
    assert (stats["mean_seconds"], stats["p95_seconds"], stats["oldest_due_seconds"]) == (2.0, 2.0, 5.0)
    assert stats["stale"] == 0
    clock.advance(3600)
    later = (await client.get("/stats")).json()
    assert (later["succeeded_last_hour"], later["failure_ratio"], later["mean_seconds"]) == (0, None, None)


async def test_a_run_past_its_lease_is_stale(client, caller, clock):
    lease = await caller.start()
    clock.advance(61)
    assert (await client.get("/stats")).json()["stale"] == 1
    assert (await caller.job(lease["job_id"]))["stale"]


async def test_health_says_what_survives_what(client, caller, clock):
    health = (await client.get("/health")).json()
    assert (health["status"], health["store"], health["last_claimable_seconds"]) == ("ok", "memory", None)
    assert "gone when the process ends" in health["durability"]
    await caller.start()
    clock.advance(4)
    assert (await client.get("/health")).json()["last_claimable_seconds"] == 4


async def test_a_failing_write_is_503_with_its_reason(client, desk, monkeypatch):
    async def full(*args: object, **options: object) -> bool:
        raise StoreFull("no room left")

    monkeypatch.setattr(desk.store, "keep", full)
    health = await client.get("/health")
    assert (health.status_code, health.json()["detail"]) == (503, "no room left")


async def test_a_store_in_trouble_is_503_with_a_time_to_try_again(client, desk, monkeypatch):
    async def away(*args: object, **options: object) -> None:
        raise StoreUnavailable("the store cannot be reached")

    for verb in ("count", "submit", "get"):
        monkeypatch.setattr(desk.store, verb, away)
    health = await client.get("/health")
    assert (health.status_code, health.json()["status"]) == (503, "unavailable")
    assert health.headers["retry-after"]
    for answer in (await client.post("/jobs", json={"content": 1}), await client.get(f"/jobs/{'0' * 32}")):
        assert answer.status_code == 503
        assert answer.headers["retry-after"]


async def test_dead_letters_are_grouped_and_replayed(client, caller, clock):
    for number in range(3):
        await caller.fail(await caller.start(), "Timeout", f"call {number} to 4f1d2c3b4a59 timed out")
    await caller.fail(await caller.start(kind="other"), "ValueError", "no")
    groups = (await client.get("/dead-letters")).json()["groups"]
    assert [(g["kind"], g["code"], g["count"]) for g in groups] == [
        ("note", "Timeout", 3),
        ("other", "ValueError", 1),
    ]
    assert (await client.get("/dead-letters?kind=other")).json()["groups"] == groups[1:]
    assert (await client.get("/dead-letters?since=2999-01-01T00:00:00Z")).json()["groups"] == []
    group = {name: groups[0][name] for name in ("kind", "code", "message")}
    answer = await client.post("/dead-letters/replay", json=group)
    assert (answer.status_code, answer.json()) == (202, {"replayed": 3})
    assert (await client.post("/dead-letters/replay", json=group)).json() == {"replayed": 0}
    by_id = await client.post("/dead-letters/replay", json={"job_ids": groups[1]["job_ids"]})
    assert by_id.json() == {"replayed": 1}


async def test_canaries_go_first(client, caller, desk):
    for _ in range(3):
        await caller.fail(await caller.start())
    asked = {"kind": "note", "canary": 1}
    first = (await client.post("/dead-letters/replay", json=asked)).json()
    again = (await client.post("/dead-letters/replay", json=asked)).json()
    assert first == again == {"replayed": 3}
    assert (await client.get("/stats")).json()["states"]["queued"] == 1
    [lease] = await caller.claim()
    await caller.succeed(lease)
    await desk.sweep()
    assert (await client.get("/stats")).json()["states"]["queued"] == 2


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"job_ids": [], "canary": 1},
        {"job_ids": ["0" * 32], "kind": "x"},
        {"kind": "x", "canary": 0},
        {"kind": "x", "per_second": -1},
        {"kind": "x", "since": "yesterday"},
        {"kind": "x", "cod": "y"},
        {"kind": 5},
    ],
)
async def test_a_replay_must_say_what(client, body):
    answer = await client.post("/dead-letters/replay", json=body)
    assert answer.status_code == 422
    assert answer.json()["errors"]


async def test_replaying_an_unknown_job_is_not_found(client):
    assert (await client.post("/dead-letters/replay", json={"job_ids": ["0" * 32]})).status_code == 404


async def test_the_reference_needs_nothing_from_elsewhere(client):
    page = await client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "<script" not in page.text
    assert not re.findall(r'(?:src|href)="(?!#|openapi\.json)', page.text)
    assert "default-src 'none'" in page.headers["content-security-policy"]
    document = (await client.get("/openapi.json")).json()
    for path in document["paths"]:
        assert path in page.text
    assert (await client.get("/")).headers["location"] == "/docs"


async def test_every_shape_that_openapi_names_is_there(client):
    text = (await client.get("/openapi.json")).text
    named = set(re.findall(r'"#/components/schemas/([^"]+)"', text))
    assert named <= (await client.get("/openapi.json")).json()["components"]["schemas"].keys()


async def test_a_worker_without_work_is_seen_as_free(client, caller):
    lease = await caller.start()
    await caller.settle({**held(lease), "outcome": "released"})
    [worker] = (await client.get("/workers")).json()["items"]
    assert worker["job_ids"] == []
