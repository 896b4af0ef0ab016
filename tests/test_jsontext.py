"""What passes as JSON comes back the same; what would not is refused, from both ends."""

from __future__ import annotations

import json
import math
import sys
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.jsontext import MAX_DEPTH, JsonRefused, decode, decode_strict, encode

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
INTEGERS = st.integers(-(2**63), 2**63 - 1)
SCALARS = st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
VALUES = st.recursive(SCALARS, lambda v: st.lists(v) | st.dictionaries(TEXTS, v), max_leaves=25)
ANYTHING = st.recursive(
    st.none() | st.integers() | st.floats() | st.text(),
    lambda v: st.lists(v) | st.dictionaries(st.text(), v),
)
"""With NaN, NUL, surrogates and integers of any size."""


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types throughout: 1, 1.0 and True are three values."""
    return repr(one) == repr(other)


# ---- there and back


@given(VALUES)
def test_what_is_encoded_comes_back_the_same(value: Any) -> None:
    text = encode(value)
    assert same(decode(text), value)
    assert same(decode_strict(text), value)
    assert same(decode_strict(text.encode()), value)


@given(VALUES)
def test_text_that_was_read_is_encoded_the_one_way(value: Any) -> None:
    spelled = json.dumps(value, indent=1)
    assert encode(decode_strict(spelled)) == encode(value)


@given(ANYTHING)
def test_whatever_may_not_pass_is_refused_from_both_ends(value: Any) -> None:
    """The two ends agree about every value."""
    try:
        encode(value)
    except JsonRefused:
        with pytest.raises(JsonRefused):
            decode_strict(json.dumps(value))
    else:
        assert same(decode_strict(json.dumps(value)), value)


@given(st.binary(max_size=40) | st.text('{}[]",:0123456789eE+-.\\u tfn', max_size=40).map(str.encode))
def test_whatever_comes_from_outside_is_a_value_or_refused(data: bytes) -> None:
    try:
        value = decode_strict(data)
    except JsonRefused:
        return
    assert same(decode(encode(value)), value)


def test_text_is_compact_and_stays_readable() -> None:
    assert encode({"a": [1, "é", None]}) == '{"a":[1,"é",null]}'


class Count(IntEnum):
    THREE = 3


class Word(StrEnum):
    YES = "yes"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((1, 2), "[1,2]"),
        (Count.THREE, "3"),
        (Word.YES, '"yes"'),
        (OrderedDict(b=1, a=2), '{"b":1,"a":2}'),
        ({1: "a"}, '{"1":"a"}'),
        ({True: 1, None: 2, 1.5: 3}, '{"true":1,"null":2,"1.5":3}'),
    ],
)
def test_what_json_spells_otherwise_is_spelled_so(value: Any, text: str) -> None:
    assert encode(value) == text


# ---- refusals


def refusals(read: Callable[[Any], Any], given: Any) -> str:
    with pytest.raises(JsonRefused) as refused:
        read(given)
    return str(refused.value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_none_are_refused(value: float) -> None:
    assert "not JSON" in refusals(encode, value)
    assert "not JSON" in refusals(encode, {"a": [value]})
    assert "not JSON" in refusals(encode, {value: 1})
    assert "not JSON" in refusals(decode_strict, json.dumps([value]))


@pytest.mark.parametrize(
    "text", ["1e999", "-1E+999", "1e00999", "[1.5e400]", '{"a":1e309}', "1" + "0" * 400 + ".0"]
)
def test_a_number_past_a_float_is_refused(text: str) -> None:
    assert "too large" in refusals(decode_strict, text)


def test_the_largest_float_passes() -> None:
    assert decode_strict(repr(sys.float_info.max)) == sys.float_info.max
    assert decode_strict(encode(-sys.float_info.max)) == -sys.float_info.max


@pytest.mark.parametrize(
    "value", ["\ud800", ["a\udfff"], {"a": "\ud800x"}, {"\udc00": 1}, {"é": {"\udc00": 1}}]
)
def test_a_lone_surrogate_is_refused_in_values_and_keys(value: Any) -> None:
    assert "surrogate" in refusals(encode, value)
    assert "surrogate" in refusals(decode_strict, json.dumps(value))
    assert "surrogate" in refusals(decode_strict, json.dumps(value, ensure_ascii=False))


def test_a_pair_of_surrogates_is_one_character() -> None:
    assert decode_strict(r'"\ud83d\ude00"') == "\U0001f600"
    assert encode("\U0001f600") == '"\U0001f600"'


@pytest.mark.parametrize("value", ["\x00", ["a\x00b"], {"a": {"b": "\x00"}}, {"\x00": 1}])
def test_a_nul_is_refused_in_values_and_keys(value: Any) -> None:
    assert "NUL" in refusals(encode, value)
    assert "NUL" in refusals(decode_strict, json.dumps(value))


def test_a_literal_nul_is_no_json() -> None:
    assert "not valid JSON" in refusals(decode_strict, '"a\x00b"')
    assert "not valid JSON" in refusals(decode_strict, b'"a"\x00')


def test_what_only_looks_like_a_nul_passes() -> None:
    assert decode_strict(encode("\\u0000")) == "\\u0000"


DEEP: list[Callable[[int], Any]] = [
    lambda n: _deep(n, lambda v: [v], 1),
    lambda n: _deep(n - 1, lambda v: [v], []),
    lambda n: _deep(n, lambda v: (v,), "a"),
    lambda n: _deep(n, lambda v: {"a": v}, None),
    lambda n: _deep(n - 1, lambda v: {"a": v, "b": 1}, {}),
    lambda n: ["[" * 200, _deep(n - 1, lambda v: [v], True)],
]


def _deep(levels: int, wrap: Callable[[Any], Any], inner: Any) -> Any:
    for _ in range(levels):
        inner = wrap(inner)
    return inner


@pytest.mark.parametrize("make", DEEP)
def test_exactly_a_hundred_levels_pass_and_one_more_is_refused(make: Callable[[int], Any]) -> None:
    fits = make(MAX_DEPTH)
    assert decode_strict(encode(fits)) == decode(json.dumps(fits))
    over = make(MAX_DEPTH + 1)
    assert "deeper than 100" in refusals(encode, over)
    assert "deeper than 100" in refusals(decode_strict, json.dumps(over))


def test_absurd_depth_is_refused_and_not_a_crash() -> None:
    assert "deeper than 100" in refusals(decode_strict, "[" * 100_000 + "]" * 100_000)
    assert "deeper than 100" in refusals(encode, _deep(100_000, lambda v: [v], 1))


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), 10**18, 0])
def test_integers_of_64_bits_pass(value: int) -> None:
    assert decode_strict(encode(value)) == value
    assert decode_strict(encode({"a": [value]})) == {"a": [value]}


@pytest.mark.parametrize(
    "value", [2**63, -(2**63) - 1, 10**19, 10**5000], ids=["one", "one below", "20 digits", "5001 digits"]
)
def test_integers_past_64_bits_are_refused(value: int) -> None:
    for nested in (value, [value], {"a": {"b": value}}):
        assert "64 bits" in refusals(encode, nested)
    sys.set_int_max_str_digits(0)
    try:
        text = str(value)
    finally:
        sys.set_int_max_str_digits(4300)
    for spelled in (text, f"[{text}]", f'{{"a":{text}}}'):
        assert "64 bits" in refusals(decode_strict, spelled)


def test_digits_in_text_are_text() -> None:
    assert decode_strict(encode(str(2**64))) == str(2**64)


@pytest.mark.parametrize("text", ['{"a":1,"a":1}', '[{"a":{"b":1,"b":2}}]', r'{"a":1,"\u0061":2}'])
def test_a_key_that_appears_twice_is_refused(text: str) -> None:
    assert "appears twice" in refusals(decode_strict, text)


@pytest.mark.parametrize(
    "value", [{1: "a", "1": "b"}, {"true": 1, True: 2}, [{None: 1, "null": 2}], {"1.5": 0, 1.5: 0}]
)
def test_keys_that_would_become_one_are_refused(value: Any) -> None:
    """A value is not lost in silence because JSON knows no keys but text."""
    assert "are one in JSON" in refusals(encode, value)


def test_what_holds_itself_is_refused() -> None:
    ring: list[Any] = []
    ring.append(ring)
    loop: dict[str, Any] = {}
    loop["a"] = [loop]
    for value in (ring, loop):
        assert "deeper than 100" in refusals(encode, value)


def test_what_appears_twice_and_holds_nothing_of_itself_passes() -> None:
    part = [1]
    assert encode([part, part]) == "[[1],[1]]"


@pytest.mark.parametrize(
    "value", [b"a", {1, 2}, datetime.now(UTC), Decimal(1), object(), 1j, {(1, 2): 3}, {b"a": 1}, [print]]
)
def test_what_is_no_json_value_is_refused(value: Any) -> None:
    assert "not a JSON value" in refusals(encode, value)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"'a'", b"[1,]", b"nul", b"01", b"{1:2}", b"\xef\xbb\xbf{}", b"1 2"]
)
def test_what_is_no_json_is_refused_with_its_place(data: bytes) -> None:
    assert "at line 1, column" in refusals(decode_strict, data)


def test_what_is_no_utf8_is_refused_with_its_place() -> None:
    assert refusals(decode_strict, b'"ab\xff"') == "not valid UTF-8 at byte 3"
    assert "not valid UTF-8" in refusals(decode_strict, '"\U0001f600"'.encode("utf-16"))


@pytest.mark.parametrize(
    ("value", "path"),
    [({"a": [0, {"b": "x\x00"}]}, "a[1].b"), ([[2**64]], "[0][0]"), ({"a": {"b\x00": 1}}, "a"), ("\x00", "")],
)
def test_a_refusal_says_where_and_quotes_nothing(value: Any, path: str) -> None:
    with pytest.raises(JsonRefused) as refused:
        encode(value)
    assert refused.value.path == path
    assert str(2**64) not in str(refused.value)
    assert "x" not in str(refused.value).replace("text", "")
