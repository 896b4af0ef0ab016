"""Choosing sentences of a text: a summary that quotes cannot invent.

A sentence is worth quoting if it is close to what the text as a whole says, stands early, is neither a scrap nor a
monster, and does not repeat one that was chosen already. Costs are bounded: of a long text each part first sends its
best sentences by their words alone (map), and only those are weighed by meaning (reduce).
"""

from __future__ import annotations

import asyncio
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import mul

from postroom.assistant.models import Vector
from postroom.assistant.text import is_cjk, plain, sentences, shorten
from postroom.assistant.toolbox import Toolbox, aside

MAX_WEIGHED = 120
"""Sentences that are encoded per text: one to three seconds on two cores."""
PART_SENTENCES = 80

_WORDS = re.compile(r"[^\W\d_]{2,}|[\u3400-\u9fff]")


@dataclass(frozen=True)
class Quotes:
    """Chosen sentences in the order of the text; `considered` of `total` sentences were weighed by meaning."""

    sentences: list[str]
    considered: int
    total: int

    @property
    def note(self) -> str | None:
        """Says so where a text was too long to be weighed whole."""
        if self.considered >= self.total:
            return None
        return (
            f"the text is long: {self.considered} of its {self.total} sentences were weighed by meaning, "
            "chosen evenly from all its parts"
        )

    def joined(self) -> str:
        """The quotes as one text; where sentences were left out between two, nothing hides it but the order."""
        return "".join(self.sentences) if is_cjk("".join(self.sentences)) else " ".join(self.sentences)


async def quote(
    tools: Toolbox, text: str, *, count: int = 3, max_chars: int | None = None, focus: str | None = None
) -> Quotes:
    """The sentences that stand for a text.

    Args:
        count: how many at most.
        max_chars: bound over all of them; one that would pass it is left out, a single one is shortened.
        focus: prefer what is about this.
    """
    found = await aside(lambda whole: sentences(plain(whole)), text)
    chosen = candidates(found) if len(found) < 1000 else await asyncio.to_thread(candidates, found)
    if len(chosen) <= count:
        return Quotes(_within([found[i] for i in chosen], max_chars), len(found), len(found))
    vectors = await tools.encode([found[i] for i in chosen])
    wanted = (await tools.encode([focus]))[0] if focus else None
    weights = _weights([found[i] for i in chosen], vectors, wanted, [i / len(found) for i in chosen])
    picked = _pick(weights, vectors, count)
    by_worth = [found[chosen[p]] for p in picked]
    kept = set(_within(by_worth, max_chars)) if max_chars else set(by_worth)
    ordered = [found[chosen[p]] for p in sorted(picked) if found[chosen[p]] in kept]
    weighed = len(chosen) if len(found) > MAX_WEIGHED else len(found)
    return Quotes(ordered or _within(by_worth[:1], max_chars), weighed, len(found))


def candidates(found: Sequence[str]) -> list[int]:
    """Indexes of the sentences worth weighing: all of a short text, of a long one the best of each part by words."""
    usable = [i for i, sentence in enumerate(found) if _is_statement(sentence)] or list(range(len(found)))
    usable = _without_repeats(found, usable)
    if len(usable) <= MAX_WEIGHED:
        return usable
    counts = Counter(word for i in usable for word in set(_WORDS.findall(found[i].casefold())))
    parts = [usable[start : start + PART_SENTENCES] for start in range(0, len(usable), PART_SENTENCES)]
    chosen: list[int] = []
    for number, part in enumerate(parts):
        share = (MAX_WEIGHED * (number + 1)) // len(parts) - (MAX_WEIGHED * number) // len(parts)
        chosen += sorted(sorted(part, key=lambda i: -_common_words(found[i], counts))[:share])
    return chosen


def _without_repeats(found: Sequence[str], indexes: Sequence[int]) -> list[int]:
    first: dict[str, int] = {}
    for i in indexes:
        first.setdefault(found[i].casefold(), i)
    return sorted(first.values())


def _is_statement(sentence: str) -> bool:
    """Long enough to say something, and more than numbers and signs."""
    letters = sum(1 for character in sentence if character.isalpha())
    return letters >= (6 if is_cjk(sentence) else 15) and not sentence.rstrip().endswith((":", "："))


def _common_words(sentence: str, counts: Counter[str]) -> float:
    words = _WORDS.findall(sentence.casefold())
    return sum(math.log1p(counts[word]) for word in words) / (len(words) + 4) if words else 0.0


def _weights(
    found: Sequence[str], vectors: Sequence[Vector], wanted: Vector | None, positions: Sequence[float]
) -> list[float]:
    middle = [sum(numbers) / len(vectors) for numbers in zip(*vectors, strict=True)]
    central = _standard([dot(vector, middle) for vector in vectors])
    aimed = (
        _standard([dot(vector, wanted) for vector in vectors]) if wanted is not None else [0.0] * len(found)
    )
    weights = []
    for i, sentence in enumerate(found):
        early = 1.0 / (1.0 + 8.0 * positions[i])
        length = len(sentence) * (2.5 if is_cjk(sentence) else 1.0)
        size = -0.6 if length < 40 else -0.4 if length > 300 else 0.0
        asks = -0.6 if sentence.rstrip().endswith(("?", "？")) else 0.0
        figures = 0.3 if any(character.isdigit() for character in sentence) else 0.0
        weights.append(central[i] + 1.2 * early + size + asks + figures + 2.0 * aimed[i])
    return weights


def _pick(weights: Sequence[float], vectors: Sequence[Vector], count: int) -> list[int]:
    """Greedy: the best one, then always the best that is least like those already chosen."""
    likeness = [0.0] * len(weights)
    usual = _usual_likeness(vectors)
    picked: list[int] = []
    while len(picked) < min(count, len(weights)):
        best = max(
            (i for i in range(len(weights)) if i not in picked), key=lambda i: weights[i] - 1.2 * likeness[i]
        )
        picked.append(best)
        for i, vector in enumerate(vectors):
            above = (dot(vector, vectors[best]) - usual) / max(1e-6, 1.0 - usual)
            likeness[i] = max(likeness[i], above * 3.0)
    return picked


def _usual_likeness(vectors: Sequence[Vector]) -> float:
    """This encoder finds all texts alike (0.7 and more); only what is above that says something."""
    neighbours = [dot(a, b) for a, b in pairwise(vectors)]
    return sum(neighbours) / len(neighbours) if neighbours else 0.0


def _standard(numbers: Sequence[float]) -> list[float]:
    mean = sum(numbers) / len(numbers)
    spread = math.sqrt(sum((number - mean) ** 2 for number in numbers) / len(numbers)) or 1.0
    return [(number - mean) / spread for number in numbers]


def _within(found: Sequence[str], max_chars: int | None) -> list[str]:
    if max_chars is None or not found:
        return list(found)
    kept: list[str] = []
    left = max_chars
    for sentence in found:
        if len(sentence) + bool(kept) <= left:
            kept.append(sentence)
            left -= len(sentence) + 1
    return kept or [shorten(found[0], max_chars)]


def dot(a: Vector, b: Vector) -> float:
    """The likeness of two vectors of length 1."""
    return float(sum(map(mul, a, b)))
