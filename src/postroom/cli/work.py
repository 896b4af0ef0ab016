"""`postroom worker`: claim jobs and run their handlers, in one process or in several under a supervisor."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Annotated

import typer

from postroom.cli import options
from postroom.cli.failures import DONE, Ended, refuse
from postroom.cli.output import plural, tell, warn

if TYPE_CHECKING:
    from postroom.handlers import Registry
    from postroom.wiring import Shop

EPILOG = """Examples:

\b
  postroom worker --app handlers:inbox
  postroom worker --kinds classify,summarize --concurrency 4
  postroom worker --store http://127.0.0.1:8000 --app handlers:inbox
  postroom worker --processes 4

The first SIGTERM or Ctrl-C drains: no new job, up to POSTROOM_DRAIN_SECONDS for those that run, the rest is handed
back uncharged. A second one hands back within a second.
"""


def register(app: typer.Typer) -> None:
    short = "Run jobs in a process of their own."
    options.add(app, worker, "worker", short, EPILOG, c0="drained", c1="told twice")


def worker(
    queue: Annotated[
        list[str] | None,
        typer.Option(
            "--queue", metavar="Q", help="Where to look for work; may be given again.", show_default="default"
        ),
    ] = None,
    kinds: options.Kinds = None,
    processes: Annotated[
        int, typer.Option("--processes", metavar="N", min=1, max=256, help="So many worker processes.")
    ] = 1,
    app: options.App = None,
    store: options.Store = None,
    concurrency: options.Concurrency = None,
    supervised: Annotated[int | None, typer.Option("--supervised", hidden=True)] = None,
) -> None:
    """Run jobs: the shipped kinds, and those of --app.

    May run beside `postroom serve` and other workers on the same store, or over HTTP on another machine. With --app it
    works on the store that the app's inbox was made with, unless --store names another.
    """
    from postroom.observe import set_up_logging
    from postroom.wiring import open_shop

    set_up_logging()
    shop = open_shop({"app": app, "store": store, "concurrency": concurrency})
    registry = chosen(shop, kinds)
    for warning in shop.inbox.settings.warnings:
        warn(warning)
    if processes > 1:
        from postroom.cli.supervisor import supervise

        if shop.inbox.url.startswith("memory:"):
            refuse("a memory store lives in one process: use --processes 1, or --store sqlite:///postroom.db")
        raise Ended(supervise(_command(queue, kinds, app, store, concurrency), processes))
    code = asyncio.run(run_worker(shop, registry, tuple(queue or ("default",)), supervised))
    raise Ended(code)


def chosen(shop: Shop, kinds: str | None) -> Registry:
    """The handlers of the kinds that were asked for, all by default."""
    registry = shop.inbox.handlers
    named = options.split(kinds)
    if named is not None:
        if not named:
            refuse("--kinds takes names of kinds, such as classify,summarize")
        registry = registry.narrowed(named)
    if not len(registry):
        refuse("there is no handler to run: name yours with --app module:inbox")
    return registry


async def run_worker(shop: Shop, registry: Registry, queues: tuple[str, ...], supervised: int | None) -> int:
    """One worker until it is told to end; the exit code."""
    from postroom.cli.collector import collect_less
    from postroom.cli.ending import Stops, begun, drained
    from postroom.settings import masked
    from postroom.worker.loop import Worker

    one = Worker(shop.inbox, registry, queues=queues)
    try:
        with Stops(supervised) as stops:
            if not await begun(stops, one.start):
                return DONE
            collect_less()
            tell(
                f"postroom: worker {one.identity} is ready: {masked(shop.inbox.url)}, "
                f"{plural(one.concurrency, 'job')} at once, kinds {', '.join(registry.kinds())}{_where(queues)}"
            )
            await stops.drain.wait()
            tell("postroom: draining; signal again to hand back at once")
            return await drained(stops, one.drain, one.stop_now)
    finally:
        await shop.close()


def _where(queues: tuple[str, ...]) -> str:
    return "" if queues == ("default",) else f", queues {', '.join(queues)}"


def _command(
    queue: list[str] | None, kinds: str | None, app: str | None, store: str | None, concurrency: int | None
) -> list[str]:
    """The arguments of one worker process under the supervisor."""
    words = ["worker"]
    for name in queue or ():
        words += ["--queue", name]
    given = {"--kinds": kinds, "--app": app, "--store": store, "--concurrency": concurrency}
    for option, value in given.items():
        if value is not None:
            words += [option, str(value)]
    return words


def supervised_by(handle: int) -> tuple[str, ...]:
    """The hidden option that tells a worker the pipe by which it notices its supervisor's death."""
    os.set_inheritable(handle, True)
    return ("--supervised", str(handle))
