"""What a store must do: the port that every store implements and one suite checks.

A store *persists*. It knows no rule about states: it writes a `Change` whole or not at all, and only if the row's
version is still the one that the change was decided on. The one transition that it makes itself, for speed, is the
claim (`lifecycle.claim` is its reference), because only the claim chooses rows.

Everything here is safe to call from several event loops and threads at once. Every call either has its effect durably
(as the store's ``durability`` says) when it returns, or raises a `StoreError` and has none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple, Protocol

from postroom.model import (
    Change,
    Checkpoint,
    CheckpointKind,
    Draft,
    Expire,
    Job,
    JsonText,
    Lease,
    Line,
    Payload,
    Rescue,
    State,
    WorkerInfo,
)

WORK = "work"
"""The topic that is hinted when a job may have become claimable. Job ids are topics too: hinted at journal lines."""


@dataclass(frozen=True)
class Capabilities:
    """What a store is, and what it can do beyond the bare port.

    Attributes:
        name: ``memory``, ``sqlite``, …
        durability: a sentence for ``/health``: what survives what.
        shares_processes: several processes can use it at once.
        hints_across_processes: `watch` hears of other processes' changes (else they are found by polling).
        proves_death: `expired` also tells of workers whose process is proven gone before their lease ended.
    """

    name: str
    durability: str
    shares_processes: bool
    hints_across_processes: bool
    proves_death: bool


class Submission(NamedTuple):
    """A job to be inserted: the change that lifecycle made of a draft, and the draft for what lies apart."""

    change: Change
    draft: Draft


class Submitted(NamedTuple):
    """The answer to one submission.

    ``is_new`` False: the owner used this idempotency key before; ``job_id`` and ``body_digest`` are the first one's.
    """

    job_id: str
    is_new: bool = True
    body_digest: str | None = None


@dataclass(frozen=True)
class Reading:
    """Jobs as they stand, and the one clock reading that belongs to them. Unknown ids are missing from ``jobs``."""

    now: float
    jobs: Mapping[str, Job]
    checkpoints: Mapping[str, tuple[Checkpoint, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class ClaimRequest:
    """Who asks for work and for what. ``limit`` is the number of free slots, from 1; at most 1,000 are given."""

    worker: str
    kinds: tuple[str, ...]
    queues: tuple[str, ...] = ("default",)
    limit: int = 1
    lease_seconds: float = 60.0


@dataclass(frozen=True)
class Claimed:
    """What a claim gave, in the order of the line. ``next_due_at``: the next instant at which waiting jobs of the
    queues may become claimable, None where none is known."""

    now: float
    leases: tuple[Lease, ...]
    next_due_at: float | None = None


@dataclass(frozen=True)
class Sweep:
    """What the sweep found: jobs beside the intent that lifecycle should judge. A row that cannot be read is in
    ``broken`` with the reason, and never keeps the others from being found."""

    now: float
    found: tuple[tuple[Job, Rescue | Expire], ...]
    broken: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Query:
    """Which jobs to list. None = any. ``since`` is a bound on ``created_at``, in seconds since the epoch.

    ``cursor`` is opaque and comes from a `Page`. Newest first, unless ``oldest_first``.
    """

    owner: str | None = None
    states: Collection[State] = ()
    kinds: Collection[str] = ()
    sender: str | None = None
    topic: str | None = None
    queue: str | None = None
    since: float | None = None
    limit: int = 50
    cursor: str | None = None
    oldest_first: bool = False


@dataclass(frozen=True)
class Page:
    """A part of a listing; ``next_cursor`` None at its end."""

    now: float
    jobs: tuple[Job, ...]
    next_cursor: str | None = None
    broken: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Stats:
    """Counts that are exact at rest, and a picture of the last hour.

    ``failed_last_hour`` counts ends, not jobs: a job that failed, was replayed and failed again counts twice.
    ``mean_seconds`` and ``p95_seconds`` are from start to success of jobs that succeeded in the last hour;
    None without any.
    """

    states: Mapping[str, int]
    oldest_due_seconds: float | None
    mean_seconds: float | None
    p95_seconds: float | None
    succeeded_last_hour: int
    failed_last_hour: int
    stale: int
    last_claimed_at: float | None = None


@dataclass(frozen=True)
class DeadLetterGroup:
    """Failed jobs that failed alike: same kind, code and masked message (see postroom.deadletters.mask)."""

    kind: str
    code: str
    message: str
    count: int
    first_at: float
    last_at: float
    job_ids: tuple[str, ...]


@dataclass(frozen=True)
class Retention:
    """How long ended jobs are kept, counted from ``finished_at``; None keeps them for ever. Cancelled ones are kept as
    failed ones are: both can be replayed."""

    succeeded_seconds: float | None
    failed_seconds: float | None


class Watch(Protocol):
    """Hints that something changed since the last look. A hint may come for nothing and may be lost: poll as well."""

    async def wait(self, timeout_seconds: float) -> bool:
        """True as soon as a hint came (at once if one came since the last call), False after the timeout."""

    def __enter__(self) -> Watch: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Store(Protocol):
    """The hot path: a dozen verbs. See the module for what holds for all of them."""

    @property
    def url(self) -> str:
        """The URL that opens the same store again, from another process where the store shares processes."""

    @property
    def capabilities(self) -> Capabilities: ...

    def now(self) -> float:
        """The store's clock, without a round trip: the last reading plus the time since."""

    async def open(self) -> None:
        """Connect, check that this place can keep the promises, and bring the schema up to date.

        Raises:
            StoreUnsuitable: it cannot; the message says why and what to do.
            SchemaOutOfDate: the schema is newer than this code.
        """

    async def close(self) -> None:
        """Finish what was accepted and let go of everything; can be called twice."""

    async def migrate(self) -> list[str]:
        """Bring the schema up to date; the names of the steps taken. May be killed and repeated at any point."""

    async def submit(self, submissions: Sequence[Submission]) -> list[Submitted]:
        """Insert jobs with payload, journal line and idempotency entry, each whole, in order; answers in order."""

    async def get(
        self,
        job_ids: Collection[str],
        *,
        checkpoints: Mapping[str, Collection[tuple[CheckpointKind, str]]] | None = None,
    ) -> Reading:
        """Rows by id, with those of the named checkpoints that exist. Reads no payload and no result."""

    async def claim(self, request: ClaimRequest) -> Claimed:
        """Give due jobs of the kinds and queues to a worker, in the order of the line, as `lifecycle.claim` would."""

    async def commit(self, changes: Sequence[Change]) -> list[bool]:
        """Write changes, each whole or not at all; False where the row's version had moved (write nothing of it)."""

    async def expired(self, limit: int = 100) -> Sweep:
        """Running jobs whose lease ended or whose holder is proven gone; queued ones past their ``start_by``."""

    def watch(self, *topics: str) -> Watch:
        """Hear of changes: `WORK`, or job ids."""

    async def attend(self, info: WorkerInfo) -> None:
        """A worker says that it lives (at start and every few seconds). ``is_local``: take its presence lock here."""

    async def leave(self, worker: str) -> None:
        """A worker ends in good order. It must hold no lease any more."""

    async def workers(self, seen_within_seconds: float = 90.0) -> list[WorkerInfo]:
        """Workers seen lately, oldest first; those proven gone are left out."""

    async def purge(self, retention: Retention, limit: int = 1000) -> int:
        """Remove jobs that ended long enough ago, at most ``limit``; how many. A mark with the time stays."""

    # ---- browsing

    async def find(self, query: Query) -> Page: ...

    async def count(self, owner: str | None = None) -> Stats: ...

    async def journal(self, job_id: str, *, after: int = -1, limit: int = 500) -> list[Line]:
        """Lines with n above ``after``, in order."""

    async def payload(self, job_id: str) -> Payload | None: ...

    async def item_keys(self, job_id: str) -> tuple[str, ...] | None:
        """The keys of a job of items without reading their inputs; None: numbered, or no such job."""

    async def checkpoints(
        self,
        job_id: str,
        *,
        kind: CheckpointKind | None = None,
        after_key: str | None = None,
        limit: int | None = None,
    ) -> list[Checkpoint]:
        """All checkpoints of a job, ordered by kind and key."""

    async def result(self, job_id: str) -> JsonText | None:
        """The recorded result of a content job; None where there is none."""

    async def dead_letters(
        self,
        *,
        owner: str | None = None,
        since: float | None = None,
        kind: str | None = None,
        limit: int = 100,
    ) -> list[DeadLetterGroup]:
        """Failed jobs in groups, largest first."""

    async def failed(
        self,
        *,
        owner: str | None = None,
        kind: str | None = None,
        code: str | None = None,
        message: str | None = None,
        since: float | None = None,
        limit: int = 10_000,
    ) -> list[Job]:
        """Failed jobs by group, oldest first. ``message`` is matched after masking, so a group's own works."""

    async def keep(self, name: str, value: JsonText | None, *, before: JsonText | None) -> bool:
        """Keep a small named value (a replay plan) if what stands is still ``before`` (None: nothing); else False."""

    async def kept(self, prefix: str) -> dict[str, JsonText]:
        """The named values whose name starts so, in the order of their names."""

    async def purged_at(self, job_id: str) -> float | None:
        """When retention removed the job, None where it did not."""

    async def verify(self) -> list[str]:
        """What is wrong inside the store itself: a broken file, counters that do not sum up, orphaned rows."""
