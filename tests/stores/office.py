"""What the store tests share: a clerk that reads, decides and commits, with ids and a clock that are the test's own.

It is the smallest loop that drives a store through `lifecycle`, so that the suite needs nothing above the port.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from postroom import lifecycle
from postroom.errors import JobNotFound
from postroom.lifecycle import Facts, Kept
from postroom.model import (
    Beat,
    Cancel,
    Change,
    Checkpoint,
    CheckpointKind,
    Draft,
    ErrorInfo,
    Intent,
    Job,
    Lease,
    Line,
    Outcome,
    OutcomeKind,
    Payload,
    Replay,
)
from postroom.policy import Policy
from postroom.stores.port import ClaimRequest, Reading, Store, Submission, Submitted
from postroom.testing import ManualClock

POLICY = Policy(backoff_base_seconds=2.0, max_attempts=3, max_crashes=3, progress_line_seconds=0.0)
ITEM = CheckpointKind.ITEM
STEP = CheckpointKind.STEP
TICK = 2.0**-10
"""A moment: about a millisecond, and exact in floats of today's seconds."""


@dataclass
class Office:
    """A store, its clock, and the verbs over them.

    `claims` lists every lease that was given, `wants` every intent that was accepted: the history that invariants are
    checked over.
    """

    store: Store
    clock: ManualClock
    policy: Policy = POLICY
    ids: count[int] = field(default_factory=lambda: count(1))
    submitted: list[str] = field(default_factory=list)
    claims: list[Lease] = field(default_factory=list)

    # ---- submitting

    def draft(self, kind: str = "note", *, items: Sequence[str] | None = None, **fields: Any) -> Draft:
        """A draft of one content, or of some items (JSON texts)."""
        fields.setdefault("job_id", f"{next(self.ids):032x}")
        keys = fields.pop("keys", None)
        if items is None:
            payload = Payload(fields.pop("content", '"hello"'))
        else:
            payload = Payload(f"[{','.join(items)}]", keys)
            fields |= {"total": len(items), "has_items": True}
        return Draft(kind=kind, payload=payload, **fields)

    async def submit_all(self, drafts: Sequence[Draft]) -> list[Submitted]:
        now = self.store.now()
        answers = await self.store.submit(
            [Submission(lifecycle.submit(draft, now), draft) for draft in drafts]
        )
        self.submitted += [answer.job_id for answer in answers if answer.is_new]
        return answers

    async def submit(self, kind: str = "note", **fields: Any) -> str:
        """Submit one job; its id."""
        [answer] = await self.submit_all([self.draft(kind, **fields)])
        return answer.job_id

    # ---- working

    async def claim(
        self,
        *kinds: str,
        worker: str = "w1",
        queues: tuple[str, ...] = ("default",),
        limit: int = 1,
        lease_seconds: float = 60.0,
    ) -> list[Lease]:
        request = ClaimRequest(worker, kinds or ("note",), queues, limit, lease_seconds)
        leases = list((await self.store.claim(request)).leases)
        self.claims += leases
        return leases

    async def claimed_ids(self, *kinds: str, **request: Any) -> list[str]:
        return [lease.job.job_id for lease in await self.claim(*kinds, **request)]

    async def start(self, kind: str = "note", *, worker: str = "w1", **fields: Any) -> Job:
        """Submit a job and claim it; the job as claimed. There must be no other job of that kind in line."""
        job_id = await self.submit(kind, **fields)
        [lease] = await self.claim(kind, worker=worker)
        assert lease.job.job_id == job_id
        return lease.job

    async def beat(self, job: Job, **fields: Any) -> Change | Kept:
        return await self.want(Beat(job.job_id, job.epoch, **fields))

    async def settle(self, job: Job, kind: OutcomeKind, **fields: Any) -> Change | Kept:
        return await self.want(Outcome(job.job_id, job.epoch, kind, **fields))

    async def succeed(self, job: Job, result: str | None = '"done"', **fields: Any) -> Change | Kept:
        return await self.settle(job, OutcomeKind.SUCCEEDED, result=result, **fields)

    async def fail(
        self, job: Job, message: str = "no luck", *, code: str = "Broken", is_permanent: bool = True
    ) -> Change | Kept:
        return await self.settle(job, OutcomeKind.FAILED, error=ErrorInfo(code, message, None, is_permanent))

    async def fail_new(self, kind: str = "note", *, message: str, code: str = "Broken", **fields: Any) -> str:
        """Submit a job, run it and let it fail for good; its id."""
        job = await self.start(kind, **fields)
        await self.fail(job, message, code=code)
        return job.job_id

    async def succeed_new(self, kind: str = "note", *, result: str = '"done"', **fields: Any) -> str:
        """Submit a job, run it and let it succeed; its id."""
        job = await self.start(kind, **fields)
        await self.succeed(job, result)
        return job.job_id

    # ---- asking

    async def cancel(self, job_id: str) -> Change | Kept:
        return await self.want(Cancel(job_id))

    async def replay(self, job_id: str, life: int | None = None) -> Change | Kept:
        return await self.want(Replay(job_id, life=life))

    async def sweep(self, limit: int = 100) -> list[str]:
        """Rescue and expire what is to be; the ids that something was decided for."""
        sweep = await self.store.expired(limit)
        for job, intent in sweep.found:
            await self.want(intent)
            del job
        return [job.job_id for job, _ in sweep.found]

    async def want(self, intent: Intent) -> Change | Kept:
        """Read, decide, commit; again where the version moved. Raises what lifecycle raises."""
        for _ in range(100):
            decision = await self.decide(intent)
            await asyncio.sleep(0)  # let others in between: a store that never waits would hide every race
            if isinstance(decision, Kept) or (await self.store.commit([decision]))[0]:
                return decision
        raise AssertionError("the version moved a hundred times")

    async def decide(self, intent: Intent) -> Change | Kept:
        """What lifecycle says, not written yet."""
        offered = getattr(intent, "checkpoints", ())
        named = {intent.job_id: [(c.kind, c.key) for c in offered]}
        reading = await self.store.get([intent.job_id], checkpoints=named)
        job = reading.jobs.get(intent.job_id)
        if job is None:
            raise JobNotFound(intent.job_id)
        standing = {(c.kind, c.key): c for c in reading.checkpoints.get(intent.job_id, ())}
        keys = None
        if job.has_items and offered:
            named_keys = await self.store.item_keys(job.job_id)
            keys = frozenset(named_keys or map(str, range(job.total)))
        return lifecycle.decide(job, intent, Facts(reading.now, self.policy, standing, keys))

    # ---- looking

    async def job(self, job_id: str) -> Job:
        return (await self.store.get([job_id])).jobs[job_id]

    async def events(self, job_id: str) -> list[str]:
        return [str(line.event) for line in await self.store.journal(job_id)]

    async def record(self, job_id: str) -> Record:
        return await record(self.store, job_id)

    async def finish_all(self, *kinds: str) -> None:
        """Run whatever can be claimed until nothing is left that could run or come due."""
        for _ in range(1000):
            for lease in await self.claim(*kinds, limit=100):
                await self.finish(lease)
            reading = await self.store.get(self.submitted)
            if all(job.is_final for job in reading.jobs.values()):
                return
            self.clock.advance(30.0)
            await self.sweep()
        raise AssertionError("some jobs never end")

    async def finish(self, lease: Lease) -> Change | Kept:
        """Do all that a lease is for, at once."""
        job = lease.job
        if not job.has_items:
            return await self.succeed(job)
        keys = lease.payload.keys or tuple(map(str, range(job.total)))
        standing = {c.key for c in lease.checkpoints if c.kind is ITEM and c.is_final}
        new = tuple(item(key, f'"{key}"') for key in keys if key not in standing)
        return await self.succeed(job, None, checkpoints=new)


