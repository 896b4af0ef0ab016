"""`/inbox/tasks`, word for word (contract, section 3)."""

from __future__ import annotations

import json

import pytest

from postroom.doors.inbox import translate
from postroom.model import State
from postroom.stores.port import Retention
from tests.api.conftest import Caller, held


async def test_a_task_is_left_and_seen_whole(client):
    posted = await client.post("/inbox/tasks", json={"content": "Please summarise this."})
    task_id = posted.json()["task_id"]
    assert posted.status_code == 201
    assert posted.json() == {"task_id": task_id, "status": "pending"}
    assert posted.headers["location"] == f"/inbox/tasks/{task_id}"
    task = (await client.get(f"/inbox/tasks/{task_id}")).json()
    created_at = task.pop("created_at")
    assert task.pop("updated_at") == created_at
    assert task == {
        "id": task_id,
        "sender": "unknown",
        "topic": "default",
        "content": "Please summarise this.",
        "priority": "normal",
        "status": "pending",
        "attempts": 0,
        "result": None,
        "error": None,
    }


async def post(client, **fields) -> str:
    answer = await client.post("/inbox/tasks", json={"content": "x", **fields})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["task_id"])


async def test_the_words_follow_the_job(client, caller, clock):
    async def status(task_id: str) -> str:
        return str((await client.get(f"/inbox/tasks/{task_id}")).json()["status"])

    done, failed, cancelled = [await post(client) for _ in range(3)]
    await client.post(f"/jobs/{cancelled}/cancel")
    leases = {lease["job_id"]: lease for lease in await caller.claim("assistant", limit=2)}
    assert await status(done) == "processing"
    await caller.succeed(leases[done])
    await caller.fail(leases[failed])
    assert [await status(each) for each in (done, failed, cancelled)] == ["done", "failed", "cancelled"]


def test_every_state_has_a_word_of_its_own():
    assert set(translate.STATUSES) == set(State)
    assert set(translate.STATES) == {"pending", "processing", "done", "failed", "cancelled"}


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        ("plain text", "plain text"),
        ("", ""),
        ({"text": "é", "model": "m"}, '{"text":"é","model":"m"}'),
        ([1, 2.5, None], "[1,2.5,null]"),
        (3, "3"),
        (False, "false"),
        (None, None),
        ("x" * 70_000, "x" * 70_000),
    ],
)
async def test_a_result_is_text(client, caller, result, shown):
    task_id = await post(client)
    [lease] = await caller.claim("assistant")
    await caller.succeed(lease, result)
    assert (await client.get(f"/inbox/tasks/{task_id}")).json()["result"] == shown
    [listed] = (await client.get("/inbox/tasks")).json()["items"]
    assert listed["result"] == shown


async def test_an_error_is_the_latest_failure_and_gone_after_success(client, caller, clock):
    task_id = await post(client)
    [lease] = await caller.claim("assistant")
    await caller.fail(lease, "ProviderDown", "try later", permanent=False)
    task = (await client.get(f"/inbox/tasks/{task_id}")).json()
    assert (task["status"], task["attempts"], task["error"]) == ("pending", 1, "ProviderDown: try later")
    clock.advance(10)
    [again] = await caller.claim("assistant")
    await caller.succeed(again)
    task = (await client.get(f"/inbox/tasks/{task_id}")).json()
    assert (task["status"], task["attempts"], task["error"]) == ("done", 2, None)


async def test_a_list_is_oldest_first_and_whole(client, caller, clock):
    ids = []
    for index in range(3):
        ids.append(await post(client, content=f"text {index}"))
        clock.advance(1)
    first = (await client.get("/inbox/tasks?limit=2")).json()
    rest = (await client.get(f"/inbox/tasks?limit=2&cursor={first['next_cursor']}")).json()
    assert [task["id"] for task in first["items"] + rest["items"]] == ids
    assert [task["content"] for task in first["items"]] == ["text 0", "text 1"]
    assert rest["next_cursor"] is None
    alone = (await client.get(f"/inbox/tasks/{ids[0]}")).json()
    assert first["items"][0] == alone


