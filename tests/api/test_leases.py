"""The worker's side (contract, section 4): claims, heartbeats and settles, entry by entry."""

from __future__ import annotations

import pytest

from tests.api.conftest import held


async def test_a_lease_has_all_that_a_handler_needs(caller):
    await caller.submit(
        kind="note", content={"text": "x"}, params={"labels": ["a"]}, metadata={"m": 1}, sender="mail"
    )
    [lease] = await caller.claim(lease_seconds=7.5)
    wanted = {
        "epoch": 1,
        "attempt": 1,
        "life": 1,
        "kind": "note",
        "sender": "mail",
        "topic": "default",
        "content": {"text": "x"},
        "params": {"labels": ["a"]},
        "metadata": {"m": 1},
        "checkpoints": {},
        "steps": {},
        "allow_failed_items": None,
        "lease_seconds": 7.5,
        "timeout_seconds": None,
        "stall_timeout_seconds": None,
        "max_attempts": 3,
    }
    assert {name: lease[name] for name in wanted} == wanted


async def test_checkpoints_and_steps_are_handed_to_the_next_epoch(caller, clock):
    lease = await caller.start(items=["x", "y", "z"])
    error = {"code": "flaky", "message": "again", "permanent": False}
    await caller.beat(
        {
            **held(lease),
            "checkpoints": {"0": {"value": {"b": 1.5, "a": "é"}}, "1": {"error": error}},
            "steps": {"fetch": {"input_digest": "d1", "value": [1]}},
        }
    )
    await caller.settle({**held(lease), "outcome": "released"})
    [again] = await caller.claim()
    assert [item["input"] for item in again["items"]] == ["x", "y", "z"]
    assert again["epoch"] == 2
    assert again["checkpoints"]["0"]["value"] == {"b": 1.5, "a": "é"}
    assert list(again["checkpoints"]["0"]["value"]) == ["b", "a"]
    kept = again["checkpoints"]["1"]["error"]
    assert (kept["code"], kept["permanent"], kept["epoch"], kept["attempt"]) == ("flaky", False, 1, 1)
    assert again["steps"]["fetch"] == {"input_digest": "d1", "epoch": 1, "value": [1]}


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"kinds": ["a"]}, "worker"),
        ({"worker": "", "kinds": ["a"]}, "worker"),
        ({"worker": "w"}, "kinds"),
        ({"worker": "w", "kinds": []}, "kinds"),
        ({"worker": "w", "kinds": "a"}, "kinds"),
        ({"worker": "w", "kinds": ["a"], "queues": []}, "queues"),
        ({"worker": "w", "kinds": ["a"], "limit": 0}, "limit"),
        ({"worker": "w", "kinds": ["a"], "limit": 1001}, "limit"),
        ({"worker": "w", "kinds": ["a"], "limit": True}, "limit"),
        ({"worker": "w", "kinds": ["a"], "lease_seconds": 0.5}, "lease_seconds"),
        ({"worker": "w", "kinds": ["a"], "lease_seconds": 3601}, "lease_seconds"),
        ({"worker": "w", "kinds": ["a"], "wait_seconds": 61}, "wait_seconds"),
        ({"worker": "w", "kinds": ["a"], "wait": 1}, "wait"),
    ],
)
async def test_a_wrong_claim_is_told_where(client, fields, path):
    answer = await client.post("/leases/claim", json=fields)
    assert answer.status_code == 422
    assert [problem["path"] for problem in answer.json()["errors"]] == [path]


async def test_a_claim_registers_its_worker(client, caller):
    lease = await caller.start()
    [worker] = (await client.get("/workers")).json()["items"]
    assert (worker["worker"], worker["kinds"], worker["queues"]) == ("w1", ["note"], ["default"])
    assert worker["job_ids"] == [lease["job_id"]]
    assert not worker["is_local"]
    assert (await caller.job(await caller.submit()))["waiting_for"]["reason"] == "turn"


async def test_a_worker_that_introduced_itself_is_known_better(client, caller):
    body = {"worker": "w1", "kinds": ["note"], "concurrency": 8, "host": "h", "pid": 7, "up_seconds": 3}
    assert (await client.post("/workers", json=body)).status_code == 204
    await caller.claim()
    [worker] = (await client.get("/workers")).json()["items"]
    assert (worker["host"], worker["pid"], worker["concurrency"]) == ("h", 7, 8)
    assert (await client.delete("/workers/w1")).status_code == 204
    assert (await client.delete("/workers/w1")).status_code == 204
    assert (await client.get("/workers")).json() == {"items": [], "next_cursor": None}


# ---- batches: an answer each, in order, and none harms another


