"""`postroom submit`: post one job, and wait for it if asked."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroom.cli import options
from postroom.cli.failures import Ended, refuse
from postroom.cli.output import say, show_json, tell
from postroom.cli.running import with_inbox

if TYPE_CHECKING:
    from postroom.inbox import Inbox

EPILOG = """Examples:

\b
  postroom submit summarize --content "$(cat letter.txt)" --wait
  postroom submit classify --items tickets.txt --params '{"labels": ["billing", "login"]}'
  jq -c .[] mails.json | postroom submit reply --items - --sender email --priority high
"""


def register(app: typer.Typer) -> None:
    options.add(
        app, submit, "submit", "Post a job.", EPILOG, 5, c1="with --wait: the job failed or was cancelled"
    )


def submit(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="What sort of work: picks the handler.", show_default=False)
    ],
    content: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What to work on; - reads it from stdin.")
    ] = None,
    items: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Many things to work on, one a line: text, or JSON where every line is a JSON object, array or "
            "string. A .json file holds one array. - is stdin.",
        ),
    ] = None,
    item_keys: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Names for the items, one a line (or K,K,…); numbered otherwise."),
    ] = None,
    params: Annotated[
        str | None, typer.Option(metavar="JSON", help='Options for the handler: \'{"labels": ["a", "b"]}\'.')
    ] = None,
    metadata: Annotated[
        str | None, typer.Option(metavar="JSON", help="Your own notes, kept with the job.")
    ] = None,
    priority: Annotated[
        str | None, typer.Option(metavar="P", help="high, normal or low.", show_default="normal")
    ] = None,
    sender: Annotated[str | None, typer.Option(metavar="NAME", help="Where the job comes from.")] = None,
    topic: Annotated[
        str | None, typer.Option(metavar="NAME", help="A label to filter by; may shape a prompt.")
    ] = None,
    queue: Annotated[
        str | None, typer.Option(metavar="Q", help="Which workers see it.", show_default="default")
    ] = None,
    run_at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Not before: 10m, 2h, or 2026-01-31T08:00:00Z.")
    ] = None,
    expires_at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Cancel it if it has not started by then.")
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option(metavar="N", help="Attempts before it is a dead letter.")
    ] = None,
    timeout_seconds: Annotated[
        float | None, typer.Option(metavar="S", help="How long a run may take.")
    ] = None,
    stall_timeout_seconds: Annotated[
        float | None, typer.Option(metavar="S", help="How long a run may show no progress.")
    ] = None,
    allow_failed_items: Annotated[
        float | None, typer.Option(metavar="N", help="How many items may fail for good; a share if below 1.")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="The same key and job again give the first job again.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end and print the result.")] = False,
    timeout: options.Timeout = None,
    store: options.Store = None,
    as_json: options.Json = False,
) -> None:
    """Post a job and print its id.

    Without --content and --items the content is read from stdin. With --wait, prints the result once the job succeeded,
    or its error.
    """
    if timeout is not None and not wait:
        refuse("--timeout goes with --wait")
    fields: dict[str, Any] = {"kind": kind, **_work(content, items, item_keys)}
    for name, text in (("params", params), ("metadata", metadata)):
        if text is not None:
            fields[name] = _object(f"--{name}", text)
    plain = {
        "priority": priority,
        "sender": sender,
        "topic": topic,
        "queue": queue,
        "max_attempts": max_attempts,
    }
    numbers = {
        "timeout_seconds": timeout_seconds,
        "stall_timeout_seconds": stall_timeout_seconds,
        "allow_failed_items": allow_failed_items,
        "idempotency_key": idempotency_key,
        "run_at": options.ahead("--run-at", run_at),
        "expires_at": options.ahead("--expires-at", expires_at),
    }
    fields |= {name: value for name, value in {**plain, **numbers}.items() if value is not None}

    async def use(inbox: Inbox) -> int:
        job = await inbox.submit(**fields)
        if wait:
            from postroom.cli.watch import wait_and_show

            if not as_json:
                tell(f"job {job.job_id}")
            return await wait_and_show(inbox, job.job_id, timeout, as_json=as_json, with_result=True)
        if as_json:
            show_json({"job_id": job.job_id, "state": str(job.state)})
        else:
            say(job.job_id)
            if sys.stdout.isatty():
                tell(f"accepted; see it with: postroom follow {job.job_id}")
        return 0

    code = with_inbox(store, use, makes_store=True)
    if code:
        raise Ended(code)


def _work(content: str | None, items: str | None, item_keys: str | None) -> dict[str, Any]:
    """Content or items as the options say."""
    if content is not None and items is not None:
        refuse("give --content or --items, not both")
    if items is not None:
        work: dict[str, Any] = {"items": _items(items)}
        if item_keys is not None:
            work["item_keys"] = _keys(item_keys)
        return work
    if item_keys is not None:
        refuse("--item-keys goes with --items")
    if content is None and sys.stdin.isatty():
        refuse("give --content TEXT or --items FILE (see: postroom submit --help)")
    if content is None or content == "-":
        content = _read("-", "--content").strip()
        if not content:
            refuse("stdin was empty: give --content TEXT or --items FILE")
    return {"content": content}


def _read(name: str, option: str) -> str:
    try:
        if name == "-":
            return sys.stdin.buffer.read().decode()
        return Path(name).read_text(encoding="utf-8-sig")
    except OSError as error:
        refuse(f"{option}: {name} cannot be read: {error.strerror}")
    except UnicodeDecodeError as error:
        refuse(f"{option}: {'stdin' if name == '-' else name} is not UTF-8 text (byte {error.start})")


def _items(name: str) -> list[Any]:
    text = _read(name, "--items")
    if name.endswith(".json"):
        found = _json(f"--items {name}", text)
        if not isinstance(found, list):
            refuse(f"--items: {name} holds no JSON array")
        return found
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        refuse(f"--items: {'stdin' if name == '-' else name} has no lines")
    if name.endswith((".jsonl", ".ndjson")) or all(line[0] in '{["' for line in lines):
        return [_json(f"--items {name}, line {n}", line) for n, line in enumerate(lines, 1)]
    return lines


def _keys(value: str) -> list[str]:
    if value == "-" or Path(value).is_file():
        return [line.strip() for line in _read(value, "--item-keys").splitlines() if line.strip()]
    return list(options.split(value) or ())


def _object(option: str, text: str) -> dict[str, Any]:
    found = _json(option, text)
    if not isinstance(found, dict):
        refuse(f'{option} takes a JSON object, such as \'{{"labels": ["a", "b"]}}\'')
    return found


def _json(option: str, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        refuse(f"{option}: not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}")
