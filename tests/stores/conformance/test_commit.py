"""Writing changes: whole or not at all, only on the version they were decided on.

I02, I03, I05, I12, I19, I20, I26, I27, I29, I31.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from postroom.errors import CheckpointConflict, LeaseLost, OutcomeInvalid, TransitionRefused
from postroom.lifecycle import Kept
from postroom.model import Beat, Cancel, Change, Checkpoint, ErrorInfo, OutcomeKind, State
from tests.stores.office import ITEM, Office, item, item_error, plain, step


async def test_nothing_to_write_is_nothing_answered(office: Office) -> None:
    assert await office.store.commit([]) == []


async def test_a_change_is_written_whole(office: Office) -> None:
    job = await office.start(items=["1", "2"])
    decision = await office.beat(
        job,
        checkpoints=(item("0", '"zero"'), item_error("1"), step("s", "[1]")),
        output=('{"said": "é"}', "2"),
        usage={"tokens": 3, "cost": 0.5},
        seq=1,
    )
    assert isinstance(decision, Change)
    record = await office.record(job.job_id)
    assert record.job == decision.job
    assert record.lines[-len(decision.lines) :] == tuple(map(plain, decision.lines))
    assert record.checkpoints == decision.checkpoints
    assert record.job is not None
    assert (record.job.done, record.job.usage) == (1, '{"tokens": 3, "cost": 0.5}')


@pytest.mark.parametrize("end", list(OutcomeKind))
async def test_every_end_of_a_run_is_written_whole(office: Office, end: OutcomeKind) -> None:
    job = await office.start()
    if end is OutcomeKind.CANCELLED:
        await office.cancel(job.job_id)
    error = ErrorInfo("Broken", "it is: 7", {"deep": [1, "é", None]})
    decision = await office.settle(job, end, error=error, result='{"r": 1.0}' if end == "succeeded" else None)
    assert isinstance(decision, Change)
    record = await office.record(job.job_id)
    assert record.job == decision.job
    assert record.lines[2 if end is not OutcomeKind.CANCELLED else 3 :] == tuple(map(plain, decision.lines))
    assert record.result == ('{"r": 1.0}' if end is OutcomeKind.SUCCEEDED else None)


async def test_a_change_decided_on_a_moved_row_writes_nothing(office: Office) -> None:
    job = await office.start(items=["1"])
    late = await office.decide(
        Beat(
            job.job_id,
            job.epoch,
            checkpoints=(item("0", "1"), step("s", "1")),
            output=("1",),
            usage={"tokens": 1},
        )
    )
    assert isinstance(late, Change)
    await office.cancel(job.job_id)
    before = await office.record(job.job_id)
    stats = await office.store.count()
    assert await office.store.commit([late]) == [False]
    assert await office.record(job.job_id) == before
    assert await office.store.count() == stats


async def test_the_same_change_twice_is_written_once(office: Office) -> None:
    job = await office.start()
    change = await office.decide(Cancel(job.job_id))
    assert isinstance(change, Change)
    assert await office.store.commit([change]) == [True]
    assert await office.store.commit([change]) == [False]
    assert await office.events(job.job_id) == ["submitted", "claimed", "cancel_requested"]


async def test_of_two_changes_of_one_version_in_one_batch_the_first_is_written(office: Office) -> None:
    job = await office.start()
    cancel = await office.decide(Cancel(job.job_id))
    beat = await office.decide(Beat(job.job_id, job.epoch, output=('"late"',)))
    assert isinstance(cancel, Change)
    assert isinstance(beat, Change)
    assert await office.store.commit([cancel, beat]) == [True, False]
    assert await office.job(job.job_id) == cancel.job
    assert await office.events(job.job_id) == ["submitted", "claimed", "cancel_requested"]


async def test_changes_of_one_job_that_follow_each_other_may_share_a_batch(office: Office) -> None:
    job = await office.start()
    cancel = await office.decide(Cancel(job.job_id))
    assert isinstance(cancel, Change)
    line = cancel.lines[0]._replace(n=cancel.job.lines)
    later = replace(cancel.job, version=cancel.job.version + 1, lines=cancel.job.lines + 1)
    second = Change(later, cancel.job.version, cancel.job.state, (line,))
    assert await office.store.commit([cancel, second]) == [True, True]
    assert await office.job(job.job_id) == later


async def test_one_bad_change_in_a_batch_harms_no_other(office: Office) -> None:
    ids = [await office.submit() for _ in range(5)]
    changes = [await office.decide(Cancel(job_id)) for job_id in ids]
    await office.cancel(ids[1])
    never = changes[0]
    assert isinstance(never, Change)
    stranger = never._replace(job=replace(never.job, job_id="f" * 32))
    batch = [changes[4], changes[1], stranger, changes[0], changes[3], changes[2]]
    assert await office.store.commit(batch) == [True, False, False, True, True, True]  # type: ignore[arg-type]
    assert (await office.record("f" * 32)).job is None
    assert await office.store.journal("f" * 32) == []
    assert (await office.store.count()).states == {
        "queued": 0,
        "running": 0,
        "succeeded": 0,
        "failed": 0,
        "cancelled": 5,
    }


async def test_many_changes_are_written_in_one_call(office: Office) -> None:
    await office.submit_all([office.draft(items=["1", "2"]) for _ in range(300)])
    leases = await office.claim(limit=300)
    beats = [
        Beat(lease.job.job_id, lease.job.epoch, checkpoints=(item("0", f'"{n}"'),))
        for n, lease in enumerate(leases)
    ]
    changes = [await office.decide(beat) for beat in beats]
    assert await office.store.commit(changes) == [True] * 300  # type: ignore[arg-type]
    jobs = (await office.store.get(office.submitted)).jobs
    assert {job.done for job in jobs.values()} == {1}
    for n, beat in list(enumerate(beats))[::50]:
        assert [c.value for c in await office.store.checkpoints(beat.job_id)] == [f'"{n}"']


# ---- the fence


async def refused(office: Office, job_id: str, epoch: int) -> list[str]:
    """Try all seven writes of a worker under an epoch; what was answered to each."""
    job = replace(await office.job(job_id), epoch=epoch)
    tries = [
        office.beat(job),
        office.beat(job, done=1, total=3, output=('"x"',)),
        office.beat(job, checkpoints=(item("0", '"late"'),)),
        office.succeed(job, None, checkpoints=(item("0", '"late"'),)),
        office.settle(job, OutcomeKind.FAILED, error=ErrorInfo("Late", "late")),
        office.settle(job, OutcomeKind.HELD, after_seconds=5.0, reason="late"),
        office.settle(job, OutcomeKind.RELEASED),
    ]
    answers = []
    for attempt in tries:
        try:
            await attempt
            answers.append("ok")
        except LeaseLost:
            answers.append("lease_lost")
    return answers


@pytest.mark.parametrize("end", ["reclaimed", "requeued", "succeeded", "failed", "cancelled", "replayed"])
async def test_a_worker_that_lost_its_lease_changes_nothing(office: Office, end: str) -> None:
    job = await office.start(items=["1"])
    match end:
        case "reclaimed" | "requeued":
            office.clock.advance(60.0)
            await office.sweep()
            office.clock.advance(10.0)
            if end == "reclaimed":
                await office.claim(worker="w2")
        case "succeeded":
            await office.succeed(job, None, checkpoints=(item("0", "1"),))
        case "failed":
            await office.fail(job)
        case "cancelled":
            await office.cancel(job.job_id)
            await office.settle(job, OutcomeKind.CANCELLED)
        case "replayed":
            await office.fail(job)
            await office.replay(job.job_id)
    before = await office.record(job.job_id)
    stats = await office.store.count()
    answers = await refused(office, job.job_id, job.epoch)
    assert answers == ["lease_lost"] * 7
    assert await office.record(job.job_id) == before
    assert await office.store.count() == stats


async def test_an_epoch_that_was_never_given_changes_nothing(office: Office) -> None:
    job = await office.start(items=["1"])
    before = await office.record(job.job_id)
    for epoch in (0, 2, 99):
        assert await refused(office, job.job_id, epoch) == ["lease_lost"] * 7
    assert await office.record(job.job_id) == before


async def test_the_holder_of_the_current_epoch_is_let_through(office: Office) -> None:
    """The control of the fence: the same writes under the right epoch are taken, even past the lease."""
    job = await office.start(items=["1"])
    office.clock.advance(1000.0)
    await office.beat(job, checkpoints=(item("0", '"late"'),))
    assert [c.value for c in await office.store.checkpoints(job.job_id)] == ['"late"']


async def test_of_a_cancel_and_a_success_one_wins(office: Office) -> None:
    for n in range(20):
        job = await office.start()
        race = [office.succeed(job), office.cancel(job.job_id)]
        await asyncio.gather(*race[:: 1 if n % 2 else -1], return_exceptions=True)
        ended = await office.job(job.job_id)
        events = await office.events(job.job_id)
        assert ended.state is State.SUCCEEDED
        assert [event for event in events if event in ("succeeded", "cancelled", "failed")] == ["succeeded"]


async def test_the_beat_after_a_cancel_hears_of_it(office: Office) -> None:
    job = await office.start()
    assert (await office.beat(job)).status == "ok"
    await office.cancel(job.job_id)
    assert (await office.beat(job)).status == "cancel_requested"
    await office.settle(job, OutcomeKind.CANCELLED)
    assert (await office.job(job.job_id)).state is State.CANCELLED
    with pytest.raises(TransitionRefused):
        await office.cancel(job.job_id)


async def test_a_repeated_outcome_is_answered_again_and_written_once(office: Office) -> None:
    job = await office.start()
    await office.succeed(job)
    before = await office.record(job.job_id)
    assert isinstance(await office.succeed(job), Kept)
    assert await office.record(job.job_id) == before
    with pytest.raises(LeaseLost):
        await office.succeed(job, '"another"')


async def test_many_writers_of_one_job_lose_nothing(office: Office) -> None:
    """Each beat carries one item; the loser of a race reads and decides again."""
    job = await office.start(items=[str(n) for n in range(30)])
    await asyncio.gather(*(office.beat(job, checkpoints=(item(str(n), str(n)),)) for n in range(30)))
    after = await office.job(job.job_id)
    assert after.done == 30
    assert after.version == job.version + 30
    assert len(await office.store.checkpoints(job.job_id)) == 30


# ---- checkpoints and results


async def test_another_value_under_a_key_is_a_conflict_and_changes_nothing(office: Office) -> None:
    job = await office.start(items=["1"])
    await office.beat(job, checkpoints=(item("0", "1"),))
    before = await office.record(job.job_id)
    with pytest.raises(CheckpointConflict):
        await office.beat(job, checkpoints=(item("0", "2"),))
    assert await office.record(job.job_id) == before


async def test_the_same_value_again_counts_once(office: Office) -> None:
    job = await office.start(items=["1", "2"])
    for _ in range(3):
        await office.beat(job, checkpoints=(item("0", "1"),))
    assert (await office.job(job.job_id)).done == 1
    assert len(await office.store.checkpoints(job.job_id)) == 1


async def test_an_item_error_gives_way_to_the_value_of_the_next_run(office: Office) -> None:
    job = await office.start(items=["1"])
    await office.settle(
        job, OutcomeKind.FAILED, error=ErrorInfo("items_failed", "1 of 1"), checkpoints=(item_error("0"),)
    )
    [kept] = await office.store.checkpoints(job.job_id)
    assert (kept.error, kept.is_final, kept.epoch) == ('{"code":"Broken"}', False, 1)
    office.clock.advance(100.0)
    [lease] = await office.claim()
    assert lease.checkpoints == (kept,)
    await office.succeed(lease.job, None, checkpoints=(item("0", "7"),))
    [kept] = await office.store.checkpoints(job.job_id)
    assert (kept.value, kept.error, kept.is_final, kept.epoch) == ("7", None, True, 2)


async def test_a_step_under_another_input_takes_the_place_of_the_first(office: Office) -> None:
    job = await office.start()
    await office.beat(job, checkpoints=(step("fetch", '"a"', "d1"),))
    await office.beat(job, checkpoints=(step("fetch", '"b"', "d2"),))
    [kept] = await office.store.checkpoints(job.job_id)
    assert (kept.value, kept.input_digest) == ('"b"', "d2")


async def test_an_item_and_a_step_of_one_name_are_two_checkpoints(office: Office) -> None:
    job = await office.start(items=["1", "2"])
    await office.beat(job, checkpoints=(item("0", '"item"'), step("0", '"step"')))
    assert [c.value for c in await office.store.checkpoints(job.job_id)] == ['"item"', '"step"']


async def test_checkpoints_keep_every_field(office: Office) -> None:
    job = await office.start(items=["1"])
    kept = Checkpoint(ITEM, "0", error='{"code": "é", "n": 1.0}', is_final=True, usage='{"tokens": 5}')
    await office.beat(job, checkpoints=(kept,))
    assert await office.store.checkpoints(job.job_id) == [replace(kept, epoch=1)]


async def test_all_checkpoints_reach_every_later_run(office: Office) -> None:
    job = await office.start(items=[str(n) for n in range(6)], max_attempts=9)
    values: dict[str, str] = {}
    ends = [OutcomeKind.RELEASED, OutcomeKind.FAILED, OutcomeKind.HELD, OutcomeKind.CRASHED]
    for n, end in enumerate(ends):
        values[str(n)] = f'{{"v": "{n}é", "f": {n}.50}}'
        await office.settle(job, end, after_seconds=1.0, checkpoints=(item(str(n), values[str(n)]),))
        office.clock.advance(100.0)
        [lease] = await office.claim()
        assert {c.key: c.value for c in lease.checkpoints} == values
        job = lease.job
    await office.fail(job)
    await office.replay(job.job_id)
    [lease] = await office.claim()
    assert {c.key: c.value for c in lease.checkpoints} == values
    assert lease.job.done == 4


async def test_a_replay_drops_the_errors_of_items_and_keeps_what_succeeded(office: Office) -> None:
    job = await office.start(items=["1", "2", "3"])
    checkpoints = (item("0", '"kept"'), item_error("1", is_final=True), item_error("2"), step("s", '"kept"'))
    await office.beat(job, checkpoints=checkpoints)
    await office.fail(job)
    failed = await office.job(job.job_id)
    assert (failed.state, failed.done, failed.failed_items) == (State.FAILED, 2, 1)
    await office.replay(job.job_id)
    replayed = await office.record(job.job_id)
    assert replayed.job is not None
    assert [(c.kind, c.key) for c in replayed.checkpoints] == [("item", "0"), ("step", "s")]
    assert (replayed.job.life, replayed.job.epoch, replayed.job.done, replayed.job.attempts) == (2, 1, 1, 0)
    [lease] = await office.claim()
    await office.succeed(lease.job, None, checkpoints=(item("1", '"now"'), item("2", '"now"')))
    assert [c.value for c in await office.store.checkpoints(job.job_id)] == [
        '"kept"',
        '"now"',
        '"now"',
        '"kept"',
    ]


async def test_two_identical_replays_make_one_life(office: Office) -> None:
    job_id = await office.fail_new(message="x")
    answers = await asyncio.gather(*(office.replay(job_id, life=1) for _ in range(5)))
    assert sum(isinstance(answer, Change) for answer in answers) == 1
    assert (await office.job(job_id)).life == 2
    assert (await office.events(job_id)).count("replayed") == 1


async def test_a_success_has_exactly_the_result_that_was_recorded(office: Office) -> None:
    texts = ['"é好🙂"', '{"b":1,"a":1.0,"n":1e3}', "null", '"' + "x" * 400_000 + '"', "[]"]
    for text in texts:
        job_id = await office.succeed_new(result=text)
        assert await office.store.result(job_id) == text
        assert (await office.job(job_id)).result_bytes == len(text.encode())


async def test_success_for_pending_items_is_refused_and_changes_nothing(office: Office) -> None:
    job = await office.start(items=["1", "2"])
    before = await office.record(job.job_id)
    with pytest.raises(OutcomeInvalid):
        await office.succeed(job, None, checkpoints=(item("0", "1"),))
    assert await office.record(job.job_id) == before


async def test_done_never_falls_within_a_life(office: Office) -> None:
    job = await office.start(items=[str(n) for n in range(10)], max_attempts=9)
    seen = [0]
    for n in range(10):
        await office.beat(
            job, checkpoints=(item(str(n), "1") if n % 3 else item_error(str(n), is_final=True),)
        )
        seen.append((await office.job(job.job_id)).done)
        if n in (2, 5, 7):
            await office.settle(job, OutcomeKind.RELEASED)
            [lease] = await office.claim()
            job = lease.job
            seen.append(job.done)
    assert seen == sorted(seen)
    assert seen[-1] == 10


# ---- the journal is the row


async def test_the_journal_tells_every_state_of_the_row(office: Office) -> None:
    job = await office.start(items=["1", "2"], max_attempts=5)
    ends = [OutcomeKind.RELEASED, OutcomeKind.FAILED, OutcomeKind.HELD, OutcomeKind.CRASHED]
    for end in ends:
        await office.settle(job, end, after_seconds=1.0)
        office.clock.advance(100.0)
        [lease] = await office.claim()
        job = lease.job
    await office.cancel(job.job_id)
    await office.settle(job, OutcomeKind.RELEASED)
    await office.replay(job.job_id)
    await office.finish_all()
    record = await office.record(job.job_id)
    assert record.job is not None
    assert [line.n for line in record.lines] == list(range(record.job.lines))
    for before, after in zip(record.lines, record.lines[1:], strict=False):
        assert after.from_state == before.to_state
        assert after.at >= before.at
        assert after.epoch - before.epoch == (after.event == "claimed")
        assert after.life - before.life == (after.event == "replayed")
    last = record.lines[-1]
    expected = (
        record.job.state,
        record.job.epoch,
        record.job.attempts,
        record.job.life,
        record.job.updated_at,
    )
    assert (last.to_state, last.epoch, last.attempt, last.life, last.at) == expected
    assert last.to_state is State.SUCCEEDED
