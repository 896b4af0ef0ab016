"""Renewing the leases of a worker that lives but cannot speak; runs in a process that the guardian forked for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from postroom.errors import StoreError
from postroom.inbox import open_verbs
from postroom.model import Beat
from postroom.settings import Settings
from postroom.verbs import Verbs
from postroom.worker.guard import SHORT_LEASE_SECONDS, Board, is_stopped, tell

BATCH = 500

LINGER_SECONDS = 30.0
"""How long this process stays after it was needed last; as long as the worker where leases are short."""


def renew(board: Board, config: dict[str, Any], is_over: Callable[[], bool]) -> None:
    """Renew while the worker is silent, until it has been heard again for a while.

    Args:
        board: what the worker holds, and when it was heard last.
        config: see `postroom.worker.guard.Guard`.
        is_over: True once the worker or its guardian is gone.
    """
    asyncio.run(_Renewal(board, config, is_over).run())


class _Renewal:
    def __init__(self, board: Board, config: dict[str, Any], is_over: Callable[[], bool]) -> None:
        self.board = board
        self.settings = Settings(**config["settings"])
        self.url = str(config["url"])
        self.worker = int(config["worker"])
        self.is_over = is_over
        self.lost: set[tuple[str, int]] = set()
        self.is_told = False

    async def run(self) -> None:
        lease = self.settings.lease_seconds
        verbs = open_verbs(self.url, self.settings)
        await verbs.open()
        try:
            stays = lease < SHORT_LEASE_SECONDS
            needed_at = time.monotonic()
            while not self.is_over() and (stays or time.monotonic() - needed_at < LINGER_SECONDS):
                if self._is_due(lease / 3):
                    needed_at = time.monotonic()
                    await self._beat(verbs)
                    await asyncio.sleep(lease / 6)
                else:
                    await asyncio.sleep(min(lease / 24, 1.0))
        finally:
            await verbs.close()

    def _is_due(self, seconds: float) -> bool:
        """The worker has been silent for so long, and is not stopped: asked right before each renewal."""
        if self.board.silent_seconds() < seconds:
            self.is_told = False
            return False
        return not is_stopped(self.worker)

    async def _beat(self, verbs: Verbs) -> None:
        """One heartbeat for all leases; those that are lost are left alone from then on."""
        leases = [lease for lease in self.board.leases() if lease not in self.lost]
        self._tell(len(leases))
        for start in range(0, len(leases), BATCH):
            beats = [Beat(job_id, epoch) for job_id, epoch in leases[start : start + BATCH]]
            try:
                answers = await verbs.heartbeat(beats, is_trusted=True)
            except StoreError as error:
                tell(f"could not renew: {error}")
                return
            self.lost |= {(a.job_id, a.epoch) for a in answers if a.status == "lease_lost"}

    def _tell(self, leases: int) -> None:
        if leases and not self.is_told:
            silent = self.board.silent_seconds()
            self.is_told = True
            tell(
                f"worker {self.worker} has been blocked for {silent:.1f} s (a handler holds the interpreter);"
                f" renewing its {leases} lease{'s' if leases != 1 else ''}"
            )
