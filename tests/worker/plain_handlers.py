"""Handlers at the top of a module, where a child can find them."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any


def hangs(item: Any, run: Any) -> Any:
    """Waits for ever, as a thread that nobody can end."""
    threading.Event().wait()


def tells_its_process(item: Any, run: Any) -> int:
    return os.getpid()


async def tells_its_process_async(item: Any, run: Any) -> int:
    return os.getpid()


def kills_its_process(item: Any, run: Any) -> None:
    """As the kernel does to one that eats all memory. Only for children."""
    os.kill(os.getpid(), signal.SIGKILL)
