"""Writes the pages of docs/reference that can be computed from the code. A test fails where they lag.

    .venv/bin/python docs/generate.py            write them
    .venv/bin/python docs/generate.py --check    write nothing, name those that lag, end with 1

`pages()` maps a path below docs/ to its text.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

import postroom
from postroom import errors, lifecycle, model, views
from postroom.policy import JITTER_HIGH, JITTER_LOW, Policy, backoff

DOCS = Path(__file__).resolve().parent
MADE = "<!-- Made by docs/generate.py from the code. Change the code's docstrings, then run it. -->\n"


def pages() -> dict[str, str]:
    """Every computed page: path below docs/ -> text."""
    return {
        "reference/errors.md": errors_page(),
        "reference/events.md": events_page(),
        "reference/states.md": states_page(),
        "reference/states.svg": states_svg(),
        "reference/python.md": python_page(),
        "reference/cli.md": cli_page(),
        "reference/settings.md": settings_page(),
    }


# ---------------------------------------------------------------- what the code says of itself


def first_paragraph(text: str | None) -> str:
    return " ".join((text or "").strip().split("\n\n")[0].split())


def attribute_docs(cls: type) -> dict[str, str]:
    """The string below each assignment in the body of a class (which Python itself does not keep)."""
    module = ast.parse(Path(inspect.getsourcefile(cls) or "").read_text(encoding="utf-8"))
    (body,) = [n.body for n in ast.walk(module) if isinstance(n, ast.ClassDef) and n.name == cls.__name__]
    found = {}
    for node, after in pairwise(body):
        is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and is_text:
            found[node.targets[0].id] = first_paragraph(after.value.value)  # type: ignore[attr-defined]
    return found


def code_spans(text: str) -> str:
    """``double`` ticks of docstrings as `single` ones; roles and stars of reStructuredText are not used in ours."""
    return text.replace("``", "`")


def cell(text: str) -> str:
    return code_spans(text).replace("|", "\\|")


# ---------------------------------------------------------------- errors

TREE_LINE = re.compile(r"^[│├└─ ]*(?P<name>[A-Z]\w+)(?:\s+(?P<status>[\d/]+)\b)?(?:\s+(?P<says>.*))?$")


def error_tree() -> tuple[str, dict[str, str]]:
    """The tree at the head of errors.py as it stands there, and name -> HTTP status."""
    text = inspect.getdoc(errors) or ""
    drawn = text.split("::\n", 1)[1]
    lines = [line.removeprefix("    ") for line in drawn.splitlines() if line.startswith("    ") or not line]
    statuses = {}
    for line in lines:
        match = TREE_LINE.match(line)
        if match:
            statuses[match["name"]] = match["status"] or ""
    return "\n".join(lines).strip(), statuses


def all_errors() -> list[type[BaseException]]:
    found = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, BaseException)]
    return sorted(found, key=lambda e: e.__name__)


ERROR_CODES = {
    "permanent": "The handler raised `PermanentError` without a code of its own.",
    "timeout": "The run took longer than `timeout_seconds`.",
    "stalled": "The run made no progress for `stall_timeout_seconds`.",
    "worker_lost": "The crash budget is spent: the worker was lost too often. `detail` names the last worker.",
    "items_failed": "More items failed for good than `allow_failed_items` allows. Only jobs of items have it.",
    "expired": "The job had not started before `expires_at`. It is the `reason` of a cancelled job, not an error.",
    "content_refused": "The model's provider refused the content. Permanent; of the shipped kinds.",
    "invalid_answer": "The model did not choose among what was asked for; its text is in `detail`. Permanent; of the "
    "shipped kinds.",
    "invalid_params": "The job's `params` do not fit its kind. Permanent; of the shipped kinds.",
    "model_400": "The model's provider refused the request: `model_` and its status. Permanent; of the shipped kinds.",
    "no_text": "There is no text to work on. Permanent; of the shipped kinds.",
    "not_in_text": "What was extracted does not stand in the text. Permanent; of the shipped kinds.",
    "schema_mismatch": "The model's answer does not fit the schema; its text is in `detail`. Permanent; of the shipped "
    "kinds.",
    "too_large": "A result, checkpoint or output is over its size limit. Permanent.",
    "limit_unenforceable": "The job sets a time limit, and its handler is a plain function that no child can find. "
    "Permanent.",
    "outcome_refused": "The service refused what the worker reported as the run's end; the message says why.",
    "unknown": "A worker reported a failure without an error.",
    "undecodable": "What is stored for the job or one of its items cannot be read as JSON. Permanent.",
    "not_serialisable": "The handler returned something that is no JSON value (NaN too). Permanent.",
}


def errors_page() -> str:
    from postroom.api.problems import rows as table

    tree, _ = error_tree()
    statuses = {name: f"{status} | `{kind}`" for name, status, kind in table()}
    rows = [
        f"| `{e.__name__}` | {statuses.get(e.__name__, '– | –')} | {cell(first_paragraph(e.__doc__))} |"
        for e in all_errors()
    ]
    codes = [f"| `{code}` | {says} |" for code, says in sorted(ERROR_CODES.items())]
    return f"""{MADE}
