"""Values that stand in the text: holding a model to them while it writes, and looking them up afterwards."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from postroom.assistant.text import folded

MAX_UNITS = 120
"""Words (Chinese characters) that a text may have to be turned into a grammar; the runtime takes no larger one."""
MAX_GROUPS = 900
MAX_QUOTE_UNITS = 12

_UNIT = re.compile(r"[\u3400-\u9fff]|[^\s\u3400-\u9fff，。；：！？、（）“”\"\\]+")
_BEFORE, _AFTER = "([<'", ",.;:!?)]>'"
_SPECIAL = re.compile(r"([\\^$.|?*+()\[\]{}/-])")


def units(text: str) -> list[tuple[int, int]]:
    """Where the words stand, without the punctuation around them; each Chinese character is one."""
    found = []
    for match in _UNIT.finditer(text):
        start, end = match.span()
        while end > start and text[end - 1] in _AFTER:
            end -= 1
        while start < end and text[start] in _BEFORE:
            start += 1
        if end > start:
            found.append((start, end))
    return found


def held_to(schema: Mapping[str, Any], text: str) -> dict[str, Any]:
    """The schema with every free text narrowed to a run of words of this text (or none), every number to one in it.

    A small model that cannot write anything else can neither invent nor lose the thread. Where a field's name says what
    it holds (a date, a phone number, a sum) and the text has such values, it can only choose among those. Texts with
    rules of their own (a format, a pattern, a choice) are left to those.
    """
    quote = {"type": "string", "pattern": _runs_of_words(text)}
    written = _AMOUNT.findall(text) or _NUMBER.findall(text)
    numbers = sorted({reading for token in written for reading in readings(token)})
    narrowed: dict[str, Any] = _narrowed(
        schema, text, [int(n) if n.is_integer() else n for n in numbers][:100]
    )
    narrowed["$defs"] = {**narrowed.get("$defs", {}), _QUOTE: quote}
    return narrowed


_QUOTE = "words_of_the_text"
_OWN_RULES = frozenset({"enum", "const", "pattern", "format", "$ref", "maxLength", "minLength"})


def _narrowed(schema: Any, text: str, numbers: Sequence[float], name: str = "") -> Any:
    if isinstance(schema, list):
        return [_narrowed(entry, text, numbers, name) for entry in schema]
    if not isinstance(schema, Mapping):
        return schema
    types = schema.get("type")
    names = [types] if isinstance(types, str) else list(types or ())
    if not _OWN_RULES & set(schema):
        if "string" in names and set(names) <= {"string", "null"}:
            known = recognised(name, text)
            return _or_null({"enum": known} if known else {"$ref": f"#/$defs/{_QUOTE}"}, names)
        fitting = numbers if "number" in names else [n for n in numbers if isinstance(n, int)]
        if fitting and names and set(names) <= {"number", "integer", "null"}:
            return _or_null({"enum": list(fitting)}, names)
    inner: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("properties", "$defs", "definitions") and isinstance(value, Mapping):
            inner[key] = {field: _narrowed(entry, text, numbers, field) for field, entry in value.items()}
        elif key in ("items", "anyOf", "oneOf", "allOf"):
            inner[key] = _narrowed(value, text, numbers, name)
        else:
            inner[key] = value
    if "array" in names:
        inner.setdefault("maxItems", 20)
    return inner


def _or_null(schema: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]} if "null" in names else schema


def _runs_of_words(text: str) -> str:
    """A pattern of all runs of words, each at most so long that the whole stays small: w1( w2( w3)?)?|w2( w3)?|w3."""
    words = units(text)
    longest = max(2, min(MAX_QUOTE_UNITS, MAX_GROUPS // max(1, len(words))))
    runs = []
    for first in range(len(words)):
        run = ""
        for i in range(min(first + longest, len(words)) - 1, first, -1):
            between = text[words[i - 1][1] : words[i][0]]
            run = "" if "\n" in between else f"({_literal(between)}{_literal(text[slice(*words[i])])}{run})?"
        runs.append(_literal(text[slice(*words[first])]) + run)
    return f"^({'|'.join(dict.fromkeys(runs))})?$"


def _literal(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)


# ---------------------------------------------------------------- values that are known by their look

_MONTH_NAMES = (
    r"(?:jan(?:uary|uar)?|feb(?:ruary|ruar)?|mar(?:ch)?|märz|apr(?:il)?|may|mai|june?|juni|july?|juli|aug(?:ust)?|"
    r"sept?(?:ember)?|o[ck]t(?:ober)?|nov(?:ember)?|de[cz](?:ember)?)"
)
_ORDINAL = r"(?:st|nd|rd|th|\.)"
_MONEY = r"(?:EUR|USD|GBP|CHF|CNY|RMB|Euro|euros?|dollars?|pounds?|yuan|francs?|Franken|[€$£¥元])"
_NAME_WORD = r"[A-ZÄÖÜÀ-Þ][\w'’-]*\.?"
_LOOKS: Sequence[tuple[re.Pattern[str], re.Pattern[str]]] = (
    (
        re.compile(r"e-?mail|邮箱|邮件", re.I),
        re.compile(r"[A-Za-z0-9_.+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+"),
    ),
    (
        re.compile(r"\b(url|link|website)\b|网址", re.I),
        re.compile(r"https?://[^\s，。）)]+|www\.[^\s，。）)]+"),
    ),
    (
        re.compile(r"date|datum|birthday|deadline|日期|生日", re.I),
        re.compile(
            rf"\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}|\d{{1,2}}[./-]\d{{1,2}}[./-]\d{{2,4}}|"
            rf"(?:\d{{4}}年)?\d{{1,2}}月\d{{1,2}}日|"
            rf"\d{{1,2}}{_ORDINAL}?(?: of)? {_MONTH_NAMES}\b\.?(?:,? \d{{4}})?|"
            rf"{_MONTH_NAMES}\.? \d{{1,2}}{_ORDINAL}?(?:,? \d{{4}})?",
            re.I,
        ),
    ),
    (
        re.compile(r"\btime\b|uhrzeit|时间", re.I),
        re.compile(r"\d{1,2}[:：]\d{2}(?: ?[ap]\.?m)?|\d{1,2} ?(?:[ap]m|Uhr|点)", re.I),
    ),
    (
        re.compile(r"phone|telefon|mobile|handy|电话|手机", re.I),
        re.compile(r"(?<![A-Za-z0-9.,-])\+?\d(?:[\d ()/-]{4,}\d)(?![A-Za-z0-9-])"),
    ),
    (
        re.compile(r"amount|total|price|cost|sum\b|betrag|summe|preis|kosten|金额|价格|总额", re.I),
        re.compile(rf"{_MONEY} ?\d[\d.,]*\d|\d[\d.,]*\d? ?{_MONEY}\b|\d[\d.,]*\d?元"),
    ),
    (
        re.compile(r"number|\bnr\b|nummer|\bid\b|\bcode\b|reference|号", re.I),
        re.compile(r"(?<![A-Za-z0-9@.-])[A-Za-z]{0,5}[-/]?\d[A-Za-z0-9/-]*(?![A-Za-z0-9@])"),
    ),
    (
        re.compile(r"\b(first |last |full )?name\b|person|customer|company|firma|kunde", re.I),
        re.compile(rf"{_NAME_WORD}(?: (?:(?:von|van|de|der|da|del|di|&|and|und) )?{_NAME_WORD}){{0,3}}"),
    ),
)


def recognised(name: str, text: str) -> list[str]:
    """The values in the text that look like what a field of this name holds; none where the name says nothing."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).replace("_", " ")
    for named, look in _LOOKS:
        if named.search(words):
            found = [match.group().strip(" ,;") for match in look.finditer(text)]
            values = list(dict.fromkeys(part for value in found for part in _also_parts(value)))[:40]
            return [value for value in values if _is_telling(value)] or values
    return []


