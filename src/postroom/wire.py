"""What a service and a client of its own kind say to each other beyond `postroom.views`: one module, both ways.

The service (`postroom.api`) reads what clients write and writes what they read; `postroom.stores.remote` does the same
from the other end. A worker in another language speaks these shapes too (contract, section 4), so whatever is read from
outside is checked field by field. JSON values of users travel inside as they are kept: parsed, and encoded the one way
that `postroom.jsontext.encode` encodes, so that a value comes back byte for byte.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from postroom.errors import TooLarge
from postroom.jsontext import encode
from postroom.model import (
    DEFAULT_OWNER,
    JOB_FIELDS,
    Beat,
    Checkpoint,
    CheckpointKind,
    Draft,
    ErrorInfo,
    JsonText,
    Lease,
    Limits,
    Outcome,
    OutcomeKind,
    Payload,
    Priority,
    State,
    WorkerInfo,
    job_from_row,
)
from postroom.settings import MIB, Settings
from postroom.stores.port import Claimed, DeadLetterGroup, Stats
from postroom.verbs import Answer, Health, WorkerView
from postroom.views import format_time, parse_time

MAX_MESSAGE_CHARS = 8_000
MAX_DETAIL_BYTES = 64 * 1024
MAX_CHECKPOINTS = 10_000
MAX_EPOCH = 2**63 - 1
MAX_REASON_CHARS = 1_000
MAX_HOLD_SECONDS = 1e9
MAX_USAGE_NAMES = 1_000

_LIMITS = ("max_attempts", "timeout_seconds", "stall_timeout_seconds", "allow_failed_items")


class ShapeRefused(ValueError):
    """What was sent is not of the shape that is spoken here; the message names the field, what is wanted and found."""


@dataclass(frozen=True)
class Sizes:
    """How large the parts of a worker's write may be, in bytes."""

    result: int = 16 * MIB
    output: int = MIB

    @classmethod
    def of(cls, settings: Settings) -> Sizes:
        return cls(settings.max_result_bytes, settings.max_item_bytes)


# ---- JSON text out of values and of values that are JSON text already


def compose(plain: Mapping[str, Any], **texts: JsonText) -> JsonText:
    """An object of plain values and, after them, of values that are JSON text already."""
    head = json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
    tail = ",".join(f'"{name}":{text}' for name, text in texts.items())
    if not tail:
        return head
    return f"{head[:-1]},{tail}}}" if plain else f"{{{tail}}}"


def _object(texts: Mapping[str, JsonText]) -> JsonText:
    """An object whose values are JSON text already, under any keys."""
    return "{" + ",".join(f"{json.dumps(k, ensure_ascii=False)}:{v}" for k, v in texts.items()) + "}"


# ---- payloads and drafts


def payload_texts(payload: Payload, *, has_items: bool) -> dict[str, JsonText]:
    """``content``, or ``items`` with their keys, as members of an object."""
    if not has_items:
        return {"content": payload.body}
    inputs = json.loads(payload.body)
    keys = payload.keys or tuple(map(str, range(len(inputs))))
    items = [{"key": key, "input": item} for key, item in zip(keys, inputs, strict=True)]
    return {"items": json.dumps(items, ensure_ascii=False, separators=(",", ":"))}


def payload_to_json(payload: Payload) -> JsonText:
    """A payload as `Verbs.payload` gives it: with keys where it has items."""
    return compose({}, **payload_texts(payload, has_items=payload.keys is not None))


def payload_from_json(shown: Mapping[str, Any]) -> tuple[Payload, int | None]:
    """The payload, and the number of its items; None for content."""
    if "items" not in shown:
        return Payload(encode(shown["content"])), None
    items = shown["items"]
    keys = tuple(item["key"] for item in items)
    body = encode([item["input"] for item in items])
    numbered = keys == tuple(map(str, range(len(keys))))
    return Payload(body, None if numbered else keys), len(keys)


