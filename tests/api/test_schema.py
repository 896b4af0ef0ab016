"""What OpenAPI promises, held against the service by requests that nobody thought of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, settings

from postroom.api.app import create_app
from postroom.doors.inbox.routes import router as inbox_door
from postroom.inbox import Inbox
from tests.api.live import QUICK, live_service

DOCUMENT = create_app(Inbox("memory://", settings=QUICK), QUICK, doors=(inbox_door,)).openapi()
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
ACCEPTS_VALID = schemathesis.checks.CHECKS.get_one("positive_data_acceptance")
REFUSES_INVALID = schemathesis.checks.CHECKS.get_one("negative_data_rejection")

# Rules that a schema cannot tell: no NUL, as many keys as items, no time in the past, what a cursor is.
HAS_MORE_RULES = {"GET /jobs", "GET /jobs/{job_id}/items", "GET /inbox/tasks"}
# One bad entry harms no other: the answer to the whole is 200, and says of each what is wrong with it.
ANSWERS_BY_ENTRY = {"POST /jobs/batch", "POST /leases/heartbeat", "POST /leases/settle"}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with live_service() as live:
        yield live.url


@pytest.fixture
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        session.trust_env = False
        yield session


@SCHEMA.parametrize()
@settings(
    max_examples=25,
    derandomize=True,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_it_answers_as_openapi_says(case: schemathesis.Case, url: str, session: requests.Session) -> None:
    hasten(case)
    excluded = []
    if case.method == "POST" or f"{case.method} {case.path}" in HAS_MORE_RULES:
        excluded.append(ACCEPTS_VALID)
    if f"{case.method} {case.path}" in ANSWERS_BY_ENTRY:
        excluded.append(REFUSES_INVALID)
    case.call_and_validate(base_url=url, session=session, timeout=20, excluded_checks=excluded)


def hasten(case: Any) -> None:
    """Nothing is waited for here: it would only take time."""
    if case.headers and "wait" in str(case.headers.get("Prefer", "")):
        case.headers["Prefer"] = "wait=0"
    wait = case.body.get("wait_seconds") if isinstance(case.body, dict) else None
    if isinstance(wait, int | float) and not isinstance(wait, bool) and 0 < wait <= 60:
        case.body["wait_seconds"] = 0
