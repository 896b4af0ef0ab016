"""Commands that stay with a job until it ends: wait and follow."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from postroom.cli import options
from postroom.cli.failures import Ended
from postroom.cli.output import (
    describe_job,
    ended,
    error_text,
    line_text,
    pairs,
    progress,
    progress_text,
    show_json,
    show_value,
    tell,
)
from postroom.cli.running import with_inbox
from postroom.errors import WaitTimedOut
from postroom.model import State

if TYPE_CHECKING:
    from postroom.cli.output import Progress
    from postroom.inbox import Inbox
    from postroom.views import JobView


def register(app: typer.Typer) -> None:
    ended = "the job failed or was cancelled"
    options.add(
        app,
        wait,
        "wait",
        "Wait until a job ends.",
        "Example: postroom wait ID --timeout 60 && postroom result ID",
        4,
        5,
        c0="it succeeded",
        c1=ended,
    )
    options.add(
        app,
        follow,
        "follow",
        "Print a job's journal as it is written.",
        "Example: postroom follow ID --json | jq -r .event",
        4,
        c0="it succeeded",
        c1=ended,
    )


def wait(
    job_id: options.JobId,
    timeout: options.Timeout = None,
    store: options.Store = None,
    as_json: options.Json = False,
) -> None:
    """Wait until a job ends, and show it."""

    async def use(inbox: Inbox) -> int:
        return await wait_and_show(inbox, job_id, timeout, as_json=as_json)

    code = with_inbox(store, use)
    if code:
        raise Ended(code)


async def wait_and_show(
    inbox: Inbox, job_id: str, timeout: float | None, *, as_json: bool, with_result: bool = False
) -> int:
    """Wait for a job with its progress shown, print how it ended, and give the exit code for that.

    Args:
        inbox: an open one.
        job_id: the job.
        timeout: seconds; None waits for ever.
        as_json: print the job as JSON.
        with_result: print nothing but the result of a job that succeeded.
    """
    try:
        with progress("waiting", "items" if (await inbox.get(job_id)).total > 1 else "") as shown:
            job = await _watched(inbox, job_id, timeout, shown)
    except asyncio.CancelledError:  # Ctrl-C
        tell(f"the job goes on; wait again with: postroom wait {job_id}")
        raise
    if as_json:
        show_json(job.to_json())
    elif with_result and job.state is State.SUCCEEDED:
        show_value(job.result if job.result is not None or not job.result_url else await inbox.result(job_id))
    elif with_result:
        tell(f"job {job_id} {job.state}: {error_text(job.error) or job.reason or ''}".rstrip(": "))
    else:
        pairs(describe_job(job))
    return ended(job)


async def _watched(inbox: Inbox, job_id: str, timeout: float | None, shown: Progress) -> JobView:
    """Wait, and show where the job stands once a second."""
    loop = asyncio.get_running_loop()
    deadline = None if timeout is None else loop.time() + timeout
    while True:
        left = 1.0 if deadline is None else min(1.0, max(0.0, deadline - loop.time()))
        try:
            job = await inbox.wait(job_id, timeout_seconds=left)
        except WaitTimedOut as late:
            job = await inbox.get(job_id)
            if not job.is_final and deadline is not None and loop.time() >= deadline:
                raise WaitTimedOut(job_id, timeout or 0.0, job.state) from late
        shown.show(job.done, job.total, _standing(job))
        if job.is_final:
            return job


def _standing(job: JobView) -> str:
    if job.waiting_for is not None:
        return f"{job.state}: {job.waiting_for.text}"
    return str(job.state)


def follow(
    job_id: options.JobId,
    after: Annotated[
        int,
        typer.Option(metavar="N", min=-1, help="Only lines after this one.", show_default="from the start"),
    ] = -1,
    store: options.Store = None,
    as_json: options.Json = False,
) -> None:
    """Print a job's journal as it is written, until the job ends.

    With --json one line of JSON per journal line.
    """
    from postroom.views import line_to_json

    async def use(inbox: Inbox) -> int:
        job = await inbox.get(job_id)
        with progress("following", has_lines=True) as shown:
            shown.show(job.done, job.total, _standing(job))
            async for line in inbox.follow(job_id, after=after):
                if as_json:
                    show_json(line_to_json(line), is_line=True)
                else:
                    shown.log(line_text(line))
                if line.event == "progress":
                    shown.show(line.data["done"], line.data["total"])
        job = await inbox.get(job_id)
        if not as_json:
            tell(f"{job.state}, {progress_text(job)} done")
        return ended(job)

    code = with_inbox(store, use)
    if code:
        raise Ended(code)
