"""Jobs as others see them: the shapes of the contract's section 2, as Python objects and as JSON, both ways.

One module makes and reads these shapes, so that the HTTP door, the command line and the client over HTTP cannot drift
apart. Times are aware datetimes in UTC here and RFC 3339 text in JSON.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any

from postroom.model import Checkpoint, Event, Job, Line, State
from postroom.seals import unsealed

INLINE_RESULT_BYTES = 64 * 1024
"""Results up to this size stand in the job itself; larger ones behind ``result_url``."""


def to_datetime(seconds: float | None) -> datetime | None:
    """Seconds since the epoch as an aware datetime in UTC."""
    return None if seconds is None else _moment(seconds)


def _moment(seconds: float) -> datetime:
    """A number past the calendar is shown as the calendar's end: one must not hide the rest of a listing."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return _LAST if seconds > 0 else _FIRST


_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


def format_time(moment: datetime | float | None) -> str | None:
    """RFC 3339 in UTC with microseconds."""
    if moment is None:
        return None
    if not isinstance(moment, datetime):
        moment = _moment(moment)
    try:
        moment = moment.astimezone(UTC)
    except OverflowError:  # an end of the calendar, in a zone from where it lies past it
        moment = moment.replace(tzinfo=UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def parse_time(text: str) -> datetime:
    """An RFC 3339 time.

    Raises:
        ValueError: not one, or without an offset.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no offset; end it with Z or +01:00")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{text!r} is past the calendar once in UTC") from None


@dataclass(frozen=True)
class WaitingFor:
    """Why a queued job is not running: ``run_at``, ``gate``, ``no_worker`` or ``turn``; ``text`` says it in words."""

    reason: str
    text: str
    until: datetime | None = None
    gate: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {"reason": self.reason, "gate": self.gate, "until": format_time(self.until), "text": self.text}


@dataclass(frozen=True)
class JobView:
    """A job as its owner sees it. Names and meanings are the contract's (section 2)."""

    job_id: str
    state: State
    kind: str
    sender: str
    topic: str
    priority: str
    queue: str
    done: int
    total: int
    failed_items: int
    result: Any
    result_url: str | None
    error: dict[str, Any] | None
    last_error: dict[str, Any] | None
    stale: bool
    waiting_for: WaitingFor | None
    reason: str | None
    attempts: int
    max_attempts: int
    crashes: int
    crashes_in_row: int
    interruptions: int
    holds: int
    replays: int
    epoch: int
    worker: str | None
    cancel_requested: bool
    created_at: datetime
    updated_at: datetime
    run_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    expires_at: datetime | None
    lease_expires_at: datetime | None
    timeout_seconds: float | None
    stall_timeout_seconds: float | None
    params: dict[str, Any]
    metadata: dict[str, Any]
    usage: dict[str, float] | None

    @property
    def is_final(self) -> bool:
        """True once the job ended."""
        return self.state.is_final

    def to_json(self) -> dict[str, Any]:
        """The job as the contract's JSON object."""
        shown: dict[str, Any] = {}
        for name in _NAMES:
            value = getattr(self, name)
            shown[name] = format_time(value) if name in _TIMES else value
        shown["state"] = str(self.state)
        shown["waiting_for"] = self.waiting_for.to_json() if self.waiting_for else None
        return shown


_NAMES = tuple(f.name for f in fields(JobView))
_TIMES = frozenset(f.name for f in fields(JobView) if "datetime" in str(f.type))


def job_view(
    job: Job,
    now: float,
    *,
    result: Any = None,
    result_url: str | None = None,
    waiting_for: WaitingFor | None = None,
    default_max_attempts: int = 3,
) -> JobView:
    """The view of a row. ``result`` and ``waiting_for`` are brought by the caller, who knows what lies apart."""
    error = json.loads(job.error) if job.error else None
    return JobView(
        job_id=job.job_id,
        state=job.state,
        kind=job.kind,
        sender=job.sender,
        topic=job.topic,
        priority=str(job.priority),
        queue=job.queue,
        done=job.done,
        total=job.total,
        failed_items=job.failed_items,
        result=result,
        result_url=result_url,
        error=error if job.state is State.FAILED else None,
        last_error=None if job.state is State.SUCCEEDED else error,
        stale=job.state is State.RUNNING and job.lease_expires_at is not None and job.lease_expires_at <= now,
        waiting_for=waiting_for,
        reason=job.reason,
        attempts=job.attempts,
        max_attempts=default_max_attempts if job.max_attempts is None else job.max_attempts,
        crashes=job.crashes,
        crashes_in_row=job.crashes_in_row,
        interruptions=job.interruptions,
        holds=job.holds,
        replays=job.life - 1,
        epoch=job.epoch,
        worker=job.worker,
        cancel_requested=job.cancel_requested,
        created_at=_moment(job.created_at),
        updated_at=_moment(job.updated_at),
        run_at=_moment(job.run_at),
        started_at=to_datetime(job.started_at),
        finished_at=to_datetime(job.finished_at),
        expires_at=to_datetime(job.expires_at),
        lease_expires_at=to_datetime(job.lease_expires_at),
        timeout_seconds=_finite(job.timeout_seconds),
        stall_timeout_seconds=_finite(job.stall_timeout_seconds),
        params=json.loads(job.params),
        metadata=json.loads(job.metadata),
        usage=_usage(job.usage),
    )


def _usage(text: str | None) -> dict[str, float] | None:
    return {name: _finite(number) for name, number in json.loads(text).items()} if text else None


def _finite(number: Any) -> Any:
    """The number, or the nearest that JSON has: infinities and NaN would make the whole answer unreadable."""
    if not isinstance(number, float) or math.isfinite(number):
        return number
    return 0.0 if number != number else math.copysign(sys.float_info.max, number)


def job_view_from_json(shown: Mapping[str, Any]) -> JobView:
    """The view that a service sent; fields that this version does not know are left out."""
    values: dict[str, Any] = {}
    for name in _NAMES:
        value = shown.get(name)
        values[name] = parse_time(value) if name in _TIMES and value is not None else value
    values["state"] = State(values["state"])
    waiting = values["waiting_for"]
    if waiting is not None:
        until = waiting.get("until")
        values["waiting_for"] = WaitingFor(
            waiting["reason"], waiting["text"], parse_time(until) if until else None, waiting.get("gate")
        )
    return JobView(**values)


@dataclass(frozen=True)
class ItemView:
    """One item of a job: ``pending``, ``succeeded`` or ``failed``; a pending one may show the error of its last try."""

    key: str
    index: int
    state: str
    value: Any = None
    error: dict[str, Any] | None = None
    usage: dict[str, float] | None = None

    def to_json(self) -> dict[str, Any]:
        shown = {
            "key": self.key,
            "index": self.index,
            "state": self.state,
            "value": self.value,
            "error": self.error,
        }
        return shown | ({"usage": self.usage} if self.usage else {})


def item_view(key: str, index: int, checkpoint: Checkpoint | None) -> ItemView:
    """The view of an item by what was kept of it."""
    if checkpoint is None:
        return ItemView(key, index, "pending")
    usage = _usage(checkpoint.usage)
    if checkpoint.error is not None:
        state = "failed" if checkpoint.is_final else "pending"
        return ItemView(key, index, state, error=json.loads(checkpoint.error), usage=usage)
    return ItemView(key, index, "succeeded", value=json.loads(checkpoint.value or "null"), usage=usage)


@dataclass(frozen=True)
class JobPage:
    """A part of a listing, and how to ask on."""

    jobs: tuple[JobView, ...]
    next_cursor: str | None = None


@dataclass(frozen=True)
class ItemPage:
    """A part of a job's items, in order, and how to ask on."""

    items: tuple[ItemView, ...]
    next_cursor: str | None = None


def line_to_json(line: Line) -> dict[str, Any]:
    """A journal line as the contract's JSON object: its data without what only ``verify`` reads, times as RFC 3339."""
    told = {
        name: format_time(value) if name.endswith("_at") and not isinstance(value, str) else value
        for name, value in unsealed(line.data).items()
    }
    return {
        "n": line.n,
        "at": format_time(line.at),
        "event": str(line.event),
        "from": str(line.from_state) if line.from_state is not None else None,
        "to": str(line.to_state),
        "epoch": line.epoch,
        "attempt": line.attempt,
        "life": line.life,
        "actor": line.actor,
        "reason": line.reason,
        "data": told,
    }


def line_from_json(shown: Mapping[str, Any]) -> Line:
    """The line that `line_to_json` made, without the seals that it left out."""
    told = {
        name: parse_time(value).timestamp() if name.endswith("_at") and isinstance(value, str) else value
        for name, value in shown["data"].items()
    }
    return Line(
        n=shown["n"],
        at=parse_time(shown["at"]).timestamp(),
        event=Event(shown["event"]),
        from_state=State(shown["from"]) if shown["from"] is not None else None,
        to_state=State(shown["to"]),
        epoch=shown["epoch"],
        attempt=shown["attempt"],
        life=shown["life"],
        actor=shown["actor"],
        reason=shown["reason"],
        data=told,
    )
