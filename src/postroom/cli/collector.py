"""The garbage collector of a process that runs for long and makes many values for a short time."""

from __future__ import annotations

import gc

YOUNG_MOST = 10_000
"""Values made, and not given up, between two looks at the young ones."""


def collect_less() -> None:
    """Spare what lives as long as the process, and come less often. Called once all is imported.

    The values of a full queue are no cycles and go without a collector; its looks at them, and at all that was
    imported, took a seventh of a worker's time and held up every run for 20 ms now and then.
    """
    gc.freeze()
    gc.set_threshold(YOUNG_MOST, 20, 10)
