"""The verbs of an inbox: what callers, doors, workers and the command line may ask of it.

Two classes speak them: `postroom.desk.Desk` over a store in this process, and `postroom.stores.remote.RemoteDesk` over
HTTP, where the service at the other end decides. Whoever holds an object of this shape need not know which one it is.

``owner`` None means anybody's job (trusted code); with an owner, another's job looks like none at all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from postroom.errors import PostroomError
from postroom.model import Beat, Draft, Job, Line, Outcome, Payload, State, WorkerInfo
from postroom.stores.port import Claimed, ClaimRequest, DeadLetterGroup, Query, Stats, Watch
from postroom.views import ItemPage, JobPage, JobView


@dataclass(frozen=True)
class Receipt:
    """A submission was accepted, durably. ``is_replayed``: the idempotency key gave an earlier job."""

    job_id: str
    state: State = State.QUEUED
    is_replayed: bool = False


class Answer(NamedTuple):
    """What one worker's write led to.

    ``status``: ``ok``, ``cancel_requested``, ``lease_lost``, ``conflict`` or ``invalid``. ``job`` is the row after it,
    where this process knows it.
    """

    job_id: str
    epoch: int
    status: str
    state: State | None = None
    detail: str | None = None
    job: Job | None = None


@dataclass(frozen=True)
class Health:
    """Whether the inbox can take and give work. ``status``: ``ok`` or ``unavailable``."""

    status: str
    store: str
    durability: str
    last_claimable_seconds: float | None
    version: str
    detail: str | None = None


@dataclass(frozen=True)
class Swept:
    """What one sweep did: jobs rescued, expired or ended at a limit; jobs replayed; rows that cannot be read."""

    changed: int = 0
    replayed: int = 0
    purged: int = 0
    broken: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class ReplayRequest:
    """Which dead letters to replay: by id, or by group; ``canary`` of them first, ``per_second`` at most."""

    job_ids: tuple[str, ...] = ()
    kind: str | None = None
    code: str | None = None
    message: str | None = None
    since: float | None = None
    canary: int | None = None
    per_second: float | None = None


@dataclass(frozen=True)
class WorkerView:
    """A live worker and the jobs that it runs."""

    info: WorkerInfo
    job_ids: tuple[str, ...] = field(default=())


class Verbs(Protocol):
    """See the module. Every verb may raise `StoreError`; those about one job `JobNotFound` and `JobPurged`."""

    @property
    def url(self) -> str:
        """What opens the same inbox again from another process."""

    @property
    def is_remote(self) -> bool:
        """True where a service at the other end decides, sweeps and knows the time."""

    def now(self) -> float:
        """The store's clock."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    # ---- callers

    async def submit(self, drafts: Sequence[Draft]) -> list[Receipt | PostroomError]:
        """Accept drafts, each whole; answers in order, an error (`DuplicateJob`) where one was refused."""

    async def get(
        self,
        job_id: str,
        *,
        owner: str | None = None,
        with_result: bool = True,
        wait_seconds: float = 0.0,
    ) -> JobView:
        """One job; waits up to ``wait_seconds`` for its end. With ``with_result`` its result stands inline where it
        ended and is small enough."""

    async def find(self, query: Query) -> JobPage: ...

    async def items(
        self, job_id: str, *, owner: str | None = None, cursor: str | None = None, limit: int = 50
    ) -> ItemPage: ...

    async def payload(self, job_id: str, *, owner: str | None = None) -> Payload:
        """What the job was submitted with: its content, or the inputs of its items with all keys, numbered ones too."""

    def result(self, job_id: str, *, owner: str | None = None) -> AsyncIterator[str]:
        """The whole result as JSON text in pieces.

        Raises:
            ResultMissing: there is none (yet).
        """

    async def journal(
        self, job_id: str, *, owner: str | None = None, after: int = -1, limit: int = 500
    ) -> list[Line]: ...

    async def cancel(
        self, job_id: str, *, reason: str | None = None, owner: str | None = None, actor: str | None = None
    ) -> JobView:
        """Raises:
        TransitionRefused: it ended."""

    async def replay(self, job_id: str, *, owner: str | None = None, actor: str | None = None) -> JobView:
        """Raises:
        TransitionRefused: it has not ended, or it succeeded."""

    async def dead_letters(
        self, *, owner: str | None = None, since: float | None = None, kind: str | None = None
    ) -> list[DeadLetterGroup]: ...

    async def replay_dead(
        self, request: ReplayRequest, *, owner: str | None = None, actor: str | None = None
    ) -> int:
        """How many were accepted for replay."""

    async def stats(self, *, owner: str | None = None) -> Stats: ...

    async def health(self) -> Health: ...

    async def workers(self) -> list[WorkerView]: ...

    def watch(self, *topics: str) -> Watch: ...

    # ---- workers

    async def claim(self, request: ClaimRequest, *, wait_seconds: float = 0.0) -> Claimed:
        """Jobs for free slots; waits up to ``wait_seconds`` for the first."""

    async def heartbeat(
        self, beats: Sequence[Beat], *, known: Mapping[str, Job] | None = None, is_trusted: bool = False
    ) -> list[Answer]:
        """One answer per beat, in order; a bad one harms no other. ``known``: rows as the caller last saw them, which
        saves a read; a stale one is noticed. ``is_trusted``: item keys come from the lease and need no check."""

    async def settle(
        self, outcomes: Sequence[Outcome], *, known: Mapping[str, Job] | None = None, is_trusted: bool = False
    ) -> list[Answer]:
        """As `heartbeat`, for the ends of runs."""

    async def attend(self, info: WorkerInfo) -> None: ...

    async def leave(self, worker: str) -> None: ...

    async def sweep(self) -> Swept:
        """Rescue, expiry, time limits and replay plans, once; nothing where the service at the other end does it."""
