"""What a person reads and what a program reads: text, tables, JSON, and progress on a terminal or line by line.

Answers go to stdout, everything else (progress, hints, warnings) to stderr, so that a pipe gets the answer only.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from postroom.cli.failures import DONE, JOB_ENDED_BADLY, Ended, drop_output
from postroom.model import State
from postroom.plaintext import for_terminal, json_for_terminal
from postroom.views import to_datetime

if TYPE_CHECKING:
    from postroom.model import Line
    from postroom.views import JobView

PLAIN_SECONDS = 2.0
"""Plain progress lines are at least this far apart."""


def say(text: str = "") -> None:
    """A part of the answer. Where its reader has gone (``postroom list | head``), the command ends well."""
    _write(for_terminal(text))


def _write(text: str) -> None:
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        drop_output()
        raise Ended(DONE) from None


def tell(text: str) -> None:
    """Something beside the answer. In one piece, so that lines of several workers never run into each other.

    Lost where it cannot be written (a full disk, a log that nobody reads any more): no reason not to drain.
    """
    try:
        sys.stderr.write(for_terminal(text) + "\n")
        sys.stderr.flush()
    except OSError:
        return


def warn(text: str) -> None:
    tell(f"postroom: warning: {text}")


def show_json(value: Any, *, is_line: bool = False) -> None:
    """A JSON answer; with ``is_line`` on one line, for streams."""
    _write(json_for_terminal(json.dumps(value, ensure_ascii=False, indent=None if is_line else 2)))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Columns as wide as they need to be."""
    lines = [tuple(head), *(tuple(map(for_terminal, row)) for row in rows)]
    widths = [max(_width(line[i]) for line in lines) for i in range(len(head))]
    for line in lines:
        cells = [cell + " " * (width - _width(cell)) for cell, width in zip(line, widths, strict=True)]
        say("  ".join(cells).rstrip())


def pairs(rows: Iterable[tuple[str, str]]) -> None:
    """Names and values, one a line; several lines of a value stand under each other."""
    shown = [(name, value) for name, value in rows if value != ""]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        first, *rest = value.splitlines() or [""]
        say(f"{name:<{width}}  {first}")
        for line in rest:
            say(" " * (width + 2) + line)


def _width(text: str) -> int:
    """Columns on a terminal: East Asian letters take two."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def shorten(text: str, width: int) -> str:
    """One line of at most that many characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= width else flat[: width - 1] + "…"


def clock_time(moment: datetime | float | None) -> str:
    """A time as this machine's people read it: with the day where it is not today."""
    if moment is None:
        return ""
    if not isinstance(moment, datetime):
        moment = to_datetime(moment) or datetime.now(UTC)
    try:
        local = moment.astimezone()
    except (OverflowError, ValueError, OSError):  # an end of the calendar: shown as it is in UTC
        local = moment
    is_today = local.date() == datetime.now().astimezone().date()
    return f"{local:%H:%M:%S}" if is_today else local.isoformat(" ", "seconds")[:19]


def span(seconds: float) -> str:
    """A duration in one or two units."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    if seconds < 86_400:
        return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"
    return f"{seconds // 86_400:.0f} d {seconds % 86_400 // 3600:.0f} h"


def plural(count: int, word: str) -> str:
    return f"{count:,} {word}" + ("" if count == 1 else "s")


# ---- jobs


def show_value(value: Any) -> None:
    """A result: text as it is (on a terminal without what would act on it), everything else as JSON."""
    if isinstance(value, str):
        _write(for_terminal(value) if sys.stdout.isatty() else value)
    else:
        show_json(value)


def describe_job(job: JobView) -> list[tuple[str, str]]:
    """A job as lines of name and value, what says nothing left out."""
    waiting = job.waiting_for.text if job.waiting_for else ""
    limits = [("time limit", job.timeout_seconds), ("stall limit", job.stall_timeout_seconds)]
    used = f"{job.attempts} of {job.max_attempts}"
    beside = [("crash", job.crashes), ("interruption", job.interruptions), ("hold", job.holds)]
    counts = [
        f"{count} {'crashes' if name == 'crash' and count > 1 else name + ('s' if count > 1 else '')}"
        for name, count in beside
        if count
    ]
    return [
        ("job", job.job_id),
        ("state", str(job.state) + (" (cancel requested)" if job.cancel_requested else "")),
        ("kind", job.kind),
        ("waits for", waiting),
        ("done", progress_text(job)),
        ("attempts", ", ".join([used, *counts])),
        ("replays", str(job.replays or "")),
        ("from", f"{job.sender}, topic {job.topic}"),
        ("line", f"{job.queue} queue, {job.priority} priority"),
        ("worker", job.worker or ""),
        ("stale", "its lease ended and nobody took it yet" if job.stale else ""),
        ("created", clock_time(job.created_at)),
        ("started", clock_time(job.started_at)),
        ("finished", clock_time(job.finished_at)),
        ("expires", clock_time(job.expires_at)),
        *((name, span(seconds)) for name, seconds in limits if seconds is not None),
        ("reason", "" if waiting else job.reason or ""),
        ("error", error_text(job.error or job.last_error)),
        ("usage", json.dumps(job.usage, ensure_ascii=False) if job.usage else ""),
        ("params", json.dumps(job.params, ensure_ascii=False) if job.params else ""),
        ("metadata", json.dumps(job.metadata, ensure_ascii=False) if job.metadata else ""),
        ("result", _result_text(job)),
    ]


def _result_text(job: JobView) -> str:
    if job.result is None:
        return f"postroom result {job.job_id}" if job.result_url else ""
    if isinstance(job.result, str):
        return job.result
    if isinstance(job.result, dict) and job.result.keys() == {"results"}:
        return "\n".join(json.dumps(value, ensure_ascii=False) for value in job.result["results"])
    return json.dumps(job.result, ensure_ascii=False, indent=2)


def progress_text(job: JobView) -> str:
    failed = f", {job.failed_items} of them failed" if job.failed_items else ""
    return f"{job.done} of {job.total}{failed}"


def error_text(error: Mapping[str, Any] | None) -> str:
    """An error's code and message."""
    if not error:
        return ""
    return f"{error['code']}: {error['message']}"


