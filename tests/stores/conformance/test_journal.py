"""The journal: numbered from 0 without gaps, readable from any line, never mixed up between jobs."""

from __future__ import annotations

import pytest

from postroom.model import Event, OutcomeKind, State, digest
from postroom.seals import unsealed
from tests.stores.office import Office, plain


async def test_an_unknown_job_has_no_lines(office: Office) -> None:
    assert await office.store.journal("f" * 32) == []


async def test_a_first_line_tells_of_the_submission(office: Office) -> None:
    job_id = await office.submit(actor="ann")
    job = await office.job(job_id)
    [line] = await office.store.journal(job_id)
    assert (line.n, line.at, line.event, line.from_state, line.to_state) == (
        0,
        office.clock(),
        Event.SUBMITTED,
        None,
        State.QUEUED,
    )
    assert (line.epoch, line.attempt, line.life, line.actor, line.reason) == (0, 0, 1, "ann", None)
    assert line.data["run_at"] == job.run_at
    assert line.data["digest"]


async def test_lines_keep_reason_actor_and_nested_data(office: Office) -> None:
    job = await office.start(worker="w é")
    emitted = '{"deep":[1,2.5,null,{"é":"好"}],"text":"\\u0001\\n"}'
    await office.beat(job, output=(emitted,))
    await office.settle(job, OutcomeKind.HELD, reason="the provider said: später", after_seconds=1.5)
    lines = [plain(line) for line in await office.store.journal(job.job_id)]
    assert [line.event for line in lines] == ["submitted", "claimed", "output", "held"]
    assert lines[1].actor == "w é"
    assert unsealed(lines[2].data) == {"output": {"deep": [1, 2.5, None, {"é": "好"}], "text": "\x01\n"}}
    assert lines[3].reason == "the provider said: später"
    assert unsealed(lines[3].data) == {"run_at": office.clock() + 1.5}


@pytest.mark.parametrize("after", [-1, 0, 1, 30, 60, 61, 62, 100])
async def test_lines_after_any_number_come_in_order(office: Office, after: int) -> None:
    job = await office.start()
    await office.beat(job, output=tuple(map(str, range(60))))
    lines = await office.store.journal(job.job_id, after=after)
    assert [line.n for line in lines] == list(range(after + 1, 62))


async def test_a_limit_gives_the_first_of_them(office: Office) -> None:
    job = await office.start()
    await office.beat(job, output=tuple(map(str, range(20))))
    assert [line.n for line in await office.store.journal(job.job_id, after=3, limit=5)] == [4, 5, 6, 7, 8]
    assert len(await office.store.journal(job.job_id, limit=1)) == 1


async def test_the_default_limit_holds_and_reading_goes_on_after_it(office: Office) -> None:
    job = await office.start()
    await office.beat(job, output=tuple(map(str, range(600))))
    first = await office.store.journal(job.job_id)
    assert len(first) == 500
    rest = await office.store.journal(job.job_id, after=first[-1].n)
    assert [line.n for line in first + rest] == list(range(602))


async def test_journals_of_many_jobs_do_not_mix(office: Office) -> None:
    await office.submit_all([office.draft() for _ in range(30)])
    leases = await office.claim(limit=30)
    for lease in leases[::2]:
        await office.beat(lease.job, output=(f'"{lease.job.job_id}"',))
    for lease in leases:
        lines = await office.store.journal(lease.job.job_id)
        told = [line.data["output"] for line in lines if line.event is Event.OUTPUT]
        assert told == ([lease.job.job_id] if lease in leases[::2] else [])


async def test_success_notes_the_digest_of_the_result(office: Office) -> None:
    job_id = await office.succeed_new(result='{"é":1}')
    last = (await office.store.journal(job_id))[-1]
    assert unsealed(last.data) == {"result": digest('{"é":1}'), "bytes": 8}


async def test_time_never_falls_within_a_job(office: Office) -> None:
    job = await office.start()
    office.clock.set_to(office.clock() - 3600.0)
    await office.beat(job, output=("1",))
    await office.succeed(job)
    times = [line.at for line in await office.store.journal(job.job_id)]
    assert times == sorted(times)
