"""Handing outcomes over to the store: whatever has gathered goes in one call.

While a call is in the air further outcomes gather for the next one, so the busier the worker, the larger the batches.
While the store is away outcomes are kept and tried again; the worker's slots bound how many there can be.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from postroom.errors import PostroomError
from postroom.model import ErrorInfo, Outcome, OutcomeKind
from postroom.verbs import Answer, Verbs
from postroom.worker.heartbeat import Record, StoreState, known_rows, pause_seconds

BATCH = 500
"""Outcomes in one call."""

Entry = tuple[Record, Outcome]


class Settler:
    """Settles outcomes one batch after the other.

    Args:
        verbs: over the store.
        state: told whether the store can be reached.
        log: one line per outcome that is not a plain success.
        on_settled: called with each record whose outcome was answered, whatever the answer.
        on_progress: called after each batch.
    """

    def __init__(
        self,
        verbs: Verbs,
        *,
        state: StoreState,
        log: logging.Logger,
        on_settled: Callable[[Record], None],
        on_progress: Callable[[], None],
    ) -> None:
        self._verbs = verbs
        self._state = state
        self._log = log
        self._on_settled = on_settled
        self._on_progress = on_progress
        self._pending: list[Entry] = []
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None
        self.unsettled = 0

    def start(self) -> None:
        """Begin settling."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def put(self, record: Record, outcome: Outcome) -> None:
        """Take an outcome; it is settled as soon as may be."""
        self._pending.append((record, outcome))
        self.unsettled += 1
        self._idle.clear()
        self._wake.set()

    async def close(self, timeout_seconds: float) -> int:
        """Settle what is left for so long at most; how many were not settled. Their leases run out."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_seconds)
        except TimeoutError:
            self._log.error("%d outcomes could not be settled: the store is away", self.unsettled)
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return self.unsettled

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._pending:
                batch, self._pending = self._pending[:BATCH], self._pending[BATCH:]
                await self._settle(batch)
                self.unsettled -= len(batch)
                self._on_progress()
            if not self._pending:
                self._idle.set()

    async def _settle(self, batch: Sequence[Entry]) -> None:
        """Settle a batch, however long the store is away."""
        failures = 0
        while True:
            outcomes = [outcome for _, outcome in batch]
            known = known_rows(record for record, _ in batch)
            try:
                answers = await self._verbs.settle(outcomes, known=known, is_trusted=True)
            except PostroomError as error:
                failures += 1
                self._state.failed("settle", error)
                await asyncio.sleep(pause_seconds(failures))
            except Exception:  # noqa: BLE001 - around a background loop: no outcome may keep the others back
                self._log.exception("settling %d outcomes failed", len(batch))
                await self._settle_one_by_one(batch)
                return
            else:
                self._state.worked("settle")
                await self._take_answers(batch, answers)
                return

    async def _settle_one_by_one(self, batch: Sequence[Entry]) -> None:
        """Something about one of them breaks the call: that one fails, the others are settled."""
        if len(batch) == 1:
            record, outcome = batch[0]
            await self._settle_instead(record, outcome, "it could not be sent")
            return
        for entry in batch:
            await self._settle([entry])

    async def _take_answers(self, batch: Sequence[Entry], answers: Sequence[Answer]) -> None:
        for (record, outcome), answer in zip(batch, answers, strict=True):
            if answer.status in ("ok", "cancel_requested", "lease_lost"):
                self._on_settled(record)
                if outcome.kind is not OutcomeKind.SUCCEEDED or answer.status != "ok":
                    self._tell(outcome, answer)
            else:
                await self._settle_instead(record, outcome, answer.detail or answer.status)

    async def _settle_instead(self, record: Record, outcome: Outcome, why: str) -> None:
        """The outcome was refused as it is: it is sent without what was said beside it, for a result is worth more than
        that; refused again, the run ends as an error that says why."""
        self._log.error("job %s: its outcome %s was refused: %s", outcome.job_id, outcome.kind, why)
        if outcome.output or outcome.usage:
            self._log.error("job %s: it is settled without what was said beside it", outcome.job_id)
            await self._settle([(record, replace(outcome, output=(), usage=None))])
            return
        if outcome.error is not None and outcome.error.code == "outcome_refused":
            self._on_settled(record)
            return
        message = f"the outcome {outcome.kind} of this run was refused: {why}"
        error = ErrorInfo("outcome_refused", message, is_permanent=True)
        failed = Outcome(
            outcome.job_id, outcome.epoch, OutcomeKind.FAILED, error=error, limits=outcome.limits
        )
        await self._settle([(record, failed)])

    def _tell(self, outcome: Outcome, answer: Answer) -> None:
        if answer.status == "lease_lost":
            self._log.warning(
                "job %s epoch %d: %s was not recorded, the lease is lost: %s",
                outcome.job_id,
                outcome.epoch,
                outcome.kind,
                answer.detail,
            )
            return
        code = outcome.error.code if outcome.error is not None else outcome.reason
        self._log.info(
            "job %s epoch %d: %s (%s), now %s",
            outcome.job_id,
            outcome.epoch,
            outcome.kind,
            code,
            answer.state,
        )
