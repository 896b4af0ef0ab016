"""What people write, cut down to their own words, and into sentences."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.assistant.text import (
    MAX_SENTENCE_CHARS,
    chunks,
    folded,
    language_of,
    plain,
    sentences,
    shorten,
    text_of,
)
from postroom.errors import PermanentError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ("Dr. Lee came at 5 p.m. sharp. He left.", ["Dr. Lee came at 5 p.m. sharp.", "He left."]),
        ("It cost 3.50 euros, e.g. for tea. Fine.", ["It cost 3.50 euros, e.g. for tea.", "Fine."]),
        (
            "Am 3. Mai kam z. B. Frau Dr. Vogel. Sie blieb.",
            ["Am 3. Mai kam z. B. Frau Dr. Vogel.", "Sie blieb."],
        ),
        ('He said: "Stop!" Then he left.', ['He said: "Stop!"', "Then he left."]),
        ("Wait... what? Yes.", ["Wait... what?", "Yes."]),
        ("第一句。第二句！第三句？", ["第一句。", "第二句！", "第三句？"]),
        ("他说：“好的。”然后走了。", ["他说：“好的。”", "然后走了。"]),
        ("价格是3.5元。Version 2.0 已发布。", ["价格是3.5元。", "Version 2.0 已发布。"]),
        ("Mixed 中文。And English. 完了", ["Mixed 中文。", "And English.", "完了"]),
        ("first line\nsecond line", ["first line", "second line"]),
        (
            "a line that was wrapped by a mail program at some\nwidth goes on here.",
            ["a line that was wrapped by a mail program at some width goes on here."],
        ),
        ("", []),
        (" \n \n", []),
    ],
)
def test_sentences(text, expected):
    assert sentences(text) == expected


@given(st.text(alphabet='ab .!?\n。！，x:5,"字节 ', max_size=300))
def test_sentences_lose_and_add_nothing(text):
    assert folded("".join(sentences(text))) == folded(text)


@given(st.text(max_size=2000))
def test_no_sentence_is_empty_or_too_long_whatever_the_text(text):
    assert all(0 < len(sentence) <= MAX_SENTENCE_CHARS for sentence in sentences(plain(text)))


@given(st.text(alphabet="ab .字。", max_size=500), st.integers(20, 100))
def test_chunks_are_bounded_and_keep_everything(text, size):
    pieces = chunks(text, size)
    assert all(len(piece) <= size for piece in pieces)
    assert folded("".join(pieces)) == folded(text)


def test_chunks_are_cut_between_sentences():
    text = " ".join(f"Sentence number {i} ends here." for i in range(50))
    assert all(piece.endswith("here.") for piece in chunks(text, 200))


def test_a_text_of_many_megabytes_without_a_full_stop_is_cut_in_reasonable_time():
    assert len(sentences("word " * 200_000)) > 1000


@pytest.mark.parametrize(
    ("mail", "kept"),
    [
        ("Hi Anna,\n\nthe pump failed.\n\nBest regards,\nTom\nHead of pumps", "the pump failed."),
        ("It works.\n\n-- \nTom\n+49 123", "It works."),
        ("Yes.\n\nOn Mon, 3 Mar 2026 at 10:00, Eva <e@x.org> wrote:\n> Does it?\n> Eva", "Yes."),
        ("Ja.\n\nAm 3. März 2026 schrieb Eva <e@x.org>:\n> Geht es?", "Ja."),
        ("好的。\n\n在 2026年3月3日，小李 写道：\n> 可以吗？", "好的。"),
        ("> quoted\nmy answer is no", "my answer is no"),
        ("From: a@x.org\nTo: b@x.org\nSubject: Re: Broken pump\n\nIt leaks.", "Broken pump\n\nIt leaks."),
        ("Sehr geehrte Frau Vogel,\ndas Paket fehlt.\nMit freundlichen Grüßen\nJan", "das Paket fehlt."),
        ("您好！\n包裹没有到。\n此致\n敬礼", "包裹没有到。"),
        (
            "# Title\n\n- **first** point\n- second [link](http://x.org)\n\n```\ncode()\n```",
            "Title\n\nfirst point\n\nsecond link",
        ),
        ("<html><style>p {}</style><p>It <b>leaks</b></p><p>Second</p></html>", "It leaks\n\nSecond"),
        ("> all quoted\n> nothing else", "> all quoted\n> nothing else"),
        ("Thanks", "Thanks"),
        ("a_b and c * d and snake_case_name", "a_b and c * d and snake_case_name"),
    ],
)
def test_only_the_writers_own_words_are_kept(mail, kept):
    assert plain(mail) == kept


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("The parcel has not arrived yet.", "en"),
        ("Das Paket ist noch nicht angekommen.", "de"),
        ("包裹还没有到。", "zh"),
        ("荷物はまだ届いていません。", "ja"),
        ("소포가 아직 도착하지 않았습니다.", "ko"),
        ("Le colis n'est pas arrivé et je suis dans le bureau.", "fr"),
        ("12345", "und"),
        ("Order 99 arrived at Shanghai 上海 without the cables", "en"),
    ],
)
def test_languages(text, language):
    assert language_of(text) == language


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ("plain", "plain"),
        ({"text": "a"}, "a"),
        ({"subject": "S", "body": "B"}, "S\n\nB"),
        ({"title": "only a title"}, "only a title"),
        ({"message": "m", "id": 3}, "m"),
        ({"n": 1}, '{"n": 1}'),
        ([1, "二"], '[1, "二"]'),
        (42, "42"),
        (False, "false"),
    ],
)
def test_any_json_value_has_a_text(item, text):
    assert text_of(item) == text


@pytest.mark.parametrize("item", ["", "  \n", {}, [], {"text": ""}, {"text": " "}])
def test_an_item_without_text_is_permanent(item):
    with pytest.raises(PermanentError) as caught:
        text_of(item)
    assert caught.value.code == "no_text"


def test_what_is_shortened_ends_on_a_word():
    assert shorten("one two three four", 12) == "one two…"
    assert shorten("一二三四五六", 4) == "一二三…"
    assert shorten("short", 10) == "short"
