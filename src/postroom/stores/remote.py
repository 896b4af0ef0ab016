"""The verbs of an inbox over HTTP: what a worker or caller can do in this process, it can do from another machine.

The service at the other end decides, sweeps and knows the time; here requests are made of intents and answers of
answers. What a lost answer means is thought of verb by verb:

* submissions carry an idempotency key of their own where the caller gave none, so that a repeat finds the first job;
* heartbeats are counted (``seq``) and settles recognised, so that a repeat adds nothing twice;
* a claim is not repeated: the service takes back what it could not hand over, and the worker asks anew;
* cancel and replay are not repeated once they may have been heard: a second one may be told of the first.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any
from urllib.parse import quote

from postroom import __version__
from postroom.errors import (
    AccessRefused,
    JobNotFound,
    PostroomError,
    StoreError,
    StoreUnsuitable,
    TooLarge,
)
from postroom.model import (
    DEFAULT_OWNER,
    Beat,
    Draft,
    Job,
    JsonText,
    Line,
    Outcome,
    Payload,
    State,
    WorkerInfo,
    evolve,
)
from postroom.settings import Settings
from postroom.stores.connection import Connection, error_from_problem
from postroom.stores.port import Claimed, ClaimRequest, DeadLetterGroup, Query, Stats, Watch
from postroom.verbs import Answer, Health, Receipt, ReplayRequest, Swept, WorkerView
from postroom.views import (
    ItemPage,
    ItemView,
    JobPage,
    JobView,
    format_time,
    job_view_from_json,
    line_from_json,
    parse_time,
)
from postroom.wire import (
    answer_from_json,
    beat_to_json,
    claimed_from_json,
    draft_to_json,
    group_from_json,
    health_from_json,
    outcome_to_json,
    payload_from_json,
    stats_from_json,
    worker_from_json,
)

RETRY_SECONDS = 5.0
"""How long a call that fails is repeated before it is given up."""

LONGEST_WAIT_SECONDS = 60.0
"""How long a service holds an answer back at most."""
MAX_ENTRIES = 5_000
PAGE = 500
FIRST_PAUSE_SECONDS = 0.05
LAST_PAUSE_SECONDS = 1.0


class RemoteDesk:
    """See `postroom.verbs.Verbs`; over a service at ``url``.

    Args:
        url: of the service.
        settings: ``key``, and the sizes that requests are cut by.
        retry_seconds: how long a call that fails is repeated.
    """

    is_remote = True

    def __init__(self, url: str, settings: Settings, *, retry_seconds: float = RETRY_SECONDS) -> None:
        self.settings = settings
        self._connection = Connection(url, settings.key, retry_seconds)
        self._clock = (time.time(), time.monotonic())
        self._watches: dict[str, set[_JobWatch]] = {}

    @property
    def url(self) -> str:
        return self._connection.url

    def now(self) -> float:
        """The service's clock: its last reading and the time since."""
        read, at = self._clock
        return read + time.monotonic() - at

    def _read_clock(self, shown: Mapping[str, Any]) -> None:
        self._clock = (parse_time(shown["now"]).timestamp(), time.monotonic())

    async def open(self) -> None:
        """Raises:
        StoreUnavailable: nothing answers there.
        StoreUnsuitable: what answers is no Postroom service.
        """
        try:
            shown = await self._connection.json("GET", "/health", takes=(503,))
            if not isinstance(shown, dict) or "durability" not in shown or "now" not in shown:
                raise StoreUnsuitable(f"{self._connection.shown_url} answers, and is no Postroom service")
        except PostroomError:
            await self.close()
            raise
        self._read_clock(shown)

    async def close(self) -> None:
        await self._connection.close()

    # ---- callers

    async def submit(self, drafts: Sequence[Draft]) -> list[Receipt | PostroomError]:
        texts = [draft_to_json(_keyed(_ours(draft))) for draft in drafts]
        limit = int(self.settings.max_body_bytes * 0.9)
        answers = await self._in_parts("/jobs/batch", "jobs", texts, limit, lambda error, _: error)
        return [
            a if isinstance(a, PostroomError) else _receipt(a, draft)
            for a, draft in zip(answers, drafts, strict=True)
        ]

    async def get(
        self,
        job_id: str,
        *,
        owner: str | None = None,
        with_result: bool = True,
        wait_seconds: float = 0.0,
    ) -> JobView:
        _check_owner(owner)
        held = min(wait_seconds, LONGEST_WAIT_SECONDS)
        view = job_view_from_json(await self._connection.json("GET", _job(job_id), wait_seconds=held))
        return view if with_result else replace(view, result=None, result_url=None)

    async def find(self, query: Query) -> JobPage:
        _check_owner(query.owner)
        params: dict[str, Any] = {
            "state": [str(state) for state in query.states],
            "kind": list(query.kinds),
            "limit": min(query.limit, PAGE),
            "order": "oldest" if query.oldest_first else "newest",
        }
        for name in ("sender", "topic", "queue", "cursor"):
            if getattr(query, name) is not None:
                params[name] = getattr(query, name)
        if query.since is not None:
            params["since"] = format_time(query.since)
        shown = await self._connection.json("GET", "/jobs", params=params)
        return JobPage(tuple(map(job_view_from_json, shown["items"])), shown["next_cursor"])

    async def items(
        self, job_id: str, *, owner: str | None = None, cursor: str | None = None, limit: int = 50
    ) -> ItemPage:
        _check_owner(owner)
        params: dict[str, Any] = {"limit": min(limit, PAGE)}
        if cursor is not None:
            params["cursor"] = cursor
        shown = await self._connection.json("GET", f"{_job(job_id)}/items", params=params)
        return ItemPage(tuple(ItemView(**item) for item in shown["items"]), shown["next_cursor"])

    async def payload(self, job_id: str, *, owner: str | None = None) -> Payload:
        _check_owner(owner)
        payload, count = payload_from_json(await self._connection.json("GET", f"{_job(job_id)}/payload"))
        if count is not None and payload.keys is None:
            return Payload(payload.body, tuple(map(str, range(count))))
        return payload

    async def result(self, job_id: str, *, owner: str | None = None) -> AsyncIterator[str]:
        _check_owner(owner)
        response = await self._connection.call("GET", f"{_job(job_id)}/result", stream=True)
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            async for piece in response.aiter_bytes():
                yield decoder.decode(piece)
        finally:
            await response.aclose()

    async def journal(
        self, job_id: str, *, owner: str | None = None, after: int = -1, limit: int = PAGE
    ) -> list[Line]:
        _check_owner(owner)
        lines = await self._journal(job_id, after, limit, 0.0)
        for watch in self._watches.get(job_id, ()):
            watch.after = lines[-1].n if lines else after
        return lines

    async def _journal(self, job_id: str, after: int, limit: int, wait_seconds: float) -> list[Line]:
        params = {"after": after, "limit": min(limit, PAGE)}
        path = f"{_job(job_id)}/journal"
        shown = await self._connection.json("GET", path, params=params, wait_seconds=wait_seconds)
        return [line_from_json(line) for line in shown["items"]]

    async def cancel(
        self, job_id: str, *, reason: str | None = None, owner: str | None = None, actor: str | None = None
    ) -> JobView:
        _check_owner(owner)
        text = json.dumps({"reason": reason})
        await self._connection.call("POST", f"{_job(job_id)}/cancel", text=text, repeatable=False)
        return await self.get(job_id)

    async def replay(self, job_id: str, *, owner: str | None = None, actor: str | None = None) -> JobView:
        _check_owner(owner)
        await self._connection.call("POST", f"{_job(job_id)}/replay", text="{}", repeatable=False)
        return await self.get(job_id)

    async def dead_letters(
        self, *, owner: str | None = None, since: float | None = None, kind: str | None = None
    ) -> list[DeadLetterGroup]:
        _check_owner(owner)
        params = {"since": format_time(since), "kind": kind}
        chosen = {name: value for name, value in params.items() if value is not None}
        shown = await self._connection.json("GET", "/dead-letters", params=chosen)
        return list(map(group_from_json, shown["groups"]))

    async def replay_dead(
        self, request: ReplayRequest, *, owner: str | None = None, actor: str | None = None
    ) -> int:
        _check_owner(owner)
        asked = {
            "job_ids": list(request.job_ids) or None,
            "kind": request.kind,
            "code": request.code,
            "message": request.message,
            "since": format_time(request.since),
            "canary": request.canary,
            "per_second": request.per_second,
        }
        text = json.dumps({name: value for name, value in asked.items() if value is not None})
        shown = await self._connection.json("POST", "/dead-letters/replay", text=text, repeatable=False)
        return int(shown["replayed"])

    async def stats(self, *, owner: str | None = None) -> Stats:
        _check_owner(owner)
        return stats_from_json(await self._connection.json("GET", "/stats"))

    async def health(self) -> Health:
        try:
            return health_from_json(await self._connection.json("GET", "/health", takes=(503,)))
        except StoreError as error:
            return Health("unavailable", "http", "unknown", None, __version__, str(error))

    async def workers(self) -> list[WorkerView]:
        shown = await self._connection.json("GET", "/workers")
        return list(map(worker_from_json, shown["items"]))

    def watch(self, *topics: str) -> Watch:
        """Hints of one job come from the service, which holds an answer back; others are looked for by polling."""
        return _JobWatch(self, topics[0]) if len(topics) == 1 and len(topics[0]) == 32 else _PollWatch()

    # ---- workers

    async def claim(self, request: ClaimRequest, *, wait_seconds: float = 0.0) -> Claimed:
        asked = {
            "worker": request.worker,
            "kinds": request.kinds,
            "queues": request.queues,
            "limit": min(request.limit, 1_000),
            "lease_seconds": request.lease_seconds,
            "wait_seconds": min(wait_seconds, LONGEST_WAIT_SECONDS),
        }
        shown = await self._connection.json(
            "POST", "/leases/claim", text=json.dumps(asked), wait_seconds=wait_seconds, repeatable=False
        )
        self._read_clock(shown)
        return claimed_from_json(shown)

    async def heartbeat(
        self, beats: Sequence[Beat], *, known: Mapping[str, Job] | None = None, is_trusted: bool = False
    ) -> list[Answer]:
        is_counted = all(beat.seq is not None or not (beat.output or beat.usage) for beat in beats)
        return await self._write("/leases/heartbeat", "beats", beats, beat_to_json, repeatable=is_counted)

    async def settle(
        self, outcomes: Sequence[Outcome], *, known: Mapping[str, Job] | None = None, is_trusted: bool = False
    ) -> list[Answer]:
        return await self._write("/leases/settle", "outcomes", outcomes, outcome_to_json)

    async def _write(
        self,
        path: str,
        name: str,
        writes: Sequence[Any],
        to_json: Callable[[Any], JsonText],
        *,
        repeatable: bool = True,
    ) -> list[Answer]:
        limit = int((self.settings.max_body_bytes + self.settings.max_result_bytes) * 0.9)

        def refuse(error: TooLarge, index: int) -> Answer:
            return Answer(writes[index].job_id, writes[index].epoch, "invalid", detail=str(error))

        texts = [to_json(write) for write in writes]
        answers = await self._in_parts(path, name, texts, limit, refuse, repeatable=repeatable)
        return [a if isinstance(a, Answer) else answer_from_json(a) for a in answers]

    async def _in_parts(
        self,
        path: str,
        name: str,
        texts: Sequence[JsonText],
        limit: int,
        refuse: Callable[[TooLarge, int], Any],
        *,
        repeatable: bool = True,
    ) -> list[Any]:
        """Send entries in as many calls as their size asks for; the answers in order. One too large is refused."""
        answers: list[Any] = []
        parts = _parts(texts, limit)
        while parts:
            start, end = parts.pop(0)
            text = f'{{"{name}":[{",".join(texts[start:end])}]}}'
            try:
                shown = await self._connection.json("POST", path, text=text, repeatable=repeatable)
            except TooLarge as error:
                if end - start == 1:
                    answers.append(refuse(error, start))
                else:
                    middle = (start + end) // 2
                    parts[:0] = [(start, middle), (middle, end)]
                continue
            if "now" in shown:
                self._read_clock(shown)
            answers += shown["answers"]
        return answers

    async def attend(self, info: WorkerInfo) -> None:
        asked = {
            "worker": info.worker,
            "kinds": info.kinds,
            "queues": info.queues,
            "concurrency": info.concurrency,
            "host": info.host,
            "pid": info.pid,
            "version": info.version,
            "up_seconds": max(0.0, self.now() - info.started_at),
        }
        await self._connection.call("POST", "/workers", text=json.dumps(asked))

    async def leave(self, worker: str) -> None:
        await self._connection.call("DELETE", f"/workers/{quote(worker, safe='')}")

    async def sweep(self) -> Swept:
        return Swept()

    async def purge(self, *, limit: int = 1000) -> int:
        return 0


