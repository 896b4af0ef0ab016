"""``report``: many rows or messages on one page.

All numbers are counted, exactly, by this module; the sentences are quotes. With a configured model a paragraph is
written on top, from the counted figures: where it holds a number that was not counted, it is left out.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from postroom.assistant import params
from postroom.assistant.choosing import Models
from postroom.assistant.grounding import numbers_in, readings
from postroom.assistant.models import Run
from postroom.assistant.quoting import quote
from postroom.assistant.text import plain, shorten, text_of
from postroom.assistant.toolbox import MATERIAL, Toolbox, material

MAX_CATEGORIES = 30
"""A column with more different values than this (and than half the rows), or with sentences, is quoted, not counted."""
MAX_QUOTED_CHARS = 60_000


@dataclass(frozen=True)
class Table:
    """Rows as objects; columns in the order of their first appearance."""

    columns: Sequence[str]
    rows: Sequence[Mapping[str, Any]]


async def report(item: Any, run: Run, models: Models) -> dict[str, Any]:
    """``{"text", "rows", "columns", "quotes", "model", "method", "note"}``: Markdown, and the same as data.

    Content: a list of objects or of texts, ``{"columns": [...], "rows": [[...]]}``, ``{"rows": [{...}]}``, or text (CSV
    with a heading is read as a table). Params: ``title``, ``group_by`` (a column), ``sum`` (columns; by default every
    column of numbers), ``text_column`` (what is quoted), ``sentences`` (5), ``method`` (``count``, ``write``).
    """
    asked = params.read("report", run.params, PARAMS)
    table = table_of(item)
    for option in ("group_by", "text_column", "sum"):
        for column in [asked[option]] if isinstance(asked.get(option), str) else asked.get(option, ()):
            if column not in table.columns:
                raise params.invalid(
                    f"param `{option}` of report: there is no column `{shorten(column, 80)}`; "
                    f"there are: {', '.join(table.columns)}"
                )
    columns = {column: _describe(table, column) for column in table.columns}
    tools = Toolbox(models, run)
    quotes, model, note = await _quotes(tools, table, columns, asked)
    counted: dict[str, Any] = {"rows": len(table.rows), "columns": columns}
    if "group_by" in asked:
        counted["groups"] = _groups(table, asked["group_by"], asked.get("sum") or _numeric(columns))
    text = _markdown(counted, asked, quotes)
    method = "count and quote" if quotes else "count"
    if asked.get("method") == "write" or (models.real is not None and asked.get("method") != "count"):
        text, model, note = await _introduced(tools, text, note)
        method = "count and write"
    return {"text": text, **counted, "quotes": quotes, "model": model, "method": method, "note": note}


# ---------------------------------------------------------------- reading


def table_of(item: Any) -> Table:
    """The rows of any of the accepted shapes."""
    if isinstance(item, dict) and isinstance(item.get("rows"), list):
        names = item.get("columns")
        rows = item["rows"]
        if isinstance(names, list) and all(isinstance(row, list) for row in rows):
            rows = [dict(zip((str(name) for name in names), row, strict=False)) for row in rows]
        return _table(rows)
    if isinstance(item, list):
        return _table(item)
    text = text_of(item)
    return _csv(text) or _table([{"text": part} for part in re.split(r"\n\s*\n", text) if part.strip()])


def _table(entries: Sequence[Any]) -> Table:
    rows = [entry if isinstance(entry, dict) else {"text": entry} for entry in entries]
    columns = dict.fromkeys(str(name) for row in rows for name in row)
    return Table(list(columns), [{str(name): value for name, value in row.items()} for row in rows])


def _csv(text: str) -> Table | None:
    """A table only where a heading and every line have the same number of at least two cells."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    if len(lines) < 2:
        return None
    for separator in (",", ";", "\t", "|"):
        try:
            cells = list(csv.reader(io.StringIO("\n".join(lines)), delimiter=separator, strict=True))
        except csv.Error:
            continue
        width = len(cells[0])
        heading = cells[0]
        is_heading = len(set(heading)) == width and all(
            name.strip() and len(name) < 60 and _amount(name) is None for name in heading
        )
        if width >= 2 and is_heading and all(len(row) == width for row in cells):
            return Table(
                [name.strip() for name in heading],
                [dict(zip((n.strip() for n in heading), row, strict=True)) for row in cells[1:]],
            )
    return None


# ---------------------------------------------------------------- counting


