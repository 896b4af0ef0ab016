"""What makes two failures alike: same kind, same code, same message once ids and numbers are masked. Pure."""

from __future__ import annotations

import re

MESSAGE_CHARS = 80
"""How much of a message tells groups apart."""

_IDS = re.compile(
    r"\b(?:(?=[a-fA-F-]{0,35}[0-9])[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
    r"|(?=[0-9a-fA-F]*[0-9])[0-9a-fA-F]{8,})\b"
)
_NUMBERS = re.compile(r"\d+(?:[.,:]\d+)*")


def mask(message: str) -> str:
    """The message with ids as ``<id>`` and numbers as ``<n>``, cut to `MESSAGE_CHARS`.

    Masking a masked message gives it back, so that the message a group shows finds the group again: no digit is left,
    and what has none is neither an id nor a number.
    """
    return _NUMBERS.sub("<n>", _IDS.sub("<id>", message))[:MESSAGE_CHARS]
