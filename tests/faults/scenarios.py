"""The faults, each with what must hold under it; the sizes are the caller's: short in CI, long in the campaigns."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
from collections import Counter
from typing import Any

from postroom.model import State
from postroom.stores.port import ClaimRequest
from tests.faults.ground import Ground
from tests.faults.works import letters_for

ITEMS = 20


async def killed_in_the_middle(ground: Ground, kind: str, kills: int, *, seed: int) -> None:
    """``kill -9`` of the worker in the middle of a job of 20 items, again and again, until so many kills."""
    chance = random.Random(seed)
    done = 0
    while done < kills:
        done += await _one_job_through_kills(ground, kind, kills - done, chance)


async def _one_job_through_kills(ground: Ground, kind: str, kills: int, chance: random.Random) -> int:
    """One job to its success through at most so many kills; how many there were."""
    items = [f"item {i}" for i in range(ITEMS)]
    job = await ground.inbox.submit(kind, items=items, params={"seconds": 0.1})
    kept: dict[str, Any] = {}
    hit: Counter[str] = Counter()
    done = 0
    while True:
        worker = ground.start()
        seen = len(ground.starts(job.job_id))
        await _next_start_or_end(ground, worker, job.job_id, seen)
        if done < kills:
            await asyncio.sleep(chance.uniform(0.0, 0.35))
        if done == kills or (await ground.job(job.job_id)).is_final:
            break
        ground.kill(worker)
        done += 1
        kept = await _nothing_is_lost(ground, job.job_id, kept)
        hit.update(_in_flight(ground, job.job_id, kept))
    ended = await ground.inbox.wait(job.job_id, timeout_seconds=60)
    await ended_in_good_order(worker)
    assert ended.state == State.SUCCEEDED, ended
    await _nothing_is_lost(ground, job.job_id, kept)
    result = await ground.inbox.result(job.job_id)
    assert [each["item"] for each in result["results"]] == items
    runs = Counter(start["item"] for start in ground.starts(job.job_id))
    for item in items:
        assert 1 <= runs[item] <= 1 + hit[item], f"{item} ran {runs[item]} times, {hit[item]} kills hit it"
    row = await ground.job(job.job_id)
    assert (row.attempts, row.crashes, row.epoch) == (1, done, done + 1)
    return done


async def _next_start(ground: Ground, worker: subprocess.Popen[bytes], job_id: str, seen: int) -> None:
    """Wait for one more start than were seen; the worker must live."""

    def started() -> bool:
        assert worker.poll() is None, f"the worker ended by itself with {worker.returncode}:\n{ground.log()}"
        return len(ground.starts(job_id)) > seen

    await ground.until(started, "the next run starts")


async def _next_start_or_end(ground: Ground, worker: subprocess.Popen[bytes], job_id: str, seen: int) -> None:
    """The same; or the job ended without: all items were done already when the kill came."""

    async def started() -> bool:
        assert worker.poll() is None, f"the worker ended by itself with {worker.returncode}:\n{ground.log()}"
        return len(ground.starts(job_id)) > seen or (await ground.job(job_id)).is_final

    await ground.until(started, "the next run starts, or the job ends")


async def _nothing_is_lost(ground: Ground, job_id: str, before: dict[str, Any]) -> dict[str, Any]:
    """Every checkpoint that was seen earlier is there, byte for byte; gives those that are there now."""
    now = {key: c.value for key, c in (await ground.checkpoints(job_id)).items() if c.value is not None}
    assert before.items() <= now.items(), "a checkpoint was lost or changed"
    return now


def _in_flight(ground: Ground, job_id: str, kept: dict[str, Any]) -> list[str]:
    """The items that this epoch had started and the store has no result of."""
    starts = ground.starts(job_id)
    epoch = max(start["epoch"] for start in starts)
    mine = {start["item"] for start in starts if start["epoch"] == epoch}
    return [item for item in mine if item.rpartition(" ")[2] not in kept]


async def deadly_job(ground: Ground, kind: str, *, neighbours: int) -> None:
    """A job that kills its worker each time: as many claims as the budget, then a dead letter that says so."""
    others = [await ground.inbox.submit("note", i) for i in range(neighbours)]
    job = await ground.inbox.submit(kind, "x", priority="high")
    worker = ground.start()
    while not (await ground.job(job.job_id)).is_final:
        if worker.poll() is not None:
            assert worker.returncode == -signal.SIGKILL, ground.log()
            ground.faults.fired("a job killed its worker")
            worker = ground.start()
        await asyncio.sleep(0.02)
    ended = await ground.inbox.get(job.job_id)
    assert ended.state == State.FAILED
    assert ended.error is not None
    assert ended.error["code"] == "worker_lost"
    assert "3 times" in ended.error["message"]
    assert ended.error["detail"]["worker"]
    events = await ground.events(job.job_id)
    assert (events["claimed"], events["crashed"], events["failed"]) == (3, 2, 1)
    assert len(ground.starts(job.job_id)) == 3
    for other in others:
        assert (await ground.inbox.wait(other.job_id, timeout_seconds=30)).state == State.SUCCEEDED
    assert (await ground.events(job.job_id))["claimed"] == 3
    if worker.poll() is None:
        await ended_in_good_order(worker)


async def restarts_during_one_job(ground: Ground, restarts: int, *, items: int, seconds: float) -> None:
    """SIGTERM restarts of a worker during one long job: it succeeds, and they cost no attempt."""
    job = await ground.inbox.submit(
        "steady", items=[f"item {i}" for i in range(items)], params={"seconds": seconds}, max_attempts=3
    )
    for _ in range(restarts):
        worker = ground.start()
        await _next_start(ground, worker, job.job_id, len(ground.starts(job.job_id)))
        worker.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(worker.wait, 60) == 0, ground.log()
        ground.faults.fired("SIGTERM in the middle of a run")
    worker = ground.start()
    ended = await ground.inbox.wait(job.job_id, timeout_seconds=300)
    await ended_in_good_order(worker)
    assert (ended.state, ended.attempts, ended.interruptions, ended.crashes) == (
        State.SUCCEEDED,
        1,
        restarts,
        0,
    )


async def blocked_worker(
    ground: Ground, kind: str, content: Any, *, is_guarded: bool = True
) -> tuple[int, float]:
    """A handler holds up its worker while another worker waits for work.

    Returns:
        How many claims there were, and for how many leases it was held up.
    """
    job = await ground.inbox.submit(kind, content)
    workers = [ground.start() if is_guarded else ground.start_without_guardian()]
    await _next_start(ground, workers[0], job.job_id, 0)
    workers.append(ground.start())
    ended = await ground.inbox.wait(job.job_id, timeout_seconds=120)
    assert ended.state == State.SUCCEEDED, ended
    end = await ground.until(lambda: ground.ends(job.job_id), "the handler ends")
    await ended_in_good_order(*workers)
    leases = (end[0]["at"] - ground.starts(job.job_id)[0]["at"]) / ground.lease_seconds
    return (await ground.events(job.job_id))["claimed"], leases


async def locked_worker(ground: Ground) -> None:
    """A regular expression holds the interpreter's lock for four leases in one call; how long it takes is tried out."""
    letters = letters_for(5 * ground.lease_seconds)
    while True:
        claims, leases = await blocked_worker(ground, "locked", letters)
        assert claims == 1
        if leases > 4:
            break
        letters += 1
    ground.faults.fired("interpreter locked for four leases")


