"""The one port for models.

Two implementations: `embedded.EmbeddedModel` (comes in packages, no key, no network) and `openai.OpenAIModel` (any
OpenAI-compatible endpoint). Which of them a worker has is `choosing.Models`.

What a call may raise, and what becomes of the job, is one table; ``docs/explanation/models.md`` gives the reasons:

* `PermanentError`: the request or its content was refused; the same request will be refused again.
* `RetryLater`: the provider is away, limits us or refuses our key: about the provider or our key, not about the job.
* `ModelError` and its children: may be the provider's moment or this very input, so it is tried again, a bounded
  number of times (an error that counts against ``max_attempts``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

Vector = Sequence[float]
"""An embedding of length 1."""

Role = Literal["query", "passage"]
"""What a text is encoded as: what one asks with, or what one asks for."""

Message = Mapping[str, str]
"""``{"role": "system" | "user" | "assistant", "content": ...}``."""

HOW_TO_CONFIGURE = (
    "set POSTROOM_MODEL_URL (any OpenAI-compatible address, such as http://127.0.0.1:11434/v1), POSTROOM_MODEL and, "
    "where the provider wants one, POSTROOM_MODEL_KEY"
)
"""The sentence that an answer carries where a real model would be needed."""


class ModelError(Exception):
    """A call that failed and may work the next time: retried, and charged as an attempt."""


class ModelTimeout(ModelError):
    """No answer within the read timeout, or the stream stood still past the idle limit."""


class ModelStreamBroken(ModelError):
    """The connection ended in the middle of an answer."""


class ModelServerError(ModelError):
    """The provider answered 500 or another status that may have to do with this very request."""


class ModelAnswerInvalid(ModelError):
    """The provider answered 200 with something that is no answer."""


@dataclass(frozen=True)
class Usage:
    """What calls cost; kept per item."""

    tokens_in: int = 0
    tokens_out: int = 0
    milliseconds: int = 0
    model_calls: int = 0

    def numbers(self) -> dict[str, int]:
        """As ``run.usage`` takes them; what was not counted is left out."""
        return {name: number for name, number in asdict(self).items() if number}


@dataclass(frozen=True)
class Answer:
    """What a model wrote: its text, which model it was, what it cost, and why it ended (``stop``, ``length``)."""

    text: str
    model: str
    usage: Usage = field(default_factory=Usage)
    finish_reason: str = "stop"


class Model(Protocol):
    """The port. A call never blocks the event loop, and may be cancelled."""

    @property
    def name(self) -> str:
        """The model as answers name it."""
        ...

    async def encode(self, texts: Sequence[str], *, role: Role = "query") -> list[Vector]:
        """One vector of length 1 per text, in order. Texts are cut at a length that the implementation names."""
        ...

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        schema: Mapping[str, Any] | None = None,
        max_tokens: int = 1024,
        temperature: float = 0.0,
        request_id: str | None = None,
    ) -> Answer:
        """What the model answers.

        Args:
            messages: the conversation.
            schema: a JSON schema that the answer is held to as far as the model can be; the caller checks it.
            max_tokens: bound of the answer.
            temperature: 0 for the likeliest answer.
            request_id: the same over every attempt at the same call; sent as ``Idempotency-Key`` and ``X-Request-ID``.
        """
        ...

    async def close(self) -> None:
        """Gives back connections and processes; a later call opens them again."""
        ...


class Run(Protocol):
    """What the shipped handlers use of a run: nothing that a user's handler could not."""

    @property
    def topic(self) -> str: ...
    @property
    def sender(self) -> str: ...
    @property
    def params(self) -> Mapping[str, Any]: ...
    def effect_key(self, name: str) -> str: ...
    def usage(self, **numbers: float) -> None: ...
    def step(self, name: str, function: Callable[..., Any], *args: Any) -> Awaitable[Any]: ...


@dataclass(frozen=True)
class ModelOptions:
    """The settings that this room reads; the names are the contract's, in lower case."""

    model: str | None = None
    model_url: str | None = None
    model_key: str | None = field(default=None, repr=False)
    model_connect_timeout_seconds: float = 5.0
    model_read_timeout_seconds: float = 120.0
    model_idle_timeout_seconds: float = 30.0
    model_dir: str | None = None

    @classmethod
    def from_settings(cls, settings: Any) -> ModelOptions:
        """Takes what the settings offer; what they lack keeps its default."""
        offered = {name: getattr(settings, name, None) for name in cls.__dataclass_fields__}
        return cls(**{name: value for name, value in offered.items() if value is not None and value != ""})