def draft_to_json(draft: Draft) -> JsonText:
    """The job to be as ``POST /jobs/batch`` takes it: what stands at its default is left out."""
    plain: dict[str, Any] = {"kind": draft.kind}
    for name, default in (("sender", "unknown"), ("topic", "default"), ("queue", "default")):
        if getattr(draft, name) != default:
            plain[name] = getattr(draft, name)
    if draft.priority is not Priority.NORMAL:
        plain["priority"] = str(draft.priority)
    for name in ("run_at", "expires_at"):
        if getattr(draft, name) is not None:
            plain[name] = format_time(getattr(draft, name))
    for name in _LIMITS:
        if getattr(draft, name) is not None:
            plain[name] = _whole(getattr(draft, name))
    if draft.idempotency_key is not None:
        plain["idempotency_key"] = draft.idempotency_key
    texts = {"items" if draft.has_items else "content": draft.payload.body}
    if draft.has_items and draft.payload.keys is not None:
        plain["item_keys"] = draft.payload.keys
    for name in ("params", "metadata"):
        if getattr(draft, name) != "{}":
            texts[name] = getattr(draft, name)
    return compose(plain, **texts)


def _whole(number: float) -> float:
    """As an int where it is one: 1 and 1.0 are the same option and should be the same text."""
    return int(number) if number == int(number) else number


# ---- leases


def claimed_to_json(claimed: Claimed, *, default_max_attempts: int) -> JsonText:
    """The answer to a claim."""
    leases = ",".join(lease_to_json(lease, default_max_attempts) for lease in claimed.leases)
    plain = {"now": format_time(claimed.now), "next_due_at": format_time(claimed.next_due_at)}
    return compose(plain, leases=f"[{leases}]")


def lease_to_json(lease: Lease, default_max_attempts: int) -> JsonText:
    """A lease with all that its handler needs."""
    job = lease.job
    plain = {name: getattr(job, name) for name in _LEASE_FIELDS}
    plain["attempt"] = job.attempts
    plain["max_attempts"] = default_max_attempts if job.max_attempts is None else job.max_attempts
    plain["has_max_attempts"] = job.max_attempts is not None
    plain["priority"] = str(job.priority)
    for name in _LEASE_TIMES:
        plain[name] = format_time(getattr(job, name))
    items = {c.key: checkpoint_to_json(c) for c in lease.checkpoints if c.kind is CheckpointKind.ITEM}
    steps = {c.key: checkpoint_to_json(c) for c in lease.checkpoints if c.kind is CheckpointKind.STEP}
    return compose(
        plain,
        params=job.params,
        metadata=job.metadata,
        **payload_texts(lease.payload, has_items=job.has_items),
        checkpoints=_object(items),
        steps=_object(steps),
    )


_LEASE_FIELDS = tuple(
    "job_id epoch life kind sender topic queue total done failed_items crashes crashes_in_row interruptions holds "
    "cancel_requested worker allow_failed_items lease_seconds timeout_seconds stall_timeout_seconds".split()
)
_LEASE_TIMES = ("created_at", "started_at", "lease_expires_at")


def checkpoint_to_json(checkpoint: Checkpoint) -> JsonText:
    """A kept value or error; an error that may be retried says ``"permanent": false``."""
    plain: dict[str, Any] = {}
    texts: dict[str, JsonText] = {}
    if checkpoint.input_digest is not None:
        plain["input_digest"] = checkpoint.input_digest
    if checkpoint.epoch:
        plain["epoch"] = checkpoint.epoch
    if checkpoint.error is not None:
        error = json.loads(checkpoint.error)
        plain["error"] = error if checkpoint.is_final else {**error, "permanent": False}
    else:
        texts["value"] = "null" if checkpoint.value is None else checkpoint.value
    if checkpoint.usage is not None:
        texts["usage"] = checkpoint.usage
    return compose(plain, **texts)


