"""`/jobs` as its callers see it (contract, section 2)."""

from __future__ import annotations

import asyncio

import httpx2
import pytest

from postroom.errors import StoreUnavailable
from postroom.stores.port import Retention
from tests.api.conftest import held


async def test_a_job_is_accepted_with_its_place(client):
    answer = await client.post("/jobs", json={"content": "hello"})
    job_id = answer.json()["job_id"]
    assert answer.status_code == 202
    assert answer.json() == {"job_id": job_id, "state": "queued"}
    assert answer.headers["location"] == f"/jobs/{job_id}"
    assert len(job_id) == 32
    assert (await client.get(answer.headers["location"])).json()["kind"] == "assistant"


async def test_a_job_shows_all_the_fields_of_the_contract(caller):
    wanted = (
        "job_id, state, kind, sender, topic, priority, queue, done, total, failed_items, result, result_url, error, "
        "last_error, stale, waiting_for, attempts, max_attempts, crashes, crashes_in_row, interruptions, holds, "
        "replays, epoch, worker, cancel_requested, created_at, updated_at, run_at, started_at, finished_at, "
        "expires_at, lease_expires_at, params, metadata, usage"
    )
    job = await caller.job(await caller.submit())
    assert set(wanted.split(", ")) <= job.keys()
    assert job["waiting_for"]["reason"] == "no_worker"
    assert job["created_at"].endswith("Z")


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"content": "x", "max_attempt": 2}, "max_attempt"),
        ({"content": "x", "priority": "urgent"}, "priority"),
        ({"content": "x", "items": ["y"]}, "content"),
        ({"kind": "note"}, "content"),
        ({"content": None}, "content"),
        ({"items": []}, "items"),
        ({"items": ["a", "b"], "item_keys": ["a"]}, "item_keys"),
        ({"items": ["a", "b"], "item_keys": ["a", "a"]}, "item_keys[1]"),
        ({"content": "x", "run_at": "tomorrow"}, "run_at"),
        ({"content": "x", "run_at": "2026-01-01T00:00:00"}, "run_at"),
        ({"content": "x", "expires_at": "2001-01-01T00:00:00Z"}, "expires_at"),
        ({"content": "x", "timeout_seconds": -1}, "timeout_seconds"),
        ({"content": "x", "timeout_seconds": True}, "timeout_seconds"),
        ({"content": "x", "max_attempts": 1.5}, "max_attempts"),
        ({"content": "x", "params": []}, "params"),
        ({"content": "x", "kind": ""}, "kind"),
        ({"content": "x", "sender": "a\nb"}, "sender"),
        ({"content": "x", "idempotency_key": "k"}, "idempotency_key"),
    ],
)
async def test_a_wrong_field_is_named(client, fields, path):
    answer = await client.post("/jobs", json=fields)
    assert answer.status_code == 422
    assert [problem["path"] for problem in answer.json()["errors"]] == [path]


async def test_all_wrong_fields_are_named_at_once(client):
    answer = await client.post(
        "/jobs", json={"content": "x", "priority": "urgent", "max_attempts": 0, "typo": 1}
    )
    assert {problem["path"] for problem in answer.json()["errors"]} == {"priority", "max_attempts", "typo"}


@pytest.mark.parametrize(
    "path", ["/jobs?knd=x", "/stats?x=1", "/health?x", "/jobs/batch?x=1", "/openapi.json?x=1"]
)
async def test_an_unknown_query_parameter_is_refused_by_name(client, path):
    if path.startswith("/jobs/batch"):
        answer = await client.post(path, json={"jobs": []})
    else:
        answer = await client.get(path)
    if path.startswith("/openapi"):
        assert answer.status_code == 200
    else:
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["path"] in ("knd", "x")


async def test_polling_backs_off_by_itself(client, caller, clock):
    answer = await client.post("/jobs", json={"kind": "note", "content": "x"})
    path = answer.headers["location"]
    assert answer.headers["retry-after"] == "1"
    clock.advance(9.9)
    assert (await client.get(path)).headers["retry-after"] == "1"
    clock.advance(0.2)
    assert (await client.get(path)).headers["retry-after"] == "5"
    [lease] = await caller.claim()
    await caller.succeed(lease)
    assert "retry-after" not in (await client.get(path)).headers