def _amount(value: Any) -> Decimal | None:
    """A number, or a text that is one and nothing else (``12``, ``12.50``, ``-3``)."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return Decimal(str(value))
    if isinstance(value, str) and re.fullmatch(r"\s*-?\d+(\.\d+)?\s*", value):
        try:
            return Decimal(value.strip())
        except InvalidOperation:
            return None
    return None


def _plain_number(amount: Decimal) -> int | float:
    return int(amount) if amount == amount.to_integral_value() else float(amount)


def _describe(table: Table, column: str) -> dict[str, Any]:
    """What a column holds: numbers with their sum, values with their counts, or text."""
    values = [row.get(column) for row in table.rows]
    filled = [value for value in values if value not in (None, "")]
    amounts = [amount for amount in map(_amount, filled) if amount is not None]
    base: dict[str, Any] = {"filled": len(filled), "empty": len(values) - len(filled)}
    # Numbers written alike for all rows that hardly repeat are measures; ids and codes are counted like words.
    if filled and len(amounts) == len(filled) and not _looks_like_code(column, filled):
        return {
            **base,
            "type": "number",
            "sum": _plain_number(sum(amounts, Decimal(0))),
            "mean": round(float(sum(amounts, Decimal(0)) / len(amounts)), 4),
            "min": _plain_number(min(amounts)),
            "max": _plain_number(max(amounts)),
        }
    counts = Counter(_shown(value) for value in filled)
    if _is_prose(counts, len(filled)):
        return {**base, "type": "text", "different": len(counts)}
    return {
        **base,
        "type": "values",
        "different": len(counts),
        "counts": dict(counts.most_common(MAX_CATEGORIES)),
    }


def _is_prose(counts: Mapping[str, int], filled: int) -> bool:
    """Many different values, or sentences: nothing that counting would tell."""
    if not filled or len(counts) <= filled / 2:
        return False
    mean_length = sum(map(len, counts)) / len(counts)
    return len(counts) > MAX_CATEGORIES or mean_length > 25


def _looks_like_code(column: str, filled: Sequence[Any]) -> bool:
    name = column.casefold()
    if re.search(r"(^|[_\W])(id|code|status|zip|plz|year|jahr|nr|no|number)$", name):
        return True
    return any(isinstance(value, str) and re.match(r"\s*0\d", value) for value in filled)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _numeric(columns: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [name for name, about in columns.items() if about["type"] == "number"]


def _groups(table: Table, by: str, summed: Sequence[str]) -> dict[str, dict[str, Any]]:
    groups: dict[str, dict[str, Any]] = {}
    totals: dict[tuple[str, str], Decimal] = {}
    for row in table.rows:
        name = _shown(row.get(by)) if row.get(by) not in (None, "") else "(empty)"
        group = groups.setdefault(name, {"rows": 0})
        group["rows"] += 1
        for column in summed:
            totals[name, column] = totals.get((name, column), Decimal(0)) + (
                _amount(row.get(column)) or Decimal(0)
            )
    for (name, column), total in totals.items():
        groups[name].setdefault("sum", {})[column] = _plain_number(total)
    return dict(sorted(groups.items(), key=lambda entry: (-entry[1]["rows"], entry[0])))


# ---------------------------------------------------------------- words


async def _quotes(
    tools: Toolbox, table: Table, columns: Mapping[str, Mapping[str, Any]], asked: Mapping[str, Any]
) -> tuple[list[str], str | None, str | None]:
    column = asked.get("text_column") or next(
        (
            name
            for name, about in columns.items()
            if about["type"] == "text" or name in ("text", "message", "body")
        ),
        None,
    )
    if column is None:
        return [], None, None
    if not tools.models.can_encode:
        return [], None, "no quotes: this worker has no sentence encoder"
    texts = [plain(_shown(row[column])) for row in table.rows if row.get(column) not in (None, "")]
    joined = "\n\n".join(texts)
    found = await quote(tools, joined[:MAX_QUOTED_CHARS], count=asked.get("sentences", 5))
    note = found.note
    if len(joined) > MAX_QUOTED_CHARS:
        note = (
            f"quotes come from the first {MAX_QUOTED_CHARS} characters of `{column}`; everything was counted"
        )
    return found.sentences, tools.models.encoder().name, note


def _markdown(counted: Mapping[str, Any], asked: Mapping[str, Any], quotes: Sequence[str]) -> str:
    lines = [f"# {asked.get('title', 'Report')}", "", f"{counted['rows']} rows."]
    for name, about in counted["columns"].items():
        if about["type"] == "number":
            lines.append(
                f"- **{name}**: sum {about['sum']}, mean {about['mean']}, from {about['min']} to {about['max']} "
                f"({about['filled']} filled)"
            )
        elif about["type"] == "values":
            shown = ", ".join(
                f"{shorten(value, 60)} {count}" for value, count in list(about["counts"].items())[:10]
            )
            more = about["different"] - min(10, len(about["counts"]))
            lines.append(f"- **{name}**: {shown}" + (f" and {more} more values" if more else ""))
        else:
            lines.append(f"- **{name}**: text in {about['filled']} rows")
        if about["empty"]:
            lines[-1] += f"; empty in {about['empty']}"
    if "groups" in counted:
        lines += ["", f"## By {asked['group_by']}", ""]
        for name, group in counted["groups"].items():
            sums = "".join(f", {column} {total}" for column, total in group.get("sum", {}).items())
            lines.append(f"- {shorten(name, 60)}: {group['rows']} rows{sums}")
    if quotes:
        lines += ["", "## In their words", "", *(f"> {sentence}\n" for sentence in quotes)]
    return "\n".join(lines).strip()


async def _introduced(tools: Toolbox, counted: str, note: str | None) -> tuple[str, str, str | None]:
    """The counted page with a written paragraph on top, if every number in that paragraph was counted."""
    tools.require_real("report", "write")
    rules = f"Write a short paragraph: what in this report matters to a busy reader. Use only its figures. {MATERIAL}"
    answer = await tools.ask(
        "report",
        [
            {"role": "system", "content": rules},
            {"role": "user", "content": material(shorten(counted, 24_000))},
        ],
        max_tokens=600,
    )
    known = {reading for token in numbers_in(counted) for reading in readings(token)}
    invented = [token for token in numbers_in(answer.text) if not readings(token) & known]
    if invented:
        return (
            counted,
            answer.model,
            "the model's paragraph was left out: it held numbers that were not counted",
        )
    heading, _, rest = counted.partition("\n")
    return f"{heading}\n\n{answer.text.strip()}\n{rest}", answer.model, note


PARAMS: dict[str, params.Check] = {
    "title": params.text(200),
    "group_by": params.text(200),
    "sum": params.texts(50, 200),
    "text_column": params.text(200),
    "sentences": params.whole(1, 20),
    "method": params.choice("count", "write"),
}
