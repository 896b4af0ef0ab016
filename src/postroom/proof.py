"""Whether a store can be written, found out by writing: reads go on for long where each write fails."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable

from postroom.stores.port import Store

NAME = "health"
PROOF_SECONDS = 5.0
"""How long a write that succeeded is believed; one that failed is tried again by whoever asks next."""


class WriteProof:
    """A small value of the store's own, written anew now and then; however many ask, one write at a time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._proven_at = float("-inf")
        self._lock = asyncio.Lock()

    async def write(self, store: Store) -> None:
        """Prove that the store takes writes.

        Raises:
            StoreError: it does not; as any other write would have failed.
        """
        async with self._lock:
            started = self._clock()
            if started - self._proven_at < PROOF_SECONDS:
                return
            stands = (await store.kept(NAME)).get(NAME)
            # Where it is refused because another value stands by now, somebody else's write is the proof.
            await store.keep(NAME, json.dumps(store.now()), before=stands)
            self._proven_at = started
