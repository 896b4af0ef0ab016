"""Cursors of listings: where one part ended and the next begins. Opaque to callers, who may send anything as one."""

from __future__ import annotations

import base64
import json
import math

from postroom.errors import DraftInvalid, Problem


def encode_cursor(created_at: float, job_id: str) -> str:
    """The cursor of a part that ended with this job."""
    return base64.urlsafe_b64encode(json.dumps([created_at, job_id]).encode()).decode()


def decode_cursor(cursor: str) -> tuple[float, str]:
    """When the last job of that part was made, and its id.

    Raises:
        DraftInvalid: no listing gave this.
    """
    try:
        created_at, job_id = json.loads(base64.urlsafe_b64decode(cursor.encode()))
        at = float(created_at)
        if isinstance(job_id, str) and job_id.isascii() and math.isfinite(at):
            return at, job_id
    except (ValueError, TypeError, OverflowError, RecursionError):
        pass
    raise DraftInvalid([Problem("cursor", "is not one that a listing gave")])
