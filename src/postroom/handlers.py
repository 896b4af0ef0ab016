"""Kind -> handler: what a user's function was registered as, and whether that can be kept."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeVar

from postroom.errors import HandlerInvalid
from postroom.model import MOST_ATTEMPTS, MOST_SECONDS, Limits
from postroom.plaintext import LABEL_CHARS, is_label

Function = TypeVar("Function", bound=Callable[..., Any])
Isolation = Literal["none", "process"]


@dataclass(frozen=True)
class Handler:
    """A function that does a kind's work, and how it is run.

    Attributes:
        kind: which jobs it takes.
        function: ``(item, run)``, or ``(run)`` where ``is_whole``.
        is_whole: called once per job; else once per item, and what it returns is that item's checkpoint.
        isolation: ``process`` runs it in a child with a process group of its own, which can be killed.
        item_concurrency: items of one job at once.
        limits: stand where the job itself says nothing.
        is_shipped: comes with Postroom; gives way to a user's handler of the same kind.
    """

    kind: str
    function: Callable[..., Any] = field(repr=False)
    is_whole: bool = False
    isolation: Isolation = "none"
    item_concurrency: int = 1
    limits: Limits = field(default_factory=Limits)
    is_shipped: bool = False

    @cached_property
    def is_async(self) -> bool:
        """True for ``async def``: runs in the worker's event loop (or the child's); else in a thread."""
        return inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(
            _call_of(self.function)
        )

    @cached_property
    def own_limits(self) -> Limits | None:
        """The limits where there are any."""
        return None if self.limits == Limits() else self.limits

    @property
    def can_be_stopped(self) -> bool:
        """False for a plain function in a thread of the worker: nothing can end it from outside."""
        return self.is_async or self.isolation == "process"


class Registry:
    """The handlers of one inbox, by kind."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}

    def add(self, handler: Handler) -> None:
        """Take a handler up. A user's one takes over a shipped one of the same kind, never the other way round.

        Raises:
            HandlerInvalid: the kind has a handler already, or an option cannot be kept; says which and what to do.
        """
        _check(handler)
        standing = self._handlers.get(handler.kind)
        if standing is not None and not standing.is_shipped:
            if handler.is_shipped:
                return
            raise HandlerInvalid(f"kind {handler.kind!r} has a handler already: {_name(standing.function)}")
        self._handlers[handler.kind] = handler

    def get(self, kind: str) -> Handler | None:
        """The handler of a kind, None where there is none."""
        return self._handlers.get(kind)

    def kinds(self) -> tuple[str, ...]:
        """All kinds, sorted."""
        return tuple(sorted(self._handlers))

    def narrowed(self, kinds: Iterable[str]) -> Registry:
        """Only these kinds.

        Raises:
            HandlerInvalid: one of them has no handler.
        """
        chosen = Registry()
        for kind in kinds:
            handler = self.get(kind)
            if handler is None:
                raise HandlerInvalid(
                    f"no handler for kind {kind!r}; there are: {', '.join(self.kinds()) or 'none'}"
                )
            chosen._handlers[kind] = handler
        return chosen

    def __len__(self) -> int:
        return len(self._handlers)


def _check(handler: Handler) -> None:
    name = _name(handler.function)
    kind: Any = handler.kind
    if not is_label(kind):
        raise HandlerInvalid(f"{name}: a kind is 1 to {LABEL_CHARS} printable characters, found {kind!r}")
    if not callable(handler.function):
        raise HandlerInvalid(f"{name} is not a function")
    if any(is_one(f) for is_one in _GENERATORS for f in (handler.function, _call_of(handler.function))):
        raise HandlerInvalid(
            f"{name} is a generator; a handler returns its result, and emits with run.emit(data)"
        )
    if handler.isolation not in ("none", "process"):
        raise HandlerInvalid(f"{name}: isolation is 'none' or 'process', found {handler.isolation!r}")
    if not _is_whole_number(handler.item_concurrency):
        raise HandlerInvalid(f"{name}: item_concurrency is 1 or more, found {handler.item_concurrency!r}")
    _check_limits(handler, name)
    _check_parameters(handler, name)


_GENERATORS = (inspect.isasyncgenfunction, inspect.isgeneratorfunction)


def _check_limits(handler: Handler, name: str) -> None:
    limits = handler.limits
    for option, value in (
        ("timeout_seconds", limits.timeout_seconds),
        ("stall_timeout_seconds", limits.stall_timeout_seconds),
    ):
        if value is not None and not (_is_number(value) and 0 < value < MOST_SECONDS):
            raise HandlerInvalid(
                f"{name}: {option} must be above 0 and below {MOST_SECONDS:,}, found {value!r}"
            )
        if value is not None and not handler.can_be_stopped:
            raise HandlerInvalid(
                f"{name}: {option} cannot be enforced, since a plain function runs in a thread and a thread "
                "cannot be killed; make it async, or register it with isolation='process'"
            )
    attempts = limits.max_attempts
    if attempts is not None and not (_is_whole_number(attempts) and attempts <= MOST_ATTEMPTS):
        raise HandlerInvalid(f"{name}: max_attempts is 1 to {MOST_ATTEMPTS}, found {attempts!r}")
    allowed = limits.allow_failed_items
    if allowed is not None and not (
        _is_number(allowed) and 0 <= allowed < MOST_SECONDS and (allowed < 1 or allowed % 1 == 0)
    ):
        raise HandlerInvalid(
            f"{name}: allow_failed_items is a whole number of items, or a share from 0 to below 1, found {allowed!r}"
        )
    if handler.is_whole and (allowed is not None or handler.item_concurrency > 1):
        raise HandlerInvalid(
            f"{name}: item_concurrency and allow_failed_items are for handlers of items, and it is whole"
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _call_of(function: Any) -> Any:
    """What an object of a class of one's own does when it is called."""
    return type(function).__call__ if callable(function) else None


def _check_parameters(handler: Handler, name: str) -> None:
    wanted = 1 if handler.is_whole else 2
    try:
        inspect.signature(handler.function).bind(*range(wanted))
    except TypeError:
        shape = "(run), since it is whole" if handler.is_whole else "(item, run)"
        raise HandlerInvalid(f"{name} must take {shape}") from None
    except ValueError:
        return


def _name(function: Any) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', function)}"
