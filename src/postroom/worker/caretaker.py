"""Chores on a timer: rescue, expiry, time limits and replay plans every ``rescue_seconds``, purging every minute.

Every worker does them, and each is safe beside the others'. Where a service at the other end decides, it does them
itself and there is nothing to do here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import monotonic

from postroom.desk import Desk
from postroom.errors import PostroomError
from postroom.settings import Settings
from postroom.verbs import Verbs
from postroom.worker.heartbeat import StoreState, pause_seconds

PURGE_SECONDS = 60.0
PURGE_BATCH = 1000
PURGE_BATCHES = 20
"""Batches in a row at most, so that a large backlog of old jobs never keeps the writer from others for long."""


class Caretaker:
    """The chores of one worker; `run` is awaited in the heartbeat's loop, where no handler holds them up.

    Args:
        verbs: over the store.
        settings: how often to sweep.
        is_fresh: beats for the worker's own runs if that is overdue, and says whether it worked. A process that was
            frozen past its leases must not rescue its own runs before it has asked whether they are still its own.
        state: told whether the store can be reached.
        log: where the odd is said.
    """

    def __init__(
        self,
        verbs: Verbs,
        settings: Settings,
        *,
        is_fresh: Callable[[], Awaitable[bool]],
        state: StoreState,
        log: logging.Logger,
    ) -> None:
        self._verbs = verbs
        self._every = settings.rescue_seconds
        self._is_fresh = is_fresh
        self._state = state
        self._log = log
        self._purge_at = monotonic() + PURGE_SECONDS
        self._broken: set[str] = set()

    async def run(self) -> None:
        """Do the chores until cancelled."""
        failures = 0
        while not self._verbs.is_remote:
            try:
                await self.sweep()
                if monotonic() >= self._purge_at:
                    await self.purge()
                failures = 0
            except PostroomError as error:
                self._state.failed("sweep", error)
                failures += 1
            except Exception as error:  # noqa: BLE001 - around a background loop: it is said, and tried again
                self._log.exception("the sweep failed")
                self._state.failed("sweep", error)
                failures += 1
            await asyncio.sleep(self._every + (pause_seconds(failures) if failures else 0.0))

    async def sweep(self) -> None:
        """Once: rescue, expire, end what is past its limits, carry replay plans on."""
        if not await self._is_fresh():
            return
        swept = await self._verbs.sweep()
        self._state.worked("sweep")
        if swept.changed or swept.replayed:
            self._log.info("sweep: %d jobs taken back or ended, %d replayed", swept.changed, swept.replayed)
        for job_id, reason in swept.broken:
            if job_id not in self._broken:
                self._broken.add(job_id)
                self._log.error("job %s cannot be read and is left alone: %s", job_id, reason)

    async def purge(self) -> None:
        """Remove what retention lets go, in batches."""
        self._purge_at = monotonic() + PURGE_SECONDS
        if not isinstance(self._verbs, Desk):
            return
        removed = 0
        for _ in range(PURGE_BATCHES):
            count = await self._verbs.purge(limit=PURGE_BATCH)
            removed += count
            if count < PURGE_BATCH:
                break
            await asyncio.sleep(0)
        if removed:
            self._log.info("retention removed %d jobs", removed)
