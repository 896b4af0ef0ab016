"""Every exception of Postroom.

::

    PostroomError
    ├── JobNotFound            404  no such job, or not yours: the two look alike
    ├── JobPurged              410  retention removed it; says when
    ├── TransitionRefused      409  lifecycle says no: from here, that verb leads nowhere
    ├── LeaseLost              409  you no longer hold the job: stop, write nothing, do not retry
    ├── CheckpointConflict     409  another value stands under that key already
    ├── DuplicateJob           409  same idempotency key, different content (same content returns the first job)
    ├── ResultMissing          409  the job has no result (yet)
    ├── DraftInvalid           422  one or many fields are wrong; ``problems`` names each
    ├── OutcomeInvalid         422  what a worker reported does not fit the job it holds
    ├── TooLarge               413  names limit and size
    ├── WaitTimedOut                the wait ended before the job did; the job goes on
    ├── HandlerMissing              no handler for this kind in this worker: give the job back, do not fail it
    ├── HandlerInvalid              a handler was registered in a way that cannot be kept
    ├── SettingsInvalid
    ├── AccessRefused          401/403 the service at the other end refused the key
    └── StoreError
        ├── StoreUnavailable   503  try again
        ├── StoreFull          507  no room on the disk: nothing was written
        ├── StoreDamaged       500  the file is broken or lacks what it must have: verify, restore
        ├── StoreUnsuitable         this place or library cannot keep what we promise: refused at start
        └── SchemaOutOfDate    500  run migrate

    HandlerSignal                   raised by handlers, not errors of ours
    ├── PermanentError              fails its item (or whole job) at once
    └── RetryLater                  a hold: waits, and is not charged

A message says what was asked, what was found and what to do. It carries ids, never contents or keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class PostroomError(Exception):
    """Base of all errors of Postroom."""


class JobNotFound(PostroomError):
    """There is no such job for this owner."""

    def __init__(self, job_id: str = "") -> None:
        super().__init__("no such job")
        self.job_id = job_id


class JobPurged(PostroomError):
    """Retention removed the job.

    Attributes:
        purged_at: seconds since the epoch.
    """

    def __init__(self, job_id: str, purged_at: float) -> None:
        super().__init__("the job ended and retention removed it")
        self.job_id = job_id
        self.purged_at = purged_at


class TransitionRefused(PostroomError):
    """From the job's state, the asked verb leads nowhere; nothing was changed."""

    def __init__(self, message: str, *, job_id: str, state: str) -> None:
        super().__init__(message)
        self.job_id = job_id
        self.state = state


class LeaseLost(PostroomError):
    """The writer no longer holds the job: it must stop and write nothing more for it."""


class CheckpointConflict(PostroomError):
    """Another value stands under that item key or step name already; ``key`` names it."""

    def __init__(self, message: str, *, key: str) -> None:
        super().__init__(message)
        self.key = key


class DuplicateJob(PostroomError):
    """The idempotency key belongs to another job with another body; ``job_id`` names it."""

    def __init__(self, job_id: str) -> None:
        super().__init__(
            f"this idempotency key was used for job {job_id} with a different body; use a new key for new work"
        )
        self.job_id = job_id


class ResultMissing(PostroomError):
    """The job exists and has no result: it has not succeeded (yet)."""

    def __init__(self, job_id: str, state: str) -> None:
        super().__init__(f"job {job_id} is {state} and has no result")
        self.job_id = job_id
        self.state = state


@dataclass(frozen=True)
class Problem:
    """One wrong field: where (``jobs[3].max_attempts``) and what is wrong with it."""

    path: str
    message: str


class DraftInvalid(PostroomError):
    """What was asked cannot be taken; ``problems`` has one entry per wrong field."""

    def __init__(self, problems: list[Problem] | str) -> None:
        if isinstance(problems, str):
            problems = [Problem("", problems)]
        super().__init__("; ".join(f"{p.path}: {p.message}" if p.path else p.message for p in problems))
        self.problems = problems


class OutcomeInvalid(PostroomError):
    """What a worker reported does not fit the job that it holds; nothing was changed."""


class TooLarge(PostroomError):
    """Something is over its size limit.

    Attributes:
        what: the thing (``body``, ``item 3``, ``result``).
        limit: bytes allowed.
        size: bytes found; None where reading stopped at the limit.
    """

    def __init__(self, what: str, *, limit: int, size: int | None, setting: str = "") -> None:
        found = f"{size} bytes" if size is not None else "more"
        hint = f"; the limit is set by {setting}" if setting else ""
        super().__init__(f"{what} may have {limit} bytes at most, found {found}{hint}")
        self.what = what
        self.limit = limit
        self.size = size


class WaitTimedOut(PostroomError):
    """The wait ended before the job did. The job is untouched and goes on."""

    def __init__(self, job_id: str, seconds: float, state: str) -> None:
        super().__init__(
            f"job {job_id} is still {state} after {seconds:g} s; it goes on, wait again or follow it"
        )
        self.job_id = job_id
        self.state = state


class HandlerMissing(PostroomError):
    """No handler for this kind in this worker."""


class HandlerInvalid(PostroomError):
    """A handler was registered with options that cannot be kept for it."""


class SettingsInvalid(PostroomError):
    """A setting has a value that cannot be used; the message names setting, value and source."""


class AccessRefused(PostroomError):
    """The service at the other end refused the key, or the key lacks the scope."""


class StoreError(PostroomError):
    """The store could not do its work."""


class StoreUnavailable(StoreError):
    """The store cannot be reached or is locked; nothing is half-written. Try again."""


class StoreFull(StoreError):
    """The store has no room left; nothing is half-written. Make room."""


class StoreDamaged(StoreError):
    """The store's file is broken, or lacks what it must have: keep a copy, and restore a backup."""


class StoreUnsuitable(StoreError):
    """This file, server or library cannot keep the promises of its store: refused at start."""


class SchemaOutOfDate(StoreError):
    """The store's schema does not fit this code. Run ``postroom migrate``, or update this program."""


class HandlerSignal(Exception):
    """Raised by a handler to say how its work ended; not an error of Postroom."""


class PermanentError(HandlerSignal):
    """Trying again will not help: fails this item (of a whole handler: the job) at once.

    Args:
        message: for the person who reads the dead letter.
        code: a short machine word; groups dead letters.
        detail: more for that person, any JSON value (raw model output, a status).
    """

    def __init__(self, message: str, code: str = "permanent", detail: Any = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.detail = detail


class RetryLater(HandlerSignal):
    """A hold: the provider is down, limits us, or refuses our key. Waits, and is not charged as an attempt.

    Args:
        after_seconds: how long to wait.
        reason: shown on the waiting job.
    """

    def __init__(self, after_seconds: float, reason: str) -> None:
        for name, value, types, wanted in (
            ("after_seconds", after_seconds, int | float, "a number of seconds"),
            ("reason", reason, str, "text"),
        ):
            if not isinstance(value, types) or isinstance(value, bool):
                raise TypeError(f"RetryLater(after_seconds, reason): {name} is {wanted}, found {value!r}")
        super().__init__(reason)
        self.after_seconds = after_seconds
        self.reason = reason
