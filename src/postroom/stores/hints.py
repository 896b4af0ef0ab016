"""Who watches what within a process: hints, from any thread, to watchers in any event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Sequence
from types import TracebackType


class HubWatch:
    """Implements `port.Watch` for one hub. Hints may come from any thread; the wait is in one event loop."""

    def __init__(self, hub: Hub, topics: tuple[str, ...]) -> None:
        self._hub = hub
        self._topics = topics
        self._lock = threading.Lock()
        self._hinted = False
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None

    async def wait(self, timeout_seconds: float) -> bool:
        """True as soon as a hint came (at once if one came since the last call), False after the timeout."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._take():
                return True
            future: asyncio.Future[None] = loop.create_future()
            self._waiter = (loop, future)
        timer = loop.call_later(timeout_seconds, _finish, future)
        try:
            await future
        finally:
            timer.cancel()
            with self._lock:
                self._waiter = None
        with self._lock:
            return self._take()

    def _take(self) -> bool:
        hinted, self._hinted = self._hinted, False
        return hinted

    def hint(self) -> None:
        """Something changed: end the wait, or the next one at once."""
        with self._lock:
            if self._hinted:
                return
            self._hinted = True
            if self._waiter is None:
                return
            loop, future = self._waiter
            try:
                loop.call_soon_threadsafe(_finish, future)
            except RuntimeError:  # the loop was closed under the wait: nobody listens there any more
                self._waiter = None

    def __enter__(self) -> HubWatch:
        self._hub.add(self._topics, self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hub.remove(self._topics, self)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Hub:
    """Knows the watchers of each topic, and tells them."""

    def __init__(self) -> None:
        self._watches: dict[str, set[HubWatch]] = {}
        self._lock = threading.Lock()

    @property
    def is_watched(self) -> bool:
        """Whether there is any watcher."""
        return bool(self._watches)

    def add(self, topics: Sequence[str], watch: HubWatch) -> None:
        """A watch begins."""
        with self._lock:
            for topic in topics:
                self._watches.setdefault(topic, set()).add(watch)

    def remove(self, topics: Sequence[str], watch: HubWatch) -> None:
        """A watch ends."""
        with self._lock:
            for topic in topics:
                watches = self._watches.get(topic, set())
                watches.discard(watch)
                if not watches:
                    self._watches.pop(topic, None)

    def hint(self, topics: Collection[str]) -> None:
        """Tell those who watch one of these topics."""
        with self._lock:
            few, many = sorted((self._watches, topics), key=len)
            known = many if isinstance(many, dict | set | frozenset) else set(many)
            watches = {watch for topic in few if topic in known for watch in self._watches[topic]}
        for watch in watches:
            watch.hint()

    def hint_all(self) -> None:
        """Tell everybody: something changed and it is not known what."""
        with self._lock:
            watches = {watch for each in self._watches.values() for watch in each}
        for watch in watches:
            watch.hint()
