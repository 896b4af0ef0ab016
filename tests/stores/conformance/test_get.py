"""Reading rows and checkpoints by id."""

from __future__ import annotations

from tests.stores.office import ITEM, STEP, Office, item, step


async def test_unknown_ids_are_left_out(office: Office) -> None:
    job_id = await office.submit()
    reading = await office.store.get([job_id, "f" * 32])
    assert set(reading.jobs) == {job_id}
    assert (await office.store.get([])).jobs == {}


async def test_a_reading_carries_the_time_of_the_store(office: Office) -> None:
    assert (await office.store.get([])).now == office.clock() == office.store.now()
    office.clock.advance(12.5)
    assert (await office.store.get([])).now == office.clock() == office.store.now()


async def test_many_jobs_are_read_at_once(office: Office) -> None:
    await office.submit_all([office.draft(content=str(n)) for n in range(1200)])
    reading = await office.store.get(office.submitted)
    assert set(reading.jobs) == set(office.submitted)
    assert all(job_id == job.job_id for job_id, job in reading.jobs.items())


async def test_named_checkpoints_come_along_where_they_exist(office: Office) -> None:
    first = await office.start("items", items=["1", "2", "3"])
    second = await office.start("whole")
    await office.beat(first, checkpoints=(item("0", '"a"'), item("2", '"c"')))
    await office.beat(second, checkpoints=(step("fetch", '"rows"'), step("1", '"one"')))
    reading = await office.store.get(
        [first.job_id, second.job_id],
        checkpoints={
            first.job_id: [(ITEM, "0"), (ITEM, "1"), (STEP, "2")],
            second.job_id: [(STEP, "fetch"), (ITEM, "1")],
        },
    )
    [found] = reading.checkpoints[first.job_id]
    assert (found.kind, found.key, found.value, found.epoch) == (ITEM, "0", '"a"', 1)
    [found] = reading.checkpoints[second.job_id]
    assert (found.kind, found.key, found.value, found.input_digest) == (STEP, "fetch", '"rows"', "d")


async def test_a_job_without_the_named_checkpoints_has_none(office: Office) -> None:
    job = await office.start()
    reading = await office.store.get([job.job_id], checkpoints={job.job_id: [(ITEM, "0")]})
    assert tuple(reading.checkpoints.get(job.job_id, ())) == ()
    assert reading.jobs[job.job_id] == job
