"""What is plain, and how the rest is shown: nothing of a foreign text acts on a terminal."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from postroom.plaintext import LABEL_CHARS, UNSAFE, for_terminal, is_label, is_plain, json_for_terminal

ACTS = [chr(n) for n in (*range(32), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))]
PLAIN = ["a", "é", "中文", "👩‍👩‍👧", "नमस्ते", "مرحبا", "a　b", "soft­hyphen", "~", " "]


@pytest.mark.parametrize("character", [*ACTS, "\u2028", "\u2029", "\ud800"])
def test_what_acts_on_a_terminal_is_not_plain(character: str) -> None:
    for text in (character, f"a{character}", f"é{character}b"):
        assert not is_plain(text)
        assert not is_label(text)
    if character not in "\n\t":
        assert for_terminal(f"a{character}b") == "a" + ascii(character)[1:-1].replace("\\r", "\\x0d") + "b"


@pytest.mark.parametrize("text", PLAIN)
def test_writing_of_every_kind_is_plain(text: str) -> None:
    assert is_plain(text)
    assert is_label(text)
    assert for_terminal(text) == json_for_terminal(text) == text


@pytest.mark.parametrize("wrong", ["", "x" * (LABEL_CHARS + 1), None, 7, b"x", ["x"]])
def test_a_label_is_a_short_text(wrong: object) -> None:
    assert not is_label(wrong)


def test_lines_and_tabs_stay() -> None:
    assert for_terminal("a\tb\nc\r\nd\re") == "a\tb\nc\r\nd\\x0de"


@given(st.text(st.characters(exclude_categories=())))
def test_what_is_shown_never_acts_and_is_shown_the_same_twice(text: str) -> None:
    shown = for_terminal(text)
    assert not re.search(f"[{UNSAFE}\ud800-\udfff]", re.sub(r"\r?\n|\t", "", shown))
    assert for_terminal(shown) == shown


@given(st.text())
@example("\x7f")
def test_json_is_the_same_value_and_never_acts(text: str) -> None:
    shown = json_for_terminal(json.dumps({"a": text}, ensure_ascii=False, indent=2))
    assert json.loads(shown) == {"a": text}
    assert not re.search(f"[{UNSAFE}]", shown.replace("\n", ""))
