"""Our own processes, started and ended: a worker, a service."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def _environment(extra: dict[str, str] | None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("POSTROOM_")}
    return {**kept, "PYTHONPATH": str(ROOT), **(extra or {})}


@contextmanager
def process(
    *arguments: str, environment: dict[str, str] | None = None, log: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process of ours; ended at the end."""
    output = log.open("ab") if log else subprocess.DEVNULL
    child = subprocess.Popen(
        [sys.executable, "-m", "postroom", *arguments],
        env=_environment(environment),
        stdout=output,
        stderr=output,
        cwd=ROOT,
    )
    try:
        yield child
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(5)
            except subprocess.TimeoutExpired:
                child.kill()
        child.wait()


def worker(
    store: str,
    *more: str,
    concurrency: int = 200,
    log: Path | None = None,
    environment: dict[str, str] | None = None,
):  # type: ignore[no-untyped-def]
    """One worker process with the benchmarks' handlers."""
    arguments = ("worker", "--app", "benchmarks.app:inbox", "--store", store, *more)
    return process(
        *arguments, environment={"POSTROOM_CONCURRENCY": str(concurrency), **(environment or {})}, log=log
    )


@contextmanager
def service(store: str, log: Path | None = None) -> Iterator[str]:
    """A service without a worker of its own; its URL once it answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with process("serve", "--no-worker", "--port", str(port), "--store", store, log=log) as child:
        deadline = time.monotonic() + 20
        while True:
            try:
                urllib.request.urlopen(f"{url}/health", timeout=1).read()
                break
            except OSError:
                if child.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the service did not start; see {log}") from None
                time.sleep(0.02)
        yield url
