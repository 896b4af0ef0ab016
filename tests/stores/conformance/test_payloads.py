"""What lies apart from the rows: payloads, item keys, checkpoints, results."""

from __future__ import annotations

from postroom.model import CheckpointKind, Payload
from tests.stores.office import Office, item, step

NOBODY = "f" * 32


async def test_an_unknown_job_has_nothing(office: Office) -> None:
    assert await office.store.payload(NOBODY) is None
    assert await office.store.item_keys(NOBODY) is None
    assert await office.store.checkpoints(NOBODY) == []
    assert await office.store.result(NOBODY) is None


async def test_payloads_are_kept_with_their_keys(office: Office) -> None:
    content = await office.submit(content='{"a": [1, 2.50]}')
    numbered = await office.submit(items=["1", "2"])
    named = await office.submit(items=["1", "2"], keys=("b", 'a"é'))
    assert await office.store.payload(content) == Payload('{"a": [1, 2.50]}', None)
    assert await office.store.payload(numbered) == Payload("[1,2]", None)
    assert await office.store.payload(named) == Payload("[1,2]", ("b", 'a"é'))
    assert [await office.store.item_keys(job_id) for job_id in (content, numbered, named)] == [
        None,
        None,
        ("b", 'a"é'),
    ]


async def test_checkpoints_are_ordered_by_kind_and_key(office: Office) -> None:
    keys = tuple(map(str, range(12)))
    job = await office.start(items=["0"] * 12)
    offered = [item(key, key) for key in keys[::-1]] + [step("é", "1"), step("Z", "2"), step("a", "3")]
    await office.beat(job, checkpoints=tuple(offered))
    kept = await office.store.checkpoints(job.job_id)
    assert [c.key for c in kept] == [*sorted(keys), "Z", "a", "é"]
    assert [c.key for c in await office.store.checkpoints(job.job_id, kind=CheckpointKind.STEP)] == [
        "Z",
        "a",
        "é",
    ]
    assert len(await office.store.checkpoints(job.job_id, kind=CheckpointKind.ITEM)) == 12


async def test_checkpoints_are_read_in_pages(office: Office) -> None:
    number = 250
    job = await office.start(items=["0"] * number)
    await office.beat(job, checkpoints=tuple(item(str(n), str(n)) for n in range(number)))
    read: list[str] = []
    after = None
    for _ in range(number):
        page = await office.store.checkpoints(job.job_id, kind=CheckpointKind.ITEM, after_key=after, limit=40)
        if not page:
            break
        read += [c.key for c in page]
        after = page[-1].key
    assert read == sorted(map(str, range(number)))


async def test_checkpoints_of_jobs_do_not_mix(office: Office) -> None:
    one, two = await office.start("a", items=["1"]), await office.start("b", items=["1"])
    await office.beat(one, checkpoints=(item("0", '"one"'),))
    await office.beat(two, checkpoints=(item("0", '"two"'),))
    assert [c.value for c in await office.store.checkpoints(one.job_id)] == ['"one"']
    assert [c.value for c in await office.store.checkpoints(two.job_id)] == ['"two"']


async def test_a_job_has_no_result_before_it_succeeded(office: Office) -> None:
    queued = await office.submit("other")
    running = (await office.start()).job_id
    failed = await office.fail_new("third", message="x")
    assert [await office.store.result(job_id) for job_id in (queued, running, failed)] == [None] * 3
