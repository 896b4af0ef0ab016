"""Commands that look: get, list, items, result, stats, workers. And `cancel`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroom.cli import options
from postroom.cli.output import (
    clock_time,
    describe_job,
    error_text,
    pairs,
    plural,
    progress_text,
    say,
    shorten,
    show_json,
    show_value,
    span,
    table,
    tell,
)
from postroom.cli.running import with_inbox

if TYPE_CHECKING:
    from postroom.inbox import Inbox
    from postroom.views import JobView

ITEMS_EPILOG = """Example: postroom items ID --json | jq '.items[] | select(.state == "failed")'"""
LIST_EPILOG = """Examples:

\b
  postroom list --state failed --since 1h
  postroom list --kind classify --limit 500 --json | jq -r '.items[].job_id'
"""


def register(app: typer.Typer) -> None:
    options.add(app, get, "get", "Show one job.", "Example: postroom get ID --json | jq .state", 4)
    options.add(app, list_jobs, "list", "List jobs, newest first.", LIST_EPILOG)
    options.add(app, items, "items", "Show a job's items.", ITEMS_EPILOG, 4)
    options.add(
        app,
        result,
        "result",
        "Print a job's whole result.",
        "Example: postroom result ID > out.txt",
        4,
        c1="there is no result (yet)",
    )
    options.add(
        app, cancel, "cancel", "Cancel a job.", 'Example: postroom cancel ID --reason "wrong file"', 4
    )
    options.add(
        app, stats, "stats", "Count jobs, and the last hour.", "Example: postroom stats --json | jq .states"
    )
    options.add(app, workers, "workers", "Show live workers.", "Example: postroom workers")


def get(job_id: options.JobId, store: options.Store = None, as_json: options.Json = False) -> None:
    """Show one job: its state, progress, what it waits for, its error or result."""

    async def use(inbox: Inbox) -> None:
        job = await inbox.get(job_id)
        if as_json:
            show_json(job.to_json())
        else:
            pairs(describe_job(job))

    with_inbox(store, use)


def list_jobs(
    state: Annotated[
        str | None,
        typer.Option(metavar="S,…", help="queued, running, succeeded, failed, cancelled."),
    ] = None,
    kind: Annotated[str | None, typer.Option(metavar="K", help="Only this kind.")] = None,
    sender: Annotated[str | None, typer.Option(metavar="NAME", help="Only from there.")] = None,
    topic: Annotated[str | None, typer.Option(metavar="NAME", help="Only with this label.")] = None,
    queue: Annotated[str | None, typer.Option(metavar="Q", help="Only in this queue.")] = None,
    since: options.Since = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=500, help="At most so many, up to 500.")] = 20,
    cursor: Annotated[str | None, typer.Option(metavar="C", help="Go on where a listing ended.")] = None,
    store: options.Store = None,
    as_json: options.Json = False,
) -> None:
    """List jobs, newest first."""

    async def use(inbox: Inbox) -> None:
        page = await inbox.find(
            state=options.split(state),
            kind=kind,
            sender=sender,
            topic=topic,
            queue=queue,
            since=options.ago(since),
            limit=limit,
            cursor=cursor,
        )
        if as_json:
            show_json({"items": [job.to_json() for job in page.jobs], "next_cursor": page.next_cursor})
            return
        if not page.jobs:
            tell("no jobs match" if any((state, kind, sender, topic, queue, since)) else "no jobs yet")
            return
        head = ("JOB", "STATE", "KIND", "DONE", "FROM", "CREATED", "")
        table(head, [_row(job) for job in page.jobs])
        if page.next_cursor:
            tell(f"more with: --cursor {page.next_cursor}")

    with_inbox(store, use)


def _row(job: JobView) -> tuple[str, ...]:
    note = error_text(job.error)
    if job.waiting_for is not None:
        note = job.waiting_for.text
    elif job.state == "cancelled":
        note = job.reason or ""
    elif job.stale:
        note = "stale: its lease ended"
    return (
        job.job_id,
        str(job.state),
        shorten(job.kind, 20),
        progress_text(job).partition(",")[0],
        shorten(job.sender, 16),
        clock_time(job.created_at),
        shorten(note, 60),
    )


def items(job_id: options.JobId, store: options.Store = None, as_json: options.Json = False) -> None:
    """Show every item of a job with its value or error, also while it runs."""

    async def use(inbox: Inbox) -> None:
        found = [item async for item in inbox.items(job_id)]
        if as_json:
            show_json({"items": [item.to_json() for item in found], "next_cursor": None})
            return
        rows = []
        for item in found:
            value = item.value if isinstance(item.value, str) else json.dumps(item.value, ensure_ascii=False)
            text = error_text(item.error) if item.error else value if item.state == "succeeded" else ""
            rows.append((item.key, item.state, shorten(text, 100)))
        table(("KEY", "STATE", "VALUE"), rows)

    with_inbox(store, use)


def result(job_id: options.JobId, store: options.Store = None, as_json: options.Json = False) -> None:
    """Print a job's whole result, however large: text as it is, anything else as JSON."""

    async def use(inbox: Inbox) -> None:
        value = await inbox.result(job_id)
        if as_json:
            show_json(value)
        else:
            show_value(value)

    with_inbox(store, use)