async def test_every_beat_is_answered_in_order(caller):
    one, two = await caller.start(), await caller.start()
    stale = {**held(one), "epoch": 9}
    answers = await caller.beat(held(two), stale, held(one), {"job_id": "f" * 32, "epoch": 1})
    assert [(a["job_id"], a["status"]) for a in answers] == [
        (two["job_id"], "ok"),
        (one["job_id"], "lease_lost"),
        (one["job_id"], "ok"),
        ("f" * 32, "lease_lost"),
    ]


WRONG = {
    "an unknown field": {"tempo": 1},
    "done as text": {"done": "1"},
    "done below 0": {"done": -1},
    "checkpoints as a list": {"checkpoints": []},
    "a checkpoint without value or error": {"checkpoints": {"0": {}}},
    "a checkpoint with both": {"checkpoints": {"0": {"value": 1, "error": {"code": "x"}}}},
    "a checkpoint of no item": {"checkpoints": {"nine": {"value": 1}}},
    "an error as text": {"checkpoints": {"0": {"error": "bad"}}},
    "a step as text": {"steps": {"fetch": "x"}},
    "output as an object": {"output": {}},
    "usage as text": {"usage": {"tokens": "9"}},
    "usage as true": {"usage": {"tokens": True}},
    "a lease too long": {"lease_seconds": 4000},
    "an unknown limit": {"limits": {"max_tries": 1}},
}


@pytest.mark.parametrize("name", WRONG)
async def test_a_wrong_beat_is_invalid_and_harms_no_other(caller, name):
    one, two = await caller.start(items=["x"]), await caller.start(items=["y"])
    answers = await caller.beat({**held(one), **WRONG[name]}, held(two))
    assert [answer["status"] for answer in answers] == ["invalid", "ok"]
    assert answers[0]["detail"]
    assert (await caller.job(one["job_id"]))["done"] == 0


@pytest.mark.parametrize("name", WRONG)
async def test_the_fence_comes_before_the_shape(caller, name):
    lease = await caller.start(items=["x"])
    stale = {**held(lease), "epoch": 2, **WRONG[name]}
    unknown = {"job_id": "f" * 32, "epoch": 1, **WRONG[name]}
    answers = await caller.beat(stale, unknown)
    assert [answer["status"] for answer in answers] == ["lease_lost", "lease_lost"]


WRONG_OUTCOMES = {
    "no outcome": {},
    "an unknown outcome": {"outcome": "done"},
    "an unknown field": {"outcome": "succeeded", "results": 1},
    "an error as text": {"outcome": "failed", "error": "bad"},
    "an error with more": {"outcome": "failed", "error": {"code": "x", "fatal": True}},
    "a hold into the past": {"outcome": "held", "after_seconds": -1},
    "a hold for ever": {"outcome": "held", "after_seconds": 1e300},
    "a result for a job of items": {"outcome": "succeeded", "result": 1},
    "a success with pending items": {"outcome": "succeeded"},
    "a cancel that nobody asked for": {"outcome": "cancelled"},
    "a reason as a list": {"outcome": "released", "reason": []},
}


@pytest.mark.parametrize("name", WRONG_OUTCOMES)
async def test_a_wrong_outcome_is_invalid_after_the_fence(caller, name):
    one, two = await caller.start(items=["x"]), await caller.start()
    wrong = WRONG_OUTCOMES[name]
    stale = {**held(one), "epoch": 2, **wrong}
    good = {**held(two), "outcome": "succeeded", "result": 1}
    answers = await caller.settle({**held(one), **wrong}, stale, good)
    assert [answer["status"] for answer in answers] == ["invalid", "lease_lost", "ok"]
    assert (await caller.job(one["job_id"]))["state"] == "running"


@pytest.mark.parametrize("entry", [None, 1, "x", [], {}, {"epoch": 1}, {"job_id": 7, "epoch": 1}])
async def test_an_entry_that_names_nothing_is_invalid(caller, entry):
    answers = await caller.settle(entry)
    assert [answer["status"] for answer in answers] == ["invalid"]


async def test_an_epoch_that_is_none_is_told_so(caller):
    lease = await caller.start()
    for epoch in (None, "1", 1.0, True, -1, 2**63):
        answers = await caller.settle({"job_id": lease["job_id"], "epoch": epoch, "outcome": "released"})
        if epoch == 2**63:
            assert answers[0]["status"] == "invalid"
        assert answers[0]["status"] == "invalid"
        unknown = await caller.settle({"job_id": "f" * 32, "epoch": epoch, "outcome": "released"})
        assert unknown[0]["status"] == "lease_lost"