def claimed_from_json(shown: Mapping[str, Any]) -> Claimed:
    """The answer that `claimed_to_json` made."""
    next_due_at = shown.get("next_due_at")
    return Claimed(
        parse_time(shown["now"]).timestamp(),
        tuple(lease_from_json(lease) for lease in shown["leases"]),
        None if next_due_at is None else parse_time(next_due_at).timestamp(),
    )


def lease_from_json(shown: Mapping[str, Any]) -> Lease:
    """The lease that `lease_to_json` made. What a worker has no use for (owner, version) stands at its default."""
    payload, count = payload_from_json(shown)
    times = {n: None if shown[n] is None else parse_time(shown[n]).timestamp() for n in _LEASE_TIMES}
    created_at = times["created_at"] or 0.0
    started_at = times["started_at"] or created_at
    values: dict[str, Any] = dict.fromkeys(JOB_FIELDS)
    values |= {name: shown[name] for name in _LEASE_FIELDS} | times
    values |= {
        "owner": DEFAULT_OWNER,
        "priority": shown["priority"],
        "state": State.RUNNING,
        "version": 0,
        "lines": 0,
        "attempts": shown["attempt"],
        "max_attempts": shown["max_attempts"] if shown["has_max_attempts"] else None,
        "has_items": count is not None,
        "beat_seq": 0,
        "created_at": created_at,
        "updated_at": started_at,
        "run_at": created_at,
        "started_at": started_at,
        "progress_at": started_at,
        "params": encode(shown["params"]),
        "metadata": encode(shown["metadata"]),
    }
    job = job_from_row([values[name] for name in JOB_FIELDS])
    return Lease(job, payload, (*_kept(shown, CheckpointKind.ITEM), *_kept(shown, CheckpointKind.STEP)))


def _kept(shown: Mapping[str, Any], kind: CheckpointKind) -> list[Checkpoint]:
    members = shown["checkpoints" if kind is CheckpointKind.ITEM else "steps"]
    return [_checkpoint_from_service(kind, key, kept) for key, kept in members.items()]


def _checkpoint_from_service(kind: CheckpointKind, key: str, kept: Mapping[str, Any]) -> Checkpoint:
    error = kept.get("error")
    is_final = True
    if error is not None:
        error = dict(error)
        is_final = error.pop("permanent", True)
    return Checkpoint(
        kind,
        key,
        value=encode(kept["value"]) if "value" in kept else None,
        error=None if error is None else encode(error),
        is_final=is_final,
        input_digest=kept.get("input_digest"),
        usage=encode(kept["usage"]) if "usage" in kept else None,
        epoch=kept.get("epoch", 0),
    )


# ---- what a worker writes: outwards


def beat_to_json(beat: Beat) -> JsonText:
    """A heartbeat as ``POST /leases/heartbeat`` takes it."""
    plain: dict[str, Any] = {"job_id": beat.job_id, "epoch": beat.epoch}
    for name in ("done", "total", "seq", "lease_seconds"):
        if getattr(beat, name) is not None:
            plain[name] = getattr(beat, name)
    if beat.moved:
        plain["moved"] = True
    return compose(plain | _usage_and_limits(beat), **_news(beat))


def outcome_to_json(outcome: Outcome) -> JsonText:
    """The end of a run as ``POST /leases/settle`` takes it."""
    plain: dict[str, Any] = {"job_id": outcome.job_id, "epoch": outcome.epoch, "outcome": str(outcome.kind)}
    for name in ("after_seconds", "reason"):
        if getattr(outcome, name) is not None:
            plain[name] = getattr(outcome, name)
    error = outcome.error
    if error is not None:
        shown = {"code": error.code, "message": error.message, "detail": error.detail}
        plain["error"] = {**shown, "permanent": error.is_permanent}
    texts = _news(outcome)
    if outcome.result is not None:
        texts["result"] = outcome.result
    return compose(plain | _usage_and_limits(outcome), **texts)