# ---- idempotency keys


async def test_the_same_key_and_body_give_the_first_job_again(client):
    body, headers = {"content": "x", "params": {"a": 1, "b": 2}}, {"Idempotency-Key": "k1"}
    first = await client.post("/jobs", json=body, headers=headers)
    again = await client.post("/jobs", json={"params": {"b": 2, "a": 1}, "content": "x"}, headers=headers)
    assert "idempotency-replayed" not in first.headers
    assert (again.status_code, again.json()) == (202, first.json())
    assert again.headers["idempotency-replayed"] == "true"


async def test_the_same_key_with_another_body_names_the_first_job(client):
    headers = {"Idempotency-Key": "k1"}
    first = await client.post("/jobs", json={"content": "x"}, headers=headers)
    other = await client.post("/jobs", json={"content": "y"}, headers=headers)
    assert other.status_code == 409
    assert other.json()["job_id"] == first.json()["job_id"]


async def test_fifty_at_once_with_one_key_make_one_job(client):
    calls = [client.post("/jobs", json={"content": "x"}, headers={"Idempotency-Key": "k"}) for _ in range(50)]
    answers = await asyncio.gather(*calls)
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["job_id"] for answer in answers}) == 1


@pytest.mark.parametrize("key", ["", "x" * 256])
async def test_a_key_has_1_to_255_characters(client, key):
    answer = await client.post("/jobs", json={"content": "x"}, headers={"Idempotency-Key": key})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["path"] == "Idempotency-Key"


async def test_a_key_is_text_in_utf8(client):
    sent = [("Idempotency-Key", "clé".encode())]
    header = await client.post("/jobs", json={"content": "x"}, headers=sent)
    body = {"jobs": [{"content": "x", "idempotency_key": "clé"}]}
    batch = await client.post("/jobs/batch", json=body)
    assert batch.json()["answers"][0]["job_id"] == header.json()["job_id"]


# ---- waiting


async def test_what_was_accepted_is_told_even_where_the_store_is_away_during_the_wait(
    client, caller, desk, monkeypatch
):
    async def away(*args, **options):
        raise StoreUnavailable("cut off by the test")

    monkeypatch.setattr(desk, "get", away)
    answer = await client.post("/jobs", json={"content": "x"}, headers={"Prefer": "wait=5"})
    assert (answer.status_code, answer.json()["state"]) == (202, "queued")
    monkeypatch.undo()
    [job] = (await client.get("/jobs")).json()["items"]
    assert job["job_id"] == answer.json()["job_id"]


async def test_a_preferred_wait_gives_the_job_once_it_ended(client, caller):
    waiting = asyncio.create_task(
        client.post("/jobs", json={"kind": "note", "content": "x"}, headers={"Prefer": "wait=20"})
    )
    leases = []
    while not leases:
        leases = await caller.claim(wait_seconds=5)
    await caller.succeed(leases[0], {"text": "yes"})
    answer = await waiting
    assert answer.status_code == 200
    assert (answer.json()["state"], answer.json()["result"]) == ("succeeded", {"text": "yes"})
    assert answer.headers["location"] == f"/jobs/{leases[0]['job_id']}"


async def test_a_wait_that_is_over_gives_the_job_as_it_stands(client, caller):
    posted = await client.post("/jobs", json={"content": "x"}, headers={"Prefer": "wait=0.05"})
    assert (posted.status_code, posted.json()["state"]) == (202, "queued")
    got = await client.get(posted.headers["location"], headers={"Prefer": "respond-async, wait=0.05"})
    assert (got.status_code, got.json()["state"]) == (202, "queued")
    assert got.headers["retry-after"] == "1"