def _is_telling(value: str) -> bool:
    """Names of two words and numbers of three digits go before a lone capital and a lone 7."""
    return " " in value or sum(character.isdigit() for character in value) > 2 or ":" in value or "@" in value


def _also_parts(value: str) -> list[str]:
    """A run of capitalised words may be a name with a word before it: its later parts are offered as well."""
    if not re.match(_NAME_WORD, value) or any(character.isdigit() for character in value):
        return [value]
    words = value.rstrip(".").split(" ")
    return [" ".join(words[start:]) for start in range(len(words))]


# ---------------------------------------------------------------- afterwards


def not_in_text(value: Any, text: str, schema: Mapping[str, Any] | None = None) -> Iterator[str]:
    """JSON pointers of the texts and numbers that do not stand in the text.

    White space, case and width do not matter, nor does how a number is grouped or a date is written (all its parts
    must be there). Choices of the schema (``enum``, ``const``) are judgements and are not looked up.
    """
    here = folded(text)
    for pointer, leaf, is_choice in _leaves(value, schema or {}, ""):
        if not is_choice and not stands_in(leaf, here):
            yield pointer


def _leaves(value: Any, schema: Any, pointer: str) -> Iterator[tuple[str, Any, bool]]:
    schema = schema if isinstance(schema, Mapping) else {}
    if isinstance(value, dict):
        properties = schema.get("properties") or {}
        for key, entry in value.items():
            escaped = str(key).replace("~", "~0").replace("/", "~1")
            yield from _leaves(entry, properties.get(key), f"{pointer}/{escaped}")
    elif isinstance(value, list):
        for number, entry in enumerate(value):
            yield from _leaves(entry, schema.get("items"), f"{pointer}/{number}")
    else:
        yield pointer or "/", value, "enum" in schema or "const" in schema


