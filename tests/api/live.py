"""A real service on a free port of 127.0.0.1, in a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI

from postroom.api.app import create_app
from postroom.api.service import Service
from postroom.api.serving import Server, make_server
from postroom.doors.inbox.routes import router as inbox_door
from postroom.inbox import Inbox
from postroom.settings import Settings

QUICK = Settings(
    store="memory://",
    port=0,
    poll_seconds=0.05,
    lease_seconds=5.0,
    backoff_base_seconds=0.05,
    backoff_cap_seconds=0.2,
)


@dataclass
class LiveService:
    """A service that runs."""

    url: str
    port: int
    app: FastAPI
    inbox: Inbox
    server: Server

    @property
    def service(self) -> Service:
        service: Service = self.app.state.service
        return service


@contextmanager
def live_service(
    settings: Settings = QUICK, inbox: Inbox | None = None, *, threads: int | None = None, **options: Any
) -> Iterator[LiveService]:
    """Run a service while the block does, with so many threads for large bodies; options are those of `make_server`."""
    inbox = inbox or Inbox(settings.store, settings=settings)
    app = create_app(inbox, settings, doors=(inbox_door,))
    server = make_server(app, settings, **options)
    started = threading.Event()

    async def serve() -> None:
        if threads is not None:
            asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(threads))
        task = asyncio.create_task(server.serve())
        while not server.started and not task.done():
            await asyncio.sleep(0.005)  # uvicorn tells nobody when it is ready
        started.set()
        await task

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="live-service")
    thread.start()
    try:
        assert started.wait(10), "the service did not start"
        port = server.servers[0].sockets[0].getsockname()[1]
        yield LiveService(f"http://127.0.0.1:{port}", port, app, inbox, server)
    finally:
        server.should_exit = True
        thread.join(15)
        assert not thread.is_alive(), "the service did not end"
