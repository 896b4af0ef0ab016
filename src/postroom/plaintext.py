"""Plain text: what a label may hold, and what of a foreign text may reach a terminal.

Control characters move a terminal's cursor, rename its window or type for its user. The characters that turn the
direction of writing around make one text look like another.
"""

from __future__ import annotations

import re

LABEL_CHARS = 200
"""The longest label: a kind, sender, topic or queue."""

UNSAFE = r"\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069"
"""The characters that plain text does not have, for the inside of a pattern's brackets; halves of characters are no
text at all."""

_find_unsafe = re.compile(rf"[{UNSAFE}\ud800-\udfff]").search
_but_layout = re.compile(rf"(?!\r?\n|\t)[{UNSAFE}\ud800-\udfff]")


def is_plain(text: str) -> bool:
    """Whether the text has no control character, no turn of direction and no half of a character."""
    if text.isascii():
        return text.isprintable()
    return _find_unsafe(text) is None


def is_label(text: object) -> bool:
    """Whether this can be a kind, sender, topic or queue: plain text of 1 to `LABEL_CHARS` characters."""
    return isinstance(text, str) and 0 < len(text) <= LABEL_CHARS and is_plain(text)


def for_terminal(text: str) -> str:
    r"""The text with what is not plain spelled out (``\x1b``); ends of lines and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    return _but_layout.sub(lambda found: _spelled(found[0]), text)


def json_for_terminal(text: str) -> str:
    """JSON text with what is not plain escaped: the same value, whoever reads it."""
    if text.isascii() and "\x7f" not in text:  # of ASCII, JSON itself leaves only this one as it is
        return text
    return _but_layout.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _spelled(character: str) -> str:
    number = ord(character)
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"
