"""The public object: submit work, see where it stands, register handlers, run a worker.

`Inbox` is the same over every store and over HTTP. It encodes what Python values it is given, waits and follows with
the store's hints, and leaves every decision to the verbs beneath it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from postroom import arguments
from postroom.drafting import Drafting
from postroom.errors import DraftInvalid, PostroomError, Problem, WaitTimedOut
from postroom.handlers import Handler, Isolation, Registry
from postroom.jsontext import decode
from postroom.model import DEFAULT_OWNER, Draft, Limits, Line, State
from postroom.settings import Settings, load_settings
from postroom.stores.port import DeadLetterGroup, Query, Stats
from postroom.verbs import Receipt, ReplayRequest, Verbs, WorkerView
from postroom.views import ItemView, JobPage, JobView

if TYPE_CHECKING:
    from postroom.worker.loop import Worker

Function = TypeVar("Function", bound=Callable[..., Any])

BULK = 1_000
"""Submissions that go to the store in one transaction."""

MOST_AT_ONCE = 100_000
"""Jobs that a worker can be told to run at once."""


class Inbox:
    """An inbox for work that is never lost and always says where it stands.

    Nothing is opened before the first verb is awaited, so an inbox can stand at the top of a module. Safe to use from
    several tasks of one event loop; ``async with`` (or `close`) lets go of the store.

    Args:
        store: ``memory://``, ``sqlite:///path``, or ``http(s)://host:port`` of a service; else POSTROOM_STORE, else
            ``sqlite:///postroom.db``.
        key: access key of that service; else POSTROOM_KEY.
        settings: all settings at once; read from the environment and ``postroom.toml`` unless given.
    """

    def __init__(
        self, store: str | None = None, *, key: str | None = None, settings: Settings | None = None
    ) -> None:
        self.settings = settings or load_settings({"store": store, "key": key})
        self.url = store or self.settings.store
        self.handlers = Registry()
        self._drafting = Drafting(self.settings)
        self._verbs: Verbs | None = None
        self._given: Verbs | None = None
        self._is_open = False
        self._lock = asyncio.Lock()

    @classmethod
    def over(cls, verbs: Verbs, settings: Settings | None = None) -> Inbox:
        """An inbox over verbs that exist already (a store of one's own, a test's)."""
        inbox = cls(verbs.url, settings=settings or load_settings())
        inbox._verbs = inbox._given = verbs
        return inbox

    # ---- opening and closing

    def adopt(self, settings: Settings) -> None:
        """Follow other settings, also in where jobs are kept. Only before the inbox is used: what is open stays so."""
        self.settings = settings
        self.url = settings.store
        self._drafting = Drafting(settings)

    @property
    def is_open(self) -> bool:
        """True between the first use and `close`."""
        return self._is_open

    async def verbs(self) -> Verbs:
        """The verbs beneath, opened: for workers, doors and whoever speaks in intents."""
        if self._is_open and self._verbs is not None:
            return self._verbs
        async with self._lock:
            if self._verbs is None:
                self._verbs = open_verbs(self.url, self.settings)
            if not self._is_open:
                await self._verbs.open()
                self._is_open = True
        return self._verbs

    async def close(self) -> None:
        """Finish what was accepted and let go of the store. The inbox opens again at its next use."""
        verbs, self._verbs, self._is_open = self._verbs, self._given, False
        if verbs is not None:
            await verbs.close()

    async def __aenter__(self) -> Self:
        await self.verbs()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ---- handlers

    def handler(
        self,
        kind: str,
        *,
        whole: bool = False,
        isolation: Isolation = "none",
        item_concurrency: int = 1,
        timeout_seconds: float | None = None,
        stall_timeout_seconds: float | None = None,
        max_attempts: int | None = None,
        allow_failed_items: float | None = None,
    ) -> Callable[[Function], Function]:
        """Register the function below as the handler of a kind.

        Args:
            kind: which jobs it takes. It takes over a shipped kind of the same name.
            whole: called once per job as ``(run)``; else once per item as ``(item, run)``.
            isolation: ``process`` runs it in a child that can be killed; time limits of a plain function need it.
            item_concurrency: items of one job at once.
            timeout_seconds: the whole run; none unless set.
            stall_timeout_seconds: the time without progress; 1,800 unless set.
            max_attempts: 3 unless set.
            allow_failed_items: how many (or, below 1, which share) of a job's items may fail for good.
        Raises:
            HandlerInvalid: an option cannot be kept for this function, or the kind is taken.
        """
        limits = Limits(max_attempts, timeout_seconds, stall_timeout_seconds, allow_failed_items)

        def register(function: Function) -> Function:
            self.handlers.add(Handler(kind, function, whole, isolation, item_concurrency, limits))
            return function

        return register

    def worker(
        self,
        *,
        concurrency: int | None = None,
        kinds: Iterable[str] | None = None,
        queues: Sequence[str] = ("default",),
    ) -> AbstractAsyncContextManager[Worker]:
        """A worker inside this application: ``async with inbox.worker(concurrency=8): …``. It drains at the end.

        Args:
            concurrency: jobs at once; POSTROOM_CONCURRENCY unless given.
            kinds: only these of the registered kinds.
            queues: where it looks for work.
        Raises:
            DraftInvalid: an option cannot be; names it.
            HandlerInvalid: one of the kinds has no handler.
        """
        from postroom.worker.loop import running_worker

        registry = self.handlers
        if kinds is not None:
            registry = registry.narrowed(arguments.texts("kinds", kinds))
        if concurrency is not None:
            arguments.whole("concurrency", concurrency, 1, MOST_AT_ONCE)
        return running_worker(
            self, registry, queues=arguments.texts("queues", queues), concurrency=concurrency
        )

    # ---- submitting

    async def submit(
        self,
        kind: str = "assistant",
        content: Any = None,
        *,
        items: Sequence[Any] | None = None,
        item_keys: Sequence[str] | None = None,
        owner: str = DEFAULT_OWNER,
        idempotency_key: str | None = None,
        **options: Any,
    ) -> JobView:
        """Accept one job, durably, and give it as it stands.

        Args:
            kind: picks the handler.
            content: any JSON value but None; or else ``items``.
            items: any JSON values, each handled and kept on its own.
            item_keys: names for the items, as many, all different; numbered otherwise.
            owner: for trusted code only.
            idempotency_key: the same key and body again give the first job again.
            options: ``sender, topic, priority, queue, run_at, expires_at, max_attempts, timeout_seconds,
                stall_timeout_seconds, allow_failed_items, params, metadata``.
        Raises:
            DraftInvalid: one problem per wrong field.
            TooLarge: content or an item is over its limit.
            DuplicateJob: the key was used with another body.
        """
        fields = {"kind": kind, "content": content, "items": items, "item_keys": item_keys, **options}
        receipt = (await self.submit_many([{**fields, "idempotency_key": idempotency_key}], owner=owner))[0]
        if isinstance(receipt, PostroomError):
            raise receipt
        return await self.get(receipt.job_id, owner=owner)

    async def submit_many(
        self, jobs: Iterable[Mapping[str, Any]], *, owner: str = DEFAULT_OWNER
    ) -> list[Receipt | PostroomError]:
        """Accept many jobs; an answer for each, in order: a receipt, or the error that refused it.

        Each is a mapping of `submit`'s arguments. Accepted ones stay, refused ones leave nothing. They are written a
        thousand at a time, while the next ones are checked; where the store fails in between, the answers say which
        of them it has (its error stands for those that it has not, or of which it is not known).
        """
        verbs = await self.verbs()
        answers: list[Receipt | PostroomError] = []
        batch: list[tuple[int, Draft]] = []
        flying: deque[asyncio.Task[None]] = deque()
        now = verbs.now()
        try:
            for index, fields in enumerate(jobs):
                try:
                    batch.append((index, self.draft(fields, now=now, owner=owner)))
                    answers.append(Receipt(""))
                except PostroomError as error:
                    answers.append(error)
                if len(batch) >= BULK:
                    flying.append(asyncio.create_task(self._submit_batch(verbs, batch, answers)))
                    batch = []
                    await asyncio.sleep(0)  # so that it sets out
                    if len(flying) > 2:
                        await flying.popleft()
            if batch:
                await self._submit_batch(verbs, batch, answers)
        finally:  # whatever happens: nothing is under way any more once this returns
            ended = await asyncio.gather(*flying, return_exceptions=True)
        for failure in ended:
            if failure is not None:
                raise failure
        return answers

    def draft(
        self,
        fields: Mapping[str, Any],
        *,
        now: float,
        owner: str = DEFAULT_OWNER,
        actor: str | None = None,
        path: str = "",
    ) -> Draft:
        """Check `submit`'s arguments and make the draft; see `postroom.drafting.Drafting.draft`."""
        given: Any = fields
        if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
            raise DraftInvalid(
                [Problem(path, f"a mapping of submit's arguments, found {type(given).__name__}")]
            )
        key = fields.get("idempotency_key")
        if "idempotency_key" in fields:
            fields = {name: value for name, value in fields.items() if name != "idempotency_key"}
        return self._drafting.draft(fields, now=now, owner=owner, actor=actor, idempotency_key=key, path=path)

    async def _submit_batch(
        self, verbs: Verbs, batch: Sequence[tuple[int, Draft]], answers: list[Receipt | PostroomError]
    ) -> None:
        receipts: Sequence[Receipt | PostroomError]
        try:
            receipts = await verbs.submit([draft for _, draft in batch])
        except PostroomError as error:
            receipts = [error] * len(batch)
        for (index, _), receipt in zip(batch, receipts, strict=True):
            answers[index] = receipt

    # ---- looking

    async def get(self, job_id: str, *, owner: str | None = None) -> JobView:
        """The job as it stands, with its result where it ended and is small.

        Raises:
            JobNotFound, JobPurged
        """
        return await (await self.verbs()).get(arguments.text("job_id", job_id), owner=owner)

    async def find(
        self,
        *,
        state: State | str | Sequence[str] | None = None,
        kind: str | None = None,
        sender: str | None = None,
        topic: str | None = None,
        queue: str | None = None,
        since: datetime | None = None,
        owner: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> JobPage:
        """Jobs, newest first, without results; ask on with the page's ``next_cursor``."""
        names = () if state is None else [state] if isinstance(state, str) else state
        try:
            states = tuple(State(name) for name in names)
        except (ValueError, TypeError):
            shown = ", ".join(map(repr, names)) if isinstance(names, list | tuple) else repr(state)
            raise DraftInvalid(f"state: one of {', '.join(State)}, found {shown}") from None
        query = Query(
            owner,
            states,
            () if kind is None else (arguments.text("kind", kind),),
            arguments.text_or_none("sender", sender),
            arguments.text_or_none("topic", topic),
            arguments.text_or_none("queue", queue),
            arguments.moment("since", since),
            arguments.whole("limit", limit, 1, 500),
            arguments.text_or_none("cursor", cursor),
        )
        return await (await self.verbs()).find(query)

    async def items(self, job_id: str, *, owner: str | None = None) -> AsyncIterator[ItemView]:
        """The job's items in order, also while it runs."""
        arguments.text("job_id", job_id)
        verbs = await self.verbs()
        cursor: str | None = None
        while True:
            page = await verbs.items(job_id, owner=owner, cursor=cursor, limit=500)
            for item in page.items:
                yield item
            cursor = page.next_cursor
            if cursor is None:
                return

    async def result(self, job_id: str, *, owner: str | None = None) -> Any:
        """The whole result, however large.

        Raises:
            ResultMissing: there is none (yet).
        """
        arguments.text("job_id", job_id)
        verbs = await self.verbs()
        return decode("".join([piece async for piece in verbs.result(job_id, owner=owner)]))

    async def wait(
        self, job_id: str, *, timeout_seconds: float | None = None, owner: str | None = None
    ) -> JobView:
        """The job once it ended, in whatever way.

        Raises:
            WaitTimedOut: it has not after that long; it goes on.
        """
        arguments.text("job_id", job_id)
        arguments.seconds("timeout_seconds", timeout_seconds)
        verbs = await self.verbs()
        loop = asyncio.get_running_loop()
        deadline = float("inf") if timeout_seconds is None else loop.time() + timeout_seconds
        while True:
            left = max(0.0, min(self.settings.poll_seconds, deadline - loop.time()))
            job = await verbs.get(job_id, owner=owner, wait_seconds=left)
            if job.is_final:
                return job
            if loop.time() >= deadline:
                raise WaitTimedOut(job_id, timeout_seconds or 0.0, job.state)

    async def follow(self, job_id: str, *, after: int = -1, owner: str | None = None) -> AsyncIterator[Line]:
        """The job's journal from after line ``after``, as it is written; ends after the line that ended the job.

        A line past the end waits for what comes.
        """
        arguments.text("job_id", job_id)
        arguments.whole("after", after, -1, 2**62)
        verbs = await self.verbs()
        with verbs.watch(job_id) as watch:
            if after >= 0:
                after = min(after, await _last_line(verbs, job_id, owner, after))
            while True:
                lines = await verbs.journal(job_id, owner=owner, after=after)
                for line in lines:
                    after = line.n
                    yield line
                if lines:
                    continue
                job = await verbs.get(job_id, owner=owner, with_result=False)
                if job.is_final and not await verbs.journal(job_id, owner=owner, after=after, limit=1):
                    return
                await watch.wait(self.settings.poll_seconds)

    # ---- acting

    async def cancel(self, job_id: str, reason: str | None = None, *, owner: str | None = None) -> JobView:
        """Cancel a queued job, or ask a running one to stop.

        Raises:
            TransitionRefused: it ended.
        """
        arguments.text("job_id", job_id)
        arguments.text_or_none("reason", reason)
        return await (await self.verbs()).cancel(job_id, reason=reason, owner=owner)

    async def replay(self, job_id: str, *, owner: str | None = None) -> JobView:
        """Queue a failed or cancelled job again: a new life, what succeeded is kept.

        Raises:
            TransitionRefused: it has not ended, or it succeeded.
        """
        return await (await self.verbs()).replay(arguments.text("job_id", job_id), owner=owner)

    async def dead_letters(
        self, *, since: datetime | None = None, kind: str | None = None, owner: str | None = None
    ) -> list[DeadLetterGroup]:
        """Failed jobs in groups of the same cause, largest first."""
        bound = arguments.moment("since", since)
        arguments.text_or_none("kind", kind)
        return await (await self.verbs()).dead_letters(owner=owner, since=bound, kind=kind)

    async def replay_dead(
        self,
        job_ids: Sequence[str] = (),
        *,
        kind: str | None = None,
        code: str | None = None,
        message: str | None = None,
        since: datetime | None = None,
        canary: int | None = None,
        per_second: float | None = None,
        owner: str | None = None,
    ) -> int:
        """Replay dead letters by id or by group; how many were accepted. The rest follows the canaries at that pace."""
        bound = arguments.moment("since", since)
        for name, value in (("kind", kind), ("code", code), ("message", message)):
            arguments.text_or_none(name, value)
        arguments.seconds("per_second", per_second)
        if canary is not None:
            arguments.whole("canary", canary, 1, 2**31)
        request = ReplayRequest(
            arguments.texts("job_ids", job_ids), kind, code, message, bound, canary, per_second
        )
        return await (await self.verbs()).replay_dead(request, owner=owner)

    async def stats(self, *, owner: str | None = None) -> Stats:
        """Counts by state and a picture of the last hour."""
        return await (await self.verbs()).stats(owner=owner)

    async def workers(self) -> list[WorkerView]:
        """Live workers and what they run."""
        return await (await self.verbs()).workers()


async def _last_line(verbs: Verbs, job_id: str, owner: str | None, after: int) -> int:
    """The number of the job's last line; at least ``after`` where there is such a line, and then without a search."""
    if await verbs.journal(job_id, owner=owner, after=after - 1, limit=1):
        return after
    last = -1
    while lines := await verbs.journal(job_id, owner=owner, after=last):
        last = lines[-1].n
    return last


def open_verbs(url: str, settings: Settings) -> Verbs:
    """The verbs over the store (or service) that a URL names; not opened yet.

    Raises:
        StoreUnsuitable: nothing here opens such a URL.
    """
    if url.startswith(("http://", "https://")):
        from postroom.stores.remote import RemoteDesk

        return RemoteDesk(url, settings)
    from postroom.desk import Desk
    from postroom.stores.opening import open_store

    return Desk(
        open_store(url, overtake_seconds=settings.overtake_seconds, fair_by=settings.fair_by), settings
    )