def cancel(
    job_id: options.JobId,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Kept with the job.")] = None,
    store: options.Store = None,
    as_json: options.Json = False,
) -> None:
    """Cancel a queued job, or ask a running one to stop.

    A running job is cancelled once its worker confirms; `postroom wait` says when. A job that ended is refused (2).
    """

    async def use(inbox: Inbox) -> None:
        job = await inbox.cancel(job_id, reason)
        if as_json:
            show_json(
                {"job_id": job.job_id, "state": str(job.state), "cancel_requested": job.cancel_requested}
            )
        elif job.is_final:
            say(f"{job_id} is cancelled")
        else:
            say(f"{job_id} is running and was asked to stop; wait for it with: postroom wait {job_id}")

    with_inbox(store, use)


def stats(store: options.Store = None, as_json: options.Json = False) -> None:
    """Count jobs by state, and show how the last hour went."""
    from postroom.wire import stats_to_json

    async def use(inbox: Inbox) -> None:
        counts = await inbox.stats()
        shown = stats_to_json(counts)
        if as_json:
            show_json(shown)
            return
        ratio = shown["failure_ratio"]
        times = [counts.mean_seconds, counts.p95_seconds]
        mean, p95 = [span(t) if t is not None else "" for t in times]
        pairs(
            [
                *((name, f"{count:,}") for name, count in counts.states.items()),
                ("stale", plural(counts.stale, "job") if counts.stale else ""),
                (
                    "oldest due",
                    span(counts.oldest_due_seconds) if counts.oldest_due_seconds is not None else "",
                ),
                (
                    "last hour",
                    f"{counts.succeeded_last_hour:,} succeeded, {counts.failed_last_hour:,} failed",
                ),
                ("failure ratio", f"{ratio:.1%}" if ratio is not None else ""),
                ("time to run", f"{mean} on average, {p95} for 95 of 100" if mean else ""),
                ("last claim", clock_time(counts.last_claimed_at)),
            ]
        )

    with_inbox(store, use)


def workers(store: options.Store = None, as_json: options.Json = False) -> None:
    """Show the live workers and what they run."""
    from postroom.wire import worker_to_json

    async def use(inbox: Inbox) -> None:
        views = await inbox.workers()
        if as_json:
            show_json({"items": [worker_to_json(view) for view in views], "next_cursor": None})
            return
        if not views:
            tell("no live workers: start one with `postroom worker`, or `postroom serve`")
            return
        head = ("WORKER", "HOST", "PID", "UP SINCE", "RUNS", "QUEUES", "KINDS")
        table(head, [_worker_row(view) for view in views])

    with_inbox(store, use)


def _worker_row(view: Any) -> tuple[str, ...]:
    info = view.info
    return (
        info.worker,
        info.host,
        str(info.pid),
        clock_time(info.started_at),
        f"{len(view.job_ids)} of {info.concurrency}",
        ",".join(info.queues),
        shorten(",".join(info.kinds), 60),
    )