async def test_waiting_for_a_job_that_ended_gives_it_at_once(client, caller):
    lease = await caller.start()
    await caller.succeed(lease)
    answer = await client.get(f"/jobs/{lease['job_id']}", headers={"Prefer": "wait=60"})
    assert answer.status_code == 200


async def test_a_wait_that_is_no_number_is_refused(client):
    answer = await client.post("/jobs", json={"content": "x"}, headers={"Prefer": "wait=soon"})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["path"] == "Prefer"


# ---- batches


async def test_a_batch_answers_for_every_job_in_order(client):
    jobs = [{"content": 1}, {"content": 2, "typo": 1}, "three", {"content": 4}]
    answer = await client.post("/jobs/batch", json={"jobs": jobs})
    answers = answer.json()["answers"]
    assert answer.status_code == 200
    assert [entry["status"] for entry in answers] == [202, 422, 422, 202]
    assert [problem["path"] for problem in answers[1]["errors"]] == ["jobs[1].typo"]
    listed = (await client.get("/jobs")).json()["items"]
    assert {job["job_id"] for job in listed} == {answers[0]["job_id"], answers[3]["job_id"]}


async def test_a_job_of_a_batch_that_cannot_be_kept_harms_no_other(client):
    bad = ['"a\\u0000"', '{"a": 1, "a": 2}', "NaN", '{"\\ud800": "\\u0000"}', "[" * 200 + "]" * 200]
    jobs = [f'{{"content": {value}}}' for value in [*bad, 4]]
    body = '{"jobs": [' + ", ".join(jobs) + "]}"
    answer = await client.post("/jobs/batch", content=body, headers={"Content-Type": "application/json"})
    assert [entry["status"] for entry in answer.json()["answers"]] == [422] * len(bad) + [202]
    assert answer.json()["answers"][0]["errors"][0]["path"] == "jobs[0].content"


async def test_a_batch_has_ten_thousand_jobs_at_most(client):
    most = await client.post("/jobs/batch", json={"jobs": [{"content": 1}] * 10_000})
    assert [entry["status"] for entry in most.json()["answers"]] == [202] * 10_000
    more = await client.post("/jobs/batch", json={"jobs": [{"content": 1}] * 10_001})
    assert more.status_code == 422
    assert (await client.get("/stats")).json()["states"]["queued"] == 10_000


async def test_keys_work_within_a_batch_and_for_the_whole_of_it(client):
    jobs = {"jobs": [{"content": 1, "idempotency_key": "own"}, {"content": 2}]}
    headers = {"Idempotency-Key": "batch"}
    first = (await client.post("/jobs/batch", json=jobs, headers=headers)).json()["answers"]
    again = (await client.post("/jobs/batch", json=jobs, headers=headers)).json()["answers"]
    assert [entry["job_id"] for entry in again] == [entry["job_id"] for entry in first]
    assert all(entry["replayed"] for entry in again)
    alone = await client.post("/jobs", json={"content": 1}, headers={"Idempotency-Key": "own"})
    assert alone.json()["job_id"] == first[0]["job_id"]


# ---- looking


async def test_a_list_is_newest_first_and_goes_on_with_its_cursor(client, caller, clock):
    ids = []
    for index in range(5):
        ids.append(await caller.submit(content=index))
        clock.advance(1)
    first = (await client.get("/jobs?limit=3")).json()
    rest = (await client.get(f"/jobs?limit=3&cursor={first['next_cursor']}")).json()
    assert [job["job_id"] for job in first["items"] + rest["items"]] == ids[::-1]
    assert rest["next_cursor"] is None
    assert all(job["result"] is None for job in first["items"])
    oldest = (await client.get("/jobs?order=oldest")).json()
    assert [job["job_id"] for job in oldest["items"]] == ids


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("kind=a", {"a", "ab"}),
        ("kind=a&kind=b", {"a", "ab", "b"}),
        ("sender=mail", {"a"}),
        ("topic=t", {"b"}),
        ("queue=slow", {"ab"}),
        ("state=running", set()),
        ("state=queued&state=running&kind=b", {"b"}),
        ("since=2999-01-01T00:00:00Z", set()),
        ("since=2001-01-01T00:00:00%2B01:00", {"a", "ab", "b"}),
    ],
)
async def test_a_list_is_filtered(client, caller, query, found):
    names = {
        await caller.submit(kind="a", sender="mail"): "a",
        await caller.submit(kind="a", queue="slow"): "ab",
        await caller.submit(kind="b", topic="t"): "b",
    }
    jobs = (await client.get(f"/jobs?{query}")).json()["items"]
    assert {names[job["job_id"]] for job in jobs} == found


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ("limit=501", "limit"),
        ("limit=0", "limit"),
        ("limit=x", "limit"),
        ("limit=1&limit=2", "limit"),
        ("state=done", "state"),
        ("cursor=nonsense", "cursor"),
        ("since=yesterday", "since"),
        ("kind=%00", "kind"),
        ("kind=%FF", ""),
    ],
)
async def test_a_wrong_query_is_named(client, query, path):
    answer = await client.get(f"/jobs?{query}")
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["path"] == path


