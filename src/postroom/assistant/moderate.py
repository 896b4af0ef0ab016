"""``moderate``: does a text hold something that a person should look at first.

Embedded, by likeness to short descriptions, against the likeness to ordinary messages; plus word lists that the caller
gives. Good for putting doubtful texts before a person; not good enough to delete anything by itself (see the docs).
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from postroom.assistant import params
from postroom.assistant.choosing import Models
from postroom.assistant.classify import MAX_PROMPT_CHARS
from postroom.assistant.models import Run
from postroom.assistant.quoting import dot
from postroom.assistant.text import is_cjk, plain, sentences, shorten, text_of
from postroom.assistant.toolbox import MATERIAL, Toolbox, aside, material
from postroom.errors import PermanentError

LABELS: dict[str, tuple[str, ...]] = {
    "harassment": ("You are an idiot, a loser, shut up.", "insulting and humiliating a person"),
    "threat": (
        "I will hurt you, I will kill you, I will destroy your property.",
        "threatening somebody with violence",
    ),
    "hate": (
        "Those people are vermin, they are inferior and must be driven out.",
        "hatred against people for their origin, religion, sex or race",
    ),
    "self-harm": ("I want to die, I will kill myself, I hurt myself.", "suicide or hurting oneself"),
    "spam": (
        "You have won! Click the link now, buy cheap, limited offer, guaranteed.",
        "unwanted advertising, a scam or a prize that one has won",
    ),
    "sexual": ("Naked, sex, porn, send nudes.", "sexual or pornographic content"),
}
ORDINARY = (
    "A polite question about an order, an invoice or an account.",
    "A complaint about a product, a service or a film.",
    "Thank you, everything works.",
    "A meeting was moved, the report is attached.",
    "News about sport, work and family.",
    "A technical question about computers.",
    "A private message about a journey, an illness or a death in the family.",
    "A factual statement.",
)
BORDER = 0.032
"""How much more alike a text must be to a label than to ordinary messages, for a score of one half."""
SHARPNESS = 60.0
MAX_SENTENCES = 60
"""Of a longer text as many are read, spread evenly over it; the answer says so."""


async def moderate(item: Any, run: Run, models: Models) -> dict[str, Any]:
    """``{"flagged", "labels", "scores", "words", "model", "method", "note"}``.

    Params: ``labels`` (names of the shipped ones, or an object name -> description; all shipped ones by default),
    ``threshold`` (0.5) and ``thresholds`` (by label), ``words`` (an object label -> list of words or phrases that flag
    for certain), ``method`` (``similarity``, ``model``, ``words``).
    """
    asked = params.read("moderate", run.params, PARAMS)
    labels: dict[str, tuple[str, ...]] = asked.get("labels", LABELS)
    unknown = [name for name in asked.get("thresholds", ()) if name not in labels]
    if unknown:
        known = ", ".join(labels)
        raise params.invalid(
            f"param `thresholds` of moderate has `{unknown[0]}`, which is not among the labels: {known}"
        )
    text = text_of(item)
    tools = Toolbox(models, run)
    method = asked.get("method") or ("model" if models.real is not None else "similarity")
    words = _words_in(text, asked.get("words", {}))
    answer: dict[str, Any] = {"scores": None, "words": words, "model": None, "method": method, "note": None}
    flagged: list[str] = []
    if method == "model":
        flagged, answer["model"] = await _by_model(tools, text, labels)
    elif method == "similarity":
        scores, answer["note"] = await _by_similarity(tools, text, labels)
        limits = {
            label: asked.get("thresholds", {}).get(label, asked.get("threshold", 0.5)) for label in labels
        }
        flagged = [label for label, score in scores.items() if score >= limits[label]]
        answer |= {"scores": scores, "model": models.encoder().name}
    flagged += [label for label in words if label not in flagged]
    return {"flagged": bool(flagged), "labels": flagged, **answer}


async def _by_similarity(
    tools: Toolbox, text: str, labels: Mapping[str, Sequence[str]]
) -> tuple[dict[str, float], str | None]:
    """A score per label from 0 to 1, and a note; each sentence is weighed and the worst one counts."""
    found = await aside(lambda whole: sentences(plain(whole)), text) or [text]
    read = (
        [found[i * len(found) // MAX_SENTENCES] for i in range(MAX_SENTENCES)]
        if len(found) > MAX_SENTENCES
        else found
    )
    note = (
        f"the text is long: {len(read)} of its {len(found)} sentences were read"
        if len(read) < len(found)
        else None
    )
    inputs = await tools.encode(read)
    ordinary = await tools.encode_known(ORDINARY)
    usual = [sum(sorted((dot(part, one) for one in ordinary), reverse=True)[:2]) / 2 for part in inputs]
    scores = {}
    for label, statements in labels.items():
        meanings = await tools.encode_known(list(statements))
        above = max(
            max(dot(part, m) for m in meanings) - base for part, base in zip(inputs, usual, strict=True)
        )
        scores[label] = round(1.0 / (1.0 + math.exp(-SHARPNESS * (above - BORDER))), 4)
    return dict(sorted(scores.items(), key=lambda entry: -entry[1])), note


async def _by_model(tools: Toolbox, text: str, labels: Mapping[str, Sequence[str]]) -> tuple[list[str], str]:
    schema = {
        "type": "object",
        "properties": {label: {"type": "boolean"} for label in labels},
        "required": list(labels),
        "additionalProperties": False,
    }
    tools.require_real("moderate", "model")
    rules = f"Say for each label whether it applies to the text. {MATERIAL}\nLabels:\n"
    rules += "\n".join(f"- {label}: {statements[-1]}" for label, statements in labels.items())
    answer = await tools.ask(
        "moderate",
        [
            {"role": "system", "content": rules},
            {"role": "user", "content": material(shorten(text, MAX_PROMPT_CHARS))},
        ],
        schema=schema,
        max_tokens=300,
    )
    try:
        said = json.loads(answer.text)
        flagged = [label for label in labels if said[label] is True]
    except (ValueError, KeyError, TypeError):
        raise PermanentError(
            f"{answer.model} did not answer for each label",
            code="invalid_answer",
            detail={"raw": answer.text[:4000]},
        ) from None
    return flagged, answer.model


def _words_in(text: str, lists: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The listed words that stand in the text, by label: whole words, but anywhere in scripts without spaces."""
    haystack = unicodedata.normalize("NFKC", text).casefold()
    found: dict[str, list[str]] = {}
    for label, words in lists.items():
        for word in words:
            needle = unicodedata.normalize("NFKC", word).casefold().strip()
            pattern = re.escape(needle) if is_cjk(needle) else rf"(?<!\w){re.escape(needle)}(?!\w)"
            if re.search(pattern, haystack):
                found.setdefault(label, []).append(word)
    return found


def _labels(value: Any) -> dict[str, tuple[str, ...]]:
    if isinstance(value, dict):
        about = params.mapping(params.text(1000), 50)(value)
        return {label: (f"{label}.", description) for label, description in about.items()}
    names = params.texts(50, 200)(value)
    unknown = [name for name in names if name not in LABELS]
    if unknown:
        raise ValueError(
            f"`{unknown[0]}` is not one of {', '.join(LABELS)}; "
            'describe labels of your own: {"label": "what it means"}'
        )
    return {name: LABELS[name] for name in names}


PARAMS: dict[str, params.Check] = {
    "labels": _labels,
    "threshold": params.number(0, 1),
    "thresholds": params.mapping(params.number(0, 1)),
    "words": params.mapping(params.texts(1000, 200)),
    "method": params.choice("similarity", "model", "words"),
}
