"""How a handler is found again in a fresh process: by a name, never by its bytes.

A child imports what its worker imported and looks the handler up. So a handler that may run in a child must have a name
there: a function at the top of a module (also of the script that was started), or one that an inbox at the top of a
module knows. A closure, a lambda or a function inside a function has none, and `for_handler` says so by None.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Self

from postroom.errors import HandlerInvalid
from postroom.handlers import Handler, Isolation, Registry
from postroom.inbox import Inbox
from postroom.model import Limits
from postroom.settings import Settings

SCRIPT = "__main__"
RENAMED_SCRIPT = "__postroom_main__"
"""What ``__name__`` is while a child runs the worker's script again: not ``__main__``, so what stands below
``if __name__ == "__main__":`` is left alone."""


@dataclass(frozen=True)
class HandlerReference:
    """Where a handler stands.

    Attributes:
        kind: the handler's kind.
        source: ``app``: ``target`` is an inbox that has the handler; ``function``: it is the function itself, and the
            options are these; ``shipped``: it comes with Postroom.
        target: ``module:name``, with dots in the name of what stands inside a class.
        script: the file of the module ``__main__``, where that is the target's module.
    """

    kind: str
    source: Literal["app", "function", "shipped"]
    target: str = ""
    script: str | None = None
    is_whole: bool = False
    isolation: Isolation = "none"
    item_concurrency: int = 1
    limits: Limits = field(default_factory=Limits)

    def to_json(self) -> dict[str, Any]:
        """As a child is told."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """What `to_json` made."""
        return cls(**{**values, "limits": Limits(**values["limits"])})

    def load(self, settings: Settings) -> Handler:
        """Find the handler; imports its module where that is not here yet.

        Raises:
            HandlerInvalid: nothing of that name is a handler here.
            Exception: whatever importing the module raises.
        """
        if self.source == "shipped":
            return self._shipped(settings)
        found = _resolve(self.target, self.script)
        if self.source == "function":
            return Handler(
                self.kind, found, self.is_whole, self.isolation, self.item_concurrency, self.limits
            )
        handler = found.handlers.get(self.kind) if isinstance(found, Inbox) else None
        if handler is None:
            raise HandlerInvalid(f"{self.target} is no inbox with a handler for kind {self.kind!r}")
        return handler

    def _shipped(self, settings: Settings) -> Handler:
        from postroom.assistant import register

        registry = Registry()
        register(registry, settings)
        handler = registry.get(self.kind)
        if handler is None:
            raise HandlerInvalid(f"no handler for kind {self.kind!r} comes with this version")
        return handler


def for_handler(handler: Handler, app: str | None = None) -> HandlerReference | None:
    """The reference of a handler, checked to lead back to it; None where nothing does.

    Args:
        handler: as registered.
        app: ``module:name`` of the inbox that the worker was started with.
    """
    if handler.is_shipped:
        return HandlerReference(handler.kind, "shipped")
    for target in _targets(handler, app):
        module = target.partition(":")[0]
        script = None
        if module == SCRIPT:
            module, script = _script()
            if not module:
                continue
            target = f"{module}:{target.partition(':')[2]}"
        if isinstance(_here(target, script), Inbox):
            return HandlerReference(handler.kind, "app", target, script)
        return HandlerReference(
            handler.kind,
            "function",
            target,
            script,
            handler.is_whole,
            handler.isolation,
            handler.item_concurrency,
            handler.limits,
        )
    return None


def _targets(handler: Handler, app: str | None) -> Iterator[str]:
    """Names in this process that lead to the handler, the best first."""
    if app is not None and _knows(_find(app), handler):
        yield app
    name = getattr(handler.function, "__module__", None)
    module = sys.modules.get(name) if isinstance(name, str) else None
    if module is None:
        return
    inside = getattr(handler.function, "__qualname__", "")
    if inside and "<" not in inside and _find(f"{name}:{inside}") is handler.function:
        yield f"{name}:{inside}"
    for attribute, value in list(vars(module).items()):
        if isinstance(value, Inbox) and _knows(value, handler):
            yield f"{name}:{attribute}"


def _knows(inbox: Any, handler: Handler) -> bool:
    if not isinstance(inbox, Inbox):
        return False
    known = inbox.handlers.get(handler.kind)
    return known is not None and known.function is handler.function


def _find(target: str) -> Any:
    """What a name means in the modules that are here already; None where it means nothing."""
    name, _, inside = target.partition(":")
    found: Any = sys.modules.get(name)
    for part in inside.split("."):
        found = getattr(found, part, None)
    return found


def _here(target: str, script: str | None) -> Any:
    name, _, inside = target.partition(":")
    is_main = script is not None or name not in sys.modules
    return _find(f"{SCRIPT}:{inside}" if is_main else target)


def _script() -> tuple[str, str | None]:
    """How the script that was started is found again: as a module (``python -m``), or by its file."""
    main = sys.modules.get(SCRIPT)
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:
        return str(spec.name), None
    file = getattr(main, "__file__", None)
    if file and os.path.exists(file):
        return SCRIPT, os.path.abspath(file)
    return "", None  # typed at a prompt, or given by -c


def _resolve(target: str, script: str | None) -> Any:
    """Import what a target names."""
    name, _, inside = target.partition(":")
    found: Any = import_module(name) if script is None else _run_script(script)
    for part in inside.split("."):
        found = getattr(found, part)
    return found


def _run_script(path: str) -> ModuleType:
    """Run a script's file under another name, and let it stand as ``__main__``, where its pickles look."""
    known = sys.modules.get(RENAMED_SCRIPT)
    if known is not None:
        return known
    module = ModuleType(RENAMED_SCRIPT)
    module.__file__ = path
    sys.modules[RENAMED_SCRIPT] = sys.modules[SCRIPT] = module
    exec(compile(Path(path).read_bytes(), path, "exec"), vars(module))
    return module