async def test_a_wrong_state_names_the_valid_ones(client):
    assert "queued, running, succeeded, failed, cancelled" in (await client.get("/jobs?state=done")).text


async def test_items_are_shown_in_order_while_the_job_runs(client, caller):
    lease = await caller.start(items=["x", "y", "z"], item_keys=["k1", "k2", "k3"])
    checkpoints = {"k2": {"value": 2}, "k3": {"error": {"code": "bad", "message": "no"}}}
    await caller.beat({**held(lease), "checkpoints": checkpoints})
    page = (await client.get(f"/jobs/{lease['job_id']}/items")).json()
    shown = [(item["key"], item["index"], item["state"], item["value"]) for item in page["items"]]
    assert shown == [("k1", 0, "pending", None), ("k2", 1, "succeeded", 2), ("k3", 2, "failed", None)]
    assert page["items"][2]["error"] == {
        "code": "bad",
        "message": "no",
        "detail": None,
        "epoch": 1,
        "attempt": 1,
    }
    part = (await client.get(f"/jobs/{lease['job_id']}/items?limit=2")).json()
    rest = (await client.get(f"/jobs/{lease['job_id']}/items?limit=2&cursor={part['next_cursor']}")).json()
    assert part["items"] + rest["items"] == page["items"]


async def test_a_payload_is_given_back_as_it_came(client, caller):
    content = {"text": "héllo", "n": 1.5}
    assert (await client.get(f"/jobs/{await caller.submit(content=content)}/payload")).json() == {
        "content": content
    }
    numbered = await caller.submit(items=[[1], 2])
    items = [{"key": "0", "input": [1]}, {"key": "1", "input": 2}]
    assert (await client.get(f"/jobs/{numbered}/payload")).json() == {"items": items}
    listed = await caller.submit(content=[1, 2])
    assert (await client.get(f"/jobs/{listed}/payload")).json() == {"content": [1, 2]}


async def test_a_large_result_stands_behind_its_address(client, caller):
    lease = await caller.start()
    text = "é" * 40_000
    await caller.succeed(lease, text)
    job = await caller.job(lease["job_id"])
    assert (job["result"], job["result_url"]) == (None, f"/jobs/{lease['job_id']}/result")
    whole = await client.get(job["result_url"])
    assert whole.headers["content-type"] == "application/json"
    assert whole.json() == text


async def test_a_result_comes_back_byte_for_byte(client, caller):
    lease = await caller.start()
    body = '{"outcomes":[{"job_id":"%s","epoch":1,"outcome":"succeeded","result":{"b":1.50,"a":"\\u00e9"}}]}'
    headers = {"Content-Type": "application/json"}
    await client.post("/leases/settle", content=body % lease["job_id"], headers=headers)
    assert (await client.get(f"/jobs/{lease['job_id']}/result")).text == '{"b":1.5,"a":"é"}'


async def test_there_is_no_result_before_the_end(client, caller):
    answer = await client.get(f"/jobs/{await caller.submit()}/result")
    assert answer.status_code == 409
    assert answer.json()["state"] == "queued"


