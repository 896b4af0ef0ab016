"""A clock that only tests move."""

from __future__ import annotations

import threading


class ManualClock:
    """A clock for stores (``clock=``) that stands still until it is told to go on; safe to share between threads.

    Args:
        start: the first reading, in seconds since the epoch.
    """

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start
        self._lock = threading.Lock()

    def __call__(self) -> float:
        return self._now

    def advance(self, seconds: float) -> float:
        """Go on by so many seconds; the new reading.

        Raises:
            ValueError: the seconds are below 0. A clock that is set back is ``set_to``.
        """
        if seconds < 0:
            raise ValueError(f"a clock goes on, not back: got {seconds}")
        with self._lock:
            self._now += seconds
            return self._now

    def set_to(self, instant: float) -> None:
        """Jump to an instant, forwards or (as a clock that is corrected does) back."""
        with self._lock:
            self._now = instant
