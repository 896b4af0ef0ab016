"""Hints between processes where the system has no room for them: who waits polls, and what is written is written."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from postroom.inbox import Inbox
from postroom.settings import Settings
from postroom.stores.port import WORK


def another(folder: Path) -> Inbox:
    """An inbox on the one file, with connections and hints of its own, as another process has."""
    return Inbox(settings=Settings(store=f"sqlite:///{folder}/jobs.db", poll_seconds=0.05))


@contextmanager
def no_descriptors() -> Iterator[None]:
    """While this lasts no file and no socket can be opened."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, before[0]), before[1]))
    taken = []
    try:
        while True:
            try:
                taken.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                break
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_a_commit_that_can_tell_nobody_is_a_commit_all_the_same(short_path):
    async with another(short_path) as writing, another(short_path) as watching:
        await writing.submit("note", "first")
        with (await watching.verbs()).watch(WORK):
            async with asyncio.timeout(10):
                with no_descriptors():
                    await asyncio.gather(*(writing.submit("note", n) for n in range(20)))
                await asyncio.gather(*(writing.submit("note", n) for n in range(20)))
        assert (await writing.stats()).states["queued"] == 41


async def test_a_watch_that_gets_no_socket_polls(short_path):
    async with another(short_path) as inbox:
        await inbox.submit("note", "first")
        verbs = await inbox.verbs()
        with no_descriptors(), verbs.watch(WORK) as watch:
            await watch.wait(0.01)
        with verbs.watch(WORK) as watch:
            await watch.wait(0.01)
