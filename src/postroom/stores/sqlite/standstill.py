"""The store's own standstills: while it could not write, no worker could extend its lease, so leases are lengthened.

Without this, a disk that stands still for a minute would end every lease of workers that are alive and well.
"""

from __future__ import annotations

from collections.abc import Callable

NOTED_SECONDS = 1.0
"""A transaction that took longer, with the wait for its turn, was held up."""


class Standstill:
    """The last one, by the store's clock; those close upon each other are one.

    Args:
        clock: the store's.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began_at = self._ended_at = float("-inf")

    def note(self, began_at: float) -> None:
        """A transaction that began at this instant is over, written or not."""
        now = self._clock()
        if now - began_at < NOTED_SECONDS:
            return
        if began_at > self._ended_at + NOTED_SECONDS:
            self._began_at = began_at
        self._ended_at = now

    def last(self) -> tuple[float, float, float]:
        """Begin, end and length in seconds; a length of 0 where there was none."""
        if self._ended_at == float("-inf"):
            return 0.0, 0.0, 0.0
        return self._began_at, self._ended_at, self._ended_at - self._began_at
