"""Failures that are alike have one masked message."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from postroom.deadletters import MESSAGE_CHARS, mask

LETTERS_ONLY = "abcdefab-abcd-abcd-abcd-abcdefabcdef"
PIECES = st.sampled_from(
    [
        LETTERS_ONLY,
        "abcdefab",
        "-abcd",
        "0",
        "17",
        "1.5",
        "<id>",
        "<n>",
        "<",
        "-",
        " ",
        "x",
        "é",
        "٣",
        "job ",
        ":",
    ]
)
MESSAGES = st.text(max_size=120) | st.lists(PIECES, max_size=60).map("".join)


@given(MESSAGES)
@example(LETTERS_ONLY + "7")
@example("x" * (MESSAGE_CHARS - len(LETTERS_ONLY) - 1) + " " + LETTERS_ONLY + "x")
@example("." * (MESSAGE_CHARS - 2) + "77777777")
def test_masking_a_masked_message_gives_it_back(message: str) -> None:
    masked = mask(message)
    assert mask(masked) == masked
    assert len(masked) <= MESSAGE_CHARS


@given(MESSAGES)
def test_no_number_is_left(message: str) -> None:
    assert not any(c.isdecimal() for c in mask(message))


@given(st.text("abcdefghij ", max_size=70))
def test_a_message_without_ids_and_numbers_stays_as_it_is(message: str) -> None:
    assert mask(message) == message


@pytest.mark.parametrize(
    ("message", "masked"),
    [
        ("job 0123456789abcdef0123456789abcdef is gone", "job <id> is gone"),
        ("request 6fa459ea-ee8a-3ca4-894e-db77e160355e failed", "request <id> failed"),
        ("REQUEST 6FA459EA-EE8A-3CA4-894E-DB77E160355E", "REQUEST <id>"),
        ("commit deadbeef1 is unknown", "commit <id> is unknown"),
        ("took 3.5 s of 10", "took <n> s of <n>"),
        ("at 10:15:30, 1,000 rows", "at <n>, <n> rows"),
        ("row7b and v2", "row<n>b and v<n>"),
        ("status 503: overloaded", "status <n>: overloaded"),
        ("in hex ff8 is short", "in hex ff<n> is short"),
        ("defaced facade", "defaced facade"),
        (LETTERS_ONLY, LETTERS_ONLY),
        ("", ""),
    ],
)
def test_ids_and_numbers_are_masked(message: str, masked: str) -> None:
    assert mask(message) == masked


def test_only_the_beginning_of_a_message_tells_groups_apart() -> None:
    assert mask("x" * MESSAGE_CHARS + "one") == mask("x" * MESSAGE_CHARS + "other")
    assert mask("x" * (MESSAGE_CHARS - 1) + "one") != mask("x" * (MESSAGE_CHARS - 1) + "two")


def test_the_cut_comes_after_the_masking() -> None:
    """Else the length of an id would move what is cut off."""
    one, other = f"row {1} {'x' * 80}", f"row {1234567} {'x' * 80}"
    assert mask(one) == mask(other)
