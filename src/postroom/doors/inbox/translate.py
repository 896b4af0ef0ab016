"""From the door's words to ours and back. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from postroom.errors import DraftInvalid, Problem
from postroom.jsontext import encode
from postroom.model import JsonText, Payload, State
from postroom.views import JobView, format_time

STATUSES: Mapping[State, str] = {
    State.QUEUED: "pending",
    State.RUNNING: "processing",
    State.SUCCEEDED: "done",
    State.FAILED: "failed",
    State.CANCELLED: "cancelled",
}
STATES: Mapping[str, State] = {status: state for state, status in STATUSES.items()}
FIELDS = frozenset({"content", "sender", "topic", "priority"})


def job_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a job of the kind ``assistant`` that a task's body asks for.

    Raises:
        DraftInvalid: a field is unknown here.
    """
    unknown = [
        Problem(n[:80], f"unknown field; known are {', '.join(sorted(FIELDS))}") for n in body.keys() - FIELDS
    ]
    if unknown:
        raise DraftInvalid(unknown)
    return dict(body)


def task(view: JobView, payload: Payload, result: JsonText | None) -> dict[str, Any]:
    """A job as the door shows it."""
    return {
        "id": view.job_id,
        "sender": view.sender,
        "topic": view.topic,
        "content": json.loads(payload.body),
        "priority": view.priority,
        "status": STATUSES[view.state],
        "created_at": format_time(view.created_at),
        "updated_at": format_time(view.updated_at),
        "attempts": view.attempts,
        "result": None if result is None else result_text(result),
        "error": error_text(view),
    }


def result_text(result: JsonText) -> str | None:
    """A result as text: a string as it is, null as none, any other value as JSON text."""
    value = json.loads(result)
    return value if value is None or isinstance(value, str) else encode(value)


def error_text(view: JobView) -> str | None:
    """The latest failure as one line; None after success."""
    error = view.last_error
    return None if error is None else f"{error['code']}: {error['message']}"