# Errors

What Postroom raises, what the HTTP service answers, and what stands in a job's `error`.

## The tree

The numbers are the HTTP statuses.

```text
{tree}
```

All of them are in `postroom.errors`; those that callers and handlers meet are also names of `postroom` itself (see
[Python](python.md)). A message says what was asked, what was found and what to do. It carries ids, never contents or
keys.

## Each of them

| exception | HTTP status | `type` of the problem | says |
|---|---|---|---|
{chr(10).join(rows)}

`DraftInvalid` has `problems`: a list of `Problem(path, message)`, one per wrong field. Over HTTP they are the `errors`
of the problem document.

## Over HTTP

Every error is a problem document (RFC 9457, `application/problem+json`) with `type`, `title`, `status`, `detail`, and
what helps: `errors` with a path per field, `limit` and `size`, `job_id`, `state`. Two errors with the same status have
different types. What is plain HTTP (an unknown address, a wrong method) has the type `about:blank`. 503 and 507 come
with `Retry-After`. See [HTTP](http.md).

## Codes in a job's error

A failed job's `error` is `{{"code", "message", "detail", "epoch", "attempt"}}`. `last_error` has the same shape and is
the latest one, also while the job is retried. The code of a plain exception is the name of its class (`ValueError`,
`TimeoutError`); `PermanentError(message, code=...)` chooses its own. These codes are Postroom's:

| code | means |
|---|---|
{chr(10).join(codes)}

