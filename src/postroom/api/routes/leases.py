"""`/leases`: the worker's side, for a worker in any language (contract, section 4).

Plain functions over plain dictionaries: this is where a thousand jobs a second pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response

from postroom.api import schemas
from postroom.api.answers import json_answer, text_answer
from postroom.api.bodies import Refused, beside, read_entries, read_object
from postroom.api.queries import MAX_WAIT_SECONDS, NO_PARAMS
from postroom.api.service import Presence, Service, service_of
from postroom.errors import DraftInvalid, JobNotFound, JobPurged, Problem
from postroom.model import Beat, Checkpoint, CheckpointKind, Outcome, OutcomeKind
from postroom.stores.port import WORK, Claimed, ClaimRequest
from postroom.verbs import Answer, Verbs
from postroom.views import format_time
from postroom.wire import (
    ShapeRefused,
    Sizes,
    answer_to_json,
    beat_from_json,
    claimed_to_json,
    lease_seconds,
    names,
    outcome_from_json,
)

router = APIRouter(prefix="/leases", tags=["workers"])

MAX_CLAIM = 1_000
MAX_ENTRIES = 10_000
Write = TypeVar("Write", Beat, Outcome)


# ---- claim


@router.post("/claim", **schemas.documented(schemas.ClaimBody, 200, schemas.Leases))
async def claim(request: Request) -> Response:
    """Jobs for free slots. With `wait_seconds` the answer is held back until there is one.

    Where the worker has gone away by the time that there is one, it is given back at once, uncharged.
    """
    service = service_of(request)
    NO_PARAMS.read(request)
    fields, _ = await read_object(request, service.body_bytes)
    asked, wait_seconds = _claim_request(fields, service.settings.lease_seconds)
    host = request.client.host if request.client else ""
    await service.seen(asked.worker, asked.kinds, asked.queues, host)
    verbs = await service.verbs()
    claimed = await verbs.claim(asked)
    if not claimed.leases and wait_seconds > 0:
        claimed, is_gone = await _wait_for_work(service, request, asked, claimed, wait_seconds)
    else:
        is_gone = False
    if claimed.leases and (is_gone or await _has_gone(request)):
        await give_back(verbs, claimed)
        claimed = Claimed(claimed.now, (), claimed.next_due_at)
    size = sum(len(lease.payload.body) for lease in claimed.leases)
    return text_answer(await beside(size, _claimed_text, claimed, service.settings.max_attempts))


def _claimed_text(claimed: Claimed, max_attempts: int) -> str:
    return claimed_to_json(claimed, default_max_attempts=max_attempts)


def _claim_request(fields: dict[str, Any], default_lease: float) -> tuple[ClaimRequest, float]:
    for name in fields.keys() - _CLAIM_FIELDS:
        known = ", ".join(sorted(_CLAIM_FIELDS))
        raise DraftInvalid([Problem(name[:80], f"unknown field; known are {known}")])
    wrong: list[Problem] = []
    worker = _checked(wrong, lambda: names([fields.get("worker")], "worker", least=1, most=1)[0])
    kinds = _checked(wrong, lambda: names(fields.get("kinds"), "kinds", least=1, most=1_000))
    queues = _checked(wrong, lambda: names(fields.get("queues", ["default"]), "queues", least=1, most=100))
    limit = _checked(wrong, lambda: _number(fields.get("limit", 1), "limit", 1, MAX_CLAIM, whole=True))
    lease = _checked(wrong, lambda: lease_seconds(fields))
    wait = _checked(
        wrong, lambda: _number(fields.get("wait_seconds", 0), "wait_seconds", 0, MAX_WAIT_SECONDS)
    )
    if wrong:
        raise DraftInvalid(wrong)
    assert worker is not None
    assert kinds is not None
    assert queues is not None
    return ClaimRequest(worker, kinds, queues, int(limit or 1), lease or default_lease), wait or 0.0


_CLAIM_FIELDS = frozenset("worker kinds queues limit lease_seconds wait_seconds".split())
Value = TypeVar("Value")


def _checked(wrong: list[Problem], read: Callable[[], Value]) -> Value | None:
    try:
        return read()
    except ShapeRefused as error:
        path, _, message = str(error).partition(": ")
        wrong.append(Problem(path, message))
        return None


def _number(value: Any, name: str, low: float, high: float, *, whole: bool = False) -> float:
    kinds = int if whole else int | float
    if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
        raise ShapeRefused(f"{name}: a {'whole ' if whole else ''}number from {low:g} to {high:g}")
    return value


async def _wait_for_work(
    service: Service, request: Request, asked: ClaimRequest, claimed: Claimed, wait_seconds: float
) -> tuple[Claimed, bool]:
    """Claim again at every hint. Only the waits between are cut short, never a claim: what it gives must be known."""
    verbs = await service.verbs()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_seconds
    with verbs.watch(WORK) as watch:
        async with Presence(request, service) as presence:
            while True:
                claimed = await verbs.claim(asked)
                left = deadline - loop.time()
                if claimed.leases or left <= 0 or presence.is_over:
                    await asyncio.sleep(0)  # a connection that was lost meanwhile is noticed now
                    return claimed, presence.is_gone
                await presence.wait(watch, min(left, _idle_seconds(service, claimed)))


def _idle_seconds(service: Service, claimed: Claimed) -> float:
    """A poll, or less where a job becomes due sooner."""
    poll = service.settings.poll_seconds
    if claimed.next_due_at is None:
        return poll
    return min(poll, max(claimed.next_due_at - claimed.now, 0.001))


async def _has_gone(request: Request) -> bool:
    await asyncio.sleep(0)  # a connection that was lost meanwhile is noticed now
    return await request.is_disconnected()


async def give_back(verbs: Verbs, claimed: Claimed) -> None:
    """Release leases that nobody will ever hear of."""
    jobs = {lease.job.job_id: lease.job for lease in claimed.leases}
    released = [
        Outcome(job.job_id, job.epoch, OutcomeKind.RELEASED, reason="the claimer went away")
        for job in jobs.values()
    ]
    await verbs.settle(released, known=jobs)


# ---- heartbeat and settle


@router.post("/heartbeat", **schemas.documented(schemas.Beats, 200, schemas.BeatAnswers))
async def heartbeat(request: Request) -> Response:
    """Extend leases, keep progress and checkpoints, learn of cancels: a status for each beat, in order."""
    service = service_of(request)
    NO_PARAMS.read(request)
    entries, size = await read_entries(request, service.lease_body_bytes, "beats", MAX_ENTRIES)
    verbs = await service.verbs()
    batch = await _Batch.read(verbs, entries, size, service.sizes, beat_from_json, _unwritable_beat)
    return _answered(await batch.send(verbs.heartbeat), verbs)


@router.post("/settle", **schemas.documented(schemas.Outcomes, 200, schemas.SettleAnswers))
async def settle(request: Request) -> Response:
    """End runs: a status for each, in order. A repeat of what was accepted is `ok` again."""
    service = service_of(request)
    NO_PARAMS.read(request)
    entries, size = await read_entries(request, service.lease_body_bytes, "outcomes", MAX_ENTRIES)
    verbs = await service.verbs()
    batch = await _Batch.read(verbs, entries, size, service.sizes, outcome_from_json, _unwritable_outcome)
    return _answered(await batch.send(verbs.settle), verbs)


def _answered(answers: Sequence[Mapping[str, Any]], verbs: Verbs) -> Response:
    return json_answer({"answers": answers, "now": format_time(verbs.now())})


_IMPOSSIBLE = (Checkpoint(CheckpointKind.STEP, "?"),)
"""A checkpoint with neither value nor error: the state machine fences a write that has it, and then refuses it."""


def _unwritable_beat(job_id: str, epoch: int) -> Beat:
    return Beat(job_id, epoch, checkpoints=_IMPOSSIBLE)


def _unwritable_outcome(job_id: str, epoch: int) -> Outcome:
    return Outcome(job_id, epoch, OutcomeKind.FAILED, checkpoints=_IMPOSSIBLE)


class _Batch:
    """Entries from outside on their way to answers, in order, none harming another.

    The fence comes before the shape: an entry that is wrong in itself is still held against the lease that it names, as
    a write that the state machine fences and then refuses. So a stale one is told that its lease is lost, whatever
    else is wrong with it.
    """

    def __init__(
        self, writes: list[Any], details: dict[int, str], fixed: dict[int, Mapping[str, Any]]
    ) -> None:
        self._writes = writes
        self._details = details
        self._fixed = fixed

    @classmethod
    async def read(
        cls,
        verbs: Verbs,
        entries: Sequence[Any],
        size: int,
        sizes: Sizes,
        read: Callable[[Mapping[str, Any], Sizes], Write],
        unwritable: Callable[[str, int], Write],
    ) -> _Batch:
        await _tell_attempts(verbs, entries)
        writes, details = await beside(size, _read_all, entries, sizes, read, unwritable)
        fixed = {index: await _unnamed(verbs, entries[index]) for index, w in enumerate(writes) if w is None}
        return cls(writes, details, fixed)

    async def send(self, verb: Callable[[list[Any]], Any]) -> list[Mapping[str, Any]]:
        good = [write for write in self._writes if write is not None]
        given: list[Answer] = await verb(good) if good else []
        following = iter(given)
        answers: list[Mapping[str, Any]] = []
        for index, write in enumerate(self._writes):
            if write is None:
                answers.append(self._fixed[index])
                continue
            shown = answer_to_json(next(following))
            if shown["status"] == "invalid" and index in self._details:
                shown["detail"] = self._details[index]
            answers.append(shown)
        return answers


async def _tell_attempts(verbs: Verbs, entries: Sequence[Any]) -> None:
    """An item's error is kept with the attempt that it belongs to; a worker that does not say it need not know it."""
    attempts: dict[str, int | None] = {}
    for entry in entries:
        for error in _untold_errors(entry):
            job_id = entry["job_id"]
            if job_id not in attempts:
                try:
                    attempts[job_id] = (await verbs.get(job_id, with_result=False)).attempts
                except (JobNotFound, JobPurged):
                    attempts[job_id] = None
            error["attempt"] = attempts[job_id]