async def test_a_list_is_filtered_by_the_doors_words(client, caller):
    mail = await post(client, sender="mail", topic="billing")
    other = await post(client)
    await client.post(f"/jobs/{other}/cancel")

    async def ids(query: str) -> list[str]:
        return [task["id"] for task in (await client.get(f"/inbox/tasks?{query}")).json()["items"]]

    assert await ids("status=pending") == [mail]
    assert await ids("status=cancelled") == [other]
    assert await ids("sender=mail") == await ids("topic=billing") == [mail]
    assert await ids("status=done") == []


async def test_a_wrong_status_names_the_valid_ones(client):
    answer = await client.get("/inbox/tasks?status=queued")
    assert answer.status_code == 422
    assert "pending, processing, done, failed, cancelled" in answer.json()["detail"]


async def test_a_wrong_priority_names_the_valid_ones(client):
    answer = await client.post("/inbox/tasks", json={"content": "x", "priority": "urgent"})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["path"] == "priority"
    assert "high, normal, low" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "content"),
        ({"content": None}, "content"),
        ({"content": "x", "kind": "report"}, "kind"),
        ({"content": "x", "max_attempts": 1}, "max_attempts"),
        ({"items": ["x"]}, "items"),
        ({"content": "x", "sender": 5}, "sender"),
    ],
)
async def test_a_wrong_task_is_told_where(client, body, path):
    answer = await client.post("/inbox/tasks", json=body)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["path"] == path


@pytest.mark.parametrize("task_id", ["0" * 32, "x", "%00"])
async def test_an_unknown_task_is_not_found(client, task_id):
    answer = await client.get(f"/inbox/tasks/{task_id}")
    assert answer.status_code == 404
    assert answer.json()["detail"] == "no such task"


async def test_a_task_that_retention_removed_says_when(client, caller, desk, clock):
    task_id = await post(client)
    [lease] = await caller.claim("assistant")
    await caller.succeed(lease)
    clock.advance(100)
    await desk.store.purge(Retention(1.0, 1.0))
    assert (await client.get(f"/inbox/tasks/{task_id}")).status_code == 410


async def test_keys_work_at_this_door_and_across_doors(client):
    headers = {"Idempotency-Key": "k"}
    first = await client.post("/inbox/tasks", json={"content": "x"}, headers=headers)
    again = await client.post("/inbox/tasks", json={"content": "x"}, headers=headers)
    assert (again.status_code, again.json()) == (201, first.json())
    assert again.headers["idempotency-replayed"] == "true"
    other = await client.post("/inbox/tasks", json={"content": "y"}, headers=headers)
    assert (other.status_code, other.json()["job_id"]) == (409, first.json()["task_id"])
    native = await client.post("/jobs", json={"content": "x"}, headers=headers)
    assert native.json()["job_id"] == first.json()["task_id"]


async def test_a_job_from_one_door_is_seen_through_the_other(client, caller):
    task_id = await post(client, sender="mail", priority="high")
    job = await caller.job(task_id)
    assert (job["kind"], job["sender"], job["priority"]) == ("assistant", "mail", "high")
    job_id = await caller.submit(kind="classify", items=["a", "b"], item_keys=["k1", "k2"])
    task = (await client.get(f"/inbox/tasks/{job_id}")).json()
    assert (task["content"], task["status"]) == (["a", "b"], "pending")
    [lease] = await caller.claim("classify")
    checkpoints = {"k1": {"value": 1}, "k2": {"value": 2}}
    await caller.settle({**held(lease), "outcome": "succeeded", "checkpoints": checkpoints})
    task = (await client.get(f"/inbox/tasks/{job_id}")).json()
    assert json.loads(task["result"]) == {"results": [1, 2]}


async def test_text_of_any_language_comes_back(client, caller: Caller):
    text = "请总结:发票重复扣款。\n\t\u007f😀"
    task_id = await post(client, content=text)
    [lease] = await caller.claim("assistant")
    await caller.succeed(lease, lease["content"])
    task = (await client.get(f"/inbox/tasks/{task_id}")).json()
    assert task["content"] == task["result"] == text
