"""The design's table, line by line: what each transition sets, counts and tells."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import pytest

from postroom import lifecycle
from postroom.errors import CheckpointConflict, LeaseLost, OutcomeInvalid, TransitionRefused
from postroom.lifecycle import CANCELLED, FAILED, QUEUED, RUNNING, SUCCEEDED, Kept
from postroom.model import Checkpoint, Draft, ErrorInfo, Limits, OutcomeKind, Payload, Priority
from postroom.policy import JITTER_HIGH, JITTER_LOW, Policy
from postroom.views import format_time
from tests.lifecycle.life import ITEM, LEASE, START, TICK, Life, born, item, item_error, running, step


def error_of(life: Life) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(life.job.error or "null")
    return found


GRACE = Policy().limit_grace_seconds


# ---- submit


def test_a_new_job_is_queued_and_due_now() -> None:
    life = born(priority=Priority.HIGH, queue="q", owner="ann")
    job = life.job
    assert (job.state, job.run_at, job.created_at, job.updated_at) == (QUEUED, START, START, START)
    assert (job.version, job.epoch, job.life, job.lines, job.done, job.total) == (1, 0, 1, 1, 0, 1)
    assert life.counts() == {"attempts": 0, "crashes": 0, "interruptions": 0, "holds": 0}
    assert (job.priority, job.queue, job.owner) == (Priority.HIGH, "q", "ann")
    [line] = life.lines
    assert (line.n, line.event, line.from_state, line.to_state, line.epoch, line.attempt, line.life) == (
        0,
        "submitted",
        None,
        QUEUED,
        0,
        0,
        1,
    )


@pytest.mark.parametrize(
    ("run_at", "due"), [(None, START), (START - 5, START), (START, START), (START + 5, START + 5)]
)
def test_a_job_is_due_at_run_at_and_never_before_now(run_at: float | None, due: float) -> None:
    assert born(run_at=run_at).job.run_at == due


def test_the_digest_of_a_submission_changes_with_all_that_was_submitted() -> None:
    first = Draft("1" * 32, "a", Payload("1"))
    others = [
        replace(first, kind="b"),
        replace(first, payload=Payload("2")),
        replace(first, payload=Payload("1", ("k",))),
        replace(first, has_items=True),
        replace(first, owner="o"),
        replace(first, sender="s"),
        replace(first, topic="t"),
        replace(first, queue="q"),
        replace(first, priority=Priority.LOW),
        replace(first, params='{"a":1}'),
        replace(first, metadata='{"a":1}'),
    ]
    digests = {lifecycle.submit(draft, START).lines[0].data["digest"] for draft in [first, *others]}
    assert len(digests) == len(others) + 1


# ---- claim


def test_a_claim_raises_epoch_and_attempts_by_one_and_sets_holder_and_lease() -> None:
    life = born().after(7.0).claim("w9", 12.0)
    job = life.job
    assert (job.state, job.epoch, job.attempts, job.worker) == (RUNNING, 1, 1, "w9")
    assert (job.lease_seconds, job.lease_expires_at) == (12.0, life.now + 12.0)
    assert (job.started_at, job.progress_at, job.run_at) == (life.now, life.now, START)
    line = life.lines[-1]
    assert (line.event, line.actor, line.epoch, line.attempt) == ("claimed", "w9", 1, 1)


def test_a_job_is_claimed_exactly_from_run_at_on() -> None:
    life = born(run_at=START + 5.0).after(5.0 - TICK)
    with pytest.raises(TransitionRefused):
        life.claim()
    assert life.after(TICK).claim().job.state is RUNNING


def test_a_job_is_not_claimed_at_expires_at_or_later() -> None:
    assert born(expires_at=START + 5.0).after(5.0 - TICK).claim().job.state is RUNNING
    for late in (5.0, 6.0):
        with pytest.raises(TransitionRefused):
            born(expires_at=START + 5.0).after(late).claim()


# ---- heartbeat


def test_a_beat_extends_the_lease_from_the_clock_of_the_store() -> None:
    life = running().after(20.0)
    life.beat()
    assert life.job.lease_expires_at == life.now + LEASE
    life.after(1.0).beat(lease_seconds=5.0)
    assert life.job.lease_expires_at == life.now + 5.0


def test_a_beat_after_the_lease_ended_is_taken_while_nobody_took_over() -> None:
    life = running().after(LEASE + 100.0)
    life.beat(done=1, total=2)
    assert life.job.lease_expires_at == life.now + LEASE


@pytest.mark.parametrize("limits", [{"timeout_seconds": 100.0}, {"stall_timeout_seconds": 100.0}])
@pytest.mark.parametrize("how", ["job", "handler"])
def test_no_beat_extends_a_lease_past_the_time_limit(limits: dict[str, Any], how: str) -> None:
    life = running(**(limits if how == "job" else {}))
    life.after(50.0).beat(limits=Limits(**limits) if how == "handler" else None)
    assert life.job.lease_expires_at == START + 100.0
    life.after(50.0 - TICK).beat()
    assert life.job.lease_expires_at == START + 100.0
    life.after(500.0).beat()
    assert life.job.lease_expires_at == START + 100.0


@pytest.mark.parametrize("progress", ["item", "step", "output", "done", "inside an item"])
def test_progress_puts_the_stall_limit_off(progress: str) -> None:
    items = 3 if "item" in progress else 0
    life = running(items=items, stall_timeout_seconds=100.0).after(90.0)
    match progress:
        case "item":
            life.beat(item(0))
        case "step":
            life.beat(step("s"))
        case "output":
            life.beat(output=('"x"',))
        case "done":
            life.beat(done=1, total=5)
        case "inside an item":
            life.beat(moved=True)
    assert life.job.progress_at == life.now
    assert lifecycle.limit_at(life.job, life.policy) == life.now + 100.0


@pytest.mark.parametrize("again", ["nothing", "same item", "same done", "smaller done"])
def test_what_is_no_progress_does_not_put_the_stall_limit_off(again: str) -> None:
    life = running(items=3 if "item" in again else 0, stall_timeout_seconds=100.0)
    if "item" in again:
        life.beat(item(0))
    elif "done" in again:
        life.beat(done=3, total=5)
    life.after(50.0)
    match again:
        case "nothing":
            life.beat()
        case "same item":
            life.beat(item(0))
        case "same done":
            life.beat(done=3, total=5)
        case "smaller done":
            life.beat(done=2, total=5)
    assert lifecycle.limit_at(life.job, life.policy) == START + 100.0


def test_a_whole_handler_that_starts_again_from_the_front_is_seen_to_move() -> None:
    life = running(stall_timeout_seconds=100.0)
    life.beat(done=5, total=10)
    life.fail()
    life.after(100.0).claim()
    for done in (1, 2, 3):
        life.after(90.0).beat(done=done, total=10)
        assert life.job.done == done
    assert life.job.progress_at == life.now


def test_progress_of_a_whole_handler_is_as_reported_and_never_past_the_total() -> None:
    life = running()
    seen = []
    for done, total in ((1, 10), (4, None), (None, None), (99, 10), (3, 5), (-2, 5)):
        life.beat(done=done, total=total)
        seen.append((life.job.done, life.job.total))
    assert seen == [(1, 10), (4, 10), (4, 10), (10, 10), (3, 5), (0, 5)]


def test_items_count_themselves_whatever_a_worker_says() -> None:
    life = running(items=3)
    life.beat(done=3, total=9)
    assert (life.job.done, life.job.total) == (0, 3)
    life.beat(item(0), done=3)
    assert (life.job.done, life.job.total) == (1, 3)
    with pytest.raises(OutcomeInvalid, match="2 of 3 items still pending"):
        life.succeed()


def test_a_beat_hears_of_a_cancel() -> None:
    life = running()
    assert life.beat().status == "ok"
    life.cancel()
    assert life.beat().status == "cancel_requested"


def test_a_repeated_beat_adds_nothing_twice() -> None:
    life = running()
    fields: dict[str, Any] = {"output": ('"x"',), "usage": {"tokens": 2}, "done": 2, "total": 9, "seq": 1}
    for _ in range(2):
        life.beat(**fields)
    life.beat(**{**fields, "seq": 2, "done": 4})
    life.beat(**fields)
    assert life.events.count("output") == 2
    assert json.loads(life.job.usage or "") == {"tokens": 4}
    assert (life.job.done, life.job.beat_seq) == (4, 2)


def test_beats_of_the_next_run_count_from_one_again() -> None:
    life = running()
    life.beat(seq=7, output=("1",))
    life.release()
    life.claim()
    life.beat(seq=1, output=("2",))
    assert life.events.count("output") == 2


def test_progress_lines_are_thinned_by_the_clock() -> None:
    life = running(items=200, policy=Policy(progress_line_seconds=1.0))
    for n in range(200):
        life.after(1 / 16)
        life.beat(item(n))
    lines = [line for line in life.lines if line.event == "progress"]
    assert 10 <= len(lines) <= 15
    assert dict(lines[-1].data)["done"] == 200


# ---- succeed


def test_success_of_a_content_job_records_result_and_end() -> None:
    life = running().after(5.0)
    life.succeed(result='"é"')
    job = life.job
    assert (job.state, job.finished_at, job.result_bytes, job.done) == (SUCCEEDED, life.now, 4, 1)
    assert (job.worker, job.lease_expires_at, job.error) == (None, None, None)
    assert life.result == '"é"'


def test_a_result_that_is_none_is_null() -> None:
    life = running()
    life.settle(OutcomeKind.SUCCEEDED)
    assert (life.result, life.job.result_bytes) == ("null", 4)


def test_success_clears_the_error_of_earlier_attempts() -> None:
    life = running()
    life.fail()
    assert error_of(life)["code"] == "Broken"
    life.after(100.0).claim()
    life.succeed()
    assert life.job.error is None


# ---- error


def test_an_error_is_tried_again_after_two_four_eight_seconds() -> None:
    life = running(max_attempts=5)
    delays = []
    for _ in range(4):
        life.fail()
        assert life.job.state is QUEUED
        delays.append(life.job.run_at - life.now)
        life.now = life.job.run_at
        life.claim()
    assert delays == [2.0, 4.0, 8.0, 16.0]
    life.fail()
    assert life.job.state is FAILED


@pytest.mark.parametrize("jitter", [JITTER_LOW, 1.0, JITTER_HIGH])
def test_the_delay_is_multiplied_by_the_jitter_after_the_cap(jitter: float) -> None:
    life = running(max_attempts=99, policy=Policy(backoff_cap_seconds=5.0))
    life.jitter = jitter
    for expected in (2.0, 4.0, 5.0, 5.0):
        life.fail()
        assert life.job.run_at - life.now == pytest.approx(expected * jitter)
        life.now = life.job.run_at
        life.claim()


def test_a_retried_error_is_kept_with_epoch_and_attempt() -> None:
    life = running()
    life.fail(code="Odd", message="it broke", detail={"raw": [1]})
    assert error_of(life) == {
        "code": "Odd",
        "message": "it broke",
        "detail": {"raw": [1]},
        "epoch": 1,
        "attempt": 1,
    }
    assert (life.job.reason, life.job.finished_at) == ("Odd", None)
    line = life.lines[-1]
    assert (line.event, line.reason, line.attempt) == ("retried", "Odd", 1)
    assert line.data["error"]["message"] == "it broke"


@pytest.mark.parametrize(("max_attempts", "claims"), [(1, 1), (2, 2), (None, 3), (7, 7)])
def test_the_last_attempt_is_exactly_the_one_that_the_budget_says(
    max_attempts: int | None, claims: int
) -> None:
    life = born(max_attempts=max_attempts)
    for n in range(1, claims + 1):
        life.after(1000.0).claim()
        assert life.job.attempts == n
        life.fail()
    assert (life.job.state, life.job.attempts) == (FAILED, claims)
    assert error_of(life)["attempt"] == claims


def test_the_handlers_own_budget_stands_where_the_job_says_nothing() -> None:
    life = running()
    life.fail(limits=Limits(max_attempts=1))
    assert (life.job.state, life.job.max_attempts) == (FAILED, 1)
    life = running(max_attempts=2)
    life.fail(limits=Limits(max_attempts=1))
    assert (life.job.state, life.job.max_attempts) == (QUEUED, 2)


def test_a_permanent_error_fails_at_once_and_is_not_claimed_again() -> None:
    life = running(max_attempts=9)
    life.fail(is_permanent=True)
    assert (life.job.state, life.job.finished_at) == (FAILED, START)
    with pytest.raises(TransitionRefused):
        life.after(1e9).claim()


def test_a_failure_that_gives_no_error_has_one_all_the_same() -> None:
    life = running(max_attempts=1)
    life.settle(OutcomeKind.FAILED)
    assert error_of(life)["code"]
    assert error_of(life)["message"]


# ---- hold, release


def test_a_hold_waits_and_is_not_charged() -> None:
    life = running()
    life.hold(30.5, "the provider limits us")
    assert (life.job.state, life.job.run_at, life.job.reason) == (
        QUEUED,
        life.now + 30.5,
        "the provider limits us",
    )
    assert life.counts() == {"attempts": 0, "crashes": 0, "interruptions": 0, "holds": 1}
    assert life.job.error is None


def test_a_thousand_holds_leave_every_attempt() -> None:
    life = born(max_attempts=1)
    for _ in range(1000):
        life.claim()
        life.hold(0)
    assert life.counts() == {"attempts": 0, "crashes": 0, "interruptions": 0, "holds": 1000}
    life.claim()
    life.succeed()
    assert (life.job.state, life.job.epoch, life.job.attempts) == (SUCCEEDED, 1001, 1)


def test_a_hold_for_ever_waits_until_a_time_that_can_be_shown() -> None:
    life = running()
    life.hold(1e300, "the provider says so")
    assert life.job.run_at == life.now + lifecycle.HOLD_MOST_SECONDS
    assert format_time(life.job.run_at)


def test_usage_that_sums_up_past_all_numbers_is_still_a_number() -> None:
    life = running()
    for _ in range(3):
        life.beat(usage={"tokens": 2**63 - 1, "cost": 1.7e308, "debt": -1.7e308})
    assert json.loads(life.job.usage or "", parse_constant=pytest.fail) == {
        "tokens": 2**63 - 1,
        "cost": sys.float_info.max,
        "debt": -sys.float_info.max,
    }


def test_a_hold_that_does_not_say_waits_as_the_policy_says() -> None:
    life = running(policy=Policy(hold_seconds=17.0))
    life.hold(None, None)
    assert life.job.run_at == life.now + 17.0
    assert life.job.reason


@pytest.mark.parametrize("after", [-1.0, float("nan"), float("inf")])
def test_a_hold_of_no_sensible_length_is_refused(after: float) -> None:
    life = running()
    before = life.job
    with pytest.raises(OutcomeInvalid):
        life.hold(after)
    assert life.job == before


def test_a_release_is_due_at_once_and_not_charged() -> None:
    life = running().after(5.0)
    life.release()
    assert (life.job.state, life.job.run_at, life.job.started_at) == (QUEUED, life.now, START)
    assert life.counts() == {"attempts": 0, "crashes": 0, "interruptions": 1, "holds": 0}
    assert life.claim().job.attempts == 1


def test_eight_drains_cost_nothing() -> None:
    life = born(max_attempts=3)
    for _ in range(8):
        life.claim()
        life.release()
    life.claim()
    life.succeed()
    assert (life.job.state, life.job.attempts, life.job.interruptions) == (SUCCEEDED, 1, 8)


@pytest.mark.parametrize(
    "said",
    [{"done": 1}, {"done": 5}, {"done": 1, "total": 1}, {"done": 5, "total": 1}, {"done": 7, "total": 0}],
)
def test_the_one_piece_of_a_job_with_content_is_not_done_while_it_runs(said: dict[str, int]) -> None:
    life = running()
    life.beat(**said, moved=True)
    assert (life.job.done, life.job.total, life.job.progress_at) == (0, 1, life.now)
    assert "progress" not in life.events
    life.succeed()
    assert (life.job.done, life.job.total) == (1, 1)


def test_a_handler_that_says_how_much_there_is_is_believed() -> None:
    life = running()
    life.beat(done=3, total=10)
    assert (life.job.done, life.job.total) == (3, 10)
    life.beat(done=12)
    assert (life.job.done, life.job.total) == (10, 10)
    life.beat(done=2, total=1)
    assert (life.job.done, life.job.total) == (0, 1)


# ---- crash


def test_a_lease_is_over_exactly_when_it_ends() -> None:
    life = running().after(LEASE - TICK)
    assert isinstance(life.rescue(), Kept)
    life.after(TICK).rescue()
    assert (life.job.state, life.events[-1], life.lines[-1].reason) == (QUEUED, "crashed", "lease expired")


def test_a_worker_proven_dead_is_not_waited_for() -> None:
    life = running().after(1.0)
    life.rescue(is_proven=True, reason="process gone")
    assert (life.job.state, life.lines[-1].reason) == (QUEUED, "process gone")
    assert life.counts() == {"attempts": 0, "crashes": 1, "interruptions": 0, "holds": 0}


def test_a_rescue_of_an_earlier_epoch_keeps_the_job() -> None:
    life = running().after(LEASE)
    life.rescue()
    life.after(10.0).claim()
    for proven in (False, True):
        assert isinstance(life.after(LEASE).rescue(epoch=1, is_proven=proven), Kept)


def test_a_crash_backs_off_by_the_crashes_in_a_row() -> None:
    life = running(items=9, policy=Policy(max_crashes=5, progress_line_seconds=0.0))
    delays = []
    for n, refills in enumerate((False, False, True, False)):
        if refills:
            life.beat(item(n))
        life.crash()
        delays.append(life.job.run_at - life.now)
        life.now = life.job.run_at
        life.claim()
    assert delays == [2.0, 4.0, 2.0, 4.0]


def test_crashes_in_a_row_end_as_a_dead_letter_that_says_so() -> None:
    life = born()
    for n in range(3):
        life.claim(f"w{n}").after(LEASE)
        life.rescue()
        life.after(1000.0)
    assert life.job.state is FAILED
    assert life.events == ["submitted", "claimed", "crashed", "claimed", "crashed", "claimed", "failed"]
    error = error_of(life)
    assert error["code"] == "worker_lost"
    assert "3 times" in error["message"]
    assert error["detail"]["worker"] == "w2"
    assert (life.job.crashes, life.job.crashes_in_row, life.job.attempts) == (3, 3, 0)


def test_crashes_in_all_have_a_budget_too() -> None:
    life = born(items=100)
    claims = 0
    while life.job.state is QUEUED:
        life.after(1000.0).claim()
        claims += 1
        life.beat(item(claims))
        life.crash()
    assert (life.job.state, claims, life.job.crashes, life.job.crashes_in_row) == (FAILED, 20, 20, 1)


@pytest.mark.parametrize("refill", ["item", "final error", "step"])
def test_a_new_checkpoint_refills_the_budget_of_crashes_in_a_row(refill: str) -> None:
    life = running(items=5)
    life.crash()
    life.after(100.0).claim()
    match refill:
        case "item":
            life.beat(item(0))
        case "final error":
            life.beat(item_error(0, is_final=True))
        case "step":
            life.beat(step("s"))
    assert (life.job.crashes, life.job.crashes_in_row) == (1, 0)


def test_what_is_not_done_for_good_refills_no_budget() -> None:
    life = running(items=5)
    life.beat(item(0))
    life.crash()
    life.after(100.0).claim()
    life.beat(item(0), item_error(1))
    assert life.job.crashes_in_row == 1


def test_a_crash_that_a_supervisor_saw_names_its_signal() -> None:
    life = running()
    life.crash("signal 9")
    assert (life.lines[-1].event, life.lines[-1].reason) == ("crashed", "signal 9")
    assert error_of(life)["code"] == "worker_lost"


# ---- time limits


@pytest.mark.parametrize(
    ("limits", "code"), [({"timeout_seconds": 30.0}, "timeout"), ({"stall_timeout_seconds": 30.0}, "stalled")]
)
def test_a_lease_that_ended_at_a_limit_is_an_error_and_no_crash(limits: dict[str, float], code: str) -> None:
    life = running(**limits).after(30.0 + GRACE)
    life.rescue()
    assert (life.job.state, error_of(life)["code"], life.events[-1]) == (QUEUED, code, "retried")
    assert life.counts() == {"attempts": 1, "crashes": 0, "interruptions": 0, "holds": 0}


@pytest.mark.parametrize(
    ("limits", "code"), [({"timeout_seconds": 30.0}, "timeout"), ({"stall_timeout_seconds": 30.0}, "stalled")]
)
def test_the_sweep_leaves_a_run_at_its_limit_to_its_worker_for_a_grace(
    limits: dict[str, float], code: str
) -> None:
    life = running(**limits).after(30.0 + GRACE - TICK)
    assert isinstance(life.rescue(), Kept)
    life.fail(code=code)
    assert (life.job.state, error_of(life)["code"], life.events.count("retried")) == (QUEUED, code, 1)


def test_a_worker_that_is_proven_dead_gets_no_grace_at_the_limit() -> None:
    life = running(timeout_seconds=30.0).after(30.0)
    life.rescue(is_proven=True, reason="process gone")
    assert (life.job.state, error_of(life)["code"]) == (QUEUED, "timeout")


def test_no_beat_in_the_grace_carries_the_lease_further() -> None:
    life = running(timeout_seconds=30.0).after(30.0 + GRACE - TICK)
    life.beat()
    assert life.job.lease_expires_at == START + 30.0
    life.after(TICK).rescue()
    assert error_of(life)["code"] == "timeout"


def test_a_lease_that_ended_before_the_limit_has_no_grace() -> None:
    life = running(timeout_seconds=LEASE + TICK).after(LEASE)
    life.rescue()
    assert error_of(life)["code"] == "worker_lost"


def test_a_lease_that_ended_before_the_limit_is_a_crash_however_late_it_is_found() -> None:
    life = running(timeout_seconds=600.0).after(5000.0)
    life.rescue()
    assert (error_of(life)["code"], life.job.crashes, life.job.attempts) == ("worker_lost", 1, 0)


def test_timeouts_count_as_attempts() -> None:
    life = born(timeout_seconds=10.0, max_attempts=2)
    for _ in range(2):
        life.after(100.0).claim().after(10.0 + GRACE)
        life.rescue()
    assert (life.job.state, error_of(life)["code"]) == (FAILED, "timeout")


def test_the_whole_limit_is_named_where_both_are_over() -> None:
    life = running(timeout_seconds=30.0, stall_timeout_seconds=30.0)
    assert lifecycle.limit_error(life.job, lifecycle.Facts(START + 30.0 - TICK)) is None
    error = lifecycle.limit_error(life.job, lifecycle.Facts(START + 30.0))
    assert error is not None
    assert error.code == "timeout"


def test_without_any_limit_of_its_own_a_run_may_stall_half_an_hour() -> None:
    life = running()
    assert lifecycle.limit_at(life.job, Policy()) == START + 1800.0


# ---- cancel


def test_a_queued_job_is_cancelled_at_once() -> None:
    life = born()
    life.cancel(reason="enough", actor="ann")
    assert (life.job.state, life.job.reason, life.job.finished_at) == (CANCELLED, "enough", START)
    assert (life.lines[-1].actor, life.lines[-1].reason) == ("ann", "enough")
    with pytest.raises(TransitionRefused):
        life.claim()


def test_a_running_job_is_asked_and_asked_only_once() -> None:
    life = running()
    life.cancel(reason="enough")
    assert (life.job.state, life.job.cancel_requested, life.job.worker) == (RUNNING, True, "w1")
    again = life.cancel(reason="now!")
    assert isinstance(again, Kept)
    assert again.status == "cancel_requested"
    assert life.events.count("cancel_requested") == 1


@pytest.mark.parametrize(
    "end", ["confirm", "fail", "permanent", "hold", "release", "crash", "rescue", "timeout"]
)
def test_a_job_that_was_asked_to_stop_is_cancelled_whatever_ends_its_run(end: str) -> None:
    life = running(timeout_seconds=30.0 if end == "timeout" else None)
    life.cancel(reason="enough")
    match end:
        case "permanent":
            life.fail(is_permanent=True)
        case "rescue":
            life.after(LEASE).rescue()
        case "timeout":
            life.after(30.0 + GRACE).rescue()
        case _:
            getattr(life, end)()
    assert (life.job.state, life.job.reason, life.job.cancel_requested) == (CANCELLED, "enough", False)
    assert (life.events[-1], life.lines[-1].reason) == ("cancelled", "enough")
    assert (life.job.worker, life.job.lease_expires_at) == (None, None)


def test_a_success_that_commits_first_wins() -> None:
    life = running()
    life.cancel()
    life.succeed()
    job = life.job
    assert (job.state, job.cancel_requested, job.reason, life.result) == (SUCCEEDED, False, None, '"done"')
    with pytest.raises(TransitionRefused):
        life.cancel()


def test_a_worker_cannot_confirm_what_nobody_asked() -> None:
    life = running()
    with pytest.raises(OutcomeInvalid):
        life.confirm()
    assert life.job.state is RUNNING


def test_checkpoints_that_come_with_the_end_of_a_cancelled_run_are_kept() -> None:
    life = running(items=2)
    life.cancel()
    life.settle(OutcomeKind.CANCELLED, item(0))
    assert (ITEM, "0") in life.checkpoints
    assert life.job.done == 1


# ---- expiry


def test_a_job_expires_exactly_at_expires_at() -> None:
    life = born(expires_at=START + 5.0).after(5.0 - TICK)
    assert isinstance(life.expire(), Kept)
    life.after(TICK).expire()
    assert (life.job.state, life.job.reason, life.events[-1]) == (CANCELLED, "expired", "expired")


def test_at_every_instant_a_job_can_either_start_or_expire() -> None:
    for seconds in (0.0, 4.0, 5.0 - TICK, 5.0, 6.0):
        life = born(expires_at=START + 5.0).after(seconds)
        if seconds >= 5.0:
            with pytest.raises(TransitionRefused):
                life.claim()
            life.expire()
            assert life.job.state is CANCELLED
        else:
            assert isinstance(life.expire(), Kept)
            assert life.claim().job.state is RUNNING


@pytest.mark.parametrize("end", ["fail", "hold", "release", "crash"])
def test_once_started_expires_at_plays_no_part(end: str) -> None:
    life = running(expires_at=START + 5.0)
    getattr(life, end)()
    life.after(1000.0)
    assert isinstance(life.expire(), Kept)
    assert life.claim().job.state is RUNNING
    assert life.job.expires_at == START + 5.0


def test_without_expires_at_nothing_expires() -> None:
    assert isinstance(born().after(1e12).expire(), Kept)


# ---- replay


def test_a_replay_is_a_new_life() -> None:
    life = running(items=3, expires_at=START + 50.0)
    life.beat(item(0), item_error(1, is_final=True), step("s"))
    life.hold(0.0)
    life.claim()
    life.release()
    life.claim()
    life.crash()
    life.after(10.0).claim()
    life.fail(is_permanent=True)
    before = life.job
    life.after(100.0).replay(actor="ann")
    job = life.job
    assert (job.state, job.life, job.epoch, job.run_at) == (QUEUED, 2, before.epoch, life.now)
    assert life.counts() == {"attempts": 0, "crashes": 0, "interruptions": 1, "holds": 1}
    assert (job.crashes_in_row, job.expires_at, job.start_by, job.finished_at, job.error) == (
        0,
        None,
        None,
        None,
        None,
    )
    assert (job.done, job.failed_items) == (1, 0)
    assert set(life.checkpoints) == {(ITEM, "0"), ("step", "s")}
    assert "error" in life.lines[-2].data
    assert (life.lines[-1].actor, life.lines[-1].life) == ("ann", 2)
    assert life.claim().job.epoch == before.epoch + 1


def test_an_item_that_failed_may_have_another_value_in_the_next_life() -> None:
    life = running(items=1)
    life.beat(item_error(0, is_final=True))
    with pytest.raises(CheckpointConflict):
        life.beat(item(0))
    life.succeed()
    assert life.job.state is FAILED
    life.replay()
    life.claim()
    life.succeed(item(0))
    assert (life.job.state, life.job.done, life.job.failed_items) == (SUCCEEDED, 1, 0)


def test_a_replay_pressed_twice_is_one_replay() -> None:
    life = running()
    life.fail(is_permanent=True)
    life.replay(life=1)
    assert isinstance(life.replay(life=1), Kept)
    life.claim()
    life.fail(is_permanent=True)
    assert isinstance(life.replay(life=1), Kept)
    assert (life.job.life, life.job.state) == (2, FAILED)
    life.replay(life=2)
    assert life.job.life == 3


def test_a_replay_may_wait() -> None:
    life = running()
    life.fail(is_permanent=True)
    life.replay(run_at=START + 10.0)
    assert life.job.run_at == START + 10.0
    with pytest.raises(TransitionRefused):
        life.after(10.0 - TICK).claim()
    life.after(TICK).claim()


def test_an_expired_job_that_is_replayed_does_not_expire_again() -> None:
    life = born(expires_at=START + 5.0).after(5.0)
    life.expire()
    life.replay()
    assert isinstance(life.after(1000.0).expire(), Kept)
    life.claim()


# ---- the fence


LATE = {
    "beat": lambda life: life.beat(epoch=1),
    "progress": lambda life: life.beat(epoch=1, done=1, total=2, output=('"x"',)),
    "checkpoint": lambda life: life.beat(item(0), epoch=1),
    "success": lambda life: life.succeed(item(0), item(1), epoch=1),
    "failure": lambda life: life.fail(epoch=1),
    "hold": lambda life: life.hold(epoch=1),
    "release": lambda life: life.release(epoch=1),
    "crash": lambda life: life.crash(epoch=1),
    "confirm": lambda life: life.confirm(epoch=1),
    "nonsense": lambda life: life.beat(Checkpoint(ITEM, "no such item"), epoch=1),
}


@pytest.mark.parametrize("write", LATE)
@pytest.mark.parametrize("now", ["reclaimed", "waiting", "ended", "asked to stop"])
def test_a_late_write_is_lease_lost_whatever_else_is_wrong_with_it(write: str, now: str) -> None:
    life = running(items=2).after(LEASE)
    life.rescue()
    life.after(100.0)
    if now != "waiting":
        life.claim("w2")
    if now == "ended":
        life.succeed(item(0), item(1))
    elif now == "asked to stop":
        life.cancel()
    before = (life.job, list(life.lines), dict(life.checkpoints))
    with pytest.raises(LeaseLost):
        LATE[write](life)
    assert (life.job, life.lines, life.checkpoints) == before


@pytest.mark.parametrize("epoch", [0, 2, -1, 10**9])
def test_an_epoch_that_was_never_given_is_lease_lost(epoch: int) -> None:
    life = running()
    with pytest.raises(LeaseLost):
        life.beat(epoch=epoch)


@pytest.mark.parametrize("end", list(OutcomeKind))
def test_an_outcome_repeated_under_its_epoch_is_ok_again(end: OutcomeKind) -> None:
    life = running()
    if end is OutcomeKind.CANCELLED:
        life.cancel()
    fields: dict[str, Any] = {
        "error": ErrorInfo("Broken", "x", {"a": 1}),
        "reason": "r",
        "after_seconds": 3.0 if end is OutcomeKind.HELD else None,
        "result": "1" if end is OutcomeKind.SUCCEEDED else None,
        "epoch": 1,
    }
    life.settle(end, step("s"), **fields)
    after = life.job
    assert isinstance(life.after(500.0).settle(end, step("s"), **fields), Kept)
    for other in (
        {"error": ErrorInfo("Broken", "y", {"a": 1})},
        {"error": ErrorInfo("Broken", "x", {"a": 2})},
        {"error": ErrorInfo("Broken", "x", {"a": 1}, is_permanent=True)},
        {"reason": "other"},
        {"after_seconds": 4.0},
        {"result": "2"},
    ):
        with pytest.raises(LeaseLost):
            life.settle(end, step("s"), **{**fields, **other})
    assert life.job == after


def test_an_outcome_repeated_after_the_next_claim_is_ok_and_harms_nobody() -> None:
    life = running()
    life.release(reason="r", epoch=1)
    life.claim("w2")
    before = life.job
    assert isinstance(life.release(reason="r", epoch=1), Kept)
    assert life.job == before
    life.succeed()
    with pytest.raises(LeaseLost):
        life.release(reason="r", epoch=1)


# ---- items


def test_done_counts_items_that_ended_and_failed_items_those_that_failed_for_good() -> None:
    life = running(items=4)
    life.beat(item(0), item_error(1), item_error(2, is_final=True))
    assert (life.job.done, life.job.failed_items, life.job.total) == (2, 1, 4)
    life.fail(code="items_failed")
    assert life.job.state is QUEUED
    life.after(100.0).claim()
    life.beat(item(1), item(3))
    assert (life.job.done, life.job.failed_items) == (4, 1)


def test_success_for_items_still_pending_is_invalid() -> None:
    life = running(items=2)
    before = life.job
    with pytest.raises(OutcomeInvalid, match="1 of 2 items still pending"):
        life.succeed(item(0))
    with pytest.raises(OutcomeInvalid, match="1 of 2 items still pending"):
        life.succeed(item(0), item_error(1))
    assert life.job == before


def test_a_result_for_a_job_of_items_is_invalid() -> None:
    life = running(items=1)
    with pytest.raises(OutcomeInvalid, match="not one result"):
        life.succeed(item(0), result="1")


def test_an_item_of_a_content_job_is_invalid() -> None:
    with pytest.raises(OutcomeInvalid, match="has no items"):
        running().beat(item(0))


def test_an_item_that_the_job_does_not_have_is_invalid() -> None:
    with pytest.raises(OutcomeInvalid, match="has no item '7'"):
        running(items=2).beat(item(7))


@pytest.mark.parametrize("fields", [{}, {"value": "1", "error": "2"}])
def test_a_checkpoint_needs_a_value_or_an_error(fields: dict[str, Any]) -> None:
    with pytest.raises(OutcomeInvalid, match="a value or an error"):
        running(items=2).beat(Checkpoint(ITEM, "0", **fields))


def test_the_same_value_again_is_nothing_new_and_another_is_a_conflict() -> None:
    life = running(items=2)
    life.beat(item(0, "1"))
    decision = life.beat(item(0, "1"), item(0, "1"))
    assert getattr(decision, "checkpoints", None) == ()
    for other in (
        item(0, "2"),
        item_error(0),
        item_error(0, is_final=True),
        replace(item(0, "2"), input_digest="d"),
    ):
        with pytest.raises(CheckpointConflict, match="'0'"):
            life.beat(other)
    assert life.job.done == 1


def test_two_values_for_one_item_in_one_write_are_a_conflict() -> None:
    with pytest.raises(CheckpointConflict):
        running(items=2).beat(item(0, "1"), item(0, "2"))


def test_an_item_named_twice_in_one_write_counts_once() -> None:
    life = running(items=2)
    life.beat(item_error(0), item(0, "1"), item(0, "1"))
    assert life.job.done == 1
    assert life.checkpoints[ITEM, "0"].value == "1"


def test_a_checkpoint_that_says_an_input_is_no_other_item_for_it() -> None:
    """Inputs tell steps apart; an item has one input and so one value."""
    life = running(items=2)
    life.beat(item(0, "1"))
    again = life.beat(replace(item(0, "1"), input_digest="d"))
    assert getattr(again, "checkpoints", None) == ()
    assert life.job.done == 1


def test_a_step_is_matched_by_name_and_input() -> None:
    life = running()
    life.beat(step("s", "1", "d1"))
    with pytest.raises(CheckpointConflict):
        life.beat(step("s", "2", "d1"))
    life.beat(step("s", "2", "d2"))
    assert life.job.done == 0


def test_steps_count_as_no_items() -> None:
    life = running(items=2)
    life.beat(step("0"), step("1"))
    assert life.job.done == 0


@pytest.mark.parametrize(
    ("total", "allowed", "failed", "state"),
    [
        (4, None, 1, FAILED),
        (4, None, 0, SUCCEEDED),
        (4, 0, 1, FAILED),
        (4, 2, 2, SUCCEEDED),
        (4, 2, 3, FAILED),
        (4, 0.5, 2, SUCCEEDED),
        (4, 0.5, 3, FAILED),
        (4, 0.25, 1, SUCCEEDED),
        (3, 0.25, 1, FAILED),
        (4, 1, 1, SUCCEEDED),
        (4, 1, 2, FAILED),
        (4, 4, 4, SUCCEEDED),
        (100, 0.29, 29, SUCCEEDED),
        (100, 0.29, 30, FAILED),
        (100, 0.07, 7, SUCCEEDED),
        (100, 0.07, 8, FAILED),
        (1000, 0.999, 999, SUCCEEDED),
    ],
)
def test_exactly_as_many_items_may_fail_as_are_allowed(
    total: int, allowed: float | None, failed: int, state: object
) -> None:
    life = running(items=total, allow_failed_items=allowed)
    life.beat(*(item_error(n, is_final=True) if n < failed else item(n) for n in range(total)))
    life.succeed()
    assert life.job.state is state
    assert (life.job.done, life.job.failed_items) == (total, failed)
    if state is FAILED:
        error = error_of(life)
        assert error["code"] == "items_failed"
        assert error["detail"] == {"failed_items": failed, "total": total}


def test_errors_of_the_last_attempt_are_final() -> None:
    life = running(items=3, max_attempts=2)
    life.fail(item(0), item_error(1), item_error(2), code="items_failed")
    assert (life.job.state, life.job.done) == (QUEUED, 1)
    life.after(100.0).claim()
    life.fail(item(1), item_error(2), code="items_failed")
    assert (life.job.state, life.job.done, life.job.failed_items) == (FAILED, 3, 1)
    assert life.checkpoints[ITEM, "2"].is_final
    assert error_of(life)["code"] == "items_failed"
    life.replay()
    assert (life.job.done, life.job.failed_items) == (2, 0)
    assert set(life.checkpoints) == {(ITEM, "0"), (ITEM, "1")}


def test_a_content_job_that_fails_carries_its_own_error() -> None:
    life = running(max_attempts=1)
    life.fail(code="ValueError", message="bad input", detail="trace")
    assert error_of(life) == {
        "code": "ValueError",
        "message": "bad input",
        "detail": "trace",
        "epoch": 1,
        "attempt": 1,
    }


# ---- what holds for every change


def test_usage_adds_up_over_beats_and_runs() -> None:
    life = running()
    life.beat(usage={"tokens": 3})
    life.release(usage={"tokens": 4, "cost": 0.5})
    life.claim()
    life.succeed(usage={"cost": 0.25})
    assert json.loads(life.job.usage or "") == {"tokens": 7, "cost": 0.75}


def test_time_never_falls_within_a_job_even_where_the_clock_was_set_back() -> None:
    life = running().after(-500.0)
    life.beat(output=("1",))
    life.fail()
    times = [line.at for line in life.lines]
    assert times == sorted(times)
    assert life.job.updated_at == START
    assert life.job.run_at == life.now + 2.0


def test_output_comes_before_the_line_that_ends_the_run() -> None:
    life = running()
    life.succeed(output=("1", "2"))
    assert life.events == ["submitted", "claimed", "output", "output", "succeeded"]
    assert [line.n for line in life.lines] == [0, 1, 2, 3, 4]
    assert life.job.lines == 5
