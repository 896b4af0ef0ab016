"""Every store takes the same random steps and must answer and keep the same as the memory store.

The steps are those of workers, callers and sweeps, well and ill behaved: late writes, repeats, writes decided on rows
that moved since, claims of any size, time that jumps to the very instant at which something ends. After each step the
answers are compared, and what it touched; at the end of a run everything is, and each job's invariants are checked.

``POSTROOM_EXAMPLES=2000`` makes a campaign of it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from postroom.errors import PostroomError
from postroom.lifecycle import Kept
from postroom.model import (
    Beat,
    Cancel,
    Change,
    Checkpoint,
    Draft,
    ErrorInfo,
    Intent,
    Job,
    Lease,
    Limits,
    Outcome,
    OutcomeKind,
    Priority,
    Replay,
    State,
)
from postroom.policy import Policy
from postroom.stores.port import ClaimRequest, Query, Retention, Store
from postroom.testing import ManualClock
from tests.stores import test_controls
from tests.stores.conftest import FACTORIES, Factory
from tests.stores.office import ITEM, STEP, Office
from tests.stores.soundness import faults_in

EXAMPLES = int(os.environ.get("POSTROOM_EXAMPLES", "60"))
POLICY = Policy(max_crashes_total=6, hold_seconds=7.0)

KINDS = st.sampled_from(["a", "b"])
OWNERS = st.sampled_from(["ann", "bob", "cay"])
QUEUES = st.sampled_from(["default", "slow"])
SPANS = st.sampled_from([0.25, 1.0, 2.0, 4.0, 10.0, 30.0, 60.0, 1000.0, 4000.0])
PICK = st.integers(0, 255)
KEPT_SECONDS = 10.0


@dataclass
class Side:
    """One of the stores, and what it was told."""

    name: str
    office: Office
    make: Callable[[], Store]


def answer_of(each: Any) -> Any:
    """An answer in a form that can be compared: what was returned, or the kind of error and its words."""
    if isinstance(each, PostroomError):
        return type(each).__name__, str(each)
    if isinstance(each, Change):
        return "change", each.job, [(line.event, line.reason, dict(line.data)) for line in each.lines]
    if isinstance(each, Kept):
        return "kept", each.job, each.status
    return each


class Agreement(RuleBasedStateMachine):
    """Drives all stores side by side. The first one is the model."""

    factories: dict[str, Factory] = FACTORIES

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp(prefix="pr-"))
        self.clock = ManualClock()
        self.sides: list[Side] = []
        self.runs: list[Job] = []
        self.undelivered: list[list[Change]] = []

    @initialize(
        overtake_seconds=st.sampled_from([3.0, 30.0, 600.0]),
        fair_by=st.sampled_from(["owner", "sender", "none"]),
    )
    def open_stores(self, overtake_seconds: float, fair_by: str) -> None:
        self.overtake_seconds = overtake_seconds
        for name, factory in self.factories.items():
            folder = self.folder / name
            folder.mkdir()

            def make(factory: Factory = factory, folder: Path = folder) -> Store:
                return factory.make(folder, self.clock, overtake_seconds=overtake_seconds, fair_by=fair_by)

            side = Side(name, Office(make(), self.clock, POLICY), make)
            self.loop.run_until_complete(side.office.store.open())
            self.sides.append(side)

    def teardown(self) -> None:
        try:
            if self.sides:
                self.compare_everything()
        finally:
            for side in self.sides:
                self.loop.run_until_complete(side.office.store.close())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    # ---- doing the same to all

    def all_do(self, act: Callable[[Office], Awaitable[Any]]) -> Any:
        """Let every store do it and compare the answers; the model's own answer, or the error it answered with."""
        answers = [self.loop.run_until_complete(self.attempt(act, side.office)) for side in self.sides]
        for side, found in zip(self.sides[1:], answers[1:], strict=True):
            assert answer_of(found) == answer_of(answers[0]), (
                f"{side.name} and {self.sides[0].name} do not agree"
            )
        return answers[0]

    @staticmethod
    async def attempt(act: Callable[[Office], Awaitable[Any]], office: Office) -> Any:
        try:
            return await act(office)
        except PostroomError as error:
            return error

    def want(self, intent: Intent) -> Any:
        answer = self.all_do(lambda office: office.want(intent))
        self.compare_job(intent.job_id)
        return answer

    def compare_job(self, job_id: str) -> None:
        self.all_do(lambda office: office.record(job_id))

    def compare_everything(self) -> None:
        for job_id in self.ids:
            self.compare_for_good(job_id)
        for owner in (None, "ann", "bob"):
            self.compare_for(owner)
        stats = self.all_do(lambda office: office.store.count())
        jobs = self.rows().values()
        assert stats.states == {str(state): sum(job.state is state for job in jobs) for state in State}
        self.all_do(lambda office: listing(office, Query(limit=7)))
        self.all_do(lambda office: office.store.kept(""))
        self.all_do(lambda office: office.store.expired())
        assert self.all_do(lambda office: office.store.verify()) == []

    def compare_for_good(self, job_id: str) -> None:
        record = self.all_do(lambda office: office.record(job_id))
        assert faults_in(record) == []
        self.all_do(lambda office: office.store.purged_at(job_id))

    def compare_for(self, owner: str | None) -> None:
        self.all_do(lambda office: office.store.count(owner))
        self.all_do(lambda office: office.store.dead_letters(owner=owner))
        self.all_do(lambda office: office.store.failed(owner=owner))

    @property
    def ids(self) -> list[str]:
        return self.sides[0].office.submitted

    def rows(self) -> dict[str, Job]:
        """The jobs as the model has them, without the cost of asking the others."""
        found = self.loop.run_until_complete(self.sides[0].office.store.get(self.ids)).jobs
        return {job_id: found[job_id] for job_id in self.ids if job_id in found}

    def has(self, *states: State) -> bool:
        """Whether some job is in one of the states: what most rules ask, so that few steps are lost."""
        return bool(self.sides) and any(job.state in states for job in self.rows().values())

    def one_of_the_ids(self, pick: int, *states: State) -> str:
        """Mostly of those in some states; now and then any."""
        fitting = [job_id for job_id, job in self.rows().items() if job.state in states]
        ids = fitting if fitting and pick % 8 != 7 else self.ids
        return ids[-1 - pick // 8 % len(ids)]

    def one_of_the_runs(self, pick: int) -> Job:
        """Mostly of those that go on; now and then one that was lost or ended."""
        rows = self.rows()
        going = [r for r in self.runs if (j := rows.get(r.job_id)) and j.worker and j.epoch == r.epoch]
        runs = going if going and pick % 8 != 7 else self.runs
        return runs[-1 - pick // 8 % len(runs)]

    # ---- callers

    @rule(
        kind=KINDS,
        owner=OWNERS,
        sender=st.sampled_from(["s1", "s2"]),
        queue=QUEUES,
        priority=st.sampled_from(Priority),
        delay=st.sampled_from([None, None, None, 0.0, 1.0, 10.0]),
        expires=st.sampled_from([None, None, 0.0, 5.0, 20.0]),
        items=st.sampled_from([0, 0, 1, 3]),
        key=st.sampled_from([None, None, "k1", "k2"]),
        max_attempts=st.sampled_from([None, 1, 2]),
        timeout=st.sampled_from([None, None, 4.0, 20.0]),
        number=st.sampled_from([1, 2, 7]),
    )
    def submit(
        self,
        delay: float | None,
        expires: float | None,
        items: int,
        key: str | None,
        timeout: float | None,
        number: int,
        **fields: Any,
    ) -> None:
        now = self.clock()
        fields |= {
            "items": [str(n) for n in range(items)] if items else None,
            "run_at": None if delay is None else now + delay,
            "expires_at": None if expires is None else now + expires,
            "timeout_seconds": timeout,
            "idempotency_key": key,
            "body_digest": f"d{items}",
        }
        drafts: list[Draft] = [self.sides[0].office.draft(**fields) for _ in range(number)]
        self.all_do(lambda office: office.submit_all(drafts))
        self.compare_job(drafts[0].job_id)
        self.compare_job(drafts[-1].job_id)

    @precondition(lambda self: self.has(State.QUEUED, State.RUNNING))
    @rule(pick=PICK)
    def cancel(self, pick: int) -> None:
        self.want(Cancel(self.one_of_the_ids(pick, State.QUEUED, State.RUNNING), "enough"))

    @precondition(lambda self: self.has(State.FAILED, State.CANCELLED))
    @rule(pick=PICK, life=st.sampled_from([None, 1, 2]), delay=st.sampled_from([None, 3.0]))
    def replay(self, pick: int, life: int | None, delay: float | None) -> None:
        run_at = None if delay is None else self.clock() + delay
        self.want(Replay(self.one_of_the_ids(pick, State.FAILED, State.CANCELLED), life=life, run_at=run_at))

    # ---- workers

    @precondition(lambda self: self.has(State.QUEUED))
    @rule(
        worker=st.sampled_from(["w1", "w2"]),
        kinds=st.sampled_from([("a", "b"), ("b", "a", "nobody"), ("a",), ("b",), ("nobody",)]),
        queues=st.sampled_from([("default", "slow"), ("default",), ("slow",)]),
        limit=st.sampled_from([1, 2, 3, 100]),
        lease_seconds=st.sampled_from([60.0, 10.0, 2.0]),
    )
    def claim(self, **request: Any) -> None:
        self.give(ClaimRequest(**request))

    def give(self, request: ClaimRequest) -> None:
        claimed = self.all_do(lambda office: office.store.claim(request))
        leases: tuple[Lease, ...] = claimed.leases
        self.runs += [lease.job for lease in leases]
        for lease in leases[:2]:
            self.compare_job(lease.job.job_id)

    def checkpoints(
        self, job: Job, keys: list[int], error: str | None, is_final: bool
    ) -> tuple[Checkpoint, ...]:
        """Offers of a run, so that those of two epochs differ."""
        offers = []
        for key in keys:
            value = f'"{job.epoch}"' if key % 3 else '"same"'
            if not job.has_items:
                offers.append(Checkpoint(STEP, f"s{key}", value=value, input_digest=f"d{key % 2}"))
            elif error is not None and key == keys[-1]:
                offers.append(Checkpoint(ITEM, str(key), error=error, is_final=is_final))
            else:
                offers.append(Checkpoint(ITEM, str(key), value=value))
        return tuple(offers)

    @precondition(lambda self: self.runs or self.has(State.QUEUED))
    @rule(
        act=st.sampled_from(
            ["settle", "settle", "settle twice", "beat", "beat", "overtaken", "decide", "commit"]
        ),
        pick=PICK,
        kind=st.sampled_from([*OutcomeKind, *[OutcomeKind.FAILED, OutcomeKind.SUCCEEDED] * 2]),
        seq=st.sampled_from([None, 1, 2]),
        done=st.integers(0, 3),
        seconds=st.sampled_from([None, 5.0, 0.0]),
        keys=st.lists(st.integers(0, 3), max_size=3),
        whole=st.sampled_from([True, True, False]),
        item_error=st.sampled_from([None, None, '{"code":"Odd"}']),
        is_final=st.booleans(),
        output=st.sampled_from([(), (), ('"said"', "2")]),
        usage=st.sampled_from([None, {"tokens": 2}]),
        error=st.sampled_from(
            [
                ErrorInfo("Broken", "request 7 broke"),
                ErrorInfo("items_failed", "some"),
                ErrorInfo("Bad", "é", 1, True),
            ]
        ),
        limits=st.sampled_from([None, Limits(max_attempts=2, timeout_seconds=9.0)]),
    )
    def work(
        self,
        act: str,
        pick: int,
        kind: OutcomeKind,
        seq: int | None,
        done: int,
        seconds: float | None,
        keys: list[int],
        whole: bool,
        item_error: str | None,
        is_final: bool,
        error: ErrorInfo,
        **common: Any,
    ) -> None:
        if not self.has(State.RUNNING):
            self.give(ClaimRequest("w3", ("a", "b"), ("slow", "default"), 1 + pick % 3, 60.0))
        if act == "commit":
            self.commit_what_was_decided()
        if not self.runs:
            return
        job = self.one_of_the_runs(pick)
        if whole and job.has_items and act.startswith("settle"):
            keys = list(range(job.total))
        common |= {"job_id": job.job_id, "epoch": job.epoch}
        common["checkpoints"] = self.checkpoints(job, keys, item_error, is_final)
        if act == "beat":
            self.want(Beat(done=done, total=5, seq=seq, lease_seconds=seconds, **common))
        elif act == "decide":
            self.decide_and_commit_later(Beat(**common) if pick % 2 else Cancel(job.job_id))
        elif act == "overtaken":
            self.decide_and_commit_later(Beat(**common))
            self.want(Beat(job.job_id, job.epoch) if pick % 2 else Cancel(job.job_id))
            self.commit_what_was_decided()
        else:
            is_success = kind is OutcomeKind.SUCCEEDED and not job.has_items
            common["result"] = f'"by {job.worker} in {job.epoch}"' if is_success else None
            common["after_seconds"] = seconds if kind is OutcomeKind.HELD else None
            common["error"] = error if kind is OutcomeKind.FAILED else None
            for _ in act.split():
                self.want(Outcome(kind=kind, reason="because", **common))

    def decide_and_commit_later(self, intent: Intent) -> None:
        """What two processes do to each other: a decision on a row that may move before it is written."""
        decisions = [
            self.loop.run_until_complete(self.attempt(lambda office: office.decide(intent), side.office))
            for side in self.sides
        ]
        if all(isinstance(decision, Change) for decision in decisions):
            self.undelivered.append(decisions)

    def commit_what_was_decided(self) -> None:
        if not self.undelivered:
            return
        batches = list(zip(*self.undelivered, strict=True))
        self.undelivered.clear()
        stores = [id(side.office.store) for side in self.sides]
        by_store = {store: list(batch) for store, batch in zip(stores, batches, strict=True)}
        self.all_do(lambda office: office.store.commit(by_store[id(office.store)]))
        for change in batches[0]:
            self.compare_job(change.job.job_id)

    # ---- time, sweeps, retention

    @rule(
        pick=PICK,
        what=st.sampled_from(["lease_expires_at", "run_at", "start_by", "moves up", "purge", "now"]),
        off=st.sampled_from([0.0, -0.25, 0.25]),
        span=SPANS,
    )
    def wait(self, pick: int, what: str, off: float, span: float) -> None:
        """Wait for the instant at which something happens to a job, or until just before or after it; or just so."""
        rows = self.rows().values()
        instants = [at for job in rows if (at := self.instant(job, what)) is not None]
        ahead = sorted({at + off for at in instants if at + off > self.clock()})
        self.clock.set_to(ahead[pick // 8 % len(ahead)] if ahead else self.clock() + span)

    def instant(self, job: Job, what: str) -> float | None:
        match what:
            case "moves up":
                return job.run_at + self.overtake_seconds if job.state is State.QUEUED else None
            case "now":
                return None
            case "purge":
                return None if job.finished_at is None else job.finished_at + KEPT_SECONDS
            case _:
                found: float | None = getattr(job, what)
                return found

    @precondition(lambda self: self.has(State.RUNNING, State.QUEUED))
    @rule(limit=st.sampled_from([100, 1, 2]))
    def sweep(self, limit: int) -> None:
        sweep = self.all_do(lambda office: office.store.expired(limit))
        for _, intent in sweep.found:
            self.want(intent)

    @precondition(lambda self: self.has(State.SUCCEEDED, State.FAILED, State.CANCELLED))
    @rule(
        succeeded=st.sampled_from([KEPT_SECONDS, None, 0.0]),
        failed=st.sampled_from([None, KEPT_SECONDS, None, 0.0]),
        at_most=st.sampled_from([50, 1]),
        opens_again=st.sampled_from([False, False, True]),
        name=st.sampled_from(["a", "ab", "b"]),
        value=st.sampled_from([None, "1", "2"]),
        before=st.sampled_from([None, "1"]),
        owner=st.sampled_from([None, "ann"]),
        states=st.sampled_from([(), (State.QUEUED,), (State.FAILED, State.SUCCEEDED), (State.RUNNING,)]),
        kinds=st.sampled_from([(), ("a",)]),
        queue=st.sampled_from([None, "slow"]),
        limit=st.sampled_from([1, 3, 50]),
        oldest_first=st.booleans(),
    )
    def keep_house(
        self,
        succeeded: float | None,
        failed: float | None,
        at_most: int,
        opens_again: bool,
        name: str,
        value: str | None,
        before: str | None,
        **query: Any,
    ) -> None:
        self.all_do(lambda office: office.store.purge(Retention(succeeded, failed), at_most))
        self.all_do(lambda office: office.store.keep(name, value, before=before))
        if opens_again:
            self.open_again()
        self.all_do(lambda office: office.store.kept("a"))
        self.all_do(lambda office: listing(office, Query(**query)))
        self.all_do(lambda office: office.store.count(query["owner"]))
        self.all_do(lambda office: office.store.dead_letters(owner=query["owner"]))

    def open_again(self) -> None:
        """Close those that share processes, and open them anew on what they left."""
        for side in self.sides:
            if side.office.store.capabilities.shares_processes:
                self.loop.run_until_complete(side.office.store.close())
                side.office.store = side.make()
                self.loop.run_until_complete(side.office.store.open())


async def listing(office: Office, query: Query) -> list[Job]:
    jobs: list[Job] = []
    for _ in range(1000):
        page = await office.store.find(query)
        jobs += page.jobs
        if page.next_cursor is None:
            return jobs
        query = replace(query, cursor=page.next_cursor)
    raise AssertionError("the listing never ends")


PROFILE = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    derandomize=EXAMPLES == 60,
    suppress_health_check=list(HealthCheck),
    database=None,
)


@pytest.mark.timeout(0 if EXAMPLES > 60 else 120)
def test_all_stores_agree_with_memory() -> None:
    run_state_machine_as_test(Agreement, settings=PROFILE)


# ---- controls: stores that differ in one thing must be told apart


class Different(Agreement):
    """Memory against a memory store with something spoilt."""

    @classmethod
    def against(cls, spoilt: Any) -> type[Different]:
        class Spoilt:
            def make(self, folder: Path, clock: Any, **options: Any) -> Store:
                store: Store = spoilt(clock=clock, **options)
                return store

            async def spoil(self, store: Store, job_id: str, **fields: Any) -> None:
                raise NotImplementedError

        factories = {"memory": FACTORIES["memory"], "spoilt": Spoilt()}
        return type(f"Against{spoilt.__name__}", (cls,), {"factories": factories})


DIFFERENCES = [
    test_controls.NoVersions,
    test_controls.NoKeys,
    test_controls.NoSharing,
    test_controls.NoOvertaking,
    test_controls.LateRescue,
    test_controls.ForgetfulReplay,
    test_controls.DriftingCounts,
    test_controls.EagerPurge,
    test_controls.BlindKeep,
]


@pytest.mark.parametrize("spoilt", DIFFERENCES, ids=lambda each: each.__name__)
def test_a_store_that_differs_is_found(spoilt: type[Store]) -> None:
    profile = settings(PROFILE, max_examples=300, derandomize=True, phases=(Phase.generate,))
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Different.against(spoilt), settings=profile)
