"""The store's own standstills: while it could not write, no worker could extend its lease, so leases are lengthened.

Without this, a disk that stands still for a minute would end every lease of workers that are alive and well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

NOTED_SECONDS = 1.0
"""A transaction that took longer, with the wait for its turn, was held up."""


class Standstill:
    """The last one, by the store's clock, be it over or not; those close upon each other are one.

    Args:
        clock: the store's.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began_at = self._ended_at = float("-inf")
        self._under_way: dict[object, float] = {}

    @property
    def is_under_way(self) -> bool:
        """Whether something is being written right now."""
        return bool(self._under_way)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Around a transaction, or whatever else keeps others from being begun: a standstill where it takes long, and
        not only once it is over. Who sweeps while the disk stands still must not find leases that nobody could extend.
        """
        began_at, this = self._clock(), object()
        self._under_way[this] = began_at
        try:
            yield
        finally:
            del self._under_way[this]
            self.note(began_at)

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
        began_at, ended_at = self._began_at, self._ended_at
        now, since = self._clock(), min(list(self._under_way.values()), default=float("inf"))
        if now - since >= NOTED_SECONDS:
            began_at = since if since > ended_at + NOTED_SECONDS else began_at
            ended_at = now
        if ended_at == float("-inf"):
            return 0.0, 0.0, 0.0
        return began_at, ended_at, ended_at - began_at
