"""A worker's process that tests kill: runs one job of a kind in a child and prints what its handler emits.

``python -m tests.worker.worker_process KIND CONTENT [--no-guardian]``
"""

from __future__ import annotations

import asyncio
import json
import sys

from postroom.worker.guardian import Guardian
from postroom.worker.isolation import run_in_child
from postroom.worker.reference import for_handler
from tests.worker import isolated_handlers
from tests.worker.bench import SHORT, bench


async def main(kind: str, content: str, *options: str) -> None:
    guardian = Guardian("memory://", SHORT)
    if "--no-guardian" not in options:
        guardian.start()
    async with bench() as made:
        handler = isolated_handlers.inbox.handlers.get(kind)
        assert handler is not None
        reference = for_handler(handler)
        assert reference is not None
        lease = await made.lease(kind, content)
        recorder = made.recorder(lease)
        run = asyncio.create_task(
            run_in_child(lease, handler, recorder, settings=SHORT, reference=reference, guardian=guardian)
        )
        told = await recorder.first_output()
        sys.stdout.write(json.dumps({"guardian": guardian.pid, **told}) + "\n")
        sys.stdout.flush()
        await run


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
