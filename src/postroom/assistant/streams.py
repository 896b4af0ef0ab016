"""A provider's answers as they come in: events, pieces of text, vectors; bounded, and nothing taken on trust."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from postroom.assistant.models import ModelAnswerInvalid, Vector
from postroom.assistant.refusals import Refusal

MAX_ANSWER_BYTES = 4 << 20
MAX_LINE_BYTES = 1 << 20


@dataclass
class Collected:
    """An answer as it comes in.

    Attributes:
        key: masked in what an error inside the stream says.
        parts: the pieces of text.
        refusal: the model's words for why it will not answer.
        finish_reason: None until the answer ended.
        error: an error that came in the middle.
    """

    key: str | None = None
    parts: list[str] = field(default_factory=list)
    refusal: str = ""
    finish_reason: str | None = None
    model: str = ""
    usage: dict[str, int] = field(default_factory=dict)
    error: Refusal | None = None

    def take_event(self, data: str) -> bool:
        """One event of a stream; True if it moved the answer on.

        Raises:
            ModelAnswerInvalid: it is no event.
        """
        event = self._head(parsed(data))
        moved = False
        for choice in event.get("choices") or ():
            moved |= self._message(_object(_object(choice).get("delta") or {}))
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
        return moved

    def take_whole(self, raw: bytes) -> None:
        """An answer that was not streamed.

        Raises:
            ModelAnswerInvalid: it is none.
        """
        body = self._head(parsed(raw))
        if self.error is not None:
            return
        choices = body.get("choices")
        if not isinstance(choices, list) or not choices:
            raise ModelAnswerInvalid("the model's answer has no choices")
        choice = _object(choices[0])
        self._message(_object(choice.get("message") or {}))
        self.finish_reason = choice.get("finish_reason") or "stop"

    def ended(self) -> None:
        """The stream said that it is over."""
        self.finish_reason = self.finish_reason or ("stop" if self.parts else None)

    def text(self) -> str:
        """The whole text, fit to be kept: halves of a character that came apart are joined, NUL is left out."""
        joined = "".join(self.parts).replace("\0", "")
        return joined.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def _head(self, body: Any) -> Mapping[str, Any]:
        fields = _object(body)
        if fields.get("error"):
            self.error = Refusal.in_stream(fields, self.key)
            return {}
        if isinstance(fields.get("model"), str):
            self.model = fields["model"]
        usage = fields.get("usage")
        if isinstance(usage, dict):
            self.usage = {name: value for name, value in usage.items() if isinstance(value, int)}
        return fields

    def _message(self, message: Mapping[str, Any]) -> bool:
        content, refusal = message.get("content"), message.get("refusal")
        if isinstance(content, str) and content:
            self.parts.append(content)
        if isinstance(refusal, str) and refusal:
            self.refusal += refusal
        # A model that thinks aloud is at work: its thoughts move the idle limit, and are not the answer.
        return bool(content or refusal or message.get("reasoning_content") or message.get("reasoning"))


def parsed(raw: str | bytes) -> Any:
    """The JSON value.

    Raises:
        ModelAnswerInvalid: it is none.
    """
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise ModelAnswerInvalid("the model's answer is not JSON") from None


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ModelAnswerInvalid("the model's answer is JSON and no completion")
    return value


async def events(parts: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """The ``data`` of server-sent events; comments and other fields are passed over.

    Raises:
        ModelAnswerInvalid: the stream is longer than any answer.
    """
    pending = b""
    total = 0
    async for part in parts:
        total += len(part)
        *lines, pending = (pending + part).split(b"\n")
        if total > MAX_ANSWER_BYTES or len(pending) > MAX_LINE_BYTES:
            raise ModelAnswerInvalid(f"the model's answer is longer than {MAX_ANSWER_BYTES} bytes")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip().decode(errors="replace")
    if pending.startswith(b"data:"):
        yield pending[5:].strip().decode(errors="replace")


def vectors_in(raw: bytes, count: int) -> list[Vector]:
    """The embeddings of an answer, in the order of the texts, of length 1.

    Raises:
        ModelAnswerInvalid: there are none, or not as many as texts.
    """
    try:
        entries = sorted(parsed(raw)["data"], key=lambda entry: entry["index"])
        vectors = [[float(number) for number in entry["embedding"]] for entry in entries]
    except (ValueError, KeyError, TypeError):
        raise ModelAnswerInvalid("the endpoint's answer holds no embeddings") from None
    if len(vectors) != count:
        raise ModelAnswerInvalid(f"{count} texts were sent and {len(vectors)} embeddings came back")
    return [_unit(vector) for vector in vectors]


def _unit(vector: list[float]) -> list[float]:
    length = math.sqrt(sum(number * number for number in vector)) or 1.0
    return [number / length for number in vector]
