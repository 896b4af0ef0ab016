"""A check that cannot fail proves nothing: each protection is switched off here, and its test must see it.

A store without a protection is a memory store in which one method was spoilt. Its control runs a test of the suite,
unchanged, and demands that it fails.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest

from postroom.errors import LeaseLost
from postroom.model import Change, CheckpointKind, Job, Lease, Line, evolve
from postroom.stores.memory import MemoryStore, _Row
from postroom.stores.port import ClaimRequest, Submission, Submitted, Sweep
from postroom.testing import ManualClock
from tests.stores.conftest import Memory
from tests.stores.office import Office


class NoVersions(MemoryStore):
    """Writes a change whatever became of the row since."""

    def _apply(self, change: Change, now: float) -> bool:
        row = self._rows.get(change.job.job_id)
        version = change.before_version if row is None else row.job.version
        return super()._apply(change._replace(before_version=version), now)


class HalfAChange(MemoryStore):
    """Keeps checkpoints and journal of a change that it refuses."""

    def _apply(self, change: Change, now: float) -> bool:
        row = self._rows.get(change.job.job_id)
        if row is not None and row.job.version != change.before_version:
            row.checkpoints.update({(c.kind, c.key): c for c in change.checkpoints})
        return super()._apply(change, now)


class NoKeys(MemoryStore):
    """Forgets idempotency keys."""

    def _insert(self, submission: Submission, now: float) -> Submitted:
        return super()._insert(
            submission._replace(draft=replace(submission.draft, idempotency_key=None)), now
        )


class KeysOfAll(MemoryStore):
    """Shares idempotency keys between owners."""

    def _insert(self, submission: Submission, now: float) -> Submitted:
        return super()._insert(submission._replace(draft=replace(submission.draft, owner="all")), now)


class NoEpochs(MemoryStore):
    """Claims without a new epoch."""

    def _replace(self, row: _Row, job: Job, lines: Sequence[Line], now: float) -> None:
        super()._replace(row, evolve(job, epoch=1) if job.epoch else job, lines, now)


class NoRunAt(MemoryStore):
    """Gives delayed jobs at once."""

    def _enqueue(self, row: _Row, now: float, *, was_running: bool) -> None:
        row.job = evolve(row.job, run_at=min(now, row.job.run_at))
        super()._enqueue(row, now, was_running=was_running)


class NoStartBy(MemoryStore):
    """Starts jobs that should have started before."""

    def _enqueue(self, row: _Row, now: float, *, was_running: bool) -> None:
        row.job = evolve(row.job, start_by=None)
        super()._enqueue(row, now, was_running=was_running)


class Twice(MemoryStore):
    """Gives the last job of a claim to the next one as well."""

    _last: tuple[Lease, ...] = ()

    def _take(self, lanes: Any, request: ClaimRequest, now: float) -> Any:
        last, self._last = self._last, ()
        yield from last
        for lease in super()._take(lanes, request, now):
            self._last = (lease,)
            yield lease


class NoRanks(MemoryStore):
    """Treats all priorities alike."""

    def _line_up(self, row: _Row, rank: int, since: float) -> None:
        super()._line_up(row, 0, since)


class NoOvertaking(MemoryStore):
    """Lets low jobs wait for ever."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "overtake_seconds": 1e12})


class NoSharing(MemoryStore):
    """First come first served, whoever comes."""

    def _share(self, job: Job) -> str:
        return ""


class SavedTurns(MemoryStore):
    """Lets an owner who was away make up for it."""

    def _line_up(self, row: _Row, rank: int, since: float) -> None:
        self._places.setdefault((row.job.queue, rank, self._share(row.job)), 0.0)
        self._clocks.pop((row.job.queue, rank), None)
        super()._line_up(row, rank, since)


class OneLane(MemoryStore):
    """Drops jobs of other kinds that stand in the way, as a claim that scans the line and gives up does."""

    async def claim(self, request: ClaimRequest) -> Any:
        if any(len(heap) > 5000 for (_, kind), heap in self._ready.items() if kind not in request.kinds):
            request = replace(request, kinds=())
        return await super().claim(request)


