"""Calls of a Postroom service over HTTP: kept-alive connections, bounded repeats, and its problems as our exceptions.

Whether a call may be repeated is its caller's knowledge. Where a connection could not be made, nothing was asked, and
any call is made again; where the answer was lost, only one that says it does no harm twice.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx2

from postroom import __version__, errors
from postroom.errors import PostroomError, Problem
from postroom.model import JsonText
from postroom.settings import masked
from postroom.views import parse_time

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0
"""How long an answer may take that nobody asked to be held back."""

KEEP_SECONDS = 30.0
"""How long an idle connection is kept: shorter than services do, so that none is used while it is being closed."""

FIRST_PAUSE_SECONDS = 0.05
LAST_PAUSE_SECONDS = 1.0
_AWAY = frozenset({502, 503, 504})
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


@dataclass(frozen=True)
class _Kept:
    """The client of one event loop, and the task that closes it when the loop ends."""

    loop: asyncio.AbstractEventLoop
    client: httpx2.AsyncClient
    keeper: asyncio.Task[None]


class Connection:
    """To one service; may be used from several event loops and threads at once.

    Connections belong to the event loop that made them. Each loop has a client of its own, and a task that waits for
    the loop's end (`asyncio.run` cancels it then) to close it in order.

    Args:
        url: of the service, with the path it stands under, if any.
        key: access key; sent as a bearer token.
        retry_seconds: how long a call is repeated at most, from its beginning.
    """

    def __init__(self, url: str, key: str | None, retry_seconds: float) -> None:
        self.url = url.rstrip("/")
        self.shown_url = masked(self.url)
        self._retry_seconds = retry_seconds
        self._headers = {"User-Agent": f"postroom/{__version__}", "Accept": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._clients: dict[asyncio.AbstractEventLoop, _Kept] = {}
        self._lock = threading.Lock()

    async def close(self) -> None:
        """Close all connections; those of other loops are told to close theirs."""
        with self._lock:
            kept, self._clients = list(self._clients.values()), {}
        here = asyncio.get_running_loop()
        for each in kept:
            if each.loop is here:
                each.keeper.cancel()
                await asyncio.wait({each.keeper})
            else:
                try:
                    each.loop.call_soon_threadsafe(each.keeper.cancel)
                except RuntimeError:  # that loop has ended, and closed its connections
                    continue

    def _client(self) -> httpx2.AsyncClient:
        loop = asyncio.get_running_loop()
        kept = self._clients.get(loop)
        if kept is None:
            client = self._new_client()
            kept = _Kept(loop, client, loop.create_task(self._keep(loop, client)))
            with self._lock:
                self._clients = {**self._clients, loop: kept}
        return kept.client

    def _new_client(self) -> httpx2.AsyncClient:
        is_local = urlsplit(self.url).hostname in ("127.0.0.1", "localhost", "::1")
        return httpx2.AsyncClient(
            headers=self._headers,
            timeout=httpx2.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
            limits=httpx2.Limits(keepalive_expiry=KEEP_SECONDS),
            trust_env=not is_local,  # no proxy stands between a machine and itself
            verify=self.url.startswith(
                "https:"
            ),  # reading the certificates takes time that plain HTTP need not spend
        )

    async def _keep(self, loop: asyncio.AbstractEventLoop, client: httpx2.AsyncClient) -> None:
        try:
            await loop.create_future()
        finally:
            with self._lock:
                self._clients = {at: kept for at, kept in self._clients.items() if at is not loop}
            await client.aclose()

    async def call(
        self,
        method: str,
        path: str,
        *,
        text: JsonText | None = None,
        params: Mapping[str, Any] | None = None,
        wait_seconds: float = 0.0,
        repeatable: bool = True,
        takes: tuple[int, ...] = (),
        stream: bool = False,
    ) -> httpx2.Response:
        """Make a call and give its answer, read whole unless ``stream``.

        Args:
            text: JSON to send.
            wait_seconds: how long the service may hold the answer back; asked for by ``Prefer`` on a GET.
            repeatable: twice does no more than once.
            takes: statuses from 400 on that are answers and not errors.
        Raises:
            PostroomError: what the service's problem document says.
            StoreUnavailable: no answer in time; the message says where that leaves what was asked.
        """
        client = self._client()
        request = client.build_request(
            method,
            self.url + path,
            params=params,
            content=None if text is None else text.encode(),
            headers=_headers(method, text, wait_seconds),
            timeout=httpx2.Timeout(ANSWER_SECONDS + wait_seconds, connect=CONNECT_SECONDS),
        )
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._retry_seconds
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                response = await client.send(request, stream=stream)
            except _NOT_SENT as error:
                failure = errors.StoreUnavailable(
                    f"no service answers at {self.shown_url} ({_reason(error)})"
                )
            except httpx2.TransportError as error:
                failure = self._lost(error, repeatable)
                if not repeatable:
                    raise failure from None
            else:
                if response.is_success or response.status_code in takes:
                    return response
                refusal = await _refusal(response)
                if response.status_code not in _AWAY or not isinstance(refusal, errors.StoreUnavailable):
                    raise refusal
                failure = refusal
            pause = await self._pause(pause, deadline, failure)

    async def _pause(self, pause: float, deadline: float, failure: errors.StoreUnavailable) -> float:
        seconds = pause * random.uniform(0.5, 1.5)
        if asyncio.get_running_loop().time() + seconds >= deadline:
            raise failure from None
        await asyncio.sleep(seconds)
        return min(pause * 2, LAST_PAUSE_SECONDS)

    def _lost(self, error: httpx2.TransportError, repeatable: bool) -> errors.StoreUnavailable:
        left = "" if repeatable else "; whether it did what was asked is not known: look before you ask again"
        return errors.StoreUnavailable(f"the answer of {self.shown_url} was lost ({_reason(error)}){left}")

    async def json(self, method: str, path: str, **options: Any) -> Any:
        """The value of a call's answer; see `call`."""
        response = await self.call(method, path, **options)
        try:
            return json.loads(response.content)
        except ValueError:
            raise errors.StoreUnsuitable(
                f"{self.shown_url} answers, and is no Postroom service: {path} gave no JSON"
            ) from None


