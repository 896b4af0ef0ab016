"""Looking never fails: whatever number got into a store is shown, by its nearest end where it is past what can be."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from postroom import lifecycle
from postroom.cli.output import clock_time, describe_job
from postroom.model import Checkpoint, CheckpointKind, Draft, Event, Line, Payload, State, evolve
from postroom.views import (
    JobView,
    format_time,
    item_view,
    job_view,
    job_view_from_json,
    line_from_json,
    line_to_json,
    parse_time,
    to_datetime,
)

JOB = lifecycle.submit(Draft("0" * 32, "note", Payload("1")), 1_700_000_000.0).job
TIMES = "created_at updated_at run_at started_at finished_at expires_at lease_expires_at".split()
PAST = [253_402_300_800.0, 1e12, 1e300, float("inf")]
BEFORE = [-62_135_596_801.0, -1e300, float("-inf"), float("nan")]


@pytest.mark.parametrize("number", [*PAST, *BEFORE])
@pytest.mark.parametrize("name", TIMES)
def test_a_time_past_the_calendar_is_shown_by_its_nearest_end(name: str, number: float) -> None:
    view = job_view(evolve(JOB, **{name: number}), 1_700_000_000.0)
    assert getattr(view, name).year == (9999 if number in PAST else 1)
    assert job_view_from_json(json.loads(json.dumps(view.to_json()))) == view
    describe_job(view)


@pytest.mark.parametrize("number", [*PAST, *BEFORE])
def test_a_journal_line_shows_such_times_too(number: float) -> None:
    line = Line(0, number, Event.HELD, None, State.QUEUED, 1, 1, 1, "w", None, {"run_at": number})
    shown = line_to_json(line)
    assert shown["at"] == shown["data"]["run_at"] == format_time(to_datetime(number))
    line_from_json(json.loads(json.dumps(shown)))


@pytest.mark.parametrize("usage", ['{"tokens":1e999}', '{"tokens":Infinity,"n":NaN}', '{"tokens":-1e999}'])
def test_usage_past_all_numbers_is_json_all_the_same(usage: str) -> None:
    view = job_view(evolve(JOB, usage=usage), 1_700_000_000.0)
    json.dumps(view.to_json(), allow_nan=False)
    item = item_view("0", 0, Checkpoint(CheckpointKind.ITEM, "0", value="1", usage=usage))
    json.dumps(item.to_json(), allow_nan=False)


@pytest.mark.parametrize("number", [float("inf"), float("nan"), 1e999])
def test_a_limit_past_all_numbers_is_json_all_the_same(number: float) -> None:
    job = evolve(JOB, timeout_seconds=number, stall_timeout_seconds=number)
    view: JobView = job_view(job, 1_700_000_000.0)
    json.dumps(view.to_json(), allow_nan=False)


@pytest.mark.parametrize("hours", [-14, 0, 14])
@pytest.mark.parametrize("moment", [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)])
def test_the_ends_of_the_calendar_are_shown_in_every_zone(moment: Any, hours: int) -> None:
    there = moment.replace(tzinfo=timezone(timedelta(hours=hours)))
    assert parse_time(format_time(there) or "").year == moment.year
    assert clock_time(moment).startswith(f"{moment.year:04d}")


def test_a_time_past_the_calendar_is_shown_on_a_terminal_far_from_greenwich(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import time

    for zone in ("UTC-14", "UTC+12"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        try:
            assert clock_time(1e300).startswith("9999")
            assert clock_time(-1e300).startswith("0001")
        finally:
            monkeypatch.undo()
            time.tzset()