Dead letters are grouped by kind, code and the first 80 characters of the message, with ids and numbers masked. See
[Read and replay dead letters](../how-to/read-and-replay-dead-letters.md).
"""


# ---------------------------------------------------------------- events

AT = 1_767_225_600.0  # 2026-01-01T00:00:00Z
JOB_ID = "019b7600d4007abc8123456789abcdef"
WORKER = "worker-1"


def example_lines() -> list[dict[str, Any]]:
    """The journal of one job that meets nearly everything, decided by the state machine itself."""
    draft = model.Draft(
        JOB_ID, "classify", model.Payload('["a","b","c"]'), total=3, has_items=True, sender="email"
    )
    lines: list[model.Line] = []
    policy = Policy(max_attempts=2)
    now = AT

    def take(change: Any) -> model.Job:
        lines.extend(change.lines)
        return change.job  # type: ignore[no-any-return]

    def kept(key: str, value: str) -> model.Checkpoint:
        return model.Checkpoint(model.CheckpointKind.ITEM, key, value=value)

    def failed(key: str) -> model.Checkpoint:
        text = json.dumps({"code": "not_text", "message": "only text can be sorted"})
        return model.Checkpoint(model.CheckpointKind.ITEM, key, error=text)

    job = take(lifecycle.submit(draft, now))

    def run(*steps: Any) -> None:
        nonlocal job, now
        now += 2
        job = take(lifecycle.claim(job, WORKER, 60.0, max(now, job.run_at)))
        now = max(now, job.updated_at)
        for step in steps:
            now += 1
            job = take(lifecycle.decide(job, step(job), lifecycle.Facts(now, policy)))

    out = model.OutcomeKind
    run(
        lambda j: model.Beat(JOB_ID, j.epoch, checkpoints=(kept("0", '"billing"'),), output=('{"seen":1}',)),
        lambda j: model.Outcome(JOB_ID, j.epoch, out.RELEASED, reason="worker drains"),
    )
    run(
        lambda j: model.Outcome(JOB_ID, j.epoch, out.HELD, after_seconds=30, reason="429 from the provider"),
    )
    run(lambda j: model.Rescue(JOB_ID, j.epoch, "signal 9", is_proven=True))
    run(
        lambda j: model.Outcome(
            JOB_ID,
            j.epoch,
            out.FAILED,
            checkpoints=(kept("1", '"login"'),),
            error=model.ErrorInfo("TimeoutError", "the model did not answer"),
        ),
    )
    run(
        lambda j: model.Outcome(
            JOB_ID,
            j.epoch,
            out.FAILED,
            checkpoints=(failed("2"),),
            error=model.ErrorInfo("items_failed", "1 of 3 items failed for good"),
        ),
    )
    now += 60
    job = take(lifecycle.decide(job, model.Replay(JOB_ID, "ann"), lifecycle.Facts(now, policy)))
    run(
        lambda j: model.Cancel(JOB_ID, "not needed any more", "ann"),
        lambda j: model.Outcome(JOB_ID, j.epoch, out.SUCCEEDED, checkpoints=(kept("2", '"shipping"'),)),
    )
    shown = [views.line_to_json(line) for line in lines]
    for line in shown:
        line["data"] = {name: value for name, value in line["data"].items() if name not in ("row", "seal")}
    return shown


def events_page() -> str:
    docs = attribute_docs(model.Event)
    lines = example_lines()
    rows = []
    for event in model.Event:
        example = next((line for line in lines if line["event"] == event), None)
        data = ", ".join(f"`{name}`" for name in example["data"]) if example else ""
        rows.append(f"| `{event}` | {cell(docs[event.name])} | {data} |")
    journal = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
    return f"""{MADE}
# Events

Every change of a job appends a line to its journal, in the same transaction. The journal is what
`GET /jobs/{{id}}/events` streams, what `postroom follow` and `Inbox.follow` give, and what `postroom verify` replays.

A line is `{{"n", "at", "event", "from", "to", "epoch", "attempt", "life", "actor", "reason", "data"}}`. `n` counts from
0 without gaps per job. `from` is null on `submitted`. `epoch` is the current one, `attempt` the count after the change.
`at` never falls within a job. `actor` is who caused it: the owner, a worker, or the sweep.

| event | means | in `data` (as far as the example below shows it) |
|---|---|---|
{chr(10).join(rows)}

Lines also carry `seal`, and those that end a run `row`: short digests by which `postroom verify` finds a row or a line
that other hands changed. The edges that the events belong to are on the page [States](states.md).

## The journal of one eventful job

Three items, `max_attempts` 2. Its worker drains, the provider refuses for 30 seconds, the next worker is killed, an
error is retried, an item fails for good, a person replays, asks for a cancel, and the success that is committed first
wins. Attempts are charged for errors only.

