"""The numbers that lifecycle decides by, and the retry delays. Pure."""

from __future__ import annotations

from dataclasses import dataclass

JITTER_LOW = 0.8
JITTER_HIGH = 1.2
"""A delay is multiplied by a number drawn evenly from this window, so that jobs that failed together spread out."""


@dataclass(frozen=True)
class Policy:
    """The budgets and delays of one deployment.

    Attributes:
        backoff_base_seconds: the delay before the second attempt; each further one doubles it.
        backoff_cap_seconds: upper bound of a delay, applied before jitter.
        max_attempts: where neither the job nor its handler says another number.
        max_crashes: lost workers in a row, without a new checkpoint in between, until the job is a dead letter.
        max_crashes_total: lost workers in one life of the job, checkpoints or not.
        stall_timeout_seconds: where neither the job nor its handler says another number.
        hold_seconds: how long a hold waits that does not say.
        progress_line_seconds: progress lines of one job are at least this far apart.
        limit_grace_seconds: how long past a time limit the sweep leaves a run to its worker, which ends the handler
            first and then says ``timeout`` or ``stalled``. Longer than a worker's own graces.
    """

    backoff_base_seconds: float = 2.0
    backoff_cap_seconds: float = 3600.0
    max_attempts: int = 3
    max_crashes: int = 3
    max_crashes_total: int = 20
    stall_timeout_seconds: float = 1800.0
    hold_seconds: float = 30.0
    progress_line_seconds: float = 1.0
    limit_grace_seconds: float = 6.0


def backoff(count: int, policy: Policy, *, jitter: float = 1.0) -> float:
    """Delay before the next run, in seconds: 2, 4, 8, … times the jitter.

    Args:
        count: runs that ended badly so far (attempts, or crashes in a row), from 1.
        policy: base and cap.
        jitter: a factor from `JITTER_LOW` to `JITTER_HIGH`, drawn by the caller so that this stays pure.
    Raises:
        ValueError: count is below 1.
    """
    if count < 1:
        raise ValueError(f"backoff counts from 1, got {count}")
    doubled = policy.backoff_base_seconds * 2.0 ** min(count - 1, 64)
    return min(doubled, policy.backoff_cap_seconds) * jitter


def next_place(clock: float, last: float | None) -> float:
    """The place in line of an owner's next job, by start-time fair queueing.

    Args:
        clock: the place that the queue has reached (the last one claimed).
        last: the last place given to this owner in this line, None if there was none.
    Returns:
        Where nobody else waits: one after the owner's last. Where the owner was away: at the clock, never behind it,
        so that one owner's ten thousand jobs and another's ten are taken in turn.
    Source:
        Goyal, Vin, Cheng: Start-time Fair Queueing (1996), with a cost of one per job.
    """
    return clock + 1.0 if last is None or last < clock else last + 1.0
