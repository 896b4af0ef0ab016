"""A provider to test against: a real HTTP server on loopback that counts calls and misbehaves as told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Request:
    """What came in."""

    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Provider:
    """The server as tests see it."""

    url: str = ""
    requests: list[Request] = field(default_factory=list)
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once a client closed a connection whose answer was not finished."""

    @property
    def calls(self) -> int:
        return len(self.requests)


Behaviour = Callable[[Request, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def provider(*behaviours: Behaviour) -> AsyncIterator[Provider]:
    """A server; call n gets the n-th behaviour, later ones the last."""
    state = Provider()
    tasks: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            request = await read_request(reader)
            state.requests.append(request)
            behaviour = behaviours[min(len(state.requests), len(behaviours)) - 1]
            answering = asyncio.ensure_future(behaviour(request, writer))
            tasks.add(answering)
            gone = asyncio.ensure_future(reader.read(1))
            tasks.add(gone)
            await asyncio.wait({answering, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                state.hung_up.set()
                answering.cancel()
            gone.cancel()
            await asyncio.gather(answering, gone, return_exceptions=True)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    state.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield state
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def read_request(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(first.split()[1], headers, json.loads(body) if body else None)


# ---------------------------------------------------------------- behaviours


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def word(text: str | None, finish: str | None = None, **delta: Any) -> bytes:
    content = {"content": text} if text is not None else {}
    return event(
        model="big-1", choices=[{"index": 0, "delta": {**content, **delta}, "finish_reason": finish}]
    )


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
USAGE = event(choices=[], usage={"prompt_tokens": 11, "completion_tokens": 7})


def says(*words: str, finish: str = "stop") -> Behaviour:
    """A whole streamed answer."""

    async def behave(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        for text in words:
            writer.write(word(text))
        writer.write(word(None, finish) + USAGE + b"data: [DONE]\n\n")
        await writer.drain()

    return behave


def echoes_json(make: Callable[[Request], Any]) -> Behaviour:
    """A whole streamed answer made from the request, as JSON."""

    async def behave(request: Request, writer: asyncio.StreamWriter) -> None:
        made = make(request)
        await says(made if isinstance(made, str) else json.dumps(made))(request, writer)

    return behave


def status(code: int, body: Any = None, **headers: str) -> Behaviour:
    """A plain answer."""

    async def behave(request: Request, writer: asyncio.StreamWriter) -> None:
        payload = body if isinstance(body, bytes) else json.dumps(body if body is not None else {}).encode()
        given = {"Content-Type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
        lines = [f"HTTP/1.1 {code} X", *(f"{k}: {v}" for k, v in given.items())]
        lines += [f"Content-Length: {len(payload)}", "Connection: close", "", ""]
        writer.write("\r\n".join(lines).encode() + payload)
        await writer.drain()

    return behave


def sends(*pieces: bytes, then: str = "close") -> Behaviour:
    """These bytes, then the end, silence (``hang``), a reset or comments for ever (``ping``)."""

    async def behave(request: Request, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        if then == "reset":
            writer.transport.abort()
        while then == "ping":
            writer.write(b": still here\n\n")
            await writer.drain()
            await asyncio.sleep(0.02)  # the pace of a provider's keep-alive
        if then == "hang":
            await asyncio.Event().wait()

    return behave