def _untold_errors(entry: Any) -> list[dict[str, Any]]:
    if not isinstance(entry, dict) or not isinstance(entry.get("checkpoints"), dict):
        return []
    kept = [value for value in entry["checkpoints"].values() if isinstance(value, dict)]
    errors = [value["error"] for value in kept if isinstance(value.get("error"), dict)]
    return [error for error in errors if error.get("attempt") is None] if names_a_lease(entry) else []


def _read_all(
    entries: Sequence[Any],
    sizes: Sizes,
    read: Callable[[Mapping[str, Any], Sizes], Any],
    unwritable: Callable[[str, int], Any],
) -> tuple[list[Any], dict[int, str]]:
    """The write of each entry, None where it names no lease; and what is wrong with those that are unwritable."""
    writes: list[Any] = []
    details: dict[int, str] = {}
    for index, given in enumerate(entries):
        entry = given.entry if isinstance(given, Refused) else given
        if not names_a_lease(entry):
            writes.append(None)
            continue
        try:
            if isinstance(given, Refused):
                raise ShapeRefused(f"{given.problem.path or 'the entry'}: {given.problem.message}")
            writes.append(read(entry, sizes))
        except ShapeRefused as error:
            details[index] = str(error)
            writes.append(unwritable(entry["job_id"], entry["epoch"]))
    return writes, details


