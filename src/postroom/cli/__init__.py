"""The command line: one module per group of commands, each thin over an inbox.

Exit codes are the same for all commands and are part of the contract::

    0  done
    1  the job failed or was cancelled, or verify found something
    2  wrong usage: an option, a setting, or something that was asked and is refused
    3  the store (or the service) cannot be reached or used
    4  there is no such job
    5  the wait timed out; the job goes on
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and end the process with its exit code."""
    from postroom.cli.commands import app
    from postroom.cli.failures import guarded

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # not every terminal has every letter
    sys.exit(guarded(lambda: app(args=None if arguments is None else list(arguments), prog_name="postroom")))
