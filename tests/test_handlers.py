"""What may be registered as a handler, and every reason why not."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from postroom.errors import HandlerInvalid
from postroom.handlers import Handler, Registry
from postroom.inbox import Inbox
from postroom.model import Limits


async def asynchronous(item: Any, run: Any) -> Any:
    return item


def plain(item: Any, run: Any) -> Any:
    return item


async def whole(run: Any) -> Any:
    return None


class Callable:
    def __call__(self, item: Any, run: Any) -> Any:
        return item


class AsyncCallable:
    async def __call__(self, item: Any, run: Any) -> Any:
        return item


class Generating:
    def __call__(self, item: Any, run: Any) -> Iterator[Any]:
        yield item


def generator(item: Any, run: Any) -> Iterator[Any]:
    yield item


async def async_generator(item: Any, run: Any) -> AsyncIterator[Any]:
    yield item


def refusal(handler: Handler) -> str:
    registry = Registry()
    with pytest.raises(HandlerInvalid) as refused:
        registry.add(handler)
    assert len(registry) == 0
    return str(refused.value)


def limited(function: Any = asynchronous, *, isolation: Any = "none", **limits: Any) -> Handler:
    return Handler("note", function, isolation=isolation, limits=Limits(**limits))


# ---- what is taken


@pytest.mark.parametrize(
    "handler",
    [
        Handler("k", asynchronous),
        Handler("k" * 200, plain),
        Handler("Rechnung prüfen", plain),
        Handler("k", whole, is_whole=True),
        Handler("k", Callable()),
        Handler("k", functools.partial(plain)),
        Handler("k", lambda item, run, more=1: item),
        Handler("k", lambda *parts: None),
        Handler("k", print, is_whole=True),
        Handler("k", asynchronous, item_concurrency=1000),
        limited(timeout_seconds=0.001, stall_timeout_seconds=1),
        limited(plain, isolation="process", timeout_seconds=1),
        limited(AsyncCallable(), timeout_seconds=1),
        limited(functools.partial(asynchronous), stall_timeout_seconds=1),
        limited(plain, max_attempts=1, allow_failed_items=0),
        limited(plain, allow_failed_items=0.5),
        limited(plain, allow_failed_items=7),
    ],
)
def test_a_handler_that_can_be_kept_is_taken(handler: Handler) -> None:
    registry = Registry()
    registry.add(handler)
    assert registry.get(handler.kind) is handler


@pytest.mark.parametrize("function", [asynchronous, AsyncCallable(), functools.partial(asynchronous)])
def test_whatever_is_awaited_is_async(function: Any) -> None:
    assert Handler("k", function).is_async
    assert Handler("k", function).can_be_stopped


@pytest.mark.parametrize("function", [plain, Callable(), functools.partial(plain), lambda item, run: item])
def test_whatever_is_called_in_a_thread_is_not(function: Any) -> None:
    assert not Handler("k", function).is_async
    assert not Handler("k", function).can_be_stopped
    assert Handler("k", function, isolation="process").can_be_stopped


def test_limits_that_say_nothing_are_none() -> None:
    assert Handler("k", plain).own_limits is None
    assert limited(plain, max_attempts=2).own_limits == Limits(max_attempts=2)


# ---- refusals


@pytest.mark.parametrize(
    "kind", ["", "k" * 201, "a\x9bb", "a\u202eb", "a\nb", "a\x00", "\ud800", None, 7, b"k"]
)
def test_a_kind_is_a_short_printable_text(kind: Any) -> None:
    assert "1 to 200 printable characters" in refusal(Handler(kind, plain))


@pytest.mark.parametrize("function", [None, 7, "module:function"])
def test_what_cannot_be_called_is_no_handler(function: Any) -> None:
    assert "is not a function" in refusal(Handler("k", function))


@pytest.mark.parametrize("function", [generator, async_generator, Generating(), functools.partial(generator)])
def test_a_generator_is_refused_and_told_of_emit(function: Any) -> None:
    assert "emits with run.emit" in refusal(Handler("k", function))


def test_an_unknown_isolation_is_refused() -> None:
    assert "'none' or 'process', found 'thread'" in refusal(limited(isolation="thread"))


@pytest.mark.parametrize("number", [0, -1, 1.5, True, "2", None])
def test_item_concurrency_is_a_whole_number_from_1(number: Any) -> None:
    assert "item_concurrency is 1 or more" in refusal(Handler("k", plain, item_concurrency=number))


@pytest.mark.parametrize("option", ["timeout_seconds", "stall_timeout_seconds"])
@pytest.mark.parametrize("seconds", [0, -1, float("nan"), "5", True])
def test_a_time_limit_is_above_0(option: str, seconds: Any) -> None:
    assert f"{option} must be above 0" in refusal(limited(**{option: seconds}))


@pytest.mark.parametrize("option", ["timeout_seconds", "stall_timeout_seconds"])
def test_a_time_limit_that_nothing_can_enforce_is_refused(option: str) -> None:
    told = refusal(limited(plain, **{option: 5}))
    assert f"{option} cannot be enforced" in told
    assert "isolation='process'" in told


@pytest.mark.parametrize("number", [0, -1, 1.5, True, "3", 1001])
def test_max_attempts_is_a_whole_number_from_1_to_1000(number: Any) -> None:
    assert "max_attempts is 1 to 1000" in refusal(limited(max_attempts=number))


@pytest.mark.parametrize("number", [-1, -0.1, 1.5, float("nan"), float("inf"), True, "0.5"])
def test_allow_failed_items_is_a_number_of_items_or_a_share(number: Any) -> None:
    assert "a whole number of items, or a share" in refusal(limited(allow_failed_items=number))


def test_what_is_for_items_is_refused_for_a_whole_handler() -> None:
    """It would be ignored in silence."""
    assert "it is whole" in refusal(Handler("k", whole, is_whole=True, item_concurrency=2))
    assert "it is whole" in refusal(Handler("k", whole, is_whole=True, limits=Limits(allow_failed_items=1)))


@pytest.mark.parametrize(
    ("function", "is_whole", "shape"),
    [
        (whole, False, "(item, run)"),
        (lambda: None, False, "(item, run)"),
        (lambda item, run, more: None, False, "(item, run)"),
        (lambda item, *, run: None, False, "(item, run)"),
        (plain, True, "(run), since it is whole"),
        (lambda: None, True, "(run), since it is whole"),
    ],
)
def test_a_handler_takes_what_it_is_called_with(function: Any, is_whole: bool, shape: str) -> None:
    assert f"must take {shape}" in refusal(Handler("k", function, is_whole=is_whole))


def test_a_refusal_names_the_function() -> None:
    assert refusal(limited(plain, timeout_seconds=1)).startswith("tests.test_handlers.plain:")


# ---- the registry


def shipped(kind: str = "k") -> Handler:
    return Handler(kind, asynchronous, is_shipped=True)


def test_a_users_handler_takes_over_a_shipped_kind() -> None:
    registry = Registry()
    registry.add(shipped())
    registry.add(own := Handler("k", plain))
    assert registry.get("k") is own


def test_a_shipped_handler_never_takes_over() -> None:
    registry = Registry()
    registry.add(own := Handler("k", plain))
    registry.add(shipped())
    assert registry.get("k") is own


def test_a_kind_has_one_handler() -> None:
    registry = Registry()
    registry.add(own := Handler("k", plain))
    with pytest.raises(HandlerInvalid, match=r"'k' has a handler already: tests\.test_handlers\.plain"):
        registry.add(Handler("k", asynchronous))
    assert registry.get("k") is own


def test_a_registry_can_be_narrowed() -> None:
    registry = Registry()
    for kind in ("b", "a", "c"):
        registry.add(Handler(kind, plain))
    assert registry.kinds() == ("a", "b", "c")
    assert registry.narrowed(["c", "a"]).kinds() == ("a", "c")
    assert len(registry.narrowed([])) == 0
    with pytest.raises(HandlerInvalid, match="no handler for kind 'd'; there are: a, b, c"):
        registry.narrowed(["a", "d"])
    with pytest.raises(HandlerInvalid, match="there are: none"):
        Registry().narrowed(["d"])


def test_the_decorator_registers_and_gives_the_function_back() -> None:
    inbox = Inbox("memory://")
    decorated = inbox.handler("note", item_concurrency=3, timeout_seconds=5, max_attempts=2)(asynchronous)
    assert decorated is asynchronous
    handler = inbox.handlers.get("note")
    assert handler == Handler("note", asynchronous, item_concurrency=3, limits=Limits(2, 5))


def test_the_decorator_refuses_at_once() -> None:
    inbox = Inbox("memory://")
    with pytest.raises(HandlerInvalid):
        inbox.handler("note", timeout_seconds=5)(plain)
    assert inbox.handlers.kinds() == ()
