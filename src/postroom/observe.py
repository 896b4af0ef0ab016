"""What a running service or worker says of itself: the names of its loggers, and how their lines look.

Our loggers stand below ``postroom``. Lines carry ids, counts and reasons, never contents or keys. An application that
runs a worker inside itself sets up logging as it likes; only our own commands call `set_up_logging`.
"""

from __future__ import annotations

import logging
import sys
from typing import IO

LOGGERS = {
    "postroom.worker": "A worker's start and end, runs that were retried, held, given up or lost, chores.",
    "postroom.guardian": "The small process that keeps a worker's leases while the worker cannot speak.",
    "postroom.run": "What handlers log through ``run.log``.",
    "postroom.assistant": "The shipped handlers: models fetched, loaded, missing.",
    "uvicorn.error": "The server under the service: requests that it failed to answer, with their traceback.",
}
"""The loggers and what they say."""

LEVELS = ("debug", "info", "warning", "error")
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
TIMES = "%Y-%m-%dT%H:%M:%S"


def set_up_logging(level: str = "info", stream: IO[str] | None = None) -> None:
    """Write the lines of our loggers to a stream (stderr unless given), and warnings of everybody else's.

    Called twice, the second call replaces what the first set up.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(logging.Formatter(FORMAT, TIMES))
    handler.set_name("postroom")
    root = logging.getLogger()
    for old in [h for h in root.handlers if h.get_name() == "postroom"]:
        root.removeHandler(old)
    root.addHandler(handler)
    logging.getLogger("postroom").setLevel(level.upper())
