"""``extract``: the values that a text holds, as JSON that follows the caller's schema.

The model is held to the schema while it writes, what it wrote is checked against the schema, and each text and number
in it is looked up in the text it should come from; `not_in_text` names those that are not there. The embedded model is
held even closer: where the schema asks for a text or a number, it can only write words and numbers of the text. An
answer that does not follow the schema fails as permanent and keeps the raw text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from postroom.assistant import params
from postroom.assistant.choosing import Models
from postroom.assistant.grounding import MAX_UNITS, held_to, merged, not_in_text, recognised, units
from postroom.assistant.models import Answer, Run
from postroom.assistant.quoting import dot
from postroom.assistant.text import chunks, plain, sentences, text_of
from postroom.assistant.toolbox import MATERIAL, Toolbox, aside, material
from postroom.errors import PermanentError

PART_CHARS = 24_000
MAX_PARTS = 6
MAX_SENTENCES = 160
MAX_SCHEMA_CHARS = 20_000


async def extract(item: Any, run: Run, models: Models) -> dict[str, Any]:
    """``{"value", "not_in_text", "model", "method"}``.

    Params: ``schema`` (needed: a JSON schema of an object), ``instruction`` (what to look for, in words), ``grounding``
    (``report`` by default; ``require`` fails as permanent where a value does not stand in the text).
    """
    asked = params.read("extract", run.params, PARAMS)
    if "schema" not in asked:
        raise params.invalid("extract needs the param `schema`: a JSON schema of an object")
    return await by_schema(
        Toolbox(models, run),
        text_of(item),
        asked["schema"],
        instruction=asked.get("instruction"),
        require_grounding=asked.get("grounding") == "require",
    )


async def by_schema(
    tools: Toolbox,
    text: str,
    schema: Mapping[str, Any],
    *,
    instruction: str | None = None,
    require_grounding: bool = False,
) -> dict[str, Any]:
    """The values; see `_parts` for what is read of a long text."""
    tools.models.completer()  # a missing model is a hold before anything else is spent
    parts = await _parts(tools, await aside(plain, text), schema)
    value: Any = None
    model = ""
    for number, part in enumerate(parts):
        found, model = await _one(tools, number, part, schema, instruction)
        value = found if number == 0 else merged(value, found, text)
    missing = list(not_in_text(value, text, schema))
    if missing and require_grounding:
        raise PermanentError(
            f"{len(missing)} of the extracted values do not stand in the text: {', '.join(missing[:10])}",
            code="not_in_text",
            detail={"raw": json.dumps(value, ensure_ascii=False)[:4000], "not_in_text": missing},
        )
    return {"value": value, "not_in_text": missing, "model": model, "method": "schema"}


async def _one(
    tools: Toolbox, number: int, part: str, schema: Mapping[str, Any], instruction: str | None
) -> tuple[Any, str]:
    if tools.models.real is None:
        answer = await _small_answer(tools, part, schema)
    else:
        rules = (
            f"Extract from the text what the JSON schema asks for. Copy values exactly as written. {MATERIAL}"
        )
        messages = [
            {"role": "system", "content": f"{rules} {instruction or ''}"},
            {"role": "user", "content": material(part)},
        ]
        answer = await tools.ask(f"extract-{number}", messages, schema=schema, max_tokens=1500)
    value, problem = checked(answer.text, schema)
    if problem:
        cut = " (its answer was cut at the limit)" if answer.finish_reason == "length" else ""
        raise PermanentError(
            f"{answer.model} did not answer as the schema says: {problem}{cut}",
            code="schema_mismatch",
            detail={"raw": answer.text[:4000], "model": answer.model},
        )
    return value, answer.model


async def _small_answer(tools: Toolbox, part: str, schema: Mapping[str, Any]) -> Answer:
    """The small model, held to the words of the text; where that makes too large a grammar, to the schema alone."""
    messages = [{"role": "user", "content": f"{part}\n\nExtract {', '.join(_fields(schema))} as JSON."}]
    try:
        return await tools.ask("extract-held", messages, schema=held_to(schema, part))
    except PermanentError as refused:
        if refused.code != "model_400":
            raise
    return await tools.ask("extract", messages, schema=schema)


def checked(raw: str, schema: Mapping[str, Any]) -> tuple[Any, str | None]:
    """The parsed answer, and what is wrong with it (without its contents) or None."""
    try:
        value = json.loads(_without_fence(raw))
    except ValueError:
        return None, "it is not JSON"
    error = next(iter(_validator(schema).iter_errors(value)), None)
    if error is None:
        return value, None
    path = "/".join(str(part) for part in error.instance_path)
    return value, f"at /{path} the rule /{'/'.join(str(part) for part in error.schema_path)} is not met"


def _without_fence(raw: str) -> str:
    fenced = re.fullmatch(r"\s*```(?:json)?\s*(.*?)\s*```\s*", raw, re.DOTALL)
    return fenced.group(1) if fenced else raw


def _validator(schema: Mapping[str, Any]) -> Any:
    """Offline (no schema sends us anywhere), with patterns in linear time (no schema can hang a worker)."""
    import jsonschema_rs

    return jsonschema_rs.validator_for(
        dict(schema), offline=True, pattern_options=jsonschema_rs.RegexOptions()
    )


# ---------------------------------------------------------------- long texts


async def _parts(tools: Toolbox, text: str, schema: Mapping[str, Any]) -> list[str]:
    """A configured model reads the text in parts; the small one only the sentences that are nearest to each field."""
    if tools.models.real is None:
        return [await _nearest_sentences(tools, text, schema)]
    parts = await aside(lambda whole: chunks(whole, PART_CHARS), text) or [text]
    if len(parts) > MAX_PARTS:
        parts = [parts[i * len(parts) // MAX_PARTS] for i in range(MAX_PARTS)]
    return parts


async def _nearest_sentences(tools: Toolbox, text: str, schema: Mapping[str, Any]) -> str:
    if len(units(text)) <= MAX_UNITS or not tools.models.can_encode:
        return text
    found = await aside(lambda whole: _worth_reading(sentences(whole), schema), text)
    vectors = await tools.encode(found, role="passage")
    rankings = []
    for field in await tools.encode_known([f"the {name}" for name in _fields(schema)]):
        rankings.append(sorted(range(len(found)), key=lambda i: -dot(vectors[i], field)))
    chosen: list[int] = []
    left = MAX_UNITS
    for i in dict.fromkeys(i for rank in zip(*rankings, strict=True) for i in rank):
        size = len(units(found[i]))
        if size <= left:
            chosen.append(i)
            left -= size
    return "\n".join(found[i] for i in sorted(chosen)) or text[:300]


def _worth_reading(found: list[str], schema: Mapping[str, Any]) -> list[str]:
    """At most MAX_SENTENCES, in order: those with a value that looks like one of the fields, then the first ones."""
    if len(found) <= MAX_SENTENCES:
        return found
    names = [str(name) for name in schema.get("properties") or ()]
    telling = [i for i, sentence in enumerate(found) if any(recognised(name, sentence) for name in names)]
    chosen = list(dict.fromkeys([*telling, *range(len(found))]))[:MAX_SENTENCES]
    return [found[i] for i in sorted(chosen)]


def _fields(schema: Mapping[str, Any]) -> list[str]:
    names = list(schema.get("properties") or ()) or ["values"]
    return [str(name).replace("_", " ") for name in names]


def _schema(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("expected a JSON schema, an object")
    if len(json.dumps(value)) > MAX_SCHEMA_CHARS:
        raise ValueError(f"the schema is longer than {MAX_SCHEMA_CHARS} characters")
    if (
        value.get("type") != "object"
        or not isinstance(value.get("properties"), dict)
        or not value["properties"]
    ):
        raise ValueError(
            'the schema must be of an object with properties: {"type": "object", "properties": {...}}'
        )
    try:
        _validator(value)
    except ValueError as error:
        raise ValueError(
            f"this is no JSON schema that can be used offline: {str(error).splitlines()[0][:300]}"
        ) from None
    return value


PARAMS: dict[str, params.Check] = {
    "schema": _schema,
    "instruction": params.text(2000),
    "grounding": params.choice("report", "require"),
}