```text
{journal}
```
"""


# ---------------------------------------------------------------- states

START = "start"

VERBS = {
    "submit": "A caller posts the job. It is due now, or at `run_at`.",
    "claim": "A worker takes it: it is due, the worker knows its kind, a slot is free. Epoch + 1, attempts + 1.",
    "cancel": "Queued: ended at once. Running: the job is asked to stop and goes on running until its run ends.",
    "expire": "It had not started before `expires_at`.",
    "heartbeat": "Extends the lease; keeps progress, checkpoints and output; learns of a cancel.",
    "succeed": "The run ended well. Of a job of items: all items ended. Too many failed ones lead to `failed`.",
    "error": "An attempt that counts. Again after the backoff, or `failed` when attempts are spent or the error is "
    "permanent. `cancelled` if that was asked for. `succeeded` where the last attempt ended all items and few enough "
    "of them failed. A run past a time limit is this too.",
    "hold": "Something it needs is not to be had: it waits, uncharged.",
    "release": "Its worker drains and gives it back, due at once, uncharged.",
    "crash": "Its worker is gone: again after a backoff, or `failed` (`worker_lost`) when the crash budget is spent.",
    "confirm": "The worker confirms a cancel: nothing of the run is left.",
    "replay": "A person queues it again: life + 1, attempts and crashes 0, what succeeded is kept.",
}


def edges() -> dict[tuple[str, str], list[str]]:
    """(from, to) -> verbs, in the order of the table."""
    found: dict[tuple[str, str], list[str]] = {}
    for (before, verb), afters in lifecycle.TRANSITIONS.items():
        for after in sorted(afters, key=list(model.State).index):
            found.setdefault((str(before) if before else START, str(after)), []).append(verb)
    return found


PLACES = {
    START: (40, 230),
    "queued": (215, 230),
    "running": (545, 230),
    "succeeded": (865, 340),
    "failed": (865, 120),
    "cancelled": (380, 430),
}
BENDS = {  # how far an arrow bows out to its left, in the direction that it points
    ("queued", "running"): 45,
    ("running", "queued"): 45,
    ("failed", "queued"): -110,
    ("queued", "cancelled"): 10,
    ("cancelled", "queued"): 90,
    ("running", "cancelled"): 20,
}
BOX = (58, 22)  # half a box's width and height


def states_svg() -> str:
    """The diagram: five boxes at fixed places, and an arrow for every edge of the table, whatever it holds."""
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 480" role="img" '
        'font-family="system-ui, sans-serif" font-size="13">',
        "<!-- Made by docs/generate.py from lifecycle.TRANSITIONS. -->",
        "<title>The states of a job</title>",
        "<defs><marker id='arrow' viewBox='0 0 10 10' refX='9' refY='5' markerWidth='8' markerHeight='8' "
        "orient='auto-start-reverse'><path d='M0 0 L10 5 L0 10 z' fill='#555'/></marker></defs>",
        '<rect width="960" height="480" fill="#ffffff"/>',
    ]
    for (before, after), verbs in edges().items():
        parts.append(_loop(after, verbs) if before == after else _arrow(before, after, verbs))
    x, y = PLACES[START]
    parts.append(f'<circle cx="{x}" cy="{y}" r="8" fill="#555"/>')
    parts += [_box(str(state)) for state in model.State]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _box(state: str) -> str:
    x, y = PLACES[state]
    w, h = BOX
    is_final = model.State(state).is_final
    fill = {"succeeded": "#e3f4e6", "failed": "#fbe4e2", "cancelled": "#eeeeee"}.get(state, "#e4eefb")
    return (
        f'<rect x="{x - w}" y="{y - h}" width="{2 * w}" height="{2 * h}" rx="8" fill="{fill}" stroke="#333" '
        f'stroke-width="{2.5 if is_final else 1.2}"/>'
        f'<text x="{x}" y="{y + 5}" text-anchor="middle" font-weight="600" font-size="15">{state}</text>'
    )


def _arrow(before: str, after: str, verbs: list[str]) -> str:
    x1, y1 = PLACES[before]
    x2, y2 = PLACES[after]
    length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
    bend = BENDS.get((before, after), 0) * 2
    cx = (x1 + x2) / 2 + (y2 - y1) / length * bend
    cy = (y1 + y2) / 2 - (x2 - x1) / length * bend
    sx, sy = _rim(before, cx, cy)
    ex, ey = _rim(after, cx, cy)
    mx, my = 0.25 * sx + 0.5 * cx + 0.25 * ex, 0.25 * sy + 0.5 * cy + 0.25 * ey
    path = f"M{sx:.0f} {sy:.0f} Q{cx:.0f} {cy:.0f} {ex:.0f} {ey:.0f}"
    return f'<path d="{path}" fill="none" stroke="#555" marker-end="url(#arrow)"/>' + _label(mx, my, verbs)


def _rim(state: str, towards_x: float, towards_y: float) -> tuple[float, float]:
    """Where a line from the middle of a box to a point leaves the box."""
    x, y = PLACES[state]
    w, h = (10, 10) if state == START else (BOX[0] + 3, BOX[1] + 3)
    dx, dy = towards_x - x, towards_y - y
    scale = min(w / abs(dx) if dx else 1e9, h / abs(dy) if dy else 1e9)
    return x + dx * scale, y + dy * scale


def _loop(state: str, verbs: list[str]) -> str:
    x, y = PLACES[state]
    top = y - BOX[1] - 3
    path = f"M{x - 20} {top} C{x - 45} {top - 55} {x + 45} {top - 55} {x + 20} {top}"
    return f'<path d="{path}" fill="none" stroke="#555" marker-end="url(#arrow)"/>' + _label(
        x, top - 50, verbs
    )


def _label(x: float, y: float, verbs: list[str]) -> str:
    lines = [", ".join(verbs[i : i + 2]) for i in range(0, len(verbs), 2)]
    first = y - 8 * (len(lines) - 1)
    width = max(len(line) for line in lines) * 6.6 + 8
    back = (
        f'<rect x="{x - width / 2:.0f}" y="{first - 10:.0f}" width="{width:.0f}" height="{16 * len(lines) + 3}" '
        'fill="#ffffff" opacity="0.9"/>'
    )
    texts = "".join(
        f'<text x="{x:.0f}" y="{first + 16 * i + 3:.0f}" text-anchor="middle" fill="#222">{escape(line)}</text>'
        for i, line in enumerate(lines)
    )
    return back + texts


def states_page() -> str:
    docs = attribute_docs(model.State)
    states = [f"| `{s}` | {cell(docs[s.name])} | {'yes' if s.is_final else 'no'} |" for s in model.State]
    table = []
    for (before, verb), afters in lifecycle.TRANSITIONS.items():
        to = ", ".join(f"`{after}`" for after in sorted(afters, key=list(model.State).index))
        table.append(f"| {f'`{before}`' if before else '–'} | {verb} | {to} | {cell(VERBS[verb])} |")
    outcomes = ", ".join(f"`{kind}`" for kind in model.OutcomeKind)
    policy = Policy()
    crashes = (
        f"{policy.max_crashes} in a row without a new checkpoint, {policy.max_crashes_total} in one life"
    )
    waits = ", ".join(f"{backoff(count, policy):g}" for count in (1, 2, 3))
    return f"""{MADE}
