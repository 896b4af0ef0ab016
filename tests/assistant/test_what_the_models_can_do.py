"""What the small models are good for, measured on small labelled sets in three languages.

`pytest tests/assistant/test_what_the_models_can_do.py -s` prints the figures that docs/explanation/models.md quotes.
The floors lie a little under what was measured, so that another processor's rounding is no failure.
"""

from __future__ import annotations

import asyncio
import sys

import pytest

from postroom.assistant.text import folded
from tests.assistant.conftest import labelled


def show(line: str) -> None:
    sys.stdout.write(f"\n{line}")


async def sort_all(ask, data, rows, with_descriptions):
    labels = data["descriptions"] if with_descriptions else data["labels"]
    return [(await ask("classify", text, labels=labels), expected) for text, expected in rows]


@pytest.mark.parametrize(
    ("name", "with_descriptions", "floors"),
    [
        ("tickets", True, {"en": 18, "de": 15, "zh": 18}),
        ("tickets", False, {"en": 16, "de": 13, "zh": 15}),
        ("topics", True, {"en": 9, "de": 9, "zh": 9}),
        ("topics", False, {"en": 9, "de": 8, "zh": 9}),
    ],
)
async def test_sorting(ask, name, with_descriptions, floors):
    data = labelled(name)
    for language, floor in floors.items():
        answers = await sort_all(ask, data, data[language], with_descriptions)
        right = [answer["label"] == expected for answer, expected in answers]
        sure = [answer["label"] == expected for answer, expected in answers if answer["confident"]]
        how = f"{name}, {'with descriptions' if with_descriptions else 'names alone'}, {language}"
        show(f"sort {how}: {sum(right)} of {len(right)}; when confident {sum(sure)} of {len(sure)}")
        assert sum(right) >= floor
        assert sum(sure) >= 0.7 * len(sure)


async def test_sorting_with_one_example_per_label(ask):
    data = labelled("tickets")
    examples = {
        label: [next(text for text, found in data["en"] if found == label)] for label in data["labels"]
    }
    for language, floor in {"de": 13, "zh": 14}.items():
        right = 0
        for text, expected in data[language]:
            answer = await ask("classify", text, labels=data["descriptions"], examples=examples)
            right += answer["label"] == expected
            assert answer["method"] == "examples"
        show(f"sort tickets, with descriptions and one English example each, {language}: {right} of 20")
        assert right >= floor


@pytest.mark.parametrize(
    ("group", "found_floor", "quiet_floor"), [("tuned_on", 32, 30), ("held_out", 12, 14)]
)
async def test_moderating(ask, group, found_floor, quiet_floor):
    found = quiet = named = bad = good = 0
    for language, rows in labelled("moderation")[group].items():
        for text, expected in rows:
            answer = await ask("moderate", text)
            if expected:
                bad += 1
                found += answer["flagged"]
                named += answer["flagged"] and next(iter(answer["scores"])) == expected
            else:
                good += 1
                quiet += not answer["flagged"]
            if answer["flagged"] != bool(expected):
                show(f"  wrong ({language}, {expected}): {text} {answer['labels']}")
    show(
        f"moderate, {group}: {found} of {bad} flagged, {named} by the right label; {quiet} of {good} others left alone"
    )
    assert found >= found_floor
    assert quiet >= quiet_floor


@pytest.mark.parametrize(
    ("group", "floors"),
    [("tuned_on", {"en": 15, "de": 8, "zh": 8}), ("held_out", {"en": 10, "de": 5, "zh": 5})],
)
async def test_extracting(ask, group, floors):
    for language, rows in labelled("extraction")[group].items():
        answers = await asyncio.gather(
            *(ask("extract", text, schema=texts(expected)) for text, expected in rows)
        )
        right = total = exact = 0
        for answer, (_, expected) in zip(answers, rows, strict=True):
            assert answer["not_in_text"] == []
            hits = [folded(answer["value"][name]) == folded(value) for name, value in expected.items()]
            right, total, exact = right + sum(hits), total + len(hits), exact + all(hits)
            if not all(hits):
                show(f"  {answer['value']} instead of {expected}")
        show(f"extract, {group}, {language}: {right} of {total} values, {exact} of {len(rows)} texts whole")
        assert right >= floors[language]


def texts(fields):
    """A schema of an object with these fields, all texts."""
    properties = {name: {"type": "string"} for name in fields}
    return {
        "type": "object",
        "properties": properties,
        "required": list(fields),
        "additionalProperties": False,
    }


async def test_quoting_leaves_out_what_is_beside_the_point(ask):
    chosen = 0
    for case in labelled("summaries"):
        answer = await ask("summarize", case["text"], sentences=3, format="object")
        wrong = [sentence for sentence in answer["quotes"] if sentence in case["beside_the_point"]]
        chosen += len(wrong)
        assert len(answer["quotes"]) == 3
        show(f"quote, {case['language']}: {answer['text']}")
    show(f"quote: {chosen} of 15 chosen sentences are beside the point")
    assert chosen <= 1
