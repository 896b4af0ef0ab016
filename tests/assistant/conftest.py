"""The models under test, once for the whole run: loading them takes a second or two."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from postroom.assistant import Models, fetch, handler


class BareRun:
    """What a shipped handler may use of a run, and nothing else; remembers what it was told."""

    def __init__(
        self, topic: str = "default", sender: str = "unknown", params: Mapping[str, Any] | None = None
    ) -> None:
        self.topic = topic
        self.sender = sender
        self.params = params or {}
        self.used: dict[str, float] = {}
        self.steps: dict[str, Any] = {}

    def effect_key(self, name: str) -> str:
        return f"job:0:{name}"

    def usage(self, **numbers: float) -> None:
        for name, number in numbers.items():
            self.used[name] = self.used.get(name, 0) + number

    async def step(self, name: str, function: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        key = f"{name}#{json.dumps(args, sort_keys=True)}"
        if key not in self.steps:
            self.steps[key] = json.loads(json.dumps(await function(*args)))
        return self.steps[key]


@pytest.fixture(scope="session")
def small_model() -> Path:
    """The GGUF file, brought by our own code; the machine's cache keeps it."""
    return fetch.get_smollm2()


@pytest.fixture(scope="session")
def models(small_model: Path) -> Iterator[Models]:
    """The embedded models, running."""
    models = Models()

    async def warm() -> None:
        await models.encoder().encode(["ready"])
        await models.completer().complete([{"role": "user", "content": "hi"}], max_tokens=1)

    asyncio.run(warm())
    yield models
    asyncio.run(models.close())


@pytest.fixture
def ask(models: Models) -> Callable[..., Awaitable[Any]]:
    """``await ask(kind, item, topic=..., **params)``: one item through a shipped handler."""

    async def ask(
        kind: str, item: Any, *, topic: str = "default", sender: str = "unknown", **params: Any
    ) -> Any:
        return await handler(kind, models)(item, BareRun(topic, sender, params))

    return ask


def labelled(name: str) -> dict[str, Any]:
    """One of the small labelled sets beside the tests."""
    path = Path(__file__).with_name("data") / f"{name}.json"
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data