def names_a_lease(entry: Any) -> bool:
    """Whether the entry has a job id and an epoch that could be ones."""
    if not isinstance(entry, dict):
        return False
    job_id, epoch = entry.get("job_id"), entry.get("epoch")
    return (
        isinstance(job_id, str)
        and 0 < len(job_id) <= 64
        and job_id.isascii()
        and job_id.isalnum()
        and isinstance(epoch, int)
        and not isinstance(epoch, bool)
        and 0 <= epoch < 2**63
    )


async def _unnamed(verbs: Verbs, given: Any) -> Mapping[str, Any]:
    """The answer to an entry that names no lease: where its job does not exist either, the lease is lost."""
    entry = given.entry if isinstance(given, Refused) else given
    if not isinstance(entry, dict):
        return _refusal(None, None, "invalid", "an object with job_id and epoch")
    job_id, epoch = entry.get("job_id"), entry.get("epoch")
    shown_id = job_id[:64] if isinstance(job_id, str) and job_id.isascii() else None
    if shown_id is None:
        return _refusal(None, epoch, "invalid", "job_id: the id of a job that was claimed")
    try:
        if len(shown_id) != 32 or not shown_id.isalnum():
            raise JobNotFound(shown_id)
        await verbs.get(shown_id, with_result=False)
    except (JobNotFound, JobPurged):
        return _refusal(shown_id, epoch, "lease_lost", f"no job {shown_id!r}")
    return _refusal(shown_id, epoch, "invalid", "epoch: the whole number that the claim gave")


def _refusal(job_id: str | None, epoch: Any, status: str, detail: str) -> Mapping[str, Any]:
    is_number = isinstance(epoch, int) and not isinstance(epoch, bool)
    shown = epoch if is_number and abs(epoch) < 2**63 else None
    return {"job_id": job_id, "epoch": shown, "status": status, "state": None, "detail": detail}