async def many_workers(ground: Ground, processes: int, jobs: int) -> None:
    """Many processes claim from one file: as many runs as jobs, and every job runs once."""
    workers = [ground.start(CONCURRENCY="3") for _ in range(processes)]

    async def all_are_there() -> bool:
        return len(await ground.inbox.workers()) == processes

    await ground.until(all_are_there, "all workers are there")
    params = {"seconds": 0.01}
    answers = await ground.inbox.submit_many(
        {"kind": "note", "content": i, "params": params} for i in range(jobs)
    )
    ids = {answer.job_id for answer in answers}
    await ground.until(lambda: len(ground.starts()) >= jobs, "all have run", seconds=120)
    for job_id in ids:
        assert (await ground.inbox.wait(job_id, timeout_seconds=60)).state == State.SUCCEEDED
    await ended_in_good_order(*workers)
    runs = Counter(start["job"] for start in ground.starts())
    assert runs.keys() == ids
    twice = {job_id: await ground.journal(job_id) for job_id, count in runs.items() if count > 1}
    assert not twice, f"ran more than once: {twice}"
    ground.faults.fired("processes that claimed from one file", len({s["pid"] for s in ground.starts()}))
    assert ground.faults.counts["processes that claimed from one file"] > processes / 2


async def ended_in_good_order(*workers: subprocess.Popen[bytes]) -> None:
    """SIGTERM, and exit code 0."""
    for worker in workers:
        worker.send_signal(signal.SIGTERM)
    for worker in workers:
        assert await asyncio.to_thread(worker.wait, 60) == 0


