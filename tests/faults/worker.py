"""A worker's process over the handlers of `tests.faults.works`: ``python -m tests.faults.worker [--no-guardian]``.

It ends as ``postroom worker`` does: SIGTERM drains and ends with 0, a second one hands back at once and ends with 1.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

from postroom.worker.guardian import Guardian
from postroom.worker.loop import Worker


async def main(options: list[str]) -> int:
    logging.basicConfig(level=logging.INFO, format="%(process)d %(relativeCreated)d %(name)s: %(message)s")
    os.environ["FAULTS_WORKER"] = str(os.getpid())
    if "--no-guardian" in options:
        Guardian.start = lambda self: None  # type: ignore[method-assign]
    from tests.faults.works import inbox

    worker = Worker(inbox, inbox.handlers)
    told = 0
    ending: set[asyncio.Task[None]] = set()

    def on_term() -> None:
        nonlocal told
        told += 1
        ending.add(asyncio.ensure_future(worker.drain() if told == 1 else worker.stop_now()))

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, on_term)
    async with inbox:
        await worker.run_until_stopped()
        await asyncio.gather(*ending)
    return 0 if told <= 1 else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
