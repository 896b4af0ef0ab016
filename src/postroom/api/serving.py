"""The server under the app: uvicorn, with a deadline for every request and an end that is not held up.

uvicorn has no deadline for a request that never becomes whole: a client that sends a byte a second holds a connection
for ever. So the protocol class here is uvicorn's own with a clock: it starts with the first byte of a request (or with
the connection) and stops when the request is whole; a connection on which it runs out is answered 408 and closed.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from postroom.api.guard import check_bind
from postroom.api.problems import MEDIA_TYPE, http_problem
from postroom.settings import Settings

REQUEST_SECONDS = 30.0
MAX_HEAD_BYTES = 64 * 1024
KEEP_ALIVE_SECONDS = 75
"""How long an idle connection stays; longer than clients of ours keep one, so that they are the ones to close it."""

GRACEFUL_SECONDS = 10


class _Deadline:
    """The clock of one connection: runs while a request is awaited or incomplete."""

    def __init__(self, protocol: Any, seconds: float) -> None:
        self._protocol = protocol
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self._timer is None:
            self._timer = self._protocol.loop.call_later(self._seconds, self._ring)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        self._timer = None
        detail = f"a request must be whole within {self._seconds:g} s"
        refuse(self._protocol, 408, detail)


def refuse(protocol: Any, status: int, detail: str) -> None:
    """Answer on the bare connection, unless an answer is on its way there, and close it."""
    transport = protocol.transport
    if transport is None or transport.is_closing():
        return
    cycle = protocol.cycle
    if cycle is None or cycle.response_complete or not cycle.response_started:
        transport.write(_raw_answer(status, detail))
    transport.close()


def _raw_answer(status: int, detail: str) -> bytes:
    document = http_problem(status, detail)
    body = json.dumps(document, ensure_ascii=False).encode()
    head = (
        f"HTTP/1.1 {status} {document['title']}\r\ncontent-type: {MEDIA_TYPE}\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


def guarded_h11(seconds: float) -> type[asyncio.Protocol]:
    """uvicorn's protocol in pure Python, with the deadline."""
    import h11

    whole = (h11.DONE, h11.MUST_CLOSE, h11.CLOSED, h11.ERROR)

    class GuardedH11(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.deadline = _Deadline(self, seconds)
            self.deadline.start()

        def data_received(self, data: bytes) -> None:
            if self.conn.their_state not in whole:
                self.deadline.start()
            super().data_received(data)
            if self.conn.their_state in whole:
                self.deadline.stop()

        def connection_lost(self, exc: Exception | None) -> None:
            self.deadline.stop()
            super().connection_lost(exc)

        def send_400_response(self, msg: str) -> None:
            refuse(self, 400, "this is not a valid HTTP request")

    return GuardedH11


def guarded_httptools(seconds: float) -> type[asyncio.Protocol]:
    """uvicorn's quick protocol, with the deadline and a limit on what stands before the body."""
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    class GuardedHttpTools(HttpToolsProtocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.deadline = _Deadline(self, seconds)
            self.head_bytes = 0
            self.deadline.start()

        def data_received(self, data: bytes) -> None:
            self.deadline.start()
            self.is_whole = False
            super().data_received(data)
            if self.head_bytes > MAX_HEAD_BYTES:
                self.deadline.stop()
                refuse(self, 431, f"address and headers may have {MAX_HEAD_BYTES} bytes at most")
            elif self.is_whole:
                self.deadline.stop()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self.is_whole = False
            self.head_bytes = 0

        def on_url(self, url: bytes) -> None:
            self.head_bytes += len(url)
            super().on_url(url)

        def on_header(self, name: bytes, value: bytes) -> None:
            self.head_bytes += len(name) + len(value)
            super().on_header(name, value)

        def on_message_complete(self) -> None:
            self.is_whole = True
            super().on_message_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            self.deadline.stop()
            super().connection_lost(exc)

        def send_400_response(self, msg: str) -> None:
            refuse(self, 400, "this is not a valid HTTP request")

    return GuardedHttpTools


def guarded_protocol(seconds: float = REQUEST_SECONDS) -> type[asyncio.Protocol]:
    """The protocol class for uvicorn's ``http``: httptools where it is installed, else h11.

    Args:
        seconds: how long a request may take to become whole.
    """
    try:
        return guarded_httptools(seconds)
    except ImportError:
        return guarded_h11(seconds)


class Server(uvicorn.Server):
    """uvicorn's server, which tells the app that it is about to end before it waits for open answers."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: Any = None) -> None:
        self._app.state.service.stop()
        await super().shutdown(sockets)


def make_server(
    app: FastAPI,
    settings: Settings,
    *,
    request_seconds: float = REQUEST_SECONDS,
    protocol: type[asyncio.Protocol] | None = None,
    **options: Any,
) -> Server:
    """The server for an app, listening where the settings say; run it by ``await server.serve()``.

    Args:
        request_seconds: how long a request may take to become whole.
        protocol: instead of `guarded_protocol`.
        options: for `uvicorn.Config`, over what is set here.
    Raises:
        SettingsInvalid: that address would let others in.
    """
    check_bind(settings.host)
    config = {
        "host": settings.host,
        "port": settings.port,
        "http": protocol or guarded_protocol(request_seconds),
        "ws": "none",
        "lifespan": "on",
        "log_level": "warning",
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,
        "timeout_keep_alive": KEEP_ALIVE_SECONDS,
        "timeout_graceful_shutdown": GRACEFUL_SECONDS,
        **options,
    }
    return Server(uvicorn.Config(app, **config), app)