def _headers(method: str, text: JsonText | None, wait_seconds: float) -> dict[str, str]:
    headers = {} if text is None else {"Content-Type": "application/json"}
    if method == "GET" and wait_seconds > 0:
        headers["Prefer"] = f"wait={wait_seconds:.3f}"
    return headers


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


# ---- problem documents back to exceptions


async def _refusal(response: httpx2.Response) -> PostroomError:
    try:
        document = json.loads(await response.aread())
    except ValueError:
        document = None
    except httpx2.TransportError as error:
        return errors.StoreUnavailable(f"an answer with status {response.status_code} broke off: {error}")
    finally:
        await response.aclose()
    if not isinstance(document, dict):
        document = {}
    return error_from_problem({"status": response.status_code, **document})


def error_from_problem(document: Mapping[str, Any]) -> PostroomError:
    """The exception that a problem document was made of; where it was none of ours, the nearest one."""
    name = str(document.get("type", "")).rpartition(":")[2]
    make = _MAKERS.get(name) or _BY_STATUS.get(int(document["status"])) or _other
    return make(document)


def _detail(document: Mapping[str, Any]) -> str:
    return str(document.get("detail") or document.get("title") or f"status {document['status']}")


def _id(document: Mapping[str, Any]) -> str:
    return str(document.get("job_id", ""))


def _state(document: Mapping[str, Any]) -> str:
    return str(document.get("state", ""))


def _purged(document: Mapping[str, Any]) -> PostroomError:
    at = document.get("purged_at")
    return errors.JobPurged(_id(document), parse_time(at).timestamp() if at else 0.0)


def _duplicate(document: Mapping[str, Any]) -> PostroomError:
    return errors.DuplicateJob(_id(document))


def _invalid(document: Mapping[str, Any]) -> PostroomError:
    found = document.get("errors")
    if not found:
        return errors.DraftInvalid(_detail(document))
    return errors.DraftInvalid([Problem(str(e["path"]), str(e["message"])) for e in found])


def _too_large(document: Mapping[str, Any]) -> PostroomError:
    what, limit, size = (document.get(name) for name in ("what", "limit", "size"))
    return errors.TooLarge(str(what or "the body"), limit=int(limit or 0), size=size)


def _named(kind: Callable[[str], PostroomError]) -> Callable[[Mapping[str, Any]], PostroomError]:
    return lambda document: kind(_detail(document))


def _other(document: Mapping[str, Any]) -> PostroomError:
    return errors.StoreError(f"the service answered {document['status']}: {_detail(document)}")


_MAKERS: Mapping[str, Callable[[Mapping[str, Any]], PostroomError]] = {
    "job-not-found": lambda d: errors.JobNotFound(_id(d)),
    "job-purged": _purged,
    "transition-refused": lambda d: errors.TransitionRefused(_detail(d), job_id=_id(d), state=_state(d)),
    "lease-lost": _named(errors.LeaseLost),
    "checkpoint-conflict": lambda d: errors.CheckpointConflict(_detail(d), key=str(d.get("key", ""))),
    "duplicate-job": _duplicate,
    "result-missing": lambda d: errors.ResultMissing(_id(d), _state(d)),
    "draft-invalid": _invalid,
    "outcome-invalid": _named(errors.OutcomeInvalid),
    "too-large": _too_large,
    "wait-timed-out": lambda d: errors.WaitTimedOut(_id(d), 0.0, _state(d)),
    "handler-missing": _named(errors.HandlerMissing),
    "handler-invalid": _named(errors.HandlerInvalid),
    "settings-invalid": _named(errors.SettingsInvalid),
    "access-refused": _named(errors.AccessRefused),
    "store-unavailable": _named(errors.StoreUnavailable),
    "store-damaged": _named(errors.StoreDamaged),
    "store-full": _named(errors.StoreFull),
    "store-unsuitable": _named(errors.StoreUnsuitable),
    "schema-out-of-date": _named(errors.SchemaOutOfDate),
    "store-error": _named(errors.StoreError),
}

_BY_STATUS: Mapping[int, Callable[[Mapping[str, Any]], PostroomError]] = {
    401: _named(errors.AccessRefused),
    403: _named(errors.AccessRefused),
    413: _too_large,
    421: _named(errors.AccessRefused),
    422: _invalid,
    502: _named(errors.StoreUnavailable),
    503: _named(errors.StoreUnavailable),
    504: _named(errors.StoreUnavailable),
    507: _named(errors.StoreFull),
}
