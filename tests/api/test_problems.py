"""Every error has one status and one shape."""

from __future__ import annotations

import inspect

import httpx2
import pytest

from postroom import errors
from postroom.api import problems
from postroom.errors import PostroomError, Problem
from postroom.stores.connection import error_from_problem

EXAMPLES: list[PostroomError] = [
    errors.JobNotFound("a" * 32),
    errors.JobPurged("a" * 32, 1_700_000_000.0),
    errors.TransitionRefused("no", job_id="a" * 32, state="running"),
    errors.LeaseLost("lost"),
    errors.CheckpointConflict("another value", key="k"),
    errors.DuplicateJob("a" * 32),
    errors.ResultMissing("a" * 32, "queued"),
    errors.DraftInvalid([Problem("priority", "one of high, normal, low")]),
    errors.OutcomeInvalid("does not fit"),
    errors.TooLarge("the body", limit=10, size=11),
    errors.WaitTimedOut("a" * 32, 3, "running"),
    errors.HandlerMissing("no handler"),
    errors.HandlerInvalid("bad handler"),
    errors.SettingsInvalid("bad setting"),
    errors.AccessRefused("no"),
    errors.StoreUnavailable("away"),
    errors.StoreDamaged("damaged"),
    errors.StoreFull("full"),
    errors.StoreUnsuitable("unsuitable"),
    errors.SchemaOutOfDate("run migrate"),
    errors.StoreError("broken"),
    PostroomError("something"),
]


def ours() -> set[type[PostroomError]]:
    found = inspect.getmembers(errors, lambda o: inspect.isclass(o) and issubclass(o, PostroomError))
    return {kind for _, kind in found}


def test_every_error_has_a_row_and_an_example():
    assert ours() == set(problems.STATUSES) == {type(error) for error in EXAMPLES}


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
async def test_every_error_is_answered_in_the_one_shape(app, client, error):
    async def broken() -> None:
        raise error

    app.add_api_route("/broken", broken)
    answer = await client.get("/broken")
    problem = answer.json()
    assert answer.status_code == problem["status"] == problems.STATUSES[type(error)]
    assert answer.headers["content-type"] == "application/problem+json"
    assert {"type", "title", "status", "detail"} <= problem.keys()
    assert problem["detail"] == str(error)
    assert ("retry-after" in answer.headers) == (answer.status_code in (503, 507))


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_a_problem_becomes_the_same_error_at_the_other_end(error):
    back = error_from_problem(problems.problem(error))
    if type(error) is PostroomError:
        assert type(back) is errors.StoreError
        return
    assert type(back) is type(error)
    for name in ("job_id", "state", "key", "limit", "size", "purged_at", "problems"):
        assert getattr(back, name, None) == getattr(error, name, None)


def test_every_type_has_a_name_of_its_own():
    types = [name for _, _, name in problems.rows()]
    assert len(set(types)) == len(types)


async def test_an_address_that_does_not_exist_is_a_problem_too(client):
    for path in ("/nothing", "/jobs/", "/jobs/x/y", "/favicon.ico"):
        answer = await client.get(path)
        assert answer.status_code == 404
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["type"] == "about:blank"


async def test_a_method_that_does_not_exist_says_which_do(client):
    answer = await client.put("/jobs", json={})
    assert answer.status_code == answer.json()["status"] == 405
    assert "POST" in answer.headers["allow"]


async def test_a_bug_shows_nothing_of_its_inside(app, client):
    async def broken() -> None:
        raise RuntimeError("secret-content")

    app.add_api_route("/broken", broken)
    answer = await client.get("/broken")
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert "secret" not in answer.text
    assert "RuntimeError" not in answer.text


async def test_a_query_that_is_no_text_is_refused(client):
    answer = await client.get(httpx2.URL("http://127.0.0.1:8000/jobs?%ff=1"))
    assert answer.status_code == 422