@pytest.mark.parametrize("job_id", ["0" * 32, "x", "%00", "%ED%A0%80", "A" * 32, "0" * 5000])
@pytest.mark.parametrize("part", ["", "/items", "/payload", "/result", "/events", "/journal"])
async def test_an_unknown_job_is_not_found(client, job_id, part):
    answer = await client.get(httpx2.URL(f"http://127.0.0.1:8000/jobs/{job_id}{part}"))
    assert answer.status_code == 404
    assert answer.json()["detail"] == "no such job"


async def test_a_job_that_retention_removed_says_when(client, caller, desk, clock):
    lease = await caller.start()
    await caller.succeed(lease)
    clock.advance(100)
    await desk.store.purge(Retention(1.0, 1.0))
    answer = await client.get(f"/jobs/{lease['job_id']}")
    assert answer.status_code == 410
    assert answer.json()["purged_at"].endswith("Z")


# ---- acting


async def test_a_queued_job_is_cancelled_once(client, caller):
    path = f"/jobs/{await caller.submit()}/cancel"
    first = await client.post(path, json={"reason": "not needed"})
    assert (first.status_code, first.json()["state"]) == (202, "cancelled")
    second = await client.post(path)
    assert (second.status_code, second.json()["state"]) == (409, "cancelled")


async def test_cancelling_a_running_job_may_be_asked_twice(client, caller):
    lease = await caller.start()
    for _ in range(2):
        answer = await client.post(f"/jobs/{lease['job_id']}/cancel")
        assert (answer.status_code, answer.json()["state"]) == (202, "running")
    [answer] = await caller.beat(held(lease))
    assert answer["status"] == "cancel_requested"
    await caller.settle({**held(lease), "outcome": "cancelled"})
    assert (await caller.job(lease["job_id"]))["state"] == "cancelled"


async def test_a_cancel_takes_a_reason_and_nothing_else(client, caller):
    job_id = await caller.submit()
    answer = await client.post(f"/jobs/{job_id}/cancel", json={"reson": "typo"})
    assert answer.status_code == 422
    assert answer.json()["errors"] == [{"path": "reson", "message": "unknown field"}]
    assert (await caller.job(job_id))["state"] == "queued"


async def test_a_failed_job_is_replayed(client, caller):
    lease = await caller.start()
    path = f"/jobs/{lease['job_id']}/replay"
    assert (await client.post(path)).status_code == 409
    await caller.fail(lease)
    answer = await client.post(path)
    assert (answer.status_code, answer.json()["state"]) == (202, "queued")
    assert (await caller.job(lease["job_id"]))["replays"] == 1


# ---- sizes


async def test_an_item_over_its_limit_is_too_large(client):
    answer = await client.post("/jobs", json={"content": "x" * 1_048_576})
    problem = answer.json()
    assert answer.status_code == 413
    assert (problem["limit"], problem["size"]) == (1_048_576, 1_048_578)
    exactly = await client.post("/jobs", json={"content": "x" * 1_048_574})
    assert exactly.status_code == 202


async def test_a_declared_body_over_the_limit_is_not_read(client, settings):
    headers = {"Content-Length": str(settings.max_body_bytes + 1), "Content-Type": "application/json"}
    read = []

    async def body():
        read.append(1)
        yield b"{}"

    answer = await client.post("/jobs", content=body(), headers=headers)
    problem = answer.json()
    assert answer.status_code == 413
    assert (problem["limit"], problem["size"]) == (settings.max_body_bytes, settings.max_body_bytes + 1)


async def test_an_undeclared_body_is_read_to_the_limit_only(client, settings):
    sent = 0

    async def body():
        nonlocal sent
        while sent < 3 * settings.max_body_bytes:
            sent += 1_000_000
            yield b" " * 1_000_000

    answer = await client.post("/jobs", content=body(), headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["limit"]) == (413, settings.max_body_bytes)
    assert sent <= settings.max_body_bytes + 2_000_000