def stands_in(leaf: Any, here: str) -> bool:
    """True if a value stands in a text that was `folded`."""
    if leaf is None or isinstance(leaf, bool):
        return True
    if isinstance(leaf, int | float):
        return any(
            abs(abs(leaf) - reading) < 1e-9 for token in _NUMBER.findall(here) for reading in readings(token)
        )
    return folded(str(leaf)) in here or _date_stands_in(str(leaf), here)


_NUMBER = re.compile(r"\d[\d.,'’]*")
_AMOUNT = re.compile(r"(?<![\d/:.-])\d[\d.,'’]*(?![\d/:年月日-])")
"""A number that is no part of a date or a time."""


def readings(token: str) -> set[float]:
    """What a written number may mean: 1.234,50 and 1,234.50 are the same, 1.234 may be either."""
    token = token.rstrip(".,'’").replace("'", "").replace("’", "")
    return {
        float(token.replace(group, "").replace(decimal, "."))
        for decimal, group in ((".", ","), (",", "."))
        if re.fullmatch(rf"(\d+|\d{{1,3}}({re.escape(group)}\d{{3}})+)({re.escape(decimal)}\d+)?", token)
    }


def numbers_in(text: str) -> list[str]:
    """The numbers as they are written."""
    return [token.rstrip(".,'’") for token in _NUMBER.findall(text)]


_MONTHS: Sequence[tuple[str, ...]] = (
    ("january", "januar", "jan"),
    ("february", "februar", "feb"),
    ("march", "märz", "mar"),
    ("april", "apr"),
    ("may", "mai"),
    ("june", "juni", "jun"),
    ("july", "juli", "jul"),
    ("august", "aug"),
    ("september", "sept", "sep"),
    ("october", "oktober", "oct", "okt"),
    ("november", "nov"),
    ("december", "dezember", "dec", "dez"),
)


def _date_stands_in(leaf: str, here: str) -> bool:
    """An ISO date stands in the text if its year, month and day stand together, in one of the usual ways."""
    date = re.fullmatch(r"(\d{4})-(\d{2})-(\d{2})", leaf.strip())
    if date is None or not 1 <= int(date.group(2)) <= 12:
        return False
    year, month, day = (int(part) for part in date.groups())
    short = rf"({year}|{year % 100:02d})"
    names = "|".join(_MONTHS[month - 1])
    ways = (
        rf"0?{day}[./-]0?{month}[./-]{short}",
        rf"0?{month}/0?{day}/{short}",
        rf"{year}[./年-]0?{month}[./月-]0?{day}",
        rf"0?{day}(\.|st|nd|rd|th|of)*({names})\.?,?{year}",
        rf"({names})\.?0?{day}(st|nd|rd|th)?,?{year}",
    )
    return any(re.search(rf"(?<!\d)({way})(?!\d)", here) for way in ways)


def merged(first: Any, second: Any, text: str) -> Any:
    """Two readings of parts of one text, field by field: what stands in the text beats what does not, lists grow."""
    if isinstance(first, dict) and isinstance(second, dict):
        both = {**second, **first}
        return {
            key: merged(first[key], second[key], text) if key in first and key in second else both[key]
            for key in both
        }
    if isinstance(first, list) and isinstance(second, list):
        return first + [entry for entry in second if entry not in first]
    if first in ("", None):
        return second
    here = folded(text)
    if second in ("", None) or stands_in(first, here) or not stands_in(second, here):
        return first
    return second
