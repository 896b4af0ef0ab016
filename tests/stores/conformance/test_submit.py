"""Submitting: whole, in order, once per idempotency key (I21, I22, I23, I25, I33)."""

from __future__ import annotations

import asyncio
import threading

from postroom import lifecycle
from postroom.model import Draft, Priority, State
from postroom.stores.port import Submission, Submitted
from tests.stores.office import Office, run_threads


async def test_a_submitted_job_is_there_with_all_that_it_was_submitted_with(office: Office) -> None:
    draft = office.draft(
        "report",
        items=['{"a":1}', '"zwei"', "null"],
        keys=("x", "y", "z"),
        owner="ann",
        sender="mail",
        topic="bills",
        priority=Priority.HIGH,
        queue="slow",
        run_at=office.clock() + 5.5,
        expires_at=office.clock() + 100.25,
        max_attempts=7,
        timeout_seconds=0.5,
        stall_timeout_seconds=9.0,
        allow_failed_items=0.25,
        params='{"labels": ["é", "好", "\\u0001"]}',
        metadata='{"mine": true}',
    )
    change = lifecycle.submit(draft, office.clock())
    assert await office.store.submit([Submission(change, draft)]) == [Submitted(draft.job_id)]
    record = await office.record(draft.job_id)
    assert record.job == change.job
    assert record.lines == change.lines
    assert record.payload == draft.payload
    assert record.keys == ("x", "y", "z")
    assert record.checkpoints == ()
    assert record.result is None


async def test_nothing_submitted_is_nothing_answered(office: Office) -> None:
    assert await office.store.submit([]) == []
    assert sum((await office.store.count()).states.values()) == 0


async def test_answers_come_in_the_order_of_the_batch(office: Office) -> None:
    drafts = [office.draft(content=str(n)) for n in range(250)]
    drafts.reverse()
    answers = await office.submit_all(drafts)
    assert [answer.job_id for answer in answers] == [draft.job_id for draft in drafts]
    for draft in drafts[:: len(drafts) // 5]:
        assert await office.store.payload(draft.job_id) == draft.payload


async def test_the_same_key_again_gives_the_first_job_and_leaves_nothing_else(office: Office) -> None:
    first = office.draft(content='"one"', idempotency_key="k", body_digest="d1")
    again = office.draft(content='"two"', idempotency_key="k", body_digest="d2")
    assert await office.submit_all([first]) == [Submitted(first.job_id)]
    assert await office.submit_all([again]) == [Submitted(first.job_id, False, "d1")]
    assert (await office.record(again.job_id)).job is None
    assert await office.store.payload(again.job_id) is None
    assert await office.store.journal(again.job_id) == []
    assert await office.store.payload(first.job_id) == first.payload
    assert (await office.store.count()).states[State.QUEUED] == 1


async def test_the_same_key_twice_in_one_batch_is_one_job(office: Office) -> None:
    drafts = [office.draft(idempotency_key="k", body_digest="d") for _ in range(3)]
    others = [office.draft(), office.draft(idempotency_key="other", body_digest="d")]
    batch = [drafts[0], others[0], drafts[1], others[1], drafts[2]]
    answers = await office.submit_all(batch)
    first = drafts[0].job_id
    assert [answer.job_id for answer in answers] == [first, others[0].job_id, first, others[1].job_id, first]
    assert [answer.is_new for answer in answers] == [True, True, False, True, False]
    assert (await office.store.count()).states[State.QUEUED] == 3


async def test_a_key_belongs_to_its_owner(office: Office) -> None:
    drafts = [office.draft(owner=owner, idempotency_key="k", body_digest="d") for owner in ("ann", "bob")]
    assert [answer.is_new for answer in await office.submit_all(drafts)] == [True, True]


async def test_a_key_outlives_the_end_of_its_job(office: Office) -> None:
    draft = office.draft(idempotency_key="k", body_digest="d")
    await office.submit_all([draft])
    await office.finish_all()
    [answer] = await office.submit_all([office.draft(idempotency_key="k", body_digest="d")])
    assert answer == Submitted(draft.job_id, False, "d")


async def test_fifty_submissions_of_one_key_at_once_are_one_job(office: Office) -> None:
    drafts = [office.draft(idempotency_key="k", body_digest="d") for _ in range(50)]
    answers = await asyncio.gather(*(office.submit_all([draft]) for draft in drafts))
    assert len({answer.job_id for [answer] in answers}) == 1
    assert sum(answer.is_new for [answer] in answers) == 1
    assert (await office.store.count()).states[State.QUEUED] == 1


async def test_fifty_submissions_of_one_key_from_many_threads_are_one_job(office: Office) -> None:
    drafts = [office.draft(idempotency_key="k", body_digest="d") for _ in range(50)]
    start = threading.Barrier(5)
    answers: list[Submitted] = []

    async def submit(some: list[Draft]) -> None:
        for [answer] in await asyncio.gather(*(office.submit_all([draft]) for draft in some)):
            answers.append(answer)

    def work(some: list[Draft]) -> None:
        start.wait(10)
        asyncio.run(submit(some))

    threads = [threading.Thread(target=work, args=(drafts[n::5],)) for n in range(5)]
    await run_threads(threads)
    assert len(answers) == 50
    assert len({answer.job_id for answer in answers}) == 1
    assert sum(answer.is_new for answer in answers) == 1


async def test_many_submitters_at_once_lose_nothing(office: Office) -> None:
    drafts = [office.draft(content=str(n)) for n in range(100)]
    await asyncio.gather(*(office.submit_all([draft]) for draft in drafts))
    assert sorted(office.submitted) == sorted(draft.job_id for draft in drafts)
    await office.finish_all()
    assert (await office.store.count()).states[State.SUCCEEDED] == 100
    assert len(office.claims) == 100


async def test_an_id_is_never_given_to_a_second_job(office: Office) -> None:
    first = office.draft(content='"first"')
    await office.submit_all([first])
    before = await office.record(first.job_id)
    twin = office.draft(content='"second"', job_id=first.job_id)
    [answer] = await office.submit_all([twin])
    assert not answer.is_new
    assert await office.record(first.job_id) == before
    assert (await office.store.count()).states[State.QUEUED] == 1


async def test_texts_come_back_byte_for_byte(office: Office) -> None:
    texts = [
        '"\\u0000 escaped"',
        '"é好🙂"',
        '"\\ud83d\\ude42"',
        '{"b":1,"a":1.0,"n":1e3}',
        '"' + "x" * 300_000 + '"',
        '""',
    ]
    ids = [await office.submit(content=text, params=f'{{"p":{text}}}', metadata=text) for text in texts]
    for job_id, text in zip(ids, texts, strict=True):
        payload = await office.store.payload(job_id)
        job = await office.job(job_id)
        assert payload is not None
        assert (payload.body, job.params, job.metadata) == (text, f'{{"p":{text}}}', text)
    bodies = {lease.job.job_id: lease.payload.body for lease in await office.claim(limit=10)}
    assert [bodies[job_id] for job_id in ids] == texts