def _usage_and_limits(write: Beat | Outcome) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    if write.usage:
        plain["usage"] = dict(write.usage)
    if write.limits is not None:
        limits = {n: getattr(write.limits, n) for n in _LIMITS if getattr(write.limits, n) is not None}
        if limits:
            plain["limits"] = limits
    return plain


def _news(write: Beat | Outcome) -> dict[str, JsonText]:
    texts: dict[str, JsonText] = {}
    for name, kind in (("checkpoints", CheckpointKind.ITEM), ("steps", CheckpointKind.STEP)):
        kept = {c.key: checkpoint_to_json(c) for c in write.checkpoints if c.kind is kind}
        if kept:
            texts[name] = _object(kept)
    if write.output:
        texts["output"] = "[" + ",".join(write.output) + "]"
    return texts


# ---- what a worker writes: inwards, checked


def beat_from_json(entry: Mapping[str, Any], sizes: Sizes) -> Beat:
    """A heartbeat from outside.

    Raises:
        ShapeRefused: a field is unknown, of the wrong kind, or too large.
    """
    _know(entry, _BEAT_FIELDS, "a beat")
    return Beat(
        job_id=entry["job_id"],
        epoch=entry["epoch"],
        done=_integer(entry, "done", 0),
        total=_integer(entry, "total", 1),
        checkpoints=_checkpoints(entry, sizes),
        output=_output(entry, sizes),
        usage=_usage(entry.get("usage"), "usage"),
        limits=_limits(entry),
        seq=_integer(entry, "seq", 1),
        lease_seconds=lease_seconds(entry),
        moved=_flag(entry, "moved"),
    )


def outcome_from_json(entry: Mapping[str, Any], sizes: Sizes) -> Outcome:
    """The end of a run from outside.

    Raises:
        ShapeRefused: a field is unknown, of the wrong kind, or too large.
    """
    _know(entry, _OUTCOME_FIELDS, "an outcome")
    try:
        kind = OutcomeKind(str(entry.get("outcome")))
    except ValueError:
        raise ShapeRefused(
            f"outcome: one of {', '.join(OutcomeKind)}, found {_brief(entry.get('outcome'))}"
        ) from None
    result = entry.get("result")
    return Outcome(
        job_id=entry["job_id"],
        epoch=entry["epoch"],
        kind=kind,
        result=None if result is None else _sized(result, "result", sizes.result, "MAX_RESULT_BYTES"),
        checkpoints=_checkpoints(entry, sizes),
        output=_output(entry, sizes),
        error=_error_info(entry.get("error")),
        after_seconds=_seconds(entry, "after_seconds", 0, MAX_HOLD_SECONDS),
        reason=_text(entry, "reason", MAX_REASON_CHARS),
        usage=_usage(entry.get("usage"), "usage"),
        limits=_limits(entry),
    )


_COMMON = frozenset("job_id epoch checkpoints steps output usage limits".split())
_BEAT_FIELDS = _COMMON | {"done", "total", "seq", "lease_seconds", "moved"}
_OUTCOME_FIELDS = _COMMON | {"outcome", "result", "error", "after_seconds", "reason"}


def _flag(entry: Mapping[str, Any], name: str) -> bool:
    value = entry.get(name, False)
    if not isinstance(value, bool):
        raise ShapeRefused(f"{name}: true or false, found {_brief(value)}")
    return value


def lease_seconds(entry: Mapping[str, Any]) -> float | None:
    """The length of a lease, 1 to 3,600 s."""
    return _seconds(entry, "lease_seconds", 1, 3_600)


def _checkpoints(entry: Mapping[str, Any], sizes: Sizes) -> tuple[Checkpoint, ...]:
    made: list[Checkpoint] = []
    for name, kind in (("checkpoints", CheckpointKind.ITEM), ("steps", CheckpointKind.STEP)):
        kept = entry.get(name)
        if kept is None:
            continue
        if not isinstance(kept, dict) or len(kept) > MAX_CHECKPOINTS:
            raise ShapeRefused(f"{name}: an object of at most {MAX_CHECKPOINTS} members")
        made += [_checkpoint(kind, name, key, value, entry["epoch"], sizes) for key, value in kept.items()]
    return tuple(made)


