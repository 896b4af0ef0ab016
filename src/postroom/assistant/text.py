"""Text as people write it: what an item says, in which language, in which sentences.

Everything here is pure and quotes: a sentence that comes out stood in what went in, up to white space and Markdown's
own marks. Languages are told apart only as far as the assistant needs it.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

from postroom.errors import PermanentError

MAX_SENTENCE_CHARS = 400
"""A longer sentence is cut at commas or spaces: lists without full stops would otherwise be one sentence."""

_TEXT_FIELDS = ("text", "content", "body", "message", "description")
_TITLE_FIELDS = ("subject", "title")

_HAN = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]")
_KANA = re.compile(r"[\u3040-\u30ff]")
_HANGUL = re.compile(r"[\uac00-\ud7af]")
_WORD = re.compile(r"[^\W\d_]+")
_STOPWORDS = {
    "en": frozenset(
        "the a an and of to in is are was were for with that this it you we i my your on not have please".split()
    ),
    "de": frozenset(
        "der die das und ist sind ein eine einen nicht mit für auf ich wir sie mein bitte zu den von im wurde".split()
    ),
    "fr": frozenset(
        "le la les et est sont un une des pour avec que je nous vous mon votre pas dans sur du au ne".split()
    ),
    "es": frozenset(
        "el la los las y es son un una de para con que yo mi su no en por se del al lo está".split()
    ),
}


def text_of(item: Any) -> str:
    """The text of an item: a string, or an object with subject or title and text, content, body or message.

    Any other JSON value is its own JSON text.

    Raises:
        PermanentError: there is no text in it (``no_text``).
    """
    text = _raw_text(item).strip()
    if not text:
        raise PermanentError(
            "the item holds no text: send a string, or an object with `text` or `body`", code="no_text"
        )
    return text


def _raw_text(item: Any) -> str:
    if isinstance(item, str):
        return item
    if isinstance(item, dict):
        title = next((item[f] for f in _TITLE_FIELDS if isinstance(item.get(f), str)), "")
        body = next((item[f] for f in _TEXT_FIELDS if isinstance(item.get(f), str)), None)
        if body is not None:
            return f"{title}\n\n{body}" if title.strip() else body
        if title and len(item) == 1:
            return str(title)
        return json.dumps(item, ensure_ascii=False) if item else ""
    if isinstance(item, list) and not item:
        return ""
    return json.dumps(item, ensure_ascii=False)


def language_of(text: str) -> str:
    """``en``, ``de``, ``fr``, ``es``, ``zh``, ``ja``, ``ko``, or ``und`` where neither script nor small words tell."""
    sample = text[:4000]
    letters = sum(1 for c in sample if c.isalpha()) or 1
    if len(_KANA.findall(sample)) / letters > 0.1:
        return "ja"
    if len(_HANGUL.findall(sample)) / letters > 0.2:
        return "ko"
    if len(_HAN.findall(sample)) / letters > 0.2:
        return "zh"
    words = [w.casefold() for w in _WORD.findall(sample)]
    counts = {language: sum(w in small for w in words) for language, small in _STOPWORDS.items()}
    best = max(counts, key=lambda language: counts[language])
    return best if counts[best] else "und"


def is_cjk(text: str) -> bool:
    """True where at least a fifth of the letters are Chinese or Japanese: such text has no spaces between words."""
    sample = text[:1000]
    signs = len(_HAN.findall(sample)) + len(_KANA.findall(sample))
    return signs > 0 and signs > 0.2 * sum(1 for c in sample if c.isalpha())


# ---------------------------------------------------------------- mails, Markdown, HTML -> plain text

_QUOTE_INTRO = re.compile(
    r"^\s*(On .{4,120} wrote:|Am .{4,120} schrieb.{0,120}:|Le .{4,120} a écrit\s?:|.{0,80}写道[:：]|"
    r"-{3,}\s?(Original Message|Ursprüngliche Nachricht|Forwarded message|Weitergeleitete Nachricht|原始邮件).*)\s*$",
    re.IGNORECASE,
)
_HEADER = re.compile(
    r"^(From|To|Cc|Bcc|Date|Sent|Reply-To|Message-ID|Von|An|Gesendet|Datum|发件人|收件人|抄送|时间|日期)\s?[:：]",
    re.IGNORECASE,
)
_SUBJECT = re.compile(
    r"^(?:Subject|Betreff|主题)\s?[:：]\s*(?:(?:Re|Fwd?|AW|WG|回复|转发)\s?[:：]\s*)*(.*)$", re.IGNORECASE
)
_CLOSING = re.compile(
    r"^\s*(best|kind|warm|many|with kind|best wishes|regards|cheers|thanks|thank you|sincerely|yours|"
    r"sent from my|get outlook|mfg|lg|vielen dank|danke|"
    r"(mit )?(freundliche|beste|viele|liebe|schöne|herzliche)[nm]? gr(ü|ue)(ß|ss)e?n?|"
    r"cordialement|saludos|此致|敬礼|祝好|谢谢|顺祝|祝商祺|来自我的)[\s\w,.!，。！]{0,40}$",
    re.IGNORECASE,
)
_GREETING = re.compile(
    r"^\s*((hi|hello|hey|dear|good (morning|afternoon|evening)|hallo|liebe[rs]?|guten (tag|morgen|abend)|"
    r"sehr geehrte[rs]?|moin|bonjour|hola)(\s[^,.!?\n]{0,60})?[,!.]?|"
    r"(你好|您好|尊敬的|亲爱的|大家好)[^。！？\n]{0,20}[，,：:！!。]?)\s*$",
    re.IGNORECASE,
)
_FENCE = re.compile(r"^\s*(```|~~~)")
_MARKS = (  # every repetition is bounded: a hostile line must cost no more than its length
    (re.compile(r"!\[[^\]\n]{0,200}\]\([^)\n]{0,500}\)"), ""),
    (re.compile(r"\[([^\[\]\n]{1,200})\]\([^()\s]{0,500}\)"), r"\1"),
    (re.compile(r"(\*\*|__)(?=[^\s*_])([^*_\n]{1,300})(?<=\S)\1"), r"\2"),
    (re.compile(r"(?<!\w)[*_](?=[^\s*_])([^*_\n]{1,300})(?<=\S)[*_](?!\w)"), r"\1"),
    (re.compile(r"`([^`\n]{1,300})`"), r"\1"),
)
_BULLET = re.compile(r"^\s*(?:[-*+•·]|\d{1,3}[.)、])\s+")
_HEADING = re.compile(r"^\s{0,3}#{1,6}\s+")
_RULE = re.compile(r"^\s*([-*_=]\s*){3,}$")
_LOOKS_LIKE_HTML = re.compile(r"<(html|body|p|div|br|table|span|h[1-6]|ul|li)\b[^<>]{0,500}>", re.IGNORECASE)


def plain(text: str) -> str:
    """The writer's own words: quoted mails, signatures, greetings, headers, code and markup are left out.

    Paragraphs, list entries and headings stay apart by empty lines. Where nothing would be left, the text as it came.
    """
    source = _from_html(text) if _LOOKS_LIKE_HTML.search(text) else text
    source = source.replace("\r\n", "\n").replace("\r", "\n").replace("\ufeff", "")
    source = re.sub(r"\n{3,}", "\n\n", source)
    kept = _without_signature(_without_mail_parts(source.split("\n")))
    result = "\n".join(_lines_without_markup(kept))
    result = re.sub(r"\n{3,}", "\n\n", result).strip()
    return result if len(result) >= 2 else source.strip()


def _without_mail_parts(lines: list[str]) -> list[str]:
    kept: list[str] = []
    in_code = False
    for number, line in enumerate(lines):
        if _FENCE.match(line):
            in_code = not in_code
            continue
        if in_code or line.lstrip().startswith((">", "＞")):
            continue
        # An intro may be wrapped: "On Monday ... Anna\n<a@b.c> wrote:"
        if _QUOTE_INTRO.match(line) or (
            number + 1 < len(lines) and _QUOTE_INTRO.match(f"{line} {lines[number + 1]}")
        ):
            if any(kept):
                break
            continue
        subject = _SUBJECT.match(line)
        if subject:
            kept += [subject.group(1), ""]
        elif not _HEADER.match(line):
            kept.append(line)
    return kept


def _without_signature(lines: list[str]) -> list[str]:
    for number, line in enumerate(lines):
        if line.rstrip("\n") in ("-- ", "--") and any(lines[:number]):
            return lines[:number]
    filled = [n for n, line in enumerate(lines) if line.strip()]
    for position, number in enumerate(filled):
        near_the_end = len(filled) - position <= 8
        if near_the_end and position and _CLOSING.match(lines[number]):
            return lines[:number]
    return lines


def _lines_without_markup(lines: list[str]) -> Iterator[str]:
    for line in lines:
        if _RULE.match(line) or line.count("|") >= 3:
            yield ""
            continue
        if _GREETING.match(line):
            yield ""
            continue
        apart = bool(_BULLET.match(line) or _HEADING.match(line))
        line = _HEADING.sub("", _BULLET.sub("", line))
        for mark, replacement in _MARKS:
            line = mark.sub(replacement, line)
        if apart:
            yield from ("", line.strip(), "")
        else:
            yield line.strip()


class _Words(HTMLParser):
    """Collects what a reader of the page would see."""

    _BLOCKS = frozenset(
        {"p", "div", "br", "li", "tr", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "table", "blockquote"}
    )
    _HIDDEN = frozenset({"script", "style", "head", "title"})

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self._HIDDEN:
            self._hidden += 1
        elif tag in self._BLOCKS:
            self.parts.append("\n\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._HIDDEN:
            self._hidden = max(0, self._hidden - 1)
        elif tag in self._BLOCKS:
            self.parts.append("\n\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.parts.append(re.sub(r"\s+", " ", data))


def _from_html(text: str) -> str:
    words = _Words()
    words.feed(text)
    words.close()
    return "".join(words.parts)


# ---------------------------------------------------------------- sentences

_ABBREVIATIONS = frozenset(
    "dr mr mrs ms prof st no nr vs etc e.g i.e inc ltd co corp approx dept est fig "
    "jan feb mar apr jun jul aug sep sept oct nov dec "
    "z.b d.h u.a bzw ca evtl ggf inkl usw z abs art tel str hr fr dipl ing bspw zzgl sog max min vgl p.m a.m".split()
)
_MONTH_AFTER = re.compile(
    r"\s*(januar|februar|märz|april|mai|juni|juli|august|september|oktober|november|dezember|quartal|jahrhundert|stock|klasse)\b",
    re.IGNORECASE,
)
_END_LATIN = re.compile(r"(?<![.!?…])[.!?…]+[\"'”’»)\]]*(?=\s)")
_END_CJK = re.compile(r"[。！？；…]+[”’」』）》]*|(?<![!?])[!?]+(?=[\u3400-\u9fff])")


def sentences(text: str) -> list[str]:
    """The sentences of plain text in order, Latin and Chinese or Japanese; none empty, none over MAX_SENTENCE_CHARS."""
    found: list[str] = []
    for block in _blocks(text):
        for sentence in _split_block(block):
            found += _cut(sentence)
    return found


def _blocks(text: str) -> Iterator[str]:
    """Paragraphs; a line break inside one is a space if the line was wrapped, else a border."""
    for paragraph in re.split(r"\n\s*\n", text):
        current = ""
        for line in (part.strip() for part in paragraph.split("\n")):
            if not line:
                continue
            if not current:
                current = line
            elif _was_wrapped(current, line):
                current += ("" if _HAN.match(line) and _HAN.match(current[-1]) else " ") + line
            else:
                yield current
                current = line
        if current:
            yield current


def _was_wrapped(current: str, following: str) -> bool:
    last_line_is_long = len(current) >= (20 if is_cjk(current) else 48)
    ended = current[-1] in '.!?…。！？；:："”'
    return (following[:1].islower() and len(current) >= 30) or (last_line_is_long and not ended)


def _split_block(block: str) -> Iterator[str]:
    start = 0
    for end in sorted({*_latin_ends(block), *(m.end() for m in _END_CJK.finditer(block))}):
        if end > start and (sentence := block[start:end].strip()):
            yield sentence
        start = max(start, end)
    if sentence := block[start:].strip():
        yield sentence


def _latin_ends(block: str) -> Iterator[int]:
    for match in _END_LATIN.finditer(block):
        dots = match.group().rstrip("\"'”’»)]")
        goes_on = block[match.end() : match.end() + 10].lstrip()[:1].islower()
        if dots in ("...", "…") and goes_on:
            continue
        if dots == "." and (goes_on or _is_abbreviation(block, match)):
            continue
        yield match.end()


def _is_abbreviation(block: str, match: re.Match[str]) -> bool:
    before = block[max(0, match.start() - 24) : match.start()].split()
    word = before[-1].lstrip("(\"'„“«[").casefold() if before else ""
    if word in _ABBREVIATIONS or (len(word) == 1 and word.isalpha()):
        return True
    return word.isdigit() and len(word) <= 2 and _MONTH_AFTER.match(block, match.end()) is not None


def _cut(sentence: str) -> Iterator[str]:
    while len(sentence) > MAX_SENTENCE_CHARS:
        window = sentence[:MAX_SENTENCE_CHARS]
        at = max(window.rfind(mark) + 1 for mark in (", ", "; ", "，", "、", "；", " "))
        at = at if at > MAX_SENTENCE_CHARS // 3 else MAX_SENTENCE_CHARS
        yield sentence[:at].strip()
        sentence = sentence[at:].strip()
    if sentence:
        yield sentence


def chunks(text: str, max_chars: int) -> list[str]:
    """The plain text in pieces of at most ``max_chars``, cut only between sentences."""
    pieces: list[str] = []
    current = ""
    for sentence in sentences(text):
        for part in (sentence[i : i + max_chars] for i in range(0, len(sentence), max_chars)):
            glue = "" if not current or (_HAN.match(part) and not current[-1].isascii()) else " "
            if current and len(current) + len(glue) + len(part) > max_chars:
                pieces.append(current)
                current, glue = "", ""
            current += glue + part
    return [*pieces, current] if current else pieces


def shorten(text: str, max_chars: int) -> str:
    """At most ``max_chars``; what is cut ends in an ellipsis, on a word's border where there is one."""
    if len(text) <= max_chars:
        return text
    window = text[: max(1, max_chars - 1)]
    border = window.rfind(" ")
    if border > max_chars // 2:
        window = window[:border]
    return window.rstrip(" ,;，；、") + "…"


def folded(text: str) -> str:
    """For comparing: compatibility forms, case and all white space folded away."""
    return re.sub(r"\s+", "", unicodedata.normalize("NFKC", text).casefold())