# States

![The states of a job](states.svg)

| state | means | final |
|---|---|---|
{chr(10).join(states)}

A final state is left by a replay only, and `succeeded` not even by that. A delay, a retry and a hold are `queued` with
a `run_at` in the future, and a `reason`; `waiting_for` says which.

## Every transition

What is not in this table does not happen: a verb that leads nowhere is refused (`TransitionRefused`, HTTP 409) and
changes nothing.

| from | verb | to | what it is |
|---|---|---|---|
{chr(10).join(table)}

`heartbeat`, `succeed`, `error`, `hold`, `release`, `confirm` and a reported crash are the worker's. Each names the
epoch of its lease; one with an old epoch changes nothing and is told `lease_lost`. What a worker may report as the
outcome of a run: {outcomes}.

## What is counted

| a run that ended by | counts in | budget |
|---|---|---|
| an error, a time limit | `attempts` | `max_attempts` ({policy.max_attempts} unless the job or its handler says) |
| a lost worker | `crashes`, `crashes_in_row` | {crashes} |
| a drain | `interruptions` | none |
| a hold | `holds` | none |

[Four budgets](../explanation/four-budgets.md) says why. Retries wait {waits} … seconds
(`POSTROOM_BACKOFF_BASE_SECONDS`, at most `POSTROOM_BACKOFF_CAP_SECONDS`), each times a number between {JITTER_LOW} and
{JITTER_HIGH}, so that jobs that failed together spread out. A crash waits in the same way, by `crashes_in_row`.
"""


# ---------------------------------------------------------------- Python

INBOX_ORDER = """handler worker submit submit_many get find items result wait follow cancel replay dead_letters
replay_dead stats workers close""".split()
VALUES = {
    "JobView": "What `submit`, `get`, `wait`, `find`, `cancel` and `replay` give. The same names as in the JSON of "
    "`GET /jobs/{id}`; times are aware datetimes in UTC. `is_final` is True once the job ended.",
    "ItemView": "",
    "WaitingFor": "",
    "JobPage": "",
}


INNER = frozenset({"adopt", "draft", "is_open", "usage_text"})
"""Public for other rooms of ours, and no part of what users may rely on."""


def public_members(cls: type) -> list[tuple[str, Any]]:
    found = [
        (name, value)
        for name, value in vars(cls).items()
        if not name.startswith("_")
        and name not in INNER
        and (callable(value) or isinstance(value, property | classmethod))
    ]
    order = {name: place for place, name in enumerate(INBOX_ORDER)}
    return sorted(found, key=lambda pair: order.get(pair[0], 99)) if cls.__name__ == "Inbox" else found


def signature_of(name: str, function: Callable[..., Any]) -> str:
    signature = inspect.signature(function)
    kept = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
    shown = []
    star = False
    for p in kept:
        if p.kind is p.KEYWORD_ONLY and not star:
            if not any(q.kind is q.VAR_POSITIONAL for q in kept):
                shown.append("*")
            star = True
        prefix = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        default = "" if p.default is p.empty else f"={p.default!r}"
        shown.append(f"{prefix}{p.name}{default}")
    return f"{name}({', '.join(shown)})"


def prose(text: str | None, *, heading: str = "") -> str:
    """A Google-style docstring as Markdown: sections become lists."""
    lines = code_spans(inspect.cleandoc(text or "")).splitlines()
    out: list[str] = []
    section = False
    for line in lines:
        match = re.match(r"^(Args|Raises|Returns|Attributes|Source|Yields):$", line)
        bare = line.strip()
        if match:
            section = True
            out += ["", f"{match[1] if match[1] != 'Args' else 'Arguments'}:", ""]
        elif section and not bare:
            section = False
            out.append("")
        elif section and re.match(r"^ {4}\S", line):
            name, colon, says = bare.partition(": ")
            is_name = colon and re.fullmatch(r"[\w, ]+", name)
            out.append(f"- `{name}`: {says}" if is_name else f"- {_names(bare)}")
        elif section:
            out.append(f"  {bare}")
        else:
            out.append(bare if not heading else line)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(out)).strip()


def _names(text: str) -> str:
    return f"`{text}`" if re.fullmatch(r"\w+(, \w+)*", text) else text


def class_section(cls: type, title: str, level: str = "##") -> Iterator[str]:
    yield f"{level} {title}\n\n{prose(cls.__doc__)}"
    plain = [
        name for name, value in public_members(cls) if isinstance(value, property) and not value.fget.__doc__
    ]
    if plain:
        names = ", ".join(f"`{title.lower()}.{name}`" for name in plain)
        yield f"{names}: as submitted."
    for name, value in public_members(cls):
        function = getattr(cls, name) if not isinstance(value, property) else value.fget
        if not inspect.getdoc(function):
            continue
        called = title.split("(")[0].lower()
        if isinstance(value, property):
            yield f"{level}# `{called}.{name}`\n\n{prose(inspect.getdoc(function))}"
            continue
        awaited = "await " if inspect.iscoroutinefunction(function) else ""
        awaited = "async for … in " if inspect.isasyncgenfunction(function) else awaited
        owner = title if isinstance(value, classmethod) else called
        yield f"{level}# `{awaited}{owner}.{signature_of(name, function)}`\n\n{prose(inspect.getdoc(function))}"


def fields_table(cls: type) -> str:
    if is_dataclass(cls):
        typed = {f.name: f.type for f in fields(cls)}
    elif issubclass(cls, tuple):
        typed = {name: reference.__forward_arg__ for name, reference in cls.__annotations__.items()}
    else:
        return ""
    rows = [f"| `{name}` | `{str(kind).replace('|', chr(92) + '|')}` |" for name, kind in typed.items()]
    return "\n".join(["| name | type |", "|---|---|", *rows])


def constructor(cls: type) -> str:
    return f"`{signature_of(cls.__name__, cls.__init__)}`"  # type: ignore[misc]


def python_page() -> str:
    from postroom.client import Client
    from postroom.inbox import Inbox
    from postroom.settings import Settings
    from postroom.worker.context import Run

    parts = [
        MADE,
        "# Python\n\nThe names that `postroom` exports. All else may change without notice. Submitting and looking is "
        "asynchronous; `Client` is the one synchronous object. Settings are on the page [Settings](settings.md), "
        "errors on the page [Errors](errors.md).",
    ]
    parts.append("```text\n" + "\n".join(f"postroom.{name}" for name in postroom.__all__) + "\n```")
    parts += class_section(Inbox, "Inbox")
    parts[-len(list(class_section(Inbox, "Inbox")))] += f"\n\n{constructor(Inbox)}"
    run = list(class_section(Run, "Run"))
    parts += run
    client = list(class_section(Client, "Client"))
    client[0] += f"\n\n{constructor(Client)}"
    parts += client
    parts.append("## Values\n\nWhat the verbs give. None of them can be changed.")
    for name, says in VALUES.items():
        cls = getattr(views, name)
        parts.append(f"### {name}\n\n{says or prose(cls.__doc__)}\n\n{fields_table(cls)}")
    parts += list(_more_values())
    parts.append(
        f"## Settings\n\n{prose(Settings.__doc__)} Each is described on the page [Settings](settings.md)."
    )
    for enum in (model.State, model.Priority):
        names = ", ".join(f"`{value}`" for value in enum)
        parts.append(f"## {enum.__name__}\n\n{prose(enum.__doc__)} Values: {names}.")
    return "\n\n".join(parts) + "\n"


def _more_values() -> Iterator[str]:
    from postroom.stores.port import DeadLetterGroup, Stats
    from postroom.verbs import Receipt, WorkerView

    for cls in (Receipt, model.Line, DeadLetterGroup, Stats, WorkerView):
        yield f"### {cls.__name__}\n\n{prose(cls.__doc__)}\n\n{fields_table(cls)}"


# ---------------------------------------------------------------- settings

SECTIONS = {
    "Where": "store host port key app",
    "Leases and rescue": "lease_seconds heartbeat_seconds poll_seconds rescue_seconds drain_seconds",
    "Budgets and limits": "max_attempts max_crashes max_crashes_total backoff_base_seconds backoff_cap_seconds "
    "stall_timeout_seconds max_body_bytes max_item_bytes max_result_bytes",
    "Order and concurrency": "concurrency overtake_seconds fair_by",
    "Retention": "retain_succeeded_days retain_failed_days",
    "Models": "model model_url model_key model_connect_timeout_seconds model_read_timeout_seconds "
    "model_idle_timeout_seconds model_dir",
}


def settings_page() -> str:
    from postroom.settings import PREFIX, SETTING_FIELDS

    known = {f.name: f for f in SETTING_FIELDS}
    placed = [name for names in SECTIONS.values() for name in names.split()]
    sections = {**SECTIONS, "More": " ".join(name for name in known if name not in placed)}
    parts = []
    for title, names in sections.items():
        rows = [_setting_row(PREFIX + name.upper(), known[name]) for name in names.split()]
        if rows:
            parts.append(
                f"## {title}\n\n| setting | default | allowed | |\n|---|---|---|---|\n" + "\n".join(rows)
            )
    return f"""{MADE}
