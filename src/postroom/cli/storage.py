"""Commands about the store itself: migrate, verify, prune."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from postroom.cli import options
from postroom.cli.failures import JOB_ENDED_BADLY, Ended
from postroom.cli.output import plural, progress, say, show_json, tell
from postroom.cli.running import with_inbox
from postroom.errors import StoreDamaged

if TYPE_CHECKING:
    from postroom.desk import Desk
    from postroom.inbox import Inbox
    from postroom.stores.port import Store

BATCH = 1000
MOST_FINDINGS = 1000
"""What `verify` prints at most; the count is of all."""

VERIFY_EPILOG = """Example: postroom verify --json | jq -r '.findings[].job_id' | sort -u

Running jobs are checked as far as it can be done while their workers beat. See docs/reference/verify.md for what is
compared, and for the few columns whose change by hand cannot be told from a worker's.
"""


def register(app: typer.Typer) -> None:
    here = "Bring the store up to date."
    options.add(app, migrate, "migrate", here, "Example: postroom migrate --store sqlite:///inbox.db")
    options.add(
        app,
        verify,
        "verify",
        "Check the whole store.",
        VERIFY_EPILOG,
        c0="nothing found",
        c1="something was found",
    )
    prunes = "Example: postroom prune --succeeded-days 30 --failed-days 180"
    options.add(app, prune, "prune", "Remove jobs that ended long ago.", prunes)


async def _desk(inbox: Inbox) -> Desk:
    """The desk over the store; `with_inbox` refused a service before."""
    from postroom.desk import Desk

    verbs = await inbox.verbs()
    assert isinstance(verbs, Desk)
    return verbs


def migrate(store: options.StoreHere = None, as_json: options.Json = False) -> None:
    """Bring the store's schema up to date; makes an empty store where there is none.

    Every start does this too. It may be ended at any point and run again.
    """
    from postroom.cli.running import on_store

    async def use(store: Store) -> tuple[str, list[str]]:
        return store.url, await store.migrate()

    with progress("migrating", has_lines=True):
        url, steps = on_store(store, use, command="migrate")
    if as_json:
        show_json({"store": url, "steps": steps})
        return
    for step in steps:
        say(step)
    say(f"{url} is up to date" + (f", {plural(len(steps), 'step')} taken" if steps else ""))


def verify(store: options.StoreHere = None, as_json: options.Json = False) -> None:
    """Replay every job's journal and compare it with the job's row, values and result; check the store itself.

    Each finding names the job and what is wrong. Changes nothing, and may run beside workers.
    """
    from postroom.verification import Finding, verify_store

    found: list[Finding] = []
    count = verified = 0

    async def use(inbox: Inbox) -> int:
        nonlocal count, verified
        desk = await _desk(inbox)
        with progress("verifying", "jobs") as shown:
            async for step in verify_store(desk.store):
                verified = step.done
                shown.show(step.done, step.total, step.what)
                for finding in step.findings:
                    count += 1
                    if len(found) < MOST_FINDINGS:
                        found.append(finding)
                        if not as_json:
                            shown.log(str(finding))
        return verified

    try:
        jobs = with_inbox(store, use, only_here="verify")
    except StoreDamaged as error:  # it cannot be read on; that is the finding
        damage, jobs, count = Finding(None, "store", str(error)), verified, count + 1
        found.append(damage)
        if not as_json:
            say(str(damage))
    if as_json:
        show_json({"jobs": jobs, "count": count, "findings": [finding.to_json() for finding in found]})
    elif count:
        more = f", the first {MOST_FINDINGS:,} are shown" if count > len(found) else ""
        tell(f"{plural(count, 'finding')} in {plural(jobs, 'job')}{more}")
    else:
        say(f"{plural(jobs, 'job')} verified, nothing found")
    if count:
        raise Ended(JOB_ENDED_BADLY)


def prune(
    succeeded_days: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Keep succeeded and cancelled jobs that long.",
            show_default="POSTROOM_RETAIN_SUCCEEDED_DAYS, else 90",
        ),
    ] = None,
    failed_days: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Keep failed jobs that long.",
            show_default="POSTROOM_RETAIN_FAILED_DAYS, else 365",
        ),
    ] = None,
    store: options.StoreHere = None,
    as_json: options.Json = False,
) -> None:
    """Remove jobs that ended long ago, with their items, results and journals. A mark of each stays.

    Running services and workers do this by themselves, by the settings.
    """

    async def use(inbox: Inbox) -> int:
        desk = await _desk(inbox)
        removed = 0
        with progress("pruning", "jobs removed") as shown:
            while True:
                count = await desk.purge(limit=BATCH)
                removed += count
                shown.show(removed, None)
                if count < BATCH:
                    return removed

    removed = with_inbox(
        store,
        use,
        only_here="prune",
        retain_succeeded_days=succeeded_days,
        retain_failed_days=failed_days,
    )
    if as_json:
        show_json({"removed": removed})
    else:
        say(f"removed {plural(removed, 'job')}")