async def run_threads(threads: Sequence[threading.Thread]) -> None:
    """Start threads and wait for their ends without holding up the loop."""

    def join() -> None:
        for thread in threads:
            thread.join()

    for thread in threads:
        thread.start()
    await asyncio.to_thread(join)


@dataclass(frozen=True)
class Record:
    """All that a store keeps of one job."""

    job: Job | None
    lines: tuple[Line, ...]
    checkpoints: tuple[Checkpoint, ...]
    payload: Payload | None
    keys: tuple[str, ...] | None
    result: str | None


async def record(store: Store, job_id: str) -> Record:
    reading: Reading = await store.get([job_id])
    return Record(
        reading.jobs.get(job_id),
        tuple(plain(line) for line in await store.journal(job_id, limit=10_000)),
        tuple(await store.checkpoints(job_id)),
        await store.payload(job_id),
        await store.item_keys(job_id),
        await store.result(job_id),
    )


def plain(line: Line) -> Line:
    """A line whose data is a plain dict, whatever mapping the store made of it."""
    data: Mapping[str, Any] = line.data
    return line._replace(data=dict(data))


def item(key: str, value: str) -> Checkpoint:
    """The result of an item."""
    return Checkpoint(ITEM, key, value=value)


def item_error(key: str, error: str = '{"code":"Broken"}', *, is_final: bool = False) -> Checkpoint:
    """The error of an item, which may be retried unless it is final."""
    return Checkpoint(ITEM, key, error=error, is_final=is_final)


def step(name: str, value: str, input_digest: str = "d") -> Checkpoint:
    """The value of a step of a whole handler."""
    return Checkpoint(STEP, name, value=value, input_digest=input_digest)