async def nothing_is_wrong(ground: Ground) -> None:
    """``postroom verify``, after all of it."""
    verify = ground.run("postroom", "verify")
    code = await asyncio.to_thread(verify.wait, 120)
    assert code == 0, ground.log()


async def stopped_past_its_lease(ground: Ground, *options: str) -> tuple[dict[str, str], bool]:
    """A process is stopped while it holds a job, and goes on after another has it.

    Returns:
        The answers to all that it wrote then, and whether any row of any table changed by it.
    """
    job = await ground.inbox.submit("held", items=["a", "b"])
    stale = ground.run("tests.faults.stale", "held", *options)
    await ground.until(lambda: [t for t in ground.trace() if t["event"] == "claimed"], "it claims")
    os.waitid(os.P_PID, stale.pid, os.WSTOPPED | os.WNOWAIT)
    ground.faults.fired("SIGSTOP of a worker")
    await _taken_over(ground, job.job_id)
    before = await ground.everything()
    stale.send_signal(signal.SIGCONT)
    assert await asyncio.to_thread(stale.wait, 30) == 0, ground.log()
    after = await ground.everything()
    (told,) = [t for t in ground.trace() if t["event"] == "answers"]
    return told["answers"], before != after


async def _taken_over(ground: Ground, job_id: str) -> None:
    """Another worker has the job, under the next epoch; it is this process, and it holds it for an hour."""
    verbs = await ground.inbox.verbs()

    async def taken() -> bool:
        await verbs.sweep()
        request = ClaimRequest("successor", ("held",), lease_seconds=3600)
        return bool((await verbs.claim(request)).leases)

    await ground.until(taken, "the lease runs out and another takes over")
    assert (await ground.job(job_id)).epoch == 2


async def stopped_worker(ground: Ground) -> None:
    """A whole worker is stopped in the middle of a job; its guardian lives, and does not speak for it."""
    items = [f"item {i}" for i in range(12)]
    job = await ground.inbox.submit("steady", items=items, params={"seconds": 0.3})
    first = ground.start()
    await ground.until(lambda: len(ground.starts(job.job_id)) > 3, "some items are done")
    ground.stop(first)
    stopped_epoch = (await ground.job(job.job_id)).epoch
    second = ground.start()
    await ground.until(
        lambda: {s["epoch"] for s in ground.starts(job.job_id)} == {1, 2}, "another takes over"
    )
    first.send_signal(signal.SIGCONT)
    ended = await ground.inbox.wait(job.job_id, timeout_seconds=60)
    assert (ended.state, ended.epoch, ended.crashes) == (State.SUCCEEDED, 2, 1)
    lost = f"job {job.job_id} epoch 1: the lease is lost"
    await ground.until(lambda: lost in ground.log(), "the first one notices")
    starts = ground.starts(job.job_id)
    taken_at = min(start["at"] for start in starts if start["epoch"] == 2)
    late = [start for start in starts if start["epoch"] == 1 and start["at"] > taken_at]
    assert late == [], "it started an item after it had lost the job"
    for key, checkpoint in (await ground.checkpoints(job.job_id)).items():
        assert checkpoint.epoch in (stopped_epoch, 2), key
    before = await ground.everything()
    await ended_in_good_order(first, second)
    assert await ground.everything() == before