class _JobWatch:
    """Hears of one job: by its journal where that is being read, else of its end; the service holds its answers back.

    ``after`` is the last line that was read while this watch was open.
    """

    def __init__(self, desk: RemoteDesk, job_id: str) -> None:
        self._desk = desk
        self._job_id = job_id
        self.after: int | None = None

    async def wait(self, timeout_seconds: float) -> bool:
        desk, job_id = self._desk, self._job_id
        try:
            if self.after is not None:
                return bool(await desk._journal(job_id, self.after, 1, timeout_seconds))
            path = _job(job_id)
            response = await desk._connection.call("GET", path, wait_seconds=timeout_seconds)
            return response.status_code == 200
        except PostroomError:  # a hint may be lost; whoever looks now is told what is wrong
            await asyncio.sleep(min(timeout_seconds, LAST_PAUSE_SECONDS))
            return False

    def __enter__(self) -> _JobWatch:
        self._desk._watches.setdefault(self._job_id, set()).add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        watches = self._desk._watches.get(self._job_id, set())
        watches.discard(self)
        if not watches:
            self._desk._watches.pop(self._job_id, None)


class _PollWatch:
    """Has no hints: says "look again" more and more rarely."""

    def __init__(self) -> None:
        self._pause = FIRST_PAUSE_SECONDS

    async def wait(self, timeout_seconds: float) -> bool:
        await asyncio.sleep(min(timeout_seconds, self._pause))
        self._pause = min(self._pause * 2, LAST_PAUSE_SECONDS)
        return False

    def __enter__(self) -> _PollWatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


