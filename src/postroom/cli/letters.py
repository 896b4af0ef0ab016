"""Dead letters: read them, and replay them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from postroom.cli import options
from postroom.cli.failures import refuse
from postroom.cli.output import clock_time, plural, say, show_json, tell
from postroom.cli.running import with_inbox
from postroom.plaintext import is_plain

if TYPE_CHECKING:
    from postroom.inbox import Inbox
    from postroom.stores.port import DeadLetterGroup

REPLAY_EPILOG = """Examples:

\b
  postroom replay 0193f2c1a7d87c3e8a5b4d2f6e1c0a9b
  postroom replay --kind classify --code TimeoutError --canary 5 --per-second 20
  postroom replay --since 1h
"""
SHOWN_IDS = 3


def register(app: typer.Typer) -> None:
    options.add(app, dead, "dead", "Show failed jobs, grouped by cause.", "Example: postroom dead --since 1h")
    options.add(app, replay, "replay", "Queue failed jobs again.", REPLAY_EPILOG, 4)


def dead(
    kind: Annotated[str | None, typer.Option(metavar="K", help="Only this kind.")] = None,
    since: options.Since = None,
    store: options.Store = None,
    as_json: options.Json = False,
) -> None:
    """Show the failed jobs in groups that failed alike, largest first, with how to replay each."""
    from postroom.wire import group_to_json

    async def use(inbox: Inbox) -> None:
        groups = await inbox.dead_letters(since=options.ago(since), kind=kind)
        if as_json:
            show_json({"groups": [group_to_json(group) for group in groups]})
            return
        if not groups:
            tell("no dead letters")
        for group in groups:
            _show_group(group)

    with_inbox(store, use)


def _show_group(group: DeadLetterGroup) -> None:
    when = clock_time(group.last_at)
    if group.count > 1:
        when = f"{clock_time(group.first_at)} to {when}"
    say(f"{plural(group.count, 'job')} of kind {group.kind}: {group.code}: {group.message}")
    say(f"  {when}")
    more = f" … and {group.count - SHOWN_IDS} more" if group.count > SHOWN_IDS else ""
    say(f"  {' '.join(group.job_ids[:SHOWN_IDS])}{more}")
    alike = {"--kind": group.kind, "--code": group.code, "--message": group.message}
    say("  postroom replay " + " ".join(f"{option} {_quoted(value)}" for option, value in alike.items()))


def _quoted(text: str) -> str:
    """As a shell takes it, also where it holds what must not reach a terminal."""
    import shlex

    if is_plain(text):
        return shlex.quote(text)
    escaped = text.replace("\\", r"\\").replace("'", r"\'")
    return "$'" + "".join(c if is_plain(c) else rf"\u{ord(c):04x}" for c in escaped) + "'"


def replay(
    job_ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="Jobs that failed or were cancelled.", show_default=False),
    ] = None,
    kind: Annotated[str | None, typer.Option(metavar="K", help="All dead letters of this kind …")] = None,
    code: Annotated[str | None, typer.Option(metavar="C", help="… with this error code …")] = None,
    message: Annotated[
        str | None, typer.Option(metavar="M", help="… and this message, as `dead` shows it.")
    ] = None,
    since: options.Since = None,
    canary: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="So many first, the rest once they succeeded.")
    ] = None,
    per_second: Annotated[float | None, typer.Option(metavar="N", help="At most so many a second.")] = None,
    store: options.Store = None,
    as_json: options.Json = False,
) -> None:
    """Queue failed jobs again: by id, or all that failed alike.

    What succeeded in them is kept and not run again. A job that was cancelled can be replayed by its id.
    """
    by_group = any(option is not None for option in (kind, code, message, since))
    if bool(job_ids) == by_group:
        refuse("say which jobs: either ids, or --kind, --code, --message or --since")
    is_plain = canary is None and per_second is None

    async def use(inbox: Inbox) -> int:
        if job_ids and is_plain:
            for job_id in job_ids:
                await inbox.get(job_id)  # all ids are known before the first is replayed
            for job_id in job_ids:
                await inbox.replay(job_id)
            return len(job_ids)
        return await inbox.replay_dead(
            job_ids or (),
            kind=kind,
            code=code,
            message=message,
            since=options.ago(since),
            canary=canary,
            per_second=per_second,
        )

    count = with_inbox(store, use)
    if as_json:
        show_json({"replayed": count})
    elif is_plain or not count:
        say(f"replayed {plural(count, 'job')}" if count else "no dead letters match")
    else:
        say(f"accepted {plural(count, 'job')} for replay; a running service or worker carries it on")
