"""Responses of values and of JSON text, without a model in between."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import Response

from postroom.model import JsonText

MEDIA_TYPE = "application/json"
FRESH_SECONDS = 10.0
RETRY_FRESH_SECONDS = 1
RETRY_SECONDS = 5


def json_answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A response of a value."""
    return text_answer(json.dumps(value, ensure_ascii=False, separators=(",", ":")), status, headers)


def text_answer(text: JsonText, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A response of JSON text."""
    sent = {"Cache-Control": "no-store"} if headers is None else {"Cache-Control": "no-store", **headers}
    return Response(text.encode(), status, sent, MEDIA_TYPE)


def retry_after(created_at: float, now: float) -> str:
    """When to ask for a live job again: polling backs off by itself."""
    return str(RETRY_FRESH_SECONDS if now - created_at < FRESH_SECONDS else RETRY_SECONDS)