def _checkpoint(kind: CheckpointKind, name: str, key: str, kept: Any, epoch: int, sizes: Sizes) -> Checkpoint:
    path = f"{name}[{json.dumps(key[:80])}]"
    if not isinstance(kept, dict) or ("value" in kept) == (kept.get("error") is not None):
        raise ShapeRefused(f'{path}: an object with either "value" or "error"')
    known = {"value", "error", "usage", "epoch"} | (
        {"input_digest"} if kind is CheckpointKind.STEP else set()
    )
    _know(kept, known, path)
    error, is_final = _kept_error(kept.get("error"), f"{path}.error", epoch)
    usage = _usage(kept.get("usage"), f"{path}.usage")
    value = (
        _sized(kept["value"], f"{path}.value", sizes.result, "MAX_RESULT_BYTES") if "value" in kept else None
    )
    return Checkpoint(
        kind,
        key,
        value=value,
        error=error,
        is_final=is_final,
        input_digest=_text(kept, "input_digest", 200),
        usage=encode(usage) if usage else None,
    )


def _kept_error(error: Any, path: str, epoch: int) -> tuple[JsonText | None, bool]:
    """An item's error as it is kept and shown, and whether it is final (unless it says ``"permanent": false``)."""
    if error is None:
        return None, True
    if not isinstance(error, dict):
        raise ShapeRefused(f'{path}: an object {{"code", "message", "detail"}}')
    _know(error, {"code", "message", "detail", "permanent", "epoch", "attempt"}, path)
    is_final = error.get("permanent", True)
    if not isinstance(is_final, bool):
        raise ShapeRefused(f"{path}.permanent: true or false")
    shown = {
        "code": _text(error, "code", 200, path) or "error",
        "message": _cut(_text(error, "message", None, path) or ""),
        "detail": _detail(error.get("detail")),
        "epoch": _default(_integer(error, "epoch", 0, path), epoch),
        "attempt": _integer(error, "attempt", 0, path),
    }
    return encode(shown), is_final


def _error_info(error: Any) -> ErrorInfo | None:
    if error is None:
        return None
    if not isinstance(error, dict):
        raise ShapeRefused('error: an object {"code", "message", "detail", "permanent"}')
    _know(error, {"code", "message", "detail", "permanent"}, "error")
    is_permanent = error.get("permanent", False)
    if not isinstance(is_permanent, bool):
        raise ShapeRefused("error.permanent: true or false")
    return ErrorInfo(
        _text(error, "code", 200, "error") or "error",
        _cut(_text(error, "message", None, "error") or ""),
        _detail(error.get("detail")),
        is_permanent,
    )


def _cut(message: str) -> str:
    return message if len(message) <= MAX_MESSAGE_CHARS else message[: MAX_MESSAGE_CHARS - 1] + "…"


def _detail(detail: Any) -> Any:
    """What is too long for a row is cut: a failure is never refused because it is told at length."""
    if detail is None:
        return None
    text = encode(detail)
    if len(text.encode()) <= MAX_DETAIL_BYTES:
        return detail
    return text.encode()[: MAX_DETAIL_BYTES - 100].decode(errors="ignore") + "… (cut)"


def _output(entry: Mapping[str, Any], sizes: Sizes) -> tuple[JsonText, ...]:
    output = entry.get("output")
    if output is None:
        return ()
    if not isinstance(output, list) or len(output) > MAX_CHECKPOINTS:
        raise ShapeRefused(f"output: a list of at most {MAX_CHECKPOINTS} values")
    return tuple(
        _sized(value, f"output[{index}]", sizes.output, "MAX_ITEM_BYTES")
        for index, value in enumerate(output)
    )


def _sized(value: Any, path: str, limit: int, setting: str) -> JsonText:
    text = encode(value)
    if len(text) * 4 > limit and len(text.encode()) > limit:
        raise ShapeRefused(
            str(TooLarge(path, limit=limit, size=len(text.encode()), setting=f"POSTROOM_{setting}"))
        )
    return text


