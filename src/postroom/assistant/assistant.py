"""``assistant``: free text in, the most useful thing that can honestly be done with it out.

A configured model answers freely, its prompt shaped by the topic. Without one the assistant chooses between what the
embedded models are good at, by what the text asks for, else by its topic, else by its length:

* **quote**: a text to read -> its own sentences that matter; any language;
* **sort**: "is this a, b or c", or a short message -> the label that fits; any language;
* **extract**: "extract the name and the date" -> those values, looked up in the text;
* **template**: "draft a reply" -> a template with the writer's words;
* **write**: "write ...", "explain ..." in English -> the small model writes, and the answer warns that it may invent;
* **none**: a question of fact, or writing in another language -> takes a real model; says so, and how to configure one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

from postroom.assistant import params
from postroom.assistant.choosing import Models
from postroom.assistant.classify import Label, by_similarity
from postroom.assistant.extract import by_schema
from postroom.assistant.models import HOW_TO_CONFIGURE, Run
from postroom.assistant.reply import templated
from postroom.assistant.summarize import quoted
from postroom.assistant.text import language_of, plain, sentences, shorten, text_of
from postroom.assistant.toolbox import MATERIAL, Told, Toolbox, aside, material

PROMPT_CHARS = 48_000
WRITE_CHARS = 1200
"""A longer request is not given to the small model: it loses the thread."""
SMALL_MODEL_WARNING = "a very small model wrote this; it may invent, so check it"


@dataclass(frozen=True)
class Wish:
    """What a text asks for: the act, the text it is about (without the request), and the words of the request."""

    act: str
    subject: str
    names: list[str] = field(default_factory=list)


def _any_of(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


# In this order: "write a summary" is about the summary, "draft a reply" about the reply.
_ASKS = {
    "sort": _any_of(
        r"\b(classify|categori[sz]e|sort|label|which (category|label|of these))\b",
        r"\b(klassifizier\w*|kategorisier\w*|ordne\w*|einordnen|welche kategorie)\b",
        r"分类|归类|哪一类|属于哪",
    ),
    "extract": _any_of(r"\b(extract|pull out)\b", r"\b(extrahier\w*|lies .{0,40} aus)\b", r"提取|抽取|摘出"),
    "quote": _any_of(
        r"\b(summari[sz]\w*|summary|tl;?dr|key points|main points|in short)\b",
        r"\b(zusammenfass\w*|fass\w* .{0,60}zusammen|kernaussagen)\b",
        r"总结|摘要|概括|概述|要点|归纳",
    ),
    "template": _any_of(
        r"\b(draft|write|compose|prepare)\b.{0,30}\b(reply|answer|response)\b|\breply to\b",
        r"\b(antworte|beantworte|antwort (entwerfen|schreiben)|(entwirf|schreib\w*) .{0,20}antwort)\b",
        r"(写|起草|拟|草拟).{0,8}(回复|答复|回信)|回复(这封|以下|下面)",
    ),
    "write": _any_of(
        r"\b(write|compose|explain|translate|tell me|give me|list|suggest)\b",
        r"\b(schreib\w*|erklär\w*|übersetz\w*|nenne|formulier\w*)\b",
        r"写一|撰写|解释|翻译|列出|请写",
    ),
}
_TOPICS = {
    "quote": (
        "summary",
        "summaries",
        "summarize",
        "news",
        "newsletter",
        "article",
        "digest",
        "notes",
        "minutes",
        "report",
        "zusammenfassung",
        "摘要",
        "总结",
        "新闻",
    ),
    "sort": (
        "triage",
        "sort",
        "classify",
        "classification",
        "support",
        "ticket",
        "tickets",
        "complaint",
        "complaints",
        "分类",
        "客服",
        "工单",
    ),
    "template": ("reply", "replies", "answer", "draft", "antwort", "回复"),
}
SUPPORT = [
    Label("billing", "an invoice, a payment, a charge or a refund"),
    Label("shipping", "a parcel, its delivery, tracking or a damaged package"),
    Label("bug", "the software crashes, shows an error or does not work"),
    Label("account access", "login, password, a locked account"),
    Label("feature request", "a wish for a new function or an improvement"),
    Label("praise", "thanks, satisfaction, a compliment"),
    Label("other", "greetings, general questions, something else"),
]


async def assistant(item: Any, run: Run, models: Models) -> str | dict[str, Any]:
    """The answer, with a last line that says who made it and how.

    Params: ``instruction`` (what to do with the text), ``language`` and ``max_tokens`` (for a configured model),
    ``sentences`` (of a quote, 3), ``format`` (``text``, ``object``).
    """
    asked = params.read("assistant", run.params, PARAMS)
    text = text_of(item)
    tools = Toolbox(models, run)
    if models.real is not None:
        told = await _by_model(tools, text, asked)
    else:
        told = await _embedded(tools, text, asked)
    return told.shaped(asked.get("format", "text"))


async def _by_model(tools: Toolbox, text: str, asked: dict[str, Any]) -> Told:
    rules = [
        "You are the assistant of an inbox: do what the message asks for, or what helps its reader most.",
        "Be brief and invent nothing.",
    ]
    if tools.topic:
        rules.append(f"The topic of this message is: {tools.topic}.")
    if language := asked.get("language"):
        rules.append(f"Answer in {language}.")
    else:
        rules.append("Answer in the language of the message.")
    if instruction := asked.get("instruction"):
        rules.append(f"{instruction} {MATERIAL}")
    content = shorten(text, PROMPT_CHARS)
    answer = await tools.ask(
        "assistant",
        [
            {"role": "system", "content": " ".join(rules)},
            {"role": "user", "content": material(content) if instruction else content},
        ],
        max_tokens=asked.get("max_tokens", 1500),
    )
    notes = []
    if len(content) < len(text):
        notes.append(
            f"the text is long: its first {len(content)} characters were read; kind `summarize` reads it in parts"
        )
    if answer.finish_reason == "length":
        notes.append("the model's answer was cut at its limit")
    return Told(answer.text.strip(), "write", answer.model, "; ".join(notes) or None)


async def _embedded(tools: Toolbox, text: str, asked: dict[str, Any]) -> Told:
    wish = wish_of(text, tools.topic, asked.get("instruction"))
    if wish.act == "sort":
        return await _sorted(tools, wish)
    if wish.act == "extract":
        return await _extracted(tools, wish, asked)
    if wish.act == "template":
        return await templated(tools, wish.subject, {})
    if wish.act == "write":
        return await _wrote(tools, wish, asked)
    return await quoted(tools, wish.subject, sentences=asked.get("sentences", 3))


# ---------------------------------------------------------------- choosing


def wish_of(text: str, topic: str = "", instruction: str | None = None) -> Wish:
    """What to do: what the text (or the instruction) asks for, else the topic's habit, else by its length.

    A request is looked for in the first and in the last sentence only: in the middle of a mail the words "please
    write" are about something else.
    """
    request, subject = (instruction, text) if instruction else _request_in(text)
    if request:
        act = next(act for act in (*_ASKS, "write") if act == "write" or _ASKS[act].search(request))
        names = _names_in(request, act)
        return (
            Wish(act, subject or text, names)
            if act != "write"
            else Wish("write", text if not instruction else f"{instruction}\n{text}")
        )
    habit = next((act for act, words in _TOPICS.items() if topic.casefold() in words), None)
    if habit:
        return Wish(habit, text)
    if _is_question(text):
        return Wish("write", text)
    is_short = len(text) <= 300 and len(sentences(plain(text))) <= 2
    return Wish("sort" if is_short else "quote", text)


def _is_question(text: str) -> bool:
    """One or two sentences that end in a question; a long mail with a question at its end is a mail."""
    return len(text) <= 300 and text.rstrip().endswith(("?", "？")) and len(sentences(plain(text))) <= 2


def _request_in(text: str) -> tuple[str | None, str]:
    """The request at the beginning or the end of a text, and the text without it."""
    stripped = text.strip()
    head = re.match(
        r"[^\n]{1,200}?(?::\s|：|:$|\n|[.!?。！？](?:\s|$|(?=[\u3400-\u9fff])))|[^\n]{1,200}$",
        stripped,
        re.MULTILINE,
    )
    if head and any(pattern.search(head.group()) for pattern in _ASKS.values()):
        rest = stripped[head.end() :].strip()
        colon = re.search(r"[:：]", head.group())
        return head.group().strip(), rest or (stripped[colon.end() :].strip() if colon else "")
    found = sentences(stripped[-600:])
    if (
        len(found) > 1
        and len(found[-1]) <= 160
        and any(_ASKS[act].search(found[-1]) for act in ("sort", "extract", "quote", "template"))
    ):
        at = stripped.rfind(found[-1])
        if at > 0:
            return found[-1], stripped[:at].strip()
    return None, stripped


_LIST_BEGIN = re.compile(
    r"^.*?\b(?:as|into|under|in|als|extract|pull out|extrahiere)\b\s*(?:one of|eine[rs]? von)?"
    r"|^.*?(?:分类为|归类为|分为|属于哪一类|提取|抽取|摘出)",
    re.IGNORECASE | re.DOTALL,
)
_LIST_END = re.compile(
    r"\b(?:from|of the (?:text|mail|following)|in (?:the|this)|out of|aus|ein(?:ordnen)?)\b.*$"
    r"|[:：.?!。？！]\s*$|(?:的)?(?:信息|内容)$",
    re.IGNORECASE | re.DOTALL,
)


def _names_in(request: str, act: str) -> list[str]:
    """The labels or fields that a request lists: "as billing, bug or praise", "extract the name and date from"."""
    if act not in ("sort", "extract"):
        return []
    listed = _LIST_BEGIN.sub("", request, count=1)
    if listed == request and act == "sort":
        listed = request.partition("?")[2] or request.partition("：")[2] or request.partition(":")[2]
    listed = _LIST_END.sub("", listed.strip()).strip()
    parts = re.split(r"\s*[,;/，、；]\s*|\s+(?:and|or|und|oder)\s+|(?:和|或|或者|以及)", listed)
    names = [
        re.sub(
            r"^(?:the|a|an|and|or|den|die|das|der|und|oder)\s+",
            "",
            part.strip(" \"'“”.。:："),
            flags=re.IGNORECASE,
        )
        for part in parts
    ]
    return [name for name in dict.fromkeys(names) if name and len(name) <= 40][:20]


# ---------------------------------------------------------------- doing


async def _sorted(tools: Toolbox, wish: Wish) -> Told:
    labels = [Label(name) for name in wish.names] if len(wish.names) >= 2 else SUPPORT
    subject = await aside(plain, wish.subject)
    answer = await by_similarity(tools, subject, labels)
    note = None if answer["confident"] else "the second label is nearly as likely"
    words = f"{answer['label']}"
    if len(sentences(subject[:2000])) > 2:
        found = await quoted(tools, subject, sentences=1)
        words += f"\n\n> {found.text}"
    return Told(words, "sort", answer["model"], note, {"label": answer["label"], "scores": answer["scores"]})


async def _extracted(tools: Toolbox, wish: Wish, asked: dict[str, Any]) -> Told:
    if not wish.names or not tools.models.can_complete:
        missing = (
            "say which values, as in `extract the name and date: ...`"
            if not wish.names
            else tools.models.embedded.why_no_completion()[0]
        )
        return replace(
            await quoted(tools, wish.subject, sentences=asked.get("sentences", 3)),
            note=f"nothing was extracted: {missing}",
        )
    schema = {
        "type": "object",
        "properties": {name: {"type": "string"} for name in wish.names},
        "required": wish.names,
        "additionalProperties": False,
    }
    answer = await by_schema(tools, wish.subject, schema)
    lines = [f"{name}: {value}" for name, value in answer["value"].items()]
    strange = [pointer.strip("/") for pointer in answer["not_in_text"]]
    note = f"not found word for word in the text: {', '.join(strange)}" if strange else None
    return Told(
        "\n".join(lines),
        "extract",
        answer["model"],
        note,
        {"value": answer["value"], "not_in_text": answer["not_in_text"]},
    )


async def _wrote(tools: Toolbox, wish: Wish, asked: dict[str, Any]) -> Told:
    """A short English request to write goes to the small model; for all else it takes a real one."""
    language = language_of(wish.subject)
    is_fit = language == "en" and len(wish.subject) <= WRITE_CHARS and not _is_question(wish.subject)
    if is_fit and tools.models.can_complete:
        answer = await tools.ask(
            "assistant", [_HOUSE_STYLE, {"role": "user", "content": wish.subject}], max_tokens=300
        )
        words = answer.text.strip()
        if answer.finish_reason == "length":
            words = " ".join(sentences(words)[:-1])
        if words and not is_babble(words):
            return Told(
                words, "write", answer.model, f"{SMALL_MODEL_WARNING}. For better answers {HOW_TO_CONFIGURE}"
            )
    note = f"for a written answer {HOW_TO_CONFIGURE}"
    if len(sentences(plain(wish.subject[:2000]))) > 2 and tools.models.can_encode:
        return replace(
            await quoted(tools, wish.subject, sentences=asked.get("sentences", 3)),
            note=f"only quoted; {note}",
        )
    if is_fit:
        note = (
            f"{tools.models.embedded.why_no_completion()[0]}; {note}"
            if not tools.models.can_complete
            else note
        )
    return Told(_NEEDS_A_MODEL.get(language, _NEEDS_A_MODEL["en"]), "none", None, note)


_HOUSE_STYLE = {"role": "system", "content": "You are a helpful assistant. Answer briefly, in English."}
_NEEDS_A_MODEL = {
    "en": "This takes a larger language model than the embedded ones, which quote, sort and extract: not answered.",
    "de": "Dafür braucht es ein größeres Sprachmodell als die eingebauten, die zitieren, sortieren und extrahieren.",
    "zh": "这需要比内置模型更大的语言模型，因此没有作答。内置模型可以摘录、分类和提取。",
}


def is_babble(words: str) -> bool:
    """True for what small models write when they lost the thread: the same words over and over, another language."""
    tokens = words.casefold().split()
    if len(tokens) >= 20:
        triples = list(zip(tokens, tokens[1:], tokens[2:], strict=False))
        if len(set(triples)) < 0.6 * len(triples):
            return True
    longest = max((len(token) for token in tokens), default=0)
    return longest > 60 or language_of(words) not in ("en", "und")


PARAMS: dict[str, params.Check] = {
    "instruction": params.text(4000),
    "language": params.text(40),
    "max_tokens": params.whole(16, 16_000),
    "sentences": params.whole(1, 20),
    "format": params.format_of_answer,
}
