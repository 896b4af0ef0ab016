"""``classify``: which of the caller's labels fits best.

Embedded, by likeness of meaning: the encoder puts the text and each label ("A message about billing: an invoice …")
into one space and the nearest label wins, whatever the languages of the two. Examples per label, where given, are part
of what a label means. With a configured model that model chooses, held to the labels by a JSON schema.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from postroom.assistant import params
from postroom.assistant.choosing import Models
from postroom.assistant.models import Run
from postroom.assistant.quoting import dot
from postroom.assistant.text import chunks, is_cjk, plain, shorten, text_of
from postroom.assistant.toolbox import MATERIAL, Toolbox, aside, material
from postroom.errors import PermanentError

SHARPNESS = 60.0
"""Turns likenesses, which lie close together, into shares of 1. Shares rank the labels; they are no probabilities."""
CONFIDENT_MARGIN = 0.15
"""Winner's share less the second's; below it an answer says that it is not confident (measured: see the docs)."""
MAX_PARTS = 6
"""Parts of a long text that are weighed: its beginning, and the last ones."""
MAX_PROMPT_CHARS = 24_000


@dataclass(frozen=True)
class Label:
    """A label, what it means in words, and texts that belong to it."""

    name: str
    description: str | None = None
    examples: Sequence[str] = field(default_factory=tuple)

    def statement(self) -> str:
        """The sentence that stands for the label; measured to sort best among eleven wordings."""
        if self.description:
            return f"A message about {self.name}: {self.description.rstrip('.')}."
        return f"This text is about {self.name}."


async def classify(item: Any, run: Run, models: Models) -> dict[str, Any]:
    """``{"label", "scores", "confident", "model", "method"}``.

    Params: ``labels`` (needed: a list of names, an object name -> description, or a list of objects with ``label``,
    ``description``, ``examples``), ``descriptions`` and ``examples`` (objects by label), ``method``
    (``similarity``, ``model``; by default ``model`` where one is configured).
    """
    asked = params.read("classify", run.params, PARAMS)
    labels = labels_of(asked)
    text = await aside(plain, text_of(item))
    tools = Toolbox(models, run)
    method = asked.get("method") or ("model" if models.real is not None else "similarity")
    if method == "model":
        return await _by_model(tools, text, labels)
    return await by_similarity(tools, text, labels)


def labels_of(asked: Mapping[str, Any]) -> list[Label]:
    """The labels as given in any of the three shapes.

    Raises:
        PermanentError: none, one only, a double one, or descriptions and examples for labels that are not there.
    """
    given = asked.get("labels")
    if given is None:
        raise params.invalid("classify needs the param `labels`: a list of at least two names")
    labels = {label.name: label for label in given}
    if len(labels) != len(given):
        raise params.invalid("param `labels` of classify names a label twice")
    if len(labels) < 2:
        raise params.invalid("param `labels` of classify needs at least two labels")
    for option in ("descriptions", "examples"):
        unknown = [name for name in asked.get(option, ()) if name not in labels]
        if unknown:
            raise params.invalid(
                f"param `{option}` of classify has `{unknown[0]}`, which is not among the labels: {', '.join(labels)}"
            )
    return [
        Label(
            label.name,
            asked.get("descriptions", {}).get(label.name, label.description),
            [*label.examples, *asked.get("examples", {}).get(label.name, ())],
        )
        for label in given
    ]


async def by_similarity(tools: Toolbox, text: str, labels: Sequence[Label]) -> dict[str, Any]:
    """The label whose meaning is nearest."""
    likenesses = await likeness(tools, text, labels)
    scores = shares(likenesses)
    ranked = sorted(scores, key=lambda i: -scores[i])
    first, second = scores[ranked[0]], scores[ranked[1]]
    return {
        "label": labels[ranked[0]].name,
        "scores": {labels[i].name: round(scores[i], 4) for i in ranked},
        "confident": first - second >= CONFIDENT_MARGIN,
        "model": tools.models.encoder().name,
        "method": "examples" if any(label.examples for label in labels) else "similarity",
    }


async def likeness(tools: Toolbox, text: str, labels: Sequence[Label]) -> list[float]:
    """How alike the text and each label are; comparable within one text only."""
    parts = await aside(_parts, text)
    # Without descriptions both sides are short statements, and the encoder tells those apart better as passages.
    inputs = await tools.encode(
        parts, role="query" if any(label.description for label in labels) else "passage"
    )
    statements = await tools.encode_known([label.statement() for label in labels], role="passage")
    totals = [sum(dot(part, statement) for part in inputs) / len(inputs) for statement in statements]
    if any(label.examples for label in labels):
        totals = await _with_examples(tools, parts, labels, totals)
    return totals


async def _with_examples(
    tools: Toolbox, parts: Sequence[str], labels: Sequence[Label], totals: Sequence[float]
) -> list[float]:
    """Adds how alike the text is to the examples: half their middle, half the nearest one."""
    inputs = await tools.encode(parts)
    mixed = []
    for label, total in zip(labels, totals, strict=True):
        if not label.examples:
            mixed.append(total)
            continue
        examples = await tools.encode_known(list(label.examples))
        each = [sum(dot(part, example) for part in inputs) / len(inputs) for example in examples]
        mixed.append(0.4 * total + 0.6 * (sum(each) / len(each) + max(each)) / 2)
    return mixed


def _parts(text: str) -> list[str]:
    parts = chunks(text, 400 if is_cjk(text) else 1000) or [text]
    return parts if len(parts) <= MAX_PARTS else [*parts[: MAX_PARTS - 2], *parts[-2:]]


def shares(likenesses: Sequence[float]) -> dict[int, float]:
    """Likenesses as shares of 1, by index."""
    top = max(likenesses)
    raised = [math.exp(SHARPNESS * (value - top)) for value in likenesses]
    return {i: value / sum(raised) for i, value in enumerate(raised)}


async def _by_model(tools: Toolbox, text: str, labels: Sequence[Label]) -> dict[str, Any]:
    tools.require_real("classify", "model")
    names = [label.name for label in labels]
    schema = {
        "type": "object",
        "properties": {"label": {"type": "string", "enum": names}},
        "required": ["label"],
        "additionalProperties": False,
    }
    lines = [f"- {label.name}" + (f": {label.description}" if label.description else "") for label in labels]
    lines += [
        f'Example of {label.name}: "{shorten(example, 300)}"'
        for label in labels
        for example in label.examples[:3]
    ]
    rules = f"Sort the text under exactly one label. {MATERIAL}\nLabels:\n" + "\n".join(lines)
    answer = await tools.ask(
        "classify",
        [
            {"role": "system", "content": rules},
            {"role": "user", "content": material(shorten(text, MAX_PROMPT_CHARS))},
        ],
        schema=schema,
        max_tokens=200,
    )
    label = _label_in(answer.text, names)
    if label is None:
        raise PermanentError(
            f"{answer.model} answered with none of the labels",
            code="invalid_answer",
            detail={"raw": answer.text[:4000]},
        )
    return {"label": label, "scores": None, "confident": None, "model": answer.model, "method": "model"}


def _label_in(answer: str, names: Sequence[str]) -> str | None:
    try:
        said = json.loads(answer)
    except ValueError:
        said = answer.strip().strip("\"'.")
    label = said.get("label") if isinstance(said, dict) else said
    return next(
        (name for name in names if isinstance(label, str) and name.casefold() == label.strip().casefold()),
        None,
    )


def _labels(value: Any) -> list[Label]:
    name, description = params.text(200), params.text(1000)
    if isinstance(value, dict):
        return [
            Label(name(key), description(meaning) if meaning is not None else None)
            for key, meaning in value.items()
        ]
    if not isinstance(value, list) or len(value) > 200:
        raise ValueError("expected a list of names, or an object name -> description")
    labels = []
    for entry in value:
        if isinstance(entry, str):
            labels.append(Label(name(entry)))
        elif (
            isinstance(entry, dict)
            and "label" in entry
            and not set(entry) - {"label", "description", "examples"}
        ):
            about = entry.get("description")
            labels.append(
                Label(
                    name(entry["label"]),
                    description(about) if about is not None else None,
                    _examples(entry.get("examples")),
                )
            )
        else:
            raise ValueError("each label is a name, or an object with label, description, examples")
    return labels


def _examples(value: Any) -> list[str]:
    return params.texts(50)(value) if value is not None else []


PARAMS: dict[str, params.Check] = {
    "labels": _labels,
    "descriptions": params.mapping(params.text(1000)),
    "examples": params.mapping(params.texts(50)),
    "method": params.choice("similarity", "model"),
}