def _usage(usage: Any, path: str) -> dict[str, float] | None:
    if usage is None:
        return None
    if not isinstance(usage, dict) or len(usage) > MAX_USAGE_NAMES:
        raise ShapeRefused(f"{path}: an object of at most {MAX_USAGE_NAMES} numbers by name")
    for name, number in usage.items():
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise ShapeRefused(f"{path}.{name[:80]}: a number, found {_brief(number)}")
    return usage


def _limits(entry: Mapping[str, Any]) -> Limits | None:
    limits = entry.get("limits")
    if limits is None:
        return None
    if not isinstance(limits, dict):
        raise ShapeRefused(f"limits: an object of {', '.join(_LIMITS)}")
    _know(limits, set(_LIMITS), "limits")
    return Limits(
        _integer(limits, "max_attempts", 1, "limits"),
        _seconds(limits, "timeout_seconds", 1e-9, 1e9, "limits"),
        _seconds(limits, "stall_timeout_seconds", 1e-9, 1e9, "limits"),
        _seconds(limits, "allow_failed_items", 0, 1e9, "limits"),
    )


# ---- fields from outside


def _know(entry: Mapping[str, Any], known: frozenset[str] | set[str], what: str) -> None:
    for name in entry.keys() - known:
        raise ShapeRefused(f"{what}: unknown field {name[:80]!r}; known are {', '.join(sorted(known))}")


def _integer(entry: Mapping[str, Any], name: str, low: int, path: str = "") -> int | None:
    value = entry.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= MAX_EPOCH:
        raise ShapeRefused(f"{_path(path, name)}: a whole number from {low}, found {_brief(value)}")
    return value


def _seconds(entry: Mapping[str, Any], name: str, low: float, high: float, path: str = "") -> float | None:
    value = entry.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ShapeRefused(f"{_path(path, name)}: a number from {low:g} to {high:g}, found {_brief(value)}")
    return float(value)


def _text(entry: Mapping[str, Any], name: str, limit: int | None, path: str = "") -> str | None:
    value = entry.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or (limit is not None and len(value) > limit):
        most = "" if limit is None else f" of at most {limit} characters"
        raise ShapeRefused(f"{_path(path, name)}: text{most}, found {_brief(value)}")
    return value


def _path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _brief(value: Any) -> str:
    """What was found, without its contents where they may be long."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, str) and len(value) > 40:
        return f"text of {len(value)} characters"
    return json.dumps(value)


def _default(value: int | None, default: int) -> int:
    return default if value is None else value


# ---- answers


def answer_to_json(answer: Answer) -> dict[str, Any]:
    """The answer to one entry of a worker's batch."""
    return {
        "job_id": answer.job_id,
        "epoch": answer.epoch,
        "status": answer.status,
        "state": None if answer.state is None else str(answer.state),
        "detail": answer.detail,
    }


def answer_from_json(shown: Mapping[str, Any]) -> Answer:
    state = shown.get("state")
    return Answer(
        shown["job_id"],
        shown["epoch"],
        shown["status"],
        None if state is None else State(state),
        shown.get("detail"),
    )


# ---- what operators read


def stats_to_json(stats: Stats) -> dict[str, Any]:
    """Counts by state and the last hour. ``failure_ratio``: the share of failures among its ends; null without any."""
    ended = stats.succeeded_last_hour + stats.failed_last_hour
    return {
        "states": dict(stats.states),
        "oldest_due_seconds": stats.oldest_due_seconds,
        "mean_seconds": stats.mean_seconds,
        "p95_seconds": stats.p95_seconds,
        "succeeded_last_hour": stats.succeeded_last_hour,
        "failed_last_hour": stats.failed_last_hour,
        "failure_ratio": stats.failed_last_hour / ended if ended else None,
        "stale": stats.stale,
        "last_claimed_at": format_time(stats.last_claimed_at),
    }


