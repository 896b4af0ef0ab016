"""Options that several commands have, and what they mean."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from postroom.cli.failures import DONE, MEANINGS, STORE_UNREACHABLE, USAGE, refuse
from postroom.views import parse_time

Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="Where jobs are kept: sqlite:///path, or http://host:port of a service.",
        show_default="POSTROOM_STORE, else sqlite:///postroom.db",
    ),
]
StoreHere = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="The store itself: sqlite:///path.",
        show_default="POSTROOM_STORE, else sqlite:///postroom.db",
    ),
]
App = Annotated[
    str | None,
    typer.Option("--app", metavar="MODULE:INBOX", help="Your handlers; they take over shipped kinds."),
]
Json = Annotated[bool, typer.Option("--json", help="Answer as JSON.")]
JobId = Annotated[
    str, typer.Argument(metavar="ID", help="The job's id, as submit printed it.", show_default=False)
]
Kinds = Annotated[
    str | None,
    typer.Option(
        "--kinds", metavar="K,…", help="Take only these kinds.", show_default="all that have a handler"
    ),
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since", metavar="TIME", help="From then on: 90s, 15m, 2h, 7d ago, or 2026-01-31T08:00:00Z."
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option("--timeout", metavar="SECONDS", min=0, help="Stop waiting after that long (exit code 5)."),
]
Concurrency = Annotated[
    int | None,
    typer.Option(
        "--concurrency",
        metavar="N",
        help="Jobs at once in one process.",
        show_default="POSTROOM_CONCURRENCY, else 16",
    ),
]

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def add(
    app: typer.Typer,
    function: Callable[..., None],
    name: str,
    short: str,
    example: str,
    *codes: int,
    **said: str,
) -> None:
    """Register a command, whose help ends with an example and its exit codes.

    Args:
        codes: further exit codes, in their usual meaning; 0, 2 and 3 have all.
        said: what a code (``c1``, ``c5``, …) means here, where that is not the usual.
    """
    meanings = {**MEANINGS, **{int(name[1:]): text for name, text in said.items()}}
    shown = sorted({DONE, USAGE, STORE_UNREACHABLE, *codes, *(int(name[1:]) for name in said)})
    ends = "Exit codes: " + ", ".join(f"{code} {meanings[code]}" for code in shown) + "."
    app.command(name, short_help=short, epilog=f"{example.rstrip()}\n\n{ends}")(function)


def ago(text: str | None) -> datetime | None:
    """The moment that ``--since`` names."""
    return None if text is None else _moment("--since", text, -1)


def ahead(name: str, text: str | None) -> datetime | None:
    """The moment that an option about the future names: ``10m`` is in ten minutes."""
    return None if text is None else _moment(name, text, 1)


def _moment(name: str, text: str, direction: int) -> datetime:
    match = _SPAN.fullmatch(text.strip().lstrip("+-"))
    if match:
        return datetime.now(UTC) + direction * timedelta(seconds=float(match[1]) * _SECONDS[match[2]])
    try:
        return parse_time(text)
    except ValueError:
        refuse(f"{name} takes 90s, 15m, 2h, 7d, or a time such as 2026-01-31T08:00:00Z, found {text!r}")


def split(text: str | None) -> tuple[str, ...] | None:
    """The words of a comma-separated option."""
    if text is None:
        return None
    return tuple(word.strip() for word in text.split(",") if word.strip())
