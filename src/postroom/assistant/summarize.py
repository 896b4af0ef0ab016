"""``summarize``: the few sentences that matter.

Embedded, the summary consists of the text's own sentences: it cannot invent. With a configured model that model
writes; a text longer than its window is summarised in parts, cut between sentences, and the parts' summaries are
summarised (each part is a kept step: a crash does not pay for it twice).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from postroom.assistant import params
from postroom.assistant.choosing import Models
from postroom.assistant.models import Run
from postroom.assistant.quoting import quote
from postroom.assistant.text import chunks, language_of, plain, shorten, text_of
from postroom.assistant.toolbox import MATERIAL, Told, Toolbox, aside, material

PART_CHARS = 12_000
"""Of a text for a configured model: about 3,000 tokens of English, 9,000 of Chinese."""
MAX_PARTS = 40
LANGUAGES = {
    "en": "English",
    "de": "German",
    "fr": "French",
    "es": "Spanish",
    "zh": "Chinese",
    "ja": "Japanese",
    "ko": "Korean",
}


async def summarize(item: Any, run: Run, models: Models) -> str | dict[str, Any]:
    """The summary, with a last line that says who made it.

    Params: ``sentences`` (3), ``max_chars``, ``focus`` (what the reader wants to know), ``language`` (for a configured
    model; quotes stay in the text's own), ``method`` (``quote``, ``write``), ``format`` (``text``, ``object``).
    """
    asked = params.read("summarize", run.params, PARAMS)
    text = text_of(item)
    tools = Toolbox(models, run)
    method = asked.get("method") or ("write" if models.real is not None else "quote")
    if method == "quote":
        told = await quoted(
            tools,
            text,
            **{name: asked[name] for name in ("sentences", "max_chars", "focus") if name in asked},
        )
        if (language := asked.get("language")) and language != language_of(text):
            told = Told(
                told.text, told.method, told.model, "quotes stay in the language of the text", told.value
            )
    else:
        told = await _written(tools, await aside(plain, text), asked)
    return told.shaped(asked.get("format", "text"))


async def quoted(
    tools: Toolbox, text: str, *, sentences: int = 3, max_chars: int | None = None, focus: str | None = None
) -> Told:
    """A summary of the text's own sentences."""
    found = await quote(tools, text, count=sentences, max_chars=max_chars, focus=focus)
    return Told(
        found.joined(),
        method="quote",
        model=tools.models.encoder().name,
        note=found.note,
        value={"quotes": found.sentences},
    )


async def _written(tools: Toolbox, text: str, asked: dict[str, Any]) -> Told:
    tools.require_real("summarize", "write")
    parts = await aside(lambda whole: chunks(whole, PART_CHARS), text) or [text]
    note = None
    if len(parts) > MAX_PARTS:
        note = f"the text is long: {MAX_PARTS} of its {len(parts)} parts were read, spread evenly over it"
        parts = [parts[i * len(parts) // MAX_PARTS] for i in range(MAX_PARTS)]
    if len(parts) > 1:
        notes = await _notes(tools, parts)
        text = "\n\n".join(notes)
    rules = _rules(tools, text, asked)
    answer = await tools.ask(
        "summarize",
        [{"role": "system", "content": rules}, {"role": "user", "content": material(text)}],
        max_tokens=1500,
    )
    words = answer.text.strip()
    if max_chars := asked.get("max_chars"):
        words = shorten(words, max_chars)
    if answer.finish_reason == "length":
        note = "the model's answer was cut at its limit"
    return Told(words, method="write", model=answer.model, note=note, value={"parts": len(parts)})


async def _notes(tools: Toolbox, parts: Sequence[str]) -> list[str]:
    """Each part summarised by itself, four at a time; order kept."""
    rules = f"Summarise this part of a longer text in up to six sentences, in its language. Invent nothing. {MATERIAL}"
    turns = asyncio.Semaphore(4)

    async def one(number: int, part: str) -> str:
        async with turns:
            messages = [{"role": "system", "content": rules}, {"role": "user", "content": material(part)}]
            text, _ = await tools.ask_kept(f"part-{number}", messages, max_tokens=600)
        return shorten(text.strip(), PART_CHARS // 8)

    return await all_or_none([one(number, part) for number, part in enumerate(parts)])


async def all_or_none(calls: Sequence[Coroutine[Any, Any, str]]) -> list[str]:
    """All results in order; the first failure ends the others and is raised as it is.

    A TaskGroup would wrap it in a group, and a hold or a permanent error would no longer be one.
    """
    tasks = [asyncio.create_task(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _rules(tools: Toolbox, text: str, asked: dict[str, Any]) -> str:
    language = asked.get("language")
    rules = [
        f"Summarise the text in at most {asked.get('sentences', 3)} sentences,",
        f"in {LANGUAGES.get(language or '', language or 'its own language')}.",
    ]
    if max_chars := asked.get("max_chars"):
        rules.append(f"At most {max_chars} characters.")
    if focus := asked.get("focus"):
        rules.append(f"The reader wants to know about: {focus}.")
    if tools.topic:
        rules.append(f"Topic: {tools.topic}.")
    return " ".join([*rules, "Say only what the text says; invent nothing.", MATERIAL])


PARAMS: dict[str, params.Check] = {
    "sentences": params.whole(1, 20),
    "max_chars": params.whole(20, 20_000),
    "language": params.text(40),
    "focus": params.text(500),
    "method": params.choice("quote", "write"),
    "format": params.format_of_answer,
}
