"""The kinds that work on the first day: `assistant`, `summarize`, `classify`, `moderate`, `reply`, `extract`, `report`.

Each is a handler like any user's: it takes an item and a run, and keeps to what a run offers. A user's handler of the
same kind takes over. Importing this loads no model, no HTTP client and no kind.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any

from postroom.assistant.choosing import Models
from postroom.assistant.models import ModelOptions
from postroom.handlers import Handler, Registry

KINDS = ("assistant", "classify", "extract", "moderate", "reply", "report", "summarize")
"""The shipped kinds; each is a module of that name with a function of that name."""


def register(registry: Registry, settings: Any, models: Models | None = None) -> Models:
    """Adds the shipped kinds to a registry; a user's handlers of the same kind stay.

    Args:
        settings: what `ModelOptions.from_settings` reads.
        models: shared with somebody else; new ones unless given.
    Returns:
        The models, for the worker to close at its end; nothing is open before the first use.
    """
    models = models or Models(ModelOptions.from_settings(settings))
    for kind in KINDS:
        # A provider answers many items at once; the embedded models share two cores, and a second item would only wait.
        concurrency = 4 if models.options.model_url else 1
        registry.add(Handler(kind, handler(kind, models), item_concurrency=concurrency, is_shipped=True))
    return models


def handler(kind: str, models: Models) -> Callable[[Any, Any], Awaitable[Any]]:
    """The handler of a shipped kind; its module is loaded by the first item."""

    async def run_shipped(item: Any, run: Any) -> Any:
        function = getattr(import_module(f"postroom.assistant.{kind}"), kind)
        return await function(item, run, models)

    run_shipped.__qualname__ = kind
    return run_shipped
