"""Whether requests come one at a time: then the one who asks writes it where it stands.

Handing a request to the writer's thread and its answer back costs two thread switches, about half as much again as the
sync of a fast disk. A caller who asks, waits for the answer and asks again gains nothing from the thread: nobody's
request could have joined his. With several callers the thread gains a lot: their requests share a sync, and their
loops work on meanwhile.

So a lone caller's small requests are written in his own loop, for as long as they stay alone and quick. One in
`PROBE_EVERY` goes through the thread all the same, to see whether others come while it is under way; if so, all go
through the thread until `STREAK` beyond a setback were alone and quick. One that the disk or another process makes slow
sends only the next few there; where most are slow, all go there.
"""

from __future__ import annotations

STREAK = 16
PROBE_EVERY = 16
SETBACK = 48
"""Requests that must have been alone beyond the streak, after one was not."""
HICCUP = 4
"""Requests that must have been alone and quick to make up for one that was alone and slow."""
WEIGHT_MOST = 8
QUICK_SECONDS = 0.002


class Solo:
    """Watches the requests of one writer. Its counts may miss one now and then: they only choose the quicker way."""

    def __init__(self) -> None:
        self.arrivals = 0
        self._alone = 0
        self._since_probe = 0

    def arrive(self) -> int:
        """A request came; the count by which it can tell whether others came since."""
        self.arrivals += 1
        return self.arrivals

    def is_likely(self, weight: int) -> bool:
        """Whether this request may be written where it stands."""
        if self._alone < STREAK or weight > WEIGHT_MOST:
            return False
        self._since_probe += 1
        if self._since_probe >= PROBE_EVERY:
            self._since_probe = 0
            return False
        return True

    def note(self, requests: int, arrivals: int, seconds: float) -> None:
        """A transaction is over.

        Args:
            requests: how many it held.
            arrivals: how many had come when it began.
            seconds: how long it took.
        """
        if requests == 1 and arrivals == self.arrivals and seconds < QUICK_SECONDS:
            self._alone += 1
        elif requests > 1 or arrivals != self.arrivals:
            self._alone = -SETBACK
        else:
            self._alone = max(min(self._alone, STREAK) - HICCUP, -SETBACK)