def ended(job: JobView) -> int:
    """The exit code that a job's end means."""
    return DONE if job.state is State.SUCCEEDED else JOB_ENDED_BADLY


def line_text(line: Line) -> str:
    """A journal line for people."""
    from postroom.seals import unsealed

    told = unsealed(line.data)
    data = _told(str(line.event), told)
    by = f"by {line.actor}" if str(line.event) in ("claimed", "cancel_requested", "replayed") else ""
    why = line.reason if line.reason and line.reason not in data else ""
    return f"{clock_time(line.at)}  {line.event!s:<16}  {', '.join(p for p in (why, data, by) if p)}".rstrip()


def _told(event: str, told: Mapping[str, Any]) -> str:
    if event == "progress":
        return f"{told.get('done')} of {told.get('total')}"
    if event == "output":
        output = told.get("output")
        return output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    if "error" in told:
        again = f"; again at {clock_time(told['run_at'])}" if "run_at" in told else ""
        return error_text(told["error"]) + again
    if event in ("held", "crashed") and "run_at" in told:
        return f"again at {clock_time(told['run_at'])}"
    if event == "succeeded" and told.get("failed_items"):
        return f"{told['failed_items']} items failed, as allowed"
    return ""


# ---- progress


class Progress(Protocol):
    """Shows how far something is. ``total`` None: nobody knows."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, done: int, total: int | None, what: str = "") -> None: ...

    def log(self, text: str) -> None:
        """A line of the answer that stands above the progress."""


def progress(what: str, unit: str = "", *, has_lines: bool = False) -> Progress:
    """A bar where stderr is a terminal, plain lines elsewhere; none where the answer itself tells it line by line."""
    if sys.stderr.isatty():
        return _Bar(what, unit)
    return _Silent(what, unit) if has_lines else _Lines(what, unit)


class _Lines:
    """Progress where nobody watches: a line when it changed, not more often than every `PLAIN_SECONDS`."""

    def __init__(self, what: str, unit: str) -> None:
        self._what = what
        self._unit = unit
        self._shown: tuple[Any, ...] = ()
        self._shown_at = float("-inf")
        self._last: tuple[int, int | None, str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._last is not None and self._last != self._shown:
            self._print(*self._last)

    def show(self, done: int, total: int | None, what: str = "") -> None:
        self._last = (done, total, what)
        if self._last != self._shown and time.monotonic() - self._shown_at >= PLAIN_SECONDS:
            self._print(done, total, what)

    def _print(self, done: int, total: int | None, what: str) -> None:
        self._shown, self._shown_at = (done, total, what), time.monotonic()
        number = f"{done:,}" if total is None else f"{done:,} of {total:,}"
        tell(f"{self._what}: {number}{' ' + self._unit if self._unit else ''}{', ' + what if what else ''}")

    def log(self, text: str) -> None:
        say(text)


class _Silent(_Lines):
    """Nothing beside the answer."""

    def show(self, done: int, total: int | None, what: str = "") -> None:
        pass


class _Bar:
    """Progress on a terminal."""

    def __init__(self, what: str, unit: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        self._console = Console(stderr=True)
        self._bar = RichProgress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(unit, markup=False),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        )
        self._what = what
        self._task = self._bar.add_task(what, total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def show(self, done: int, total: int | None, what: str = "") -> None:
        described = f"{self._what} {what}".strip()
        self._bar.update(self._task, completed=done, total=total, description=for_terminal(described))

    def log(self, text: str) -> None:
        if sys.stdout.isatty():
            self._bar.print(for_terminal(text), markup=False, highlight=False, soft_wrap=True)
        else:
            say(text)