async def test_what_no_store_can_keep_is_refused_entry_by_entry(client, caller):
    one, two = await caller.start(), await caller.start()
    bad_one = '{"job_id": "%s", "epoch": 1, "outcome": "succeeded", "result": %s}'
    good_one = '{"job_id": "%s", "epoch": 1, "outcome": "succeeded"}'
    body = f'{{"outcomes": [{bad_one}, {good_one}]}}'
    for bad in (
        '"a\\u0000"',
        "NaN",
        '"\\ud800"',
        '{"a": 1, "a": 2}',
        "9223372036854775808",
        '{"\\ud800": 1}',
    ):
        content = body % (one["job_id"], bad, two["job_id"])
        answer = await client.post(
            "/leases/settle", content=content, headers={"Content-Type": "application/json"}
        )
        assert [entry["status"] for entry in answer.json()["answers"]] == ["invalid", "ok"], bad


async def test_another_value_under_a_key_is_a_conflict(caller):
    lease = await caller.start(items=["x", "y"])
    first = {**held(lease), "checkpoints": {"0": {"value": 1}}}
    answers = await caller.beat(first, first, {**held(lease), "checkpoints": {"0": {"value": 2}}})
    assert [answer["status"] for answer in answers] == ["ok", "ok", "conflict"]


async def test_a_settle_whose_answer_was_lost_is_ok_again(caller):
    lease = await caller.start()
    outcome = {**held(lease), "outcome": "succeeded", "result": {"text": "x"}}
    for _ in range(2):
        [answer] = await caller.settle(outcome)
        assert (answer["status"], answer["state"]) == ("ok", "succeeded")
    [other] = await caller.settle({**outcome, "result": {"text": "y"}})
    assert other["status"] == "lease_lost"


async def test_a_counted_beat_adds_nothing_twice(caller):
    lease = await caller.start()
    beat = {**held(lease), "seq": 1, "usage": {"tokens": 5}, "output": ["x"]}
    await caller.beat(beat)
    await caller.beat(beat)
    await caller.beat({**beat, "seq": 2})
    assert (await caller.job(lease["job_id"]))["usage"] == {"tokens": 10}


async def test_the_ends_of_runs(caller, clock):
    ends = {
        "failed": {"outcome": "failed", "error": {"code": "bad", "message": "no", "permanent": True}},
        "queued": {"outcome": "failed", "error": {"code": "flaky", "message": "again"}},
        "cancelled": {"outcome": "cancelled"},
    }
    for state, end in ends.items():
        lease = await caller.start(kind=state)
        if state == "cancelled":
            await caller.client.post(f"/jobs/{lease['job_id']}/cancel")
        [answer] = await caller.settle({**held(lease), **end})
        assert (answer["status"], answer["state"]) == ("ok", state)
    lease = await caller.start(kind="hold")
    await caller.settle({**held(lease), "outcome": "held", "after_seconds": 30, "reason": "rate limit"})
    job = await caller.job(lease["job_id"])
    assert (job["holds"], job["attempts"], job["waiting_for"]["reason"]) == (1, 0, "run_at")
    clock.advance(30)
    [again] = await caller.claim("hold")
    await caller.settle({**held(again), "outcome": "crashed", "reason": "signal 9"})
    job = await caller.job(lease["job_id"])
    assert (job["crashes"], job["last_error"]["code"]) == (1, "worker_lost")


async def test_a_failure_is_not_refused_because_it_is_told_at_length(caller):
    lease = await caller.start()
    error = {"code": "bad", "message": "x" * 100_000, "detail": "y" * 200_000, "permanent": True}
    [answer] = await caller.settle({**held(lease), "outcome": "failed", "error": error})
    assert answer["status"] == "ok"
    job = await caller.job(lease["job_id"])
    assert len(job["error"]["message"]) == 8_000
    assert len(job["error"]["detail"]) < 66_000


async def test_a_result_over_its_limit_names_limit_and_size(app, caller):
    app.state.service.sizes = type(app.state.service.sizes)(result=100, output=10)
    lease = await caller.start()
    [answer] = await caller.settle({**held(lease), "outcome": "succeeded", "result": "x" * 99})
    assert answer["status"] == "invalid"
    assert "100 bytes" in answer["detail"]
    assert "101 bytes" in answer["detail"]
    [exactly] = await caller.settle({**held(lease), "outcome": "succeeded", "result": "x" * 98})
    assert exactly["status"] == "ok"


@pytest.mark.parametrize(
    ("address", "body", "path"),
    [
        ("heartbeat", {}, "beats"),
        ("heartbeat", {"beats": {}}, "beats"),
        ("heartbeat", {"beats": [], "worker": "w"}, "worker"),
        ("settle", {"beats": []}, "beats"),
        ("settle", {"outcomes": [{}] * 10_001}, "outcomes"),
    ],
)
async def test_a_batch_of_another_shape_is_refused_whole(client, address, body, path):
    answer = await client.post(f"/leases/{address}", json=body)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["path"] == path


async def test_an_empty_batch_is_no_mistake(caller):
    assert await caller.beat() == []
    assert await caller.settle() == []
