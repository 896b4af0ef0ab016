"""Each field of a submission, exactly at its limits and one past them; and all that is wrong told at once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.drafting import LATER, MAX_ITEMS, MAX_KEY_CHARS, MAX_NOTES_BYTES, OPTIONS, Drafting
from postroom.errors import DraftInvalid, TooLarge
from postroom.jsontext import MAX_DEPTH
from postroom.model import Draft, Payload, Priority
from postroom.settings import Settings

UNSAFE = [f"a{c}b" for c in "\x1b\x7f\x80\x9b\u2028\u202a\u202e\u2066\u2069"]
"""What would reach a terminal, or turn a text around."""

NOW = 1_700_000_000.0
ITEM_BYTES = 1000
DRAFTING = Drafting(Settings(max_item_bytes=ITEM_BYTES))


def draft(**fields: Any) -> Draft:
    if "items" not in fields:
        fields = {"content": "hello", **fields}
    return DRAFTING.draft(fields, now=NOW)


def keyed(key: str = "key", **fields: Any) -> Draft:
    if "items" not in fields:
        fields = {"content": "hello", **fields}
    return DRAFTING.draft(fields, now=NOW, idempotency_key=key)


def problems(**fields: Any) -> dict[str, str]:
    with pytest.raises(DraftInvalid) as refused:
        DRAFTING.draft(fields, now=NOW)
    return {problem.path: problem.message for problem in refused.value.problems}


def refused_for(name: str, value: Any) -> str:
    found = problems(content="hello", **{name: value})
    assert list(found) == [name]
    return found[name]


# ---- content and items


def test_all_else_has_a_default() -> None:
    made = draft()
    assert made == Draft(made.job_id, "assistant", Payload('"hello"'))
    assert len(made.job_id) == 32


@pytest.mark.parametrize("content", [0, False, "", [], {}, [None]])
def test_content_may_be_any_value_but_null(content: Any) -> None:
    assert draft(content=content).total == 1


def test_content_or_items_and_not_both() -> None:
    assert "give content (any JSON value but null) or items" in problems()["content"]
    assert "give content" in problems(content=None, items=None)["content"]
    assert "not both" in problems(content="a", items=["b"])["content"]


def test_items_may_be_null_each() -> None:
    made = draft(items=[None, 0])
    assert (made.payload, made.total, made.has_items) == (Payload("[null,0]"), 2, True)


@pytest.mark.parametrize("items", ["ab", {"a": 1}, 7, True])
def test_items_are_a_list(items: Any) -> None:
    assert "a list of 1 to" in problems(items=items)["items"]


def test_the_number_of_items_has_edges() -> None:
    assert "found 0" in problems(items=[])["items"]
    assert draft(items=[1]).total == 1
    assert draft(items=[1] * MAX_ITEMS).total == MAX_ITEMS
    assert f"found {MAX_ITEMS + 1}" in problems(items=[1] * (MAX_ITEMS + 1))["items"]


def test_what_is_no_json_is_told_with_its_place() -> None:
    assert problems(items=[1, float("nan"), {"a": b"x"}, "\x00"]).keys() == {
        "items[1]",
        "items[2]",
        "items[3]",
    }
    assert (
        problems(content=[{"a": 2**63}])["content"]
        == "[0].a: integers past 64 bits are not kept; send it as text"
    )


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("make", [draft, keyed])
def test_content_may_be_as_deep_as_any_json(make: Any) -> None:
    assert make(content=deep(MAX_DEPTH)).total == 1
    assert make(items=[deep(MAX_DEPTH)]).total == 1
    assert "deeper" in problems(content=deep(MAX_DEPTH + 1))["content"]
    assert "deeper" in problems(items=[deep(MAX_DEPTH + 1)])["items[0]"]


# ---- item keys


@pytest.mark.parametrize("key", ["a", "0", "x" * MAX_KEY_CHARS, "é" * MAX_KEY_CHARS, "with space"])
def test_a_key_is_a_short_printable_text(key: str) -> None:
    assert draft(items=[1], item_keys=[key]).payload.keys == (key,)


@pytest.mark.parametrize(
    "key",
    ["", "x" * (MAX_KEY_CHARS + 1), "a\n", "é\x7f", "é\x00", "\ud800", "a\x9bb", "a\u202eb", 1, None, True],
)
def test_what_is_no_key_is_refused_with_its_place(key: Any) -> None:
    found = problems(items=[1, 2], item_keys=["fine", key])
    assert found == {"item_keys[1]": f"text of 1 to {MAX_KEY_CHARS} printable characters"}


@pytest.mark.parametrize("keys", [[], ["a"], ["a", "b", "c"], "ab", {"a": 1, "b": 2}, 7])
def test_there_are_as_many_keys_as_items(keys: Any) -> None:
    assert problems(items=[1, 2], item_keys=keys)["item_keys"] == "a list as long as items (2)"


def test_keys_are_all_different() -> None:
    assert "appears twice" in problems(items=[1, 2, 3], item_keys=["a", "b", "a"])["item_keys[2]"]


def test_keys_go_with_items() -> None:
    assert problems(content="a", item_keys=["a"]) == {"item_keys": "goes with items"}


# ---- labels and choices


@pytest.mark.parametrize("name", ["kind", "sender", "topic", "queue"])
def test_a_label_is_a_short_printable_text(name: str) -> None:
    for fits in ("a", "x" * 200, "é" * 200, "Grüße, Ann"):
        assert getattr(draft(**{name: fits}), name) == fits
    for wrong in ("", "x" * 201, "a\n", "é\r", "\x00", "\ud800", *UNSAFE, 7, True, ["a"], {}):
        assert refused_for(name, wrong) == "text of 1 to 200 printable characters"


@pytest.mark.parametrize("name", ["kind", *sorted(OPTIONS)])
def test_an_option_that_is_null_was_not_said(name: str) -> None:
    said, unsaid = draft(**{name: None}), draft()
    assert getattr(said, name) == getattr(unsaid, name)


def test_a_priority_is_one_of_three() -> None:
    assert [draft(priority=str(p)).priority for p in Priority] == list(Priority)
    assert refused_for("priority", "urgent") == "one of high, normal, low, found 'urgent'"
    for wrong in (1, True, ["high"], {}, "High", ""):
        assert "one of high, normal, low" in refused_for("priority", wrong)


# ---- times


def test_a_time_is_text_with_an_offset_or_an_aware_datetime() -> None:
    moment = datetime(2030, 1, 31, 8, tzinfo=UTC)
    for spelled in (
        "2030-01-31T08:00:00Z",
        "2030-01-31T09:00:00+01:00",
        moment,
        moment.astimezone(timezone(timedelta(hours=-5))),
    ):
        assert draft(run_at=spelled).run_at == moment.timestamp()
        assert draft(expires_at=spelled).expires_at == moment.timestamp()


LOCAL = datetime(2030, 1, 31, 8, tzinfo=UTC).replace(tzinfo=None)


@pytest.mark.parametrize("name", ["run_at", "expires_at"])
@pytest.mark.parametrize(
    "value",
    ["", "soon", "2030-01-31T08:00:00", "2030-13-01T00:00:00Z", 1893456000, True, [], LOCAL],
)
def test_any_other_time_is_refused(name: str, value: Any) -> None:
    assert "offset" in refused_for(name, value)


@pytest.mark.parametrize("value", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"])
def test_a_time_past_the_calendar_is_refused(value: str) -> None:
    assert "offset" in refused_for("run_at", value)
    assert "offset" in refused_for("run_at", datetime.fromisoformat(value))


@pytest.mark.parametrize("name", ["run_at", "expires_at"])
def test_the_last_instant_of_the_calendar_can_be_shown_again(name: str) -> None:
    moment = getattr(draft(**{name: "9999-12-31T23:59:59.999999Z"}), name)
    assert datetime.fromtimestamp(moment, UTC).year == 9999


@pytest.mark.parametrize("hours", [0, 1])
def test_an_end_lies_after_the_time_that_the_job_is_due(hours: int) -> None:
    at = datetime.fromtimestamp(NOW + 7200, UTC)
    with pytest.raises(DraftInvalid, match="expires_at: is not after run_at"):
        draft(run_at=at, expires_at=at - timedelta(hours=hours))
    assert draft(run_at=at, expires_at=at + timedelta(microseconds=10)).expires_at is not None


def test_an_end_lies_after_now() -> None:
    at = datetime.fromtimestamp(NOW, UTC)
    assert draft(expires_at=at + timedelta(microseconds=1)).expires_at is not None
    assert refused_for("expires_at", at) == "lies in the past"
    assert refused_for("expires_at", at - timedelta(days=1)) == "lies in the past"


def test_a_start_in_the_past_is_now() -> None:
    assert draft(run_at=datetime.fromtimestamp(NOW - 60, UTC)).run_at == NOW - 60


# ---- numbers


@pytest.mark.parametrize("name", ["timeout_seconds", "stall_timeout_seconds"])
def test_a_span_is_above_0(name: str) -> None:
    for fits in (0.001, 1, 10**9 - 1):
        assert getattr(draft(**{name: fits}), name) == fits
    for wrong in (0, 0.0, -1, 10**9, float("nan"), float("inf"), "5", True, [], 10**400):
        assert refused_for(name, wrong) == "seconds above 0, fractions allowed"


def test_attempts_are_a_whole_number_from_1_to_1000() -> None:
    assert [draft(max_attempts=n).max_attempts for n in (1, 1000)] == [1, 1000]
    for wrong in (0, 1001, -1, 1.0, 1.5, "3", True, float("nan"), []):
        assert refused_for("max_attempts", wrong) == "a whole number from 1 to 1000"


def test_failed_items_are_a_number_or_a_share() -> None:
    for fits in (0, 1, 2, 7.0, 0.25, 0.999, 10**9 - 1):
        assert draft(allow_failed_items=fits).allow_failed_items == fits
    for wrong in (-1, -0.1, 1.5, 10**9, float("nan"), float("inf"), True, "0.5", []):
        assert "a whole number of items, or a share" in refused_for("allow_failed_items", wrong)


# ---- params and metadata


@pytest.mark.parametrize("name", ["params", "metadata"])
def test_notes_are_an_object_of_json(name: str) -> None:
    assert getattr(draft(**{name: {"a": [1, "é"]}}), name) == '{"a":[1,"é"]}'
    for wrong in ([], "a", 7, True, {1: 2}, {None: 1}):
        assert refused_for(name, wrong) == "an object"
    assert "NUL" in refused_for(name, {"a": "\x00"})
    assert "not JSON" in refused_for(name, {"a": float("nan")})


@pytest.mark.parametrize("name", ["params", "metadata"])
@pytest.mark.parametrize("letter", ["x", "é"])
def test_notes_may_be_exactly_so_large(name: str, letter: str) -> None:
    frame, width = len('{"a":""}'), len(letter.encode())
    text = letter * ((MAX_NOTES_BYTES - frame) // width)
    assert len(getattr(draft(**{name: {"a": text}}), name).encode()) == MAX_NOTES_BYTES
    with pytest.raises(TooLarge) as refused:
        draft(**{name: {"a": text + "x"}})
    assert (refused.value.what, refused.value.size) == (name, MAX_NOTES_BYTES + 1)


# ---- sizes


@pytest.mark.parametrize("letter", ["x", "é", "\U0001f600"])
def test_content_may_be_exactly_so_large(letter: str) -> None:
    text = letter * ((ITEM_BYTES - 2) // len(letter.encode()))
    text += "x" * (ITEM_BYTES - 2 - len(text.encode()))
    assert len(draft(content=text).payload.body.encode()) == ITEM_BYTES
    with pytest.raises(TooLarge) as refused:
        draft(content=text + "x")
    error = refused.value
    assert (error.what, error.limit, error.size) == ("content", ITEM_BYTES, ITEM_BYTES + 1)
    assert "POSTROOM_MAX_ITEM_BYTES" in str(error)


def test_each_item_has_the_limit_and_not_all_of_them() -> None:
    fits = "x" * (ITEM_BYTES - 2)
    assert draft(items=[fits] * 10).total == 10
    with pytest.raises(TooLarge) as refused:
        DRAFTING.draft({"items": [fits, fits + "x"]}, now=NOW, path="jobs[3].")
    assert refused.value.what == "jobs[3].items[1]"


# ---- unknown, later, and all at once


def test_an_unknown_field_is_refused_by_name() -> None:
    told = refused_for("max_attempt", 3)
    assert told.startswith("unknown field; known are")
    assert "max_attempts" in told


@pytest.mark.parametrize("name", sorted(LATER))
def test_what_is_not_built_yet_is_refused_and_never_ignored(name: str) -> None:
    assert refused_for(name, "x") == LATER[name]
    assert "not built yet" in LATER[name]


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(DraftInvalid) as refused:
        DRAFTING.draft(
            {
                "items": [1, float("nan")],
                "item_keys": ["a"],
                "kind": "",
                "priority": "urgent",
                "run_at": "soon",
                "expires_at": "2001-01-01T00:00:00Z",
                "max_attempts": 0,
                "timeout_seconds": 0,
                "params": [],
                "gates": ["x"],
                "colour": "red",
            },
            now=NOW,
            idempotency_key="",
            path="jobs[0].",
        )
    names = (
        "items[1] item_keys kind priority run_at expires_at max_attempts timeout_seconds params gates colour"
    )
    expected = {f"jobs[0].{name}" for name in [*names.split(), "Idempotency-Key"]}
    assert {problem.path for problem in refused.value.problems} == expected
    assert len(refused.value.problems) == len(expected)


# ---- idempotency keys and digests


@pytest.mark.parametrize("key", ["k", "k" * 255, "é" * 255])
def test_a_key_may_have_255_characters(key: str) -> None:
    made = keyed(key)
    assert made.idempotency_key == key
    assert made.body_digest is not None


@pytest.mark.parametrize("key", ["", "k" * 256, "a\nb", "\x00", "\ud800", 7])
def test_what_is_no_key_of_a_submission_is_refused(key: Any) -> None:
    with pytest.raises(DraftInvalid, match="Idempotency-Key: 1 to 255"):
        keyed(key)


def test_without_a_key_nothing_is_digested() -> None:
    assert draft().body_digest is None


NESTED = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab", max_size=2),
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text("abc", max_size=2), v, max_size=3),
    max_leaves=10,
)


def turned(value: Any) -> Any:
    """The same value with the keys of every object in the other order."""
    if isinstance(value, dict):
        return {key: turned(value[key]) for key in reversed(list(value))}
    return [turned(v) for v in value] if isinstance(value, list) else value


@given(NESTED, st.dictionaries(st.text("abc", max_size=2), NESTED, max_size=3))
def test_the_digest_is_the_same_whatever_the_order_of_keys(item: Any, params: dict[str, Any]) -> None:
    fields = {"items": [item], "params": params, "sender": "ann", "topic": "t"}
    assert keyed(**fields).body_digest == keyed(**turned(fields)).body_digest


@given(NESTED, NESTED)
def test_different_contents_have_different_digests(one: Any, other: Any) -> None:
    same = keyed(items=[one]).body_digest == keyed(items=[other]).body_digest
    assert same == (repr(turned_sorted(one)) == repr(turned_sorted(other)))


def turned_sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: turned_sorted(value[key]) for key in sorted(value)}
    return [turned_sorted(v) for v in value] if isinstance(value, list) else value


SAME = [
    ({}, {"sender": None}),
    ({}, {"kind": "assistant"}),
    ({}, {"priority": "normal", "queue": "default", "topic": "default", "sender": "unknown"}),
    ({}, {"params": {}, "metadata": {}}),
    ({"timeout_seconds": 5}, {"timeout_seconds": 5.0}),
    ({"run_at": "2030-01-31T08:00:00Z"}, {"run_at": "2030-01-31T09:00:00.000+01:00"}),
    ({"run_at": "2030-01-31T08:00:00Z"}, {"run_at": datetime(2030, 1, 31, 8, tzinfo=UTC)}),
    ({"items": [1, 2]}, {"items": (1, 2)}),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_one_job_has_one_digest_however_it_is_spelled(one: Any, other: Any) -> None:
    """Else the same call made in Python and over HTTP would be told that its key is taken."""
    assert keyed(**one).body_digest == keyed(**other).body_digest


DIFFERENT = [
    {"content": "other"},
    {"items": ["hello"]},
    {"kind": "note"},
    {"sender": "ann"},
    {"topic": "t"},
    {"priority": "high"},
    {"queue": "q"},
    {"run_at": "2030-01-31T08:00:00Z"},
    {"expires_at": "2030-01-31T08:00:00Z"},
    {"max_attempts": 5},
    {"timeout_seconds": 5},
    {"stall_timeout_seconds": 5},
    {"allow_failed_items": 1},
    {"params": {"a": 1}},
    {"metadata": {"a": 1}},
]


def test_every_field_makes_a_difference() -> None:
    digests = {keyed(**fields).body_digest for fields in [{}, *DIFFERENT]}
    assert len(digests) == len(DIFFERENT) + 1
    keys = [None, ["a", "b"], ["b", "a"]]
    assert len({keyed(items=[1, 2], item_keys=k).body_digest for k in keys}) == 3


def test_the_fields_that_were_given_stay_as_they_are() -> None:
    params = {"b": 1, "a": 2}
    assert keyed(params=params).params == '{"b":1,"a":2}'
    assert list(params) == ["b", "a"]