# Settings

Each is read once, from the first place that has it: a flag of the command, then the environment (`{PREFIX}…`), then
`postroom.toml` in the working directory (the same names in lower case, without the prefix), then the default.
`postroom doctor` prints each with where it came from; secrets are masked. A name that does not exist is a warning with
the nearest one; a value that cannot be used is an error that names setting, value and source.

```toml
store = "sqlite:////srv/postroom/postroom.db"
lease_seconds = 30
```

Durations are seconds and may be fractions; sizes are bytes.

{(chr(10) * 2).join(parts)}
"""


def _setting_row(name: str, setting: Any) -> str:
    told = setting.metadata
    default = "–" if setting.default is None else f"`{_number(setting.default)}`"
    low, high = told["low"], told["high"]
    allowed = ", ".join(f"`{choice}`" for choice in told["choices"])
    if low is not None or high is not None:
        bounds = [f"from {_number(low)}"] if low is not None else []
        allowed = " ".join([*bounds, *([f"to {_number(high)}"] if high is not None else [])])
    secret = " Secret." if told["secret"] else ""
    return f"| `{name}` | {default} | {allowed} | {cell(told['help'])}{secret} |"


def _number(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value == int(value) else str(value)


# ---------------------------------------------------------------- command line


def cli_page() -> str:
    from typer.main import get_command

    from postroom.cli.commands import CODES, app

    command: Any = get_command(app)
    parts = []
    for name, each in command.commands.items():
        if hasattr(each, "commands"):
            parts += [_command(f"postroom {name} {inner}", deeper) for inner, deeper in each.commands.items()]
        else:
            parts.append(_command(f"postroom {name}", each))
    first = "\n".join(
        f"| [`{title}`](#{title.replace(' ', '-')}) | {cell(first_paragraph(text).split('. ')[0].rstrip('.'))}. |"
        for title, text in (
            (part.split("\n")[0].removeprefix("## "), part.split("\n\n")[1]) for part in parts
        )
    )
    return f"""{MADE}
