"""Replaying dead letters in numbers: a plan kept in the store, canaries first, at a pace, once however often pressed.

A plan names the jobs and the life that each had when the button was pressed, so that a replay that was carried out is
recognised and never made twice. It survives restarts; every sweep of every process carries it on, and the store's
compare-and-set on the plan keeps two processes from taking the same step.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from postroom.errors import DraftInvalid, JobNotFound
from postroom.model import Job, Replay, State, digest
from postroom.stores.port import Store
from postroom.verbs import ReplayRequest

PREFIX = "replay/"
MAX_JOBS = 10_000
CHUNK = 500

ReplayMany = Callable[[Sequence[Replay]], Awaitable[int]]


class ReplayPlans:
    """Starts plans and carries them on.

    Args:
        store: keeps the plans.
        replay_many: decides and commits replays; how many led to a new life.
    """

    def __init__(self, store: Store, replay_many: ReplayMany) -> None:
        self._store = store
        self._replay_many = replay_many

    async def start(self, request: ReplayRequest, *, owner: str | None, actor: str) -> int:
        """Take a request; the number of jobs accepted. Without canary and pace all are replayed before this returns.

        Raises:
            DraftInvalid: neither ids nor a group, or numbers that cannot be.
            JobNotFound: an id that does not exist (or is another's).
        """
        _check(request)
        jobs = await self._chosen(request, owner)
        jobs = [job for job in jobs if job.state is State.FAILED]
        if not jobs:
            return 0
        if request.canary is None and request.per_second is None:
            return await self._all_now(jobs, actor)
        running = await self._running()
        asked, jobs = jobs, [job for job in jobs if (job.job_id, job.life) not in running]
        if not jobs:
            return self._promised(request, asked, running)
        name = PREFIX + digest(*sorted(f"{job.job_id}:{job.life}" for job in jobs))
        plan = {
            "jobs": [[job.job_id, job.life] for job in jobs],
            "next": 0,
            "canary": min(request.canary or 0, len(jobs)),
            "per_second": request.per_second,
            "actor": actor,
            "started_at": self._store.now(),
        }
        is_new = await self._store.keep(name, json.dumps(plan), before=None)
        if is_new:
            await self._carry_on(name, json.dumps(plan))
        return len(asked)

    def _promised(
        self, request: ReplayRequest, asked: Sequence[Job], running: Mapping[tuple[str, int], int]
    ) -> int:
        """What the press was told that a plan carries out already: those of the ids that it has, or the group's all."""
        if request.job_ids:
            return len({job_id for job_id, _ in running} & set(request.job_ids))
        return max(running[job.job_id, job.life] for job in asked)

    async def _running(self) -> dict[tuple[str, int], int]:
        """The jobs (and their lives) that a plan has taken up already, with the number of jobs in that plan."""
        plans = [json.loads(text) for text in (await self._store.kept(PREFIX)).values()]
        return {(job_id, life): len(plan["jobs"]) for plan in plans for job_id, life in plan["jobs"]}

    async def _all_now(self, jobs: Sequence[Job], actor: str) -> int:
        replayed = 0
        for start in range(0, len(jobs), CHUNK):
            replayed += await self._replay_many(
                [Replay(j.job_id, actor, life=j.life) for j in jobs[start : start + CHUNK]]
            )
        return replayed

    async def _chosen(self, request: ReplayRequest, owner: str | None) -> list[Job]:
        if not request.job_ids:
            return await self._store.failed(
                owner=owner,
                kind=request.kind,
                code=request.code,
                message=request.message,
                since=request.since,
                limit=MAX_JOBS,
            )
        reading = await self._store.get(set(request.job_ids))
        jobs = []
        for job_id in dict.fromkeys(request.job_ids):
            job = reading.jobs.get(job_id)
            if job is None or owner not in (None, job.owner):
                raise JobNotFound(job_id)
            jobs.append(job)
        return jobs

    async def advance(self) -> int:
        """Carry every plan one step on; the number of jobs replayed."""
        plans = await self._store.kept(PREFIX)
        return sum([await self._carry_on(name, text) for name, text in plans.items()])

    async def _carry_on(self, name: str, text: str) -> int:
        plan = json.loads(text)
        upto = await self._allowed(plan)
        if upto is None:
            await self._store.keep(name, None, before=text)
            return 0
        if upto <= plan["next"]:
            return 0
        step = plan["jobs"][plan["next"] : upto]
        replayed = await self._replay_many(
            [Replay(job_id, plan["actor"], life=life) for job_id, life in step]
        )
        await self._store.keep(name, json.dumps({**plan, "next": upto}), before=text)
        return replayed

    async def _allowed(self, plan: dict[str, Any]) -> int | None:
        """How many jobs of the plan may be replayed by now; None once it is over, or a canary failed."""
        total, canary, done = len(plan["jobs"]), int(plan["canary"]), int(plan["next"])
        paced = total
        if plan["per_second"]:
            paced = int((self._store.now() - plan["started_at"]) * plan["per_second"]) + 1
        if done < canary:
            return min(canary, paced)
        if canary:
            states = await self._canary_states(plan)
            if State.FAILED in states or State.CANCELLED in states:
                return None
            if states - {State.SUCCEEDED}:
                return canary
        if done >= total:
            return None
        return min(total, paced, done + CHUNK)

    async def _canary_states(self, plan: dict[str, Any]) -> set[State]:
        canaries = dict(plan["jobs"][: plan["canary"]])
        reading = await self._store.get(canaries)
        return {job.state for job in reading.jobs.values()}


def _check(request: ReplayRequest) -> None:
    group = any(v is not None for v in (request.kind, request.code, request.message, request.since))
    if bool(request.job_ids) == group:
        raise DraftInvalid("say which dead letters to replay: either job_ids, or kind, code and message")
    if len(request.job_ids) > MAX_JOBS:
        raise DraftInvalid(f"job_ids: at most {MAX_JOBS} at once, found {len(request.job_ids)}")
    if request.canary is not None and request.canary < 1:
        raise DraftInvalid("canary: a whole number from 1")
    if request.per_second is not None and not 0 < request.per_second < 1e6:
        raise DraftInvalid("per_second: above 0")
