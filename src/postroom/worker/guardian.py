"""The worker's side of its guardian: start it, tell it what is held, start it again when it is gone.

What the guardian does, and why it is a process, stands in `postroom.worker.guard`. Everything here is cheap and never
waits for it: the worker writes to memory that both see.

A memory store lives in the worker's own process: nobody else can renew its leases, and only the process groups are
watched then.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from postroom.model import Lease
from postroom.settings import Settings
from postroom.worker import guard
from postroom.worker.guard import Board

log = logging.getLogger("postroom.guardian")

RESTART_SECONDS = 1.0
STOP_SECONDS = 2.0


class Guardian:
    """One small process that watches over one worker.

    All methods may be called from any thread. Before `start` and after `stop` the others do nothing.

    Args:
        url: opens the worker's store again from another process (``verbs.url``); a ``memory://`` one is not renewed.
        settings: the worker's.
    """

    def __init__(self, url: str, settings: Settings) -> None:
        self.token = secrets.token_hex(8)
        self.url = None if url.startswith("memory:") else url
        self.settings = settings
        self._board: Board | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = -1
        self._started_at = float("-inf")

    @property
    def pid(self) -> int | None:
        """The guardian's process id while it runs."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the process; takes some milliseconds and does not wait until it watches."""
        if self._board is None:
            self._board = Board.create()
        self._board.ping()
        self._spawn(self._board)

    def stop(self) -> None:
        """Let the process end; the worker must have no isolated child any more. Returns when it is gone."""
        board, self._board = self._board, None
        process = self._release()
        if process is not None:
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:  # somebody stopped it
                process.kill()
                process.wait()
        if board is not None:
            board.close()

    def _release(self) -> subprocess.Popen[bytes] | None:
        process, self._process = self._process, None
        pipe, self._pipe = self._pipe, -1
        if pipe >= 0:
            os.close(pipe)
        return process

    def _spawn(self, board: Board) -> None:
        self._started_at = time.monotonic()
        reader, writer = os.pipe()
        told = (reader, board.file, os.getpid(), self.token, self.settings.lease_seconds)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, *map(str, told)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(reader, board.file),
                start_new_session=True,
            )
        except OSError as error:
            os.close(writer)
            log.warning("the guardian could not be started: %s", error)
            return
        finally:
            os.close(reader)
        self._pipe = writer
        os.set_blocking(writer, False)
        try:
            os.write(writer, self._config())
        except OSError as error:  # it is gone already; the next ping starts another
            log.warning("the guardian could not be told what to watch: %s", error)

    def _config(self) -> bytes:
        """What a renewal needs, as one line; empty where there is nothing to renew."""
        if self.url is None:
            return b"\n"
        told = plain_settings(self.settings)
        config = {"url": self.url, "worker": os.getpid(), "path": import_path(), "settings": told}
        return json.dumps(config).encode() + b"\n"

    # ---- what the worker tells

    def ping(self) -> None:
        """The worker can still run its own code; call it at every heartbeat. Starts the process again if it is gone."""
        board = self._board
        if board is None:
            return
        board.ping()
        process = self._process
        is_gone = process is None or process.poll() is not None
        if is_gone and time.monotonic() - self._started_at > RESTART_SECONDS:
            log.warning("the guardian was gone; starting it again")
            self._release()
            self._spawn(board)

    def hold(self, leases: Iterable[Lease]) -> None:
        """The worker holds these leases from now on; call it before their handlers start."""
        board = self._board
        if board is not None:
            for lease in leases:
                board.hold(lease.job.job_id, lease.job.epoch)

    def let_go(self, job_id: str, epoch: int) -> None:
        """The worker holds this lease no longer."""
        board = self._board
        if board is not None:
            board.let_go(job_id, epoch)

    def watch_group(self, pgid: int) -> None:
        """This process group must not outlive the worker."""
        board = self._board
        if board is not None:
            board.watch_group(pgid)

    def forget_group(self, pgid: int) -> None:
        """This process group is gone."""
        board = self._board
        if board is not None:
            board.forget_group(pgid)


def plain_settings(settings: Settings) -> dict[str, Any]:
    """Settings as JSON values, for a process of ours; secrets too, so they never stand on a command line."""
    values = asdict(settings)
    values["sources"], values["warnings"] = {}, []
    return values


def import_path() -> list[str]:
    """This process's ``sys.path`` as another process can use it: whole paths, and the place of this package first."""
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(guard.__file__))))
    paths = [os.path.abspath(path) for path in sys.path]
    return paths if here in paths else [here, *paths]