def _job(job_id: str) -> str:
    if not (job_id.isascii() and job_id.isalnum() and len(job_id) <= 64):
        raise JobNotFound(job_id[:64])
    return f"/jobs/{job_id}"


def _check_owner(owner: str | None) -> None:
    """Raises:
    AccessRefused: over HTTP the key says who one is; code beside the store may say it.
    """
    if owner not in (None, DEFAULT_OWNER):
        raise AccessRefused(
            "owner= is for code beside the store; over HTTP the access key says whose jobs are meant"
        )


def _ours(draft: Draft) -> Draft:
    _check_owner(draft.owner)
    return draft


def _keyed(draft: Draft) -> Draft:
    """The draft with an idempotency key: its own, else one made of its id, which nobody else has."""
    if draft.idempotency_key is not None:
        return draft
    return evolve(draft, idempotency_key=f"draft-{draft.job_id}")


def _receipt(shown: Mapping[str, Any], draft: Draft) -> Receipt | PostroomError:
    if shown["status"] >= 400:
        return error_from_problem(shown)
    is_replayed = draft.idempotency_key is not None and bool(shown.get("replayed"))
    return Receipt(shown["job_id"], State(shown["state"]), is_replayed)


def _parts(texts: Sequence[JsonText], limit: int) -> list[tuple[int, int]]:
    """Where to cut the entries so that each part is within the limit; one that is over it is a part of its own."""
    parts: list[tuple[int, int]] = []
    start = size = 0
    for index, text in enumerate(texts):
        length = len(text) if text.isascii() else len(text.encode())
        if index > start and (size + length > limit or index - start >= MAX_ENTRIES):
            parts.append((start, index))
            start, size = index, 0
        size += length + 1
    if start < len(texts):
        parts.append((start, len(texts)))
    return parts
