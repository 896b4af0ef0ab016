"""The shipped kinds in a real worker: checkpoints, usage, holds and dead letters come out as for any handler."""

from __future__ import annotations

import pytest

from postroom import Inbox
from postroom.assistant import ModelOptions, Models, register
from tests.assistant.conftest import labelled
from tests.assistant.provider import provider, says, status

TICKETS = labelled("tickets")


@pytest.fixture
async def inbox(models):
    """An inbox in memory with the shipped kinds on the embedded models."""
    async with Inbox("memory://") as inbox:
        register(inbox.handlers, inbox.settings, models)
        yield inbox


async def test_five_tickets_in_three_languages_are_sorted_item_by_item(inbox):
    chosen = [TICKETS["en"][0], TICKETS["en"][5], TICKETS["de"][8], TICKETS["zh"][12], TICKETS["zh"][0]]
    async with inbox.worker():
        job = await inbox.submit(
            "classify", items=[text for text, _ in chosen], params={"labels": TICKETS["descriptions"]}
        )
        job = await inbox.wait(job.job_id, timeout_seconds=60)
    assert (job.state, job.done, job.total) == ("succeeded", 5, 5)
    assert [answer["label"] for answer in job.result["results"]] == [label for _, label in chosen]
    assert job.usage["model_calls"] >= 5


async def test_wrong_params_are_a_dead_letter_after_one_attempt(inbox):
    async with inbox.worker():
        job = await inbox.submit("classify", content="text", params={"lables": ["a", "b"]})
        job = await inbox.wait(job.job_id, timeout_seconds=60)
    assert (job.state, job.attempts, job.error["code"]) == ("failed", 1, "invalid_params")
    assert "did you mean `labels`" in job.error["message"]


async def test_a_refused_key_keeps_the_job_waiting_and_says_so():
    async with provider(status(401), says("Fine.")) as server, Inbox("memory://") as inbox:
        models = Models(ModelOptions(model="big-1", model_url=server.url, model_key="wrong"))
        register(inbox.handlers, inbox.settings, models)
        async with inbox.worker():
            job = await inbox.submit("assistant", content="Hello")
            async for line in inbox.follow(job.job_id):
                if line.event == "held":
                    break
            job = await inbox.get(job.job_id)
            assert (job.state, job.attempts, job.holds) == ("queued", 0, 1)
            assert "key refused" in job.reason
        await models.close()
    assert server.calls == 1