# Command line

In a clone of the repository `python3 run.py COMMAND` and `.venv/bin/postroom COMMAND` are the same. Every command has
`--help`; every reading one has `--json`.

{CODES.removesuffix(".")}.

`--store` (or [`POSTROOM_STORE`](settings.md)) says which inbox: a file of this machine, or `http://…` of a service.
Long work shows a progress bar on a terminal and plain lines elsewhere. What is meant for programs goes to stdout, all
else to stderr.

| command | |
|---|---|
{first}

{(chr(10) * 2).join(parts)}
"""


def _command(title: str, command: Any) -> str:
    parts = [f"## {title}", prose(command.help)]
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [
        p for p in command.params if p.param_type_name == "option" and not p.hidden and p.name != "help"
    ]
    usage = " ".join(
        [title, *(["[OPTIONS]"] if options else []), *(p.metavar or p.name.upper() for p in arguments)]
    )
    parts.append(f"```text\n{usage}\n```")
    if command.params:
        rows = [f"| `{p.metavar or p.name}` | {cell(p.help or '')} |" for p in arguments]
        rows += [_option_row(p) for p in options]
        parts.append("| | |\n|---|---|\n" + "\n".join(rows))
    if command.epilog:
        parts.append(_epilog(command.epilog))
    return "\n\n".join(parts)


def _option_row(option: Any) -> str:
    names = " / ".join([*option.opts, *option.secondary_opts])
    value = f" {option.metavar}" if option.metavar and not option.is_flag else ""
    default = option.show_default if isinstance(option.show_default, str) else option.default
    shown = "" if default is None or isinstance(default, bool) else f" Default: {default}."
    return f"| `{names}{value}` | {cell(option.help or '')}{cell(shown)} |"


def _epilog(text: str) -> str:
    """Examples as a block, sentences as they are."""
    lines = [line for line in inspect.cleandoc(text).splitlines() if line.strip() != "\b"]
    examples = [line.strip() for line in lines if line.startswith("  ") and line.strip()]
    if examples:
        said = "\n".join(line for line in lines if not line.startswith("  ") and line != "Examples:").strip()
        return "```text\n" + "\n".join(examples) + "\n```" + (f"\n\n{code_spans(said)}" if said else "")
    example = re.match(r"Example: ([^\n]+)", lines[0])
    if example is None:
        return code_spans(text)
    rest_text = "\n".join(lines[1:]).strip()
    return f"```text\n{example[1].strip()}\n```" + (f"\n\n{code_spans(rest_text)}" if rest_text else "")


# ---------------------------------------------------------------- the command


def stale() -> list[str]:
    """Paths of the committed pages that lag the code."""
    found = []
    for path, text in pages().items():
        file = DOCS / path
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            found.append(path)
    return found


def main(arguments: list[str]) -> int:
    behind = stale()
    if "--check" in arguments:
        for path in behind:
            sys.stdout.write(f"docs/{path} lags the code: run .venv/bin/python docs/generate.py\n")
        return 1 if behind else 0
    for path, text in pages().items():
        if path in behind:
            (DOCS / path).write_text(text, encoding="utf-8")
            sys.stdout.write(f"wrote docs/{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