def stats_from_json(shown: Mapping[str, Any]) -> Stats:
    return Stats(
        states=shown["states"],
        oldest_due_seconds=shown["oldest_due_seconds"],
        mean_seconds=shown["mean_seconds"],
        p95_seconds=shown["p95_seconds"],
        succeeded_last_hour=shown["succeeded_last_hour"],
        failed_last_hour=shown["failed_last_hour"],
        stale=shown["stale"],
        last_claimed_at=_instant(shown["last_claimed_at"]),
    )


def group_to_json(group: DeadLetterGroup) -> dict[str, Any]:
    """A group of dead letters."""
    return {
        "kind": group.kind,
        "code": group.code,
        "message": group.message,
        "count": group.count,
        "first_at": format_time(group.first_at),
        "last_at": format_time(group.last_at),
        "job_ids": list(group.job_ids),
    }


def group_from_json(shown: Mapping[str, Any]) -> DeadLetterGroup:
    return DeadLetterGroup(
        shown["kind"],
        shown["code"],
        shown["message"],
        shown["count"],
        _instant(shown["first_at"]) or 0.0,
        _instant(shown["last_at"]) or 0.0,
        tuple(shown["job_ids"]),
    )


def worker_to_json(view: WorkerView) -> dict[str, Any]:
    """A live worker and what it runs."""
    info = view.info
    return {
        "worker": info.worker,
        "kinds": list(info.kinds),
        "queues": list(info.queues),
        "concurrency": info.concurrency,
        "host": info.host,
        "pid": info.pid,
        "version": info.version,
        "is_local": info.is_local,
        "started_at": format_time(info.started_at),
        "seen_at": format_time(info.seen_at),
        "job_ids": list(view.job_ids),
    }


def worker_from_json(shown: Mapping[str, Any]) -> WorkerView:
    info = WorkerInfo(
        worker=shown["worker"],
        kinds=tuple(shown["kinds"]),
        queues=tuple(shown["queues"]),
        concurrency=shown["concurrency"],
        host=shown["host"],
        pid=shown["pid"],
        started_at=_instant(shown["started_at"]) or 0.0,
        seen_at=_instant(shown["seen_at"]) or 0.0,
        is_local=shown["is_local"],
        version=shown["version"],
    )
    return WorkerView(info, tuple(shown["job_ids"]))


def health_to_json(health: Health, now: float) -> dict[str, Any]:
    """Whether the inbox can take and give work; ``now`` is its clock."""
    shown: dict[str, Any] = {
        "status": health.status,
        "store": health.store,
        "durability": health.durability,
        "last_claimable_seconds": health.last_claimable_seconds,
        "version": health.version,
        "now": format_time(now),
    }
    return shown if health.detail is None else {**shown, "detail": health.detail}


def health_from_json(shown: Mapping[str, Any]) -> Health:
    return Health(
        shown["status"],
        shown["store"],
        shown["durability"],
        shown["last_claimable_seconds"],
        shown["version"],
        shown.get("detail"),
    )


def _instant(text: str | None) -> float | None:
    return None if text is None else parse_time(text).timestamp()


def names(value: Any, path: str, *, least: int, most: int) -> tuple[str, ...]:
    """A list of names (kinds, queues) from outside."""
    is_list = isinstance(value, list) and least <= len(value) <= most
    if not is_list or not all(isinstance(n, str) and 0 < len(n) <= 200 for n in value):
        many = "one name" if most == 1 else f"a list of {least} to {most} names"
        raise ShapeRefused(f"{path}: {many} of 1 to 200 characters")
    return tuple(value)


def sequence(value: Any, path: str, most: int) -> Sequence[Any]:
    """A list of entries from outside."""
    if not isinstance(value, list) or len(value) > most:
        found = f", found {len(value)}" if isinstance(value, list) else ""
        raise ShapeRefused(f"{path}: a list of at most {most} entries{found}")
    return value
