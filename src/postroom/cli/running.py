"""One command, one event loop, one inbox: opened at the start, closed at the end however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from postroom.inbox import Inbox

T = TypeVar("T")


def with_inbox(
    store: str | None, use: Callable[[Inbox], Awaitable[T]], *, makes_store: bool = False, **overrides: Any
) -> T:
    """Open the inbox that the flags and settings name, use it, close it.

    Args:
        store: the flag ``--store``.
        use: what the command does.
        makes_store: True for commands that may begin a new store; the others refuse a file that does not exist.
        overrides: more flags by setting name.
    """
    from postroom.cli.output import warn
    from postroom.wiring import open_inbox, require_store

    inbox = open_inbox({"store": store, **overrides})
    for warning in inbox.settings.warnings:
        warn(warning)
    if not makes_store:
        require_store(inbox.url)

    async def run() -> T:
        async with inbox:
            return await use(inbox)

    return asyncio.run(run())


def run_alone(work: Coroutine[Any, Any, T]) -> T:
    """Run something that needs a loop and no inbox."""
    return asyncio.run(work)
