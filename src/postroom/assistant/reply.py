"""``reply``: a draft of an answer to a message, for a person to finish and send.

Embedded, it is a template (the caller's, or one in English, German or Chinese) with the writer's own words quoted: it
promises nothing and invents nothing. With a configured model that model writes the draft.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from postroom.assistant import params
from postroom.assistant.choosing import Models
from postroom.assistant.models import HOW_TO_CONFIGURE, Run
from postroom.assistant.quoting import quote
from postroom.assistant.summarize import LANGUAGES, PART_CHARS
from postroom.assistant.text import language_of, plain, shorten, text_of
from postroom.assistant.toolbox import MATERIAL, Told, Toolbox, aside, material

TEMPLATES = {
    "en": (
        "Thank you for your message.\n\nYou wrote:\n{quotes}\n\n"
        "We are looking into it and will come back to you.\n\nKind regards\n{signature}"
    ),
    "de": (
        "Vielen Dank für Ihre Nachricht.\n\nSie schreiben:\n{quotes}\n\n"
        "Wir kümmern uns darum und melden uns bei Ihnen.\n\nMit freundlichen Grüßen\n{signature}"
    ),
    "zh": "您好，感谢您的来信。\n\n您提到：\n{quotes}\n\n我们正在处理，会尽快回复您。\n\n此致\n{signature}",
}
PLACEHOLDERS = ("quotes", "topic", "sender", "signature")
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


async def reply(item: Any, run: Run, models: Models) -> str | dict[str, Any]:
    """The draft, with a last line that says who made it.

    Params: ``template`` (a text with ``{quotes}``, ``{topic}``, ``{sender}``, ``{signature}``), ``instruction`` (what
    the reply should say; for a configured model), ``tone``, ``language``, ``signature``, ``sentences`` (quoted ones,
    2), ``method`` (``template``, ``write``), ``format`` (``text``, ``object``).
    """
    asked = params.read("reply", run.params, PARAMS)
    text = text_of(item)
    tools = Toolbox(models, run)
    method = asked.get("method") or (
        "write" if models.real is not None and "template" not in asked else "template"
    )
    told = await (_written(tools, text, asked) if method == "write" else templated(tools, text, asked))
    return told.shaped(asked.get("format", "text"))


async def templated(tools: Toolbox, text: str, asked: Mapping[str, Any]) -> Told:
    """A template with the writer's own words in it."""
    language = asked.get("language") or language_of(text)
    template = asked.get("template") or TEMPLATES.get(language, TEMPLATES["en"])
    found = await quote(tools, text, count=asked.get("sentences", 2), max_chars=800)
    values = {
        "quotes": "\n".join(f"> {sentence}" for sentence in found.sentences),
        "topic": tools.topic,
        "sender": "" if tools.run.sender == "unknown" else tools.run.sender,
        "signature": asked.get("signature", ""),
    }
    draft = _PLACEHOLDER.sub(lambda match: values.get(match.group(1), match.group()), template).strip()
    note = "a draft from a template, which knows nothing of the answer"
    if asked.get("instruction"):
        note += "; `instruction` was not followed, since that takes a real model"
    return Told(
        draft,
        "template",
        tools.models.encoder().name,
        f"{note}. For a written reply {HOW_TO_CONFIGURE}",
        {"quotes": found.sentences},
    )


async def _written(tools: Toolbox, text: str, asked: Mapping[str, Any]) -> Told:
    tools.require_real("reply", "write")
    language = asked.get("language")
    rules = [
        f"Draft a reply to the message, in {LANGUAGES.get(language or '', language or 'the language of the message')}.",
        f"Tone: {asked.get('tone', 'friendly and brief')}.",
        "Promise nothing and state no fact that is neither in the message nor in these instructions;",
        "leave [brackets] for what a person must fill in.",
        MATERIAL,
    ]
    if "instruction" in asked:
        rules.append(f"The reply should say: {asked['instruction']}")
    if "template" in asked:
        rules.append(f"Keep to this template: {asked['template']}")
    if "signature" in asked:
        rules.append(f"Sign as: {asked['signature']}")
    if tools.topic:
        rules.append(f"Topic: {tools.topic}.")
    message = shorten(await aside(plain, text), PART_CHARS * 2)
    answer = await tools.ask(
        "reply",
        [{"role": "system", "content": " ".join(rules)}, {"role": "user", "content": material(message)}],
        max_tokens=1200,
    )
    return Told(answer.text.strip(), "write", answer.model, "a draft: read it before it is sent")


def _template(value: Any) -> str:
    template: str = params.text(8000)(value)
    unknown = [name for name in _PLACEHOLDER.findall(template) if name not in PLACEHOLDERS]
    if unknown:
        raise ValueError(
            f"`{{{unknown[0]}}}` is no placeholder; known: {', '.join('{' + name + '}' for name in PLACEHOLDERS)}"
        )
    return template


PARAMS: dict[str, params.Check] = {
    "template": _template,
    "instruction": params.text(4000),
    "tone": params.text(100),
    "language": params.text(40),
    "signature": params.text(500),
    "sentences": params.whole(1, 10),
    "method": params.choice("template", "write"),
    "format": params.format_of_answer,
}
