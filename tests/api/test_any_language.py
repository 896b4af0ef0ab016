"""A worker in any language: plain HTTP and section 4 of the contract, and nothing of ours but the test around it."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2

from tests.api.conftest import Caller
from tests.api.live import LiveService

# ---- the worker: from here on only what a program in another language would have


class PlainWorker:
    def __init__(self, url: str, handlers: dict[str, Any]) -> None:
        self.http = httpx2.AsyncClient(base_url=f"{url}/leases", timeout=30, trust_env=False)
        self.handlers = handlers
        self.runs: list[str] = []

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = await self.http.post(path, json=body)
        answer.raise_for_status()
        shown: dict[str, Any] = answer.json()
        return shown

    async def work_until(self, is_over: asyncio.Event) -> None:
        while not is_over.is_set():
            asked = {"worker": "plain", "kinds": list(self.handlers), "limit": 5, "wait_seconds": 0.2}
            for lease in (await self.post("/claim", asked))["leases"]:
                outcome = await self.run(lease)
                if outcome is not None:
                    mine = {"job_id": lease["job_id"], "epoch": lease["epoch"]}
                    await self.post("/settle", {"outcomes": [{**mine, **outcome}]})
        await self.http.aclose()

    async def run(self, lease: dict[str, Any]) -> dict[str, Any] | None:
        handler = self.handlers[lease["kind"]]
        if "content" in lease:
            return self.called(
                handler, lease["content"], lambda value: {"outcome": "succeeded", "result": value}
            )
        failed = False
        for item in lease["items"]:
            kept = lease["checkpoints"].get(item["key"])
            if kept and ("value" in kept or kept["error"].get("permanent", True)):
                continue
            self.runs.append(item["key"])
            done = self.called(handler, item["input"], lambda value: {"value": value})
            failed = failed or "error" in done
            checkpoint = {"error": {**done["error"], "permanent": False}} if "error" in done else done
            beat = {
                "job_id": lease["job_id"],
                "epoch": lease["epoch"],
                "checkpoints": {item["key"]: checkpoint},
            }
            [answer] = (await self.post("/heartbeat", {"beats": [beat]}))["answers"]
            if answer["status"] == "lease_lost":
                return None
            if answer["status"] == "cancel_requested":
                return {"outcome": "cancelled"}
        error = {"code": "items_failed", "message": "some items failed"}
        return {"outcome": "failed", "error": error} if failed else {"outcome": "succeeded"}

    def called(self, handler: Any, value: Any, success: Any) -> dict[str, Any]:
        try:
            result: dict[str, Any] = success(handler(value))
            return result
        except Exception as error:
            return {"outcome": "failed", "error": {"code": type(error).__name__, "message": str(error)}}


# ---- the test


async def test_it_does_all_that_a_worker_of_ours_does(live: LiveService) -> None:
    tries: dict[str, int] = {}

    def flaky(value: str) -> str:
        tries[value] = tries.get(value, 0) + 1
        if value == "b" and tries[value] == 1:
            raise ValueError("not yet")
        return value.upper()

    over = asyncio.Event()
    worker = PlainWorker(live.url, {"upper": str.upper, "flaky": flaky, "bad": lambda value: 1 / 0})
    working = asyncio.create_task(worker.work_until(over))
    async with httpx2.AsyncClient(base_url=live.url, timeout=30, trust_env=False) as client:
        caller = Caller(client)
        wait = {"Prefer": "wait=20"}
        text = await client.post("/jobs", json={"kind": "upper", "content": "hello"}, headers=wait)
        items = await client.post("/jobs", json={"kind": "flaky", "items": ["a", "b", "c"]}, headers=wait)
        bad = await client.post("/jobs", json={"kind": "bad", "content": "x"}, headers=wait)
        over.set()
        await working
        assert text.json()["result"] == "HELLO"
        assert items.json()["result"] == {"results": ["A", "B", "C"]}
        assert (items.json()["attempts"], items.json()["done"], items.json()["failed_items"]) == (2, 3, 0)
        assert worker.runs == ["0", "1", "2", "1"]  # what was done is not done again
        assert (bad.json()["state"], bad.json()["attempts"]) == ("failed", 3)
        assert bad.json()["error"]["code"] == "ZeroDivisionError"
        assert (await caller.job(bad.json()["job_id"]))["state"] == "failed"
