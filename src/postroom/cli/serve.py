"""`postroom serve`: the service, its chores and a worker in one process."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from postroom.cli import options
from postroom.cli.failures import DONE, Ended, Misused
from postroom.cli.output import pairs, plural, say, tell, warn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from postroom.api.serving import Server
    from postroom.cli.ending import Stops
    from postroom.handlers import Registry
    from postroom.settings import Settings
    from postroom.verbs import Verbs
    from postroom.wiring import Shop
    from postroom.worker.loop import Worker

EPILOG = """Examples:

\b
  postroom serve
  postroom serve --app handlers:inbox --port 8080
  postroom serve --no-worker            # and workers of their own: postroom worker

The first SIGTERM or Ctrl-C drains, as `postroom worker` does; a second one hands back within a second.
"""


def register(app: typer.Typer) -> None:
    options.add(
        app,
        serve,
        "serve",
        "Run the inbox: service and worker.",
        EPILOG,
        c0="drained",
        c1="told twice",
        c2="wrong usage, the port is taken, or others could reach it",
    )


def serve(
    with_worker: Annotated[
        bool, typer.Option("--worker/--no-worker", help="Run jobs in this process too.")
    ] = True,
    kinds: options.Kinds = None,
    host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Where to listen.", show_default="127.0.0.1")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, max=65535, help="0 takes a free one.", show_default="8000"),
    ] = None,
    app: options.App = None,
    store: options.StoreHere = None,
    concurrency: options.Concurrency = None,
) -> None:
    """Run the inbox: HTTP service, chores, and a worker for the shipped kinds and those of --app."""
    from postroom.cli.work import chosen
    from postroom.observe import set_up_logging
    from postroom.settings import masked
    from postroom.wiring import open_shop

    set_up_logging()
    flags = {"host": host, "port": port, "app": app, "store": store, "concurrency": concurrency}
    shop = open_shop(flags, with_shipped=with_worker)
    settings = shop.inbox.settings
    for warning in settings.warnings:
        warn(warning)
    if shop.inbox.url.startswith(("http://", "https://")):
        raise Misused(
            f"{masked(shop.inbox.url)} is a service itself: give serve a store, such as sqlite:///postroom.db"
        )
    registry = chosen(shop, kinds) if with_worker else None
    raise Ended(_run(_Service(shop, registry).run, settings))


def _run(main: Callable[[], Awaitable[int]], settings: Settings) -> int:
    """Run in uvloop where it is installed: it answers twice as many requests."""
    try:
        import uvloop
    except ImportError:
        loop_factory = None
    else:
        loop_factory = uvloop.new_event_loop

    async def run() -> int:
        return await main()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(run())


class _Service:
    """One service from its start to its end."""

    def __init__(self, shop: Shop, registry: Registry | None) -> None:
        self._shop = shop
        self._settings = shop.inbox.settings
        self._registry = registry

    async def run(self) -> int:
        """Until told to end; the exit code."""
        from postroom.api.serving import make_server
        from postroom.cli.collector import collect_less
        from postroom.cli.ending import Stops
        from postroom.wiring import make_app

        server = make_server(make_app(self._shop), self._settings)
        with bind(self._settings.host, self._settings.port) as listener, Stops() as stops:
            async with AsyncExitStack() as stack:
                stack.push_async_callback(self._shop.close)
                verbs = await self._shop.inbox.verbs()
                worker = await self._start_worker()
                if worker is None:
                    await stack.enter_async_context(caretaking(verbs, self._settings))
                else:  # it has drained by then, unless something else broke: then its runs are handed back
                    stack.push_async_callback(worker.stop_now)
                async with answering(server, listener) as answers:
                    collect_less()
                    await self._introduce(listener, worker)
                    self._fetch_model()
                    return await _until_ended(stops, worker, answers)

    async def _start_worker(self) -> Worker | None:
        if self._registry is None:
            return None
        from postroom.worker.loop import Worker

        worker = Worker(self._shop.inbox, self._registry)
        await worker.start()
        return worker

    async def _introduce(self, listener: socket.socket, worker: Worker | None) -> None:
        """Say where it listens, what it keeps jobs in, what it runs, and how to try it."""
        host, port = listener.getsockname()[:2]
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        verbs = await self._shop.inbox.verbs()
        health = await verbs.health()
        say(f"postroom {health.version} listens on {url} (API: {url}/docs)")
        runs = "none here: start one with `postroom worker`"
        if worker is not None:
            runs = f"{plural(worker.concurrency, 'job')} at once: {', '.join(worker.registry.kinds())}"
        pairs(
            [
                ("  store", f"{verbs.url}\n{health.durability}"),
                ("  worker", runs),
                ("  access", "no keys exist yet, so only this machine is answered"),
                ("  try it", _example(url, worker)),
            ]
        )

    def _fetch_model(self) -> None:
        """Bring the small chat model here beside everything else, unless another model was configured."""
        if self._shop.models is None or self._settings.model_url is not None:
            return
        from postroom.assistant.fetch import MODEL_BYTES, ensure_in_background

        if ensure_in_background(self._settings.model_dir) is not None:
            tell(
                f"postroom: fetching the small chat model ({MODEL_BYTES // 1_000_000} MB, once) beside the rest; "
                "`postroom models status` says how far it is"
            )


def _example(url: str, worker: Worker | None) -> str:
    if worker is not None and "summarize" not in worker.registry.kinds():
        kind = worker.registry.kinds()[0]
        body = f'{{"kind": "{kind}", "content": "hello"}}'
        return f"curl -s {url}/jobs -H 'Content-Type: application/json' -d '{body}'"
    body = '{"content": "Please summarise: Ships must register by noon. Late ships wait until Monday."}'
    return f"curl -s {url}/inbox/tasks -H 'Content-Type: application/json' -d '{body}'"


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens there.

    Raises:
        Misused: the port is taken, or the address is none of this machine's.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(2048)
            listener.setblocking(False)
        except OSError:
            listener.close()
            raise
        return listener
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise Misused(
                f"port {port} on {host} is taken: is another postroom running? Choose one with --port (0: a free one)"
            ) from None
        if error.errno == errno.EACCES:
            raise Misused(f"port {port} is not for everybody to listen on: choose one above 1023") from None
        raise Misused(f"cannot listen on {host}, port {port}: {error.strerror or error}") from None


@asynccontextmanager
async def answering(server: Server, listener: socket.socket) -> AsyncIterator[asyncio.Task[None]]:
    """The server, from when it answers to when its last answer is out."""
    server.capture_signals = nullcontext  # type: ignore[assignment,method-assign]  # signals are `Stops`' business
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started and not task.done():  # noqa: ASYNC110  # uvicorn tells nobody when it is ready
            await asyncio.sleep(0.005)
        yield task
    finally:
        server.should_exit = True
        await task


@asynccontextmanager
async def caretaking(verbs: Verbs, settings: Settings) -> AsyncIterator[None]:
    """The chores of a service that has no worker of its own to do them."""
    from postroom.worker.caretaker import Caretaker
    from postroom.worker.heartbeat import StoreState

    async def is_fresh() -> bool:
        return True

    log = logging.getLogger("postroom.worker")
    caretaker = Caretaker(verbs, settings, is_fresh=is_fresh, state=StoreState(log, "serve"), log=log)
    task = asyncio.create_task(caretaker.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _until_ended(stops: Stops, worker: Worker | None, answers: asyncio.Task[None]) -> int:
    """Until a signal, or the server broke; then the worker drains while questions are still answered."""
    from postroom.cli.ending import drained

    told = asyncio.create_task(stops.drain.wait())
    try:
        await asyncio.wait({told, answers}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        told.cancel()
    if worker is None:
        return DONE
    if stops.drain.is_set():
        tell("postroom: draining; signal again to hand back at once")
    return await drained(stops, worker.drain, worker.stop_now)