class LateRescue(MemoryStore):
    """Finds a lease ended only after it ended."""

    async def expired(self, limit: int = 100) -> Sweep:
        sweep = await super().expired(limit)
        found = [
            each for each in sweep.found if (each[0].lease_expires_at or each[0].start_by or 0) < sweep.now
        ]
        return replace(sweep, found=tuple(found))


class TimidSweep(MemoryStore):
    """Gives up at a row that is broken."""

    async def expired(self, limit: int = 100) -> Sweep:
        sweep = await super().expired(limit)
        return replace(sweep, found=()) if sweep.broken else sweep


class NoJournal(MemoryStore):
    """Changes rows without a line."""

    def _replace(self, row: _Row, job: Job, lines: Sequence[Line], now: float) -> None:
        super()._replace(row, job, [line for line in lines if line.event != "released"], now)


class DriftingCounts(MemoryStore):
    """Counts what it refused."""

    def _apply(self, change: Change, now: float) -> bool:
        done = super()._apply(change, now)
        self._counts[change.job.owner, change.job.state] += not done
        return done


class NoHints(MemoryStore):
    """Tells nobody."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._hub.hint = lambda topics: None  # type: ignore[method-assign]


class HintsForWaitersOnly(MemoryStore):
    """Loses the hint that comes before the wait."""

    def watch(self, *topics: str) -> Any:
        watch: Any = super().watch(*topics)
        hint = watch.hint
        watch.hint = lambda: hint() if watch._waiter else None
        return watch


class SharedErrors(MemoryStore):
    """Keeps the errors of items over a replay."""

    def _apply(self, change: Change, now: float) -> bool:
        return super()._apply(change._replace(drops_errors=False), now)


class ForgetfulReplay(MemoryStore):
    """Drops what succeeded, too."""

    def _apply(self, change: Change, now: float) -> bool:
        if change.drops_errors:
            self._rows[change.job.job_id].checkpoints.clear()
        return super()._apply(change, now)


class OneName(MemoryStore):
    """Keeps items and steps under one name."""

    def _apply(self, change: Change, now: float) -> bool:
        alike = [replace(c, kind=CheckpointKind.ITEM) for c in change.checkpoints]
        return super()._apply(change._replace(checkpoints=tuple(alike)), now)


class EagerPurge(MemoryStore):
    """Purges a moment too soon."""

    async def purge(self, retention: Any, limit: int = 1000) -> int:
        sooner = replace(retention, succeeded_seconds=(retention.succeeded_seconds or 0) - 1.0)
        return await super().purge(sooner, limit)


class NoMarks(MemoryStore):
    """Forgets what it purged."""

    def _forget(self, row: _Row, now: float) -> None:
        super()._forget(row, now)
        self._purged.clear()


class BlindKeep(MemoryStore):
    """Writes whatever stands."""

    async def keep(self, name: str, value: str | None, *, before: str | None) -> bool:
        return await super().keep(name, value, before=self._kept.get(name))


class Nosy(MemoryStore):
    """Counts the jobs of all owners for each."""

    async def count(self, owner: str | None = None) -> Any:
        return await super().count()


CONTROLS: list[tuple[type[MemoryStore], str]] = [
    (NoVersions, "commit.test_a_change_decided_on_a_moved_row_writes_nothing"),
    (NoVersions, "commit.test_of_a_cancel_and_a_success_one_wins"),
    (NoVersions, "commit.test_many_writers_of_one_job_lose_nothing"),
    (HalfAChange, "commit.test_a_change_decided_on_a_moved_row_writes_nothing"),
    (NoKeys, "submit.test_the_same_key_again_gives_the_first_job_and_leaves_nothing_else"),
    (NoKeys, "submit.test_fifty_submissions_of_one_key_at_once_are_one_job"),
    (KeysOfAll, "submit.test_a_key_belongs_to_its_owner"),
    (NoEpochs, "claim.test_epochs_rise_by_one_and_are_never_used_twice"),
    (NoRunAt, "claim.test_a_delayed_job_is_given_exactly_at_run_at"),
    (NoRunAt, "claim.test_a_retry_is_given_exactly_when_its_backoff_ends"),
    (NoStartBy, "claim.test_a_job_is_not_started_at_or_after_expires_at"),
    (Twice, "claim.test_two_workers_never_hold_the_same_job"),
    (NoRanks, "order.test_a_later_high_job_overtakes_those_that_wait"),
    (NoOvertaking, "order.test_overtaking_is_bounded"),
    (NoOvertaking, "order.test_a_job_moves_up_exactly_when_it_waited_long_enough"),
    (NoSharing, "order.test_ten_thousand_of_one_owner_do_not_keep_ten_of_another_waiting"),
    (SavedTurns, "order.test_an_owner_who_was_away_saved_nothing_up"),
    (OneLane, "order.test_a_large_backlog_of_other_kinds_does_not_matter"),
    (LateRescue, "expired.test_a_lease_is_over_exactly_when_it_ends"),
    (LateRescue, "expired.test_a_job_expires_exactly_at_expires_at"),
    (TimidSweep, "expired.test_a_broken_row_stops_no_other"),
    (NoJournal, "commit.test_the_journal_tells_every_state_of_the_row"),
    (NoJournal, "verify.test_a_store_is_sound_after_work"),
    (DriftingCounts, "commit.test_one_bad_change_in_a_batch_harms_no_other"),
    (NoHints, "watch.test_a_hint_that_came_before_the_wait_is_not_lost"),
    (HintsForWaitersOnly, "watch.test_a_hint_that_came_before_the_wait_is_not_lost"),
    (SharedErrors, "commit.test_a_replay_drops_the_errors_of_items_and_keeps_what_succeeded"),
    (ForgetfulReplay, "commit.test_all_checkpoints_reach_every_later_run"),
    (OneName, "commit.test_an_item_and_a_step_of_one_name_are_two_checkpoints"),
    (EagerPurge, "purge.test_a_job_goes_exactly_when_it_was_kept_long_enough"),
    (NoMarks, "purge.test_nothing_stays_of_a_purged_job_but_its_mark"),
    (BlindKeep, "keep.test_a_value_is_written_only_over_the_one_that_was_seen"),
    (Nosy, "count.test_an_owner_counts_only_its_own"),
]


@pytest.fixture
async def run_on() -> Callable[[type[MemoryStore], str], Any]:
    async def run(store_class: type[MemoryStore], name: str) -> None:
        family, _, test = name.partition(".")
        function = getattr(import_module(f"tests.stores.conformance.test_{family}"), test)

        async def make_office(**options: Any) -> Office:
            clock = ManualClock()
            return Office(store_class(clock=clock, **options), clock)

        given = {"office": await make_office(), "make_office": make_office, "factory": Memory()}
        taken = inspect.signature(function).parameters
        await function(**{name: given[name] for name in taken})

    return run


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hint that never comes is waited for as long as any other, so these waits are short."""
    monkeypatch.setattr(import_module("tests.stores.conformance.test_watch"), "LONG", 0.05)


@pytest.mark.parametrize(("store_class", "name"), CONTROLS, ids=lambda each: getattr(each, "__name__", each))
async def test_without_its_protection_the_test_fails(
    store_class: type[MemoryStore], name: str, run_on: Callable[[type[MemoryStore], str], Any]
) -> None:
    with pytest.raises((AssertionError, LeaseLost, StopIteration, pytest.fail.Exception)):
        await run_on(store_class, name)


@pytest.mark.parametrize("name", sorted({name for _, name in CONTROLS}))
async def test_with_all_protections_the_same_call_passes(
    name: str, run_on: Callable[[type[MemoryStore], str], Any]
) -> None:
    await run_on(MemoryStore, name)
    await asyncio.sleep(0)
