"""Read, decide, commit: the verbs of an inbox over a store in this process.

The only module that calls both lifecycle and a store. Each verb reads what it needs (or is told what its caller knows),
lets lifecycle decide, and commits the change; where the row moved in between, it reads and decides again, a bounded
number of times. Batches are answered entry by entry, and a bad entry harms no other.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from postroom import __version__, lifecycle
from postroom.drafting import numbered_keys
from postroom.errors import (
    CheckpointConflict,
    DraftInvalid,
    DuplicateJob,
    JobNotFound,
    JobPurged,
    LeaseLost,
    OutcomeInvalid,
    PostroomError,
    ResultMissing,
    StoreError,
    StoreUnavailable,
)
from postroom.lifecycle import Facts, Kept
from postroom.model import (
    DEFAULT_OWNER,
    Beat,
    Cancel,
    Change,
    Checkpoint,
    CheckpointKind,
    Draft,
    Intent,
    Job,
    Line,
    Outcome,
    Payload,
    Replay,
    State,
    WorkerInfo,
)
from postroom.policy import JITTER_HIGH, JITTER_LOW, Policy
from postroom.proof import WriteProof
from postroom.replaying import ReplayPlans
from postroom.settings import Settings
from postroom.stores.port import (
    WORK,
    Claimed,
    ClaimRequest,
    DeadLetterGroup,
    Query,
    Retention,
    Stats,
    Store,
    Submission,
    Watch,
)
from postroom.verbs import Answer, Health, Receipt, ReplayRequest, Swept, WorkerView
from postroom.views import (
    INLINE_RESULT_BYTES,
    ItemPage,
    JobPage,
    JobView,
    WaitingFor,
    item_view,
    job_view,
    to_datetime,
)

MAX_ROUNDS = 32
"""How often in a row a verb reads and decides again where the rows keep moving."""

FIRST_ITEMS = 8
MOST_ITEMS = 500
PIECE_BYTES = 4 * 1024 * 1024
"""Results of items are read a few first, then as many at once as will make about so much; one may have megabytes."""

KEYED_JOBS = 256
KEYS_MOST = 400_000
"""Keys of items that are remembered, so that a beat need not read them again: some tens of megabytes."""

WORKERS_CACHE_SECONDS = 1.0
DAY = 86_400.0

_Decision = Change | Kept | PostroomError


class Desk:
    """See `postroom.verbs.Verbs`, whose every promise this class keeps over a `Store`.

    Args:
        store: opened by `open`.
        settings: budgets, limits and intervals.
        jitter: draws the factor of a backoff; tests pass a constant.
    """

    is_remote = False

    def __init__(self, store: Store, settings: Settings, *, jitter: Any = None) -> None:
        self.store = store
        self.settings = settings
        self.policy = Policy(
            backoff_base_seconds=settings.backoff_base_seconds,
            backoff_cap_seconds=settings.backoff_cap_seconds,
            max_attempts=settings.max_attempts,
            max_crashes=settings.max_crashes,
            max_crashes_total=settings.max_crashes_total,
            stall_timeout_seconds=settings.stall_timeout_seconds,
        )
        self._jitter = jitter or (lambda: random.uniform(JITTER_LOW, JITTER_HIGH))
        self._keys: OrderedDict[str, frozenset[str]] = OrderedDict()
        self._known_kinds: tuple[float, frozenset[tuple[str, str]]] = (float("-inf"), frozenset())
        self._proof = WriteProof()
        self._plans = ReplayPlans(store, self._replay_many)

    @property
    def url(self) -> str:
        return self.store.url

    def now(self) -> float:
        return self.store.now()

    async def open(self) -> None:
        await self.store.open()

    async def close(self) -> None:
        await self.store.close()

    # ---- the loop: read, decide, commit

    async def _decide(
        self, intents: Sequence[Intent], known: Mapping[str, Job] | None = None, *, is_trusted: bool = True
    ) -> list[_Decision]:
        """A decision per intent, committed, in order. Intents for one job are decided one after the other."""
        decisions: list[_Decision | None] = [None] * len(intents)
        jobs = dict(known) if known else {}
        unread = set(jobs)
        waiting = list(range(len(intents)))
        rounds = 0
        while rounds < MAX_ROUNDS:
            now_turn, later = _first_per_job(intents, waiting)
            facts = await self._read([intents[i] for i in now_turn], jobs, unread, is_trusted)
            changes: list[tuple[int, Change]] = []
            for index in now_turn:
                job_id = intents[index].job_id
                decision = _judge(intents[index], jobs, facts[job_id])
                if isinstance(decision, PostroomError) and job_id in unread:
                    jobs.pop(job_id, None)  # what the caller knew may be old: nothing is refused on hearsay
                    continue
                decisions[index] = decision
                if isinstance(decision, Change):
                    changes.append((index, decision))
            written = await self.store.commit([change for _, change in changes]) if changes else []
            for (index, change), is_written in zip(changes, written, strict=True):
                if is_written:
                    jobs[change.job.job_id] = change.job
                else:
                    decisions[index] = None
                    jobs.pop(change.job.job_id, None)
            undecided = [i for i in now_turn if decisions[i] is None]
            rounds = rounds + 1 if len(undecided) == len(now_turn) else 0
            waiting = sorted(undecided + later)
            if not waiting:
                return [decision for decision in decisions if decision is not None]
        busy = StoreUnavailable(f"the job kept changing while {MAX_ROUNDS} decisions were made; try again")
        return [busy if decision is None else decision for decision in decisions]

    async def _read(
        self, intents: Sequence[Intent], jobs: dict[str, Job], unread: set[str], is_trusted: bool
    ) -> dict[str, Facts]:
        """Read the jobs that are not known and the checkpoints that the intents name; the facts for each job."""
        named = {
            i.job_id: {(c.kind, c.key) for c in i.checkpoints}
            for i in intents
            if isinstance(i, Beat | Outcome) and i.checkpoints
        }
        missing = [i.job_id for i in intents if i.job_id not in jobs or i.job_id in named]
        standing: Mapping[str, tuple[Checkpoint, ...]] = {}
        now = self.store.now()
        if missing:
            reading = await self.store.get(missing, checkpoints=named or None)
            now = reading.now
            unread.difference_update(missing)
            for job_id in missing:
                jobs.pop(job_id, None)
            jobs.update(reading.jobs)
            standing = reading.checkpoints
        facts = {i.job_id: Facts(now, self.policy, jitter=self._jitter()) for i in intents}
        for job_id in named:
            kept = {(c.kind, c.key): c for c in standing.get(job_id, ())}
            job = None if is_trusted else jobs.get(job_id)
            keys = None if job is None else await self._item_keys(job)
            facts[job_id] = facts[job_id]._replace(checkpoints=kept, item_keys=keys)
        return facts

    async def _item_keys(self, job: Job) -> frozenset[str]:
        """The keys of a job's items; they never change, so a few are remembered."""
        keys = self._keys.get(job.job_id)
        if keys is None:
            named = await self.store.item_keys(job.job_id)
            keys = frozenset(numbered_keys(job.total) if named is None else named)
            self._keys[job.job_id] = keys
            self._keys.move_to_end(job.job_id)
            while len(self._keys) > KEYED_JOBS or self._has_too_many_keys():
                self._keys.popitem(last=False)
        return keys

    def _has_too_many_keys(self) -> bool:
        return len(self._keys) > 1 and sum(map(len, self._keys.values())) > KEYS_MOST

    async def _decide_one(self, intent: Intent) -> Change | Kept:
        decision = (await self._decide([intent]))[0]
        if isinstance(decision, PostroomError):
            raise decision
        return decision

    # ---- callers

    async def submit(self, drafts: Sequence[Draft]) -> list[Receipt | PostroomError]:
        now = self.store.now()
        submissions = [Submission(lifecycle.submit(draft, now), draft) for draft in drafts]
        answers: list[Receipt | PostroomError] = []
        for draft, done in zip(drafts, await self.store.submit(submissions), strict=True):
            if done.is_new:
                answers.append(Receipt(done.job_id))
            elif done.body_digest == draft.body_digest:
                reading = await self.store.get([done.job_id])
                state = reading.jobs[done.job_id].state if done.job_id in reading.jobs else State.QUEUED
                answers.append(Receipt(done.job_id, state, is_replayed=True))
            else:
                answers.append(DuplicateJob(done.job_id))
        return answers

    async def get(
        self,
        job_id: str,
        *,
        owner: str | None = None,
        with_result: bool = True,
        wait_seconds: float = 0.0,
    ) -> JobView:
        now, job = await self._job(job_id, owner)
        if wait_seconds > 0 and not job.is_final:
            now, job = await self._at_its_end(job_id, owner, wait_seconds)
        return await self._shown(job, now, with_result=with_result)

    async def _shown(self, job: Job, now: float, *, with_result: bool = True) -> JobView:
        """One job, with all that is shown of it."""
        result, url = await self._inline_result(job) if with_result else (None, None)
        return self._view(job, now, result=result, url=url, kinds=await self._kinds_at_work(now, [job]))

    async def _job(self, job_id: str, owner: str | None) -> tuple[float, Job]:
        reading = await self.store.get([job_id])
        job = reading.jobs.get(job_id)
        if job is not None and owner in (None, job.owner):
            return reading.now, job
        if job is None and owner is None:
            purged_at = await self.store.purged_at(job_id)
            if purged_at is not None:
                raise JobPurged(job_id, purged_at)
        raise JobNotFound(job_id)

    async def _at_its_end(self, job_id: str, owner: str | None, seconds: float) -> tuple[float, Job]:
        """The job once it ended, or as it stands after so long."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        with self.store.watch(job_id) as watch:
            while True:
                now, job = await self._job(job_id, owner)
                left = deadline - loop.time()
                if job.is_final or left <= 0:
                    return now, job
                await watch.wait(min(left, self.settings.poll_seconds))

    def _view(
        self,
        job: Job,
        now: float,
        *,
        kinds: frozenset[tuple[str, str]],
        result: Any = None,
        url: str | None = None,
    ) -> JobView:
        waiting_for = _waiting_for(job, now, kinds)
        return job_view(
            job,
            now,
            result=result,
            result_url=url,
            waiting_for=waiting_for,
            default_max_attempts=self.policy.max_attempts,
        )

    async def _kinds_at_work(self, now: float, jobs: Sequence[Job]) -> frozenset[tuple[str, str]]:
        """(queue, kind) pairs that some live worker takes; asked where a due job waits, remembered a second."""
        if not any(job.state is State.QUEUED and job.run_at <= now for job in jobs):
            return frozenset()
        read_at, kinds = self._known_kinds
        if not 0 <= now - read_at < WORKERS_CACHE_SECONDS:
            workers = await self.store.workers()
            kinds = frozenset((queue, kind) for w in workers for queue in w.queues for kind in w.kinds)
            self._known_kinds = (now, kinds)
        return kinds

    async def find(self, query: Query) -> JobPage:
        page = await self.store.find(query)
        kinds = await self._kinds_at_work(page.now, page.jobs)
        return JobPage(tuple(self._view(job, page.now, kinds=kinds) for job in page.jobs), page.next_cursor)

    async def items(
        self, job_id: str, *, owner: str | None = None, cursor: str | None = None, limit: int = 50
    ) -> ItemPage:
        _, job = await self._job(job_id, owner)
        start = _item_cursor(cursor)
        if not job.has_items:
            return ItemPage((await self._content_item(job),) if start == 0 else ())
        keys = await self._ordered_keys(job)
        chosen = keys[start : start + limit]
        kept = await self._standing_items(job_id, chosen)
        views = tuple(item_view(key, start + i, kept.get(key)) for i, key in enumerate(chosen))
        return ItemPage(views, str(start + limit) if start + limit < len(keys) else None)

    async def _content_item(self, job: Job) -> Any:
        """The one item of a job with content: what the job came to."""
        checkpoint: Checkpoint | None = None
        if job.state is State.SUCCEEDED:
            checkpoint = Checkpoint(CheckpointKind.ITEM, "0", value=await self.store.result(job.job_id))
        elif job.error is not None:
            checkpoint = Checkpoint(
                CheckpointKind.ITEM, "0", error=job.error, is_final=job.state is State.FAILED
            )
        return item_view("0", 0, checkpoint)

    async def _ordered_keys(self, job: Job) -> Sequence[str]:
        named = await self.store.item_keys(job.job_id)
        return tuple(numbered_keys(job.total)) if named is None else named

    async def _standing_items(self, job_id: str, keys: Sequence[str]) -> dict[str, Checkpoint]:
        reading = await self.store.get(
            [job_id], checkpoints={job_id: [(CheckpointKind.ITEM, key) for key in keys]}
        )
        return {c.key: c for c in reading.checkpoints.get(job_id, ())}

    async def payload(self, job_id: str, *, owner: str | None = None) -> Payload:
        _, job = await self._job(job_id, owner)
        payload = await self.store.payload(job_id)
        if payload is None:
            raise JobNotFound(job_id)
        if job.has_items and payload.keys is None:
            return Payload(payload.body, tuple(numbered_keys(job.total)))
        return payload

    async def _inline_result(self, job: Job) -> tuple[Any, str | None]:
        """The result if the job has one and it is small; else where it is."""
        url = f"/jobs/{job.job_id}/result"
        if not job.has_items:
            if job.state is not State.SUCCEEDED:
                return None, None
            if (job.result_bytes or 0) > INLINE_RESULT_BYTES:
                return None, url
            text = await self.store.result(job.job_id)
            return None if text is None else json.loads(text), url
        if not job.is_final or job.done - job.failed_items == 0:
            return None, None
        if job.total * len("null,") > INLINE_RESULT_BYTES:
            return None, url
        pieces, size = [], 0
        async for piece in self._item_results(job):
            pieces.append(piece)
            size += len(piece.encode())
            if size > INLINE_RESULT_BYTES:
                return None, url
        return json.loads("".join(pieces)), url

    async def result(self, job_id: str, *, owner: str | None = None) -> AsyncIterator[str]:
        _, job = await self._job(job_id, owner)
        if job.has_items:
            if not job.is_final or job.done - job.failed_items == 0:
                raise ResultMissing(job_id, job.state)
            async for piece in self._item_results(job):
                yield piece
            return
        text = await self.store.result(job_id) if job.state is State.SUCCEEDED else None
        if text is None:
            raise ResultMissing(job_id, job.state)
        yield text

    async def _item_results(self, job: Job) -> AsyncIterator[str]:
        """The results of a job's items in pieces of about `PIECE_BYTES`, as far as the one before can tell."""
        keys = await self._ordered_keys(job)
        yield '{"results":['
        start, count = 0, FIRST_ITEMS
        while start < len(keys):
            part = keys[start : start + count]
            kept = await self._standing_items(job.job_id, part)
            values = ((kept[k].value or "null") if k in kept else "null" for k in part)
            piece = ("," if start else "") + ",".join(values)
            yield piece
            start += len(part)
            count = max(1, min(MOST_ITEMS, count * 8, PIECE_BYTES * len(part) // len(piece)))
        yield "]}"

    async def journal(
        self, job_id: str, *, owner: str | None = None, after: int = -1, limit: int = 500
    ) -> list[Line]:
        await self._job(job_id, owner)
        return await self.store.journal(job_id, after=after, limit=limit)

    async def cancel(
        self, job_id: str, *, reason: str | None = None, owner: str | None = None, actor: str | None = None
    ) -> JobView:
        await self._job(job_id, owner)
        decision = await self._decide_one(Cancel(job_id, reason, actor or owner or DEFAULT_OWNER))
        return await self._shown(decision.job, self.store.now())

    async def replay(self, job_id: str, *, owner: str | None = None, actor: str | None = None) -> JobView:
        await self._job(job_id, owner)
        decision = await self._decide_one(Replay(job_id, actor or owner or DEFAULT_OWNER))
        return await self._shown(decision.job, self.store.now())

    async def dead_letters(
        self, *, owner: str | None = None, since: float | None = None, kind: str | None = None
    ) -> list[DeadLetterGroup]:
        return await self.store.dead_letters(owner=owner, since=since, kind=kind)

    async def replay_dead(
        self, request: ReplayRequest, *, owner: str | None = None, actor: str | None = None
    ) -> int:
        return await self._plans.start(request, owner=owner, actor=actor or owner or DEFAULT_OWNER)

    async def _replay_many(self, intents: Sequence[Replay]) -> int:
        """How many of the replays led to a new life."""
        decisions = await self._decide(intents)
        return sum(isinstance(decision, Change) for decision in decisions)

    async def stats(self, *, owner: str | None = None) -> Stats:
        return await self.store.count(owner)

    async def health(self) -> Health:
        capabilities = self.store.capabilities
        try:
            last = (await self.store.count()).last_claimed_at
            await self._proof.write(self.store)
        except StoreError as error:
            return Health(
                "unavailable", capabilities.name, capabilities.durability, None, __version__, str(error)
            )
        since = None if last is None else max(0.0, self.store.now() - last)
        return Health("ok", capabilities.name, capabilities.durability, since, __version__)

    async def workers(self) -> list[WorkerView]:
        infos = await self.store.workers()
        held: dict[str, list[str]] = {}
        cursor: str | None = None
        while infos:
            page = await self.store.find(Query(states=(State.RUNNING,), limit=500, cursor=cursor))
            for job in page.jobs:
                held.setdefault(job.worker or "", []).append(job.job_id)
            cursor = page.next_cursor
            if cursor is None:
                break
        return [WorkerView(info, tuple(held.get(info.worker, ()))) for info in infos]

    def watch(self, *topics: str) -> Watch:
        return self.store.watch(*topics)

    # ---- workers

    async def claim(self, request: ClaimRequest, *, wait_seconds: float = 0.0) -> Claimed:
        claimed = await self.store.claim(request)
        if claimed.leases or wait_seconds <= 0:
            return claimed
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_seconds
        with self.store.watch(WORK) as watch:
            while True:
                claimed = await self.store.claim(request)
                left = deadline - loop.time()
                if claimed.leases or left <= 0:
                    return claimed
                await watch.wait(min(left, self.idle_seconds(claimed)))

    def idle_seconds(self, claimed: Claimed) -> float:
        """How long to wait after a claim that gave nothing: a poll, or less where a job becomes due sooner."""
        poll = self.settings.poll_seconds
        if claimed.next_due_at is None:
            return poll
        return min(poll, max(claimed.next_due_at - claimed.now, 0.001))

    async def heartbeat(
        self, beats: Sequence[Beat], *, known: Mapping[str, Job] | None = None, is_trusted: bool = False
    ) -> list[Answer]:
        decisions = await self._decide(beats, known, is_trusted=is_trusted)
        return [_answer(beat, decision) for beat, decision in zip(beats, decisions, strict=True)]

    async def settle(
        self, outcomes: Sequence[Outcome], *, known: Mapping[str, Job] | None = None, is_trusted: bool = False
    ) -> list[Answer]:
        decisions = await self._decide(outcomes, known, is_trusted=is_trusted)
        return [_answer(outcome, decision) for outcome, decision in zip(outcomes, decisions, strict=True)]

    async def attend(self, info: WorkerInfo) -> None:
        await self.store.attend(info)

    async def leave(self, worker: str) -> None:
        await self.store.leave(worker)

    async def sweep(self) -> Swept:
        found = await self.store.expired()
        changed = 0
        for job, intent in found.found:
            decision = (await self._decide([intent], {job.job_id: job}))[0]
            changed += isinstance(decision, Change)
        return Swept(changed, await self._plans.advance(), 0, found.broken)

    async def purge(self, *, limit: int = 1000) -> int:
        """Remove jobs that ended longer ago than the settings keep them; at most ``limit`` at once."""
        keep = Retention(self.settings.retain_succeeded_days * DAY, self.settings.retain_failed_days * DAY)
        return await self.store.purge(keep, limit)


def _first_per_job(intents: Sequence[Intent], waiting: Sequence[int]) -> tuple[list[int], list[int]]:
    """The first waiting intent of each job, and the rest."""
    seen: set[str] = set()
    first: list[int] = []
    later: list[int] = []
    for index in waiting:
        job_id = intents[index].job_id
        (later if job_id in seen else first).append(index)
        seen.add(job_id)
    return first, later


def _judge(intent: Intent, jobs: Mapping[str, Job], facts: Facts) -> _Decision:
    job = jobs.get(intent.job_id)
    if job is None:
        if isinstance(intent, Beat | Outcome):
            return LeaseLost(f"no job {intent.job_id}")
        return JobNotFound(intent.job_id)
    try:
        return lifecycle.decide(job, intent, facts)
    except PostroomError as error:
        return error
    except (ValueError, TypeError, AttributeError) as error:  # a part of its row is not what we wrote there
        text = f"job {intent.job_id} cannot be read ({type(error).__name__}): run postroom verify"
        return OutcomeInvalid(text) if isinstance(intent, Beat | Outcome) else StoreError(text)


def _answer(intent: Beat | Outcome, decision: _Decision) -> Answer:
    if isinstance(decision, Change | Kept):
        return Answer(intent.job_id, intent.epoch, decision.status, decision.job.state, job=decision.job)
    if isinstance(decision, StoreError):
        raise decision
    return Answer(intent.job_id, intent.epoch, _STATUSES[type(decision)], detail=str(decision))


_STATUSES: Mapping[type[PostroomError], str] = {
    LeaseLost: "lease_lost",
    CheckpointConflict: "conflict",
    OutcomeInvalid: "invalid",
}


def _waiting_for(job: Job, now: float, kinds: frozenset[tuple[str, str]]) -> WaitingFor | None:
    """What a queued job waits for: its time, a worker that knows its kind, or its turn."""
    if job.state is not State.QUEUED:
        return None
    if job.run_at > now:
        why = f": {job.reason}" if job.reason else ""
        return WaitingFor("run_at", f"due in {job.run_at - now:.0f} s{why}", to_datetime(job.run_at))
    if (job.queue, job.kind) not in kinds:
        return WaitingFor("no_worker", f"no live worker takes kind {job.kind!r} from queue {job.queue!r}")
    return WaitingFor("turn", "due; next when a worker has a free slot and its turn comes")


def _item_cursor(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if not cursor.isdecimal() or len(cursor) > 9:
        raise DraftInvalid("cursor: not one that this listing gave")
    return int(cursor)
