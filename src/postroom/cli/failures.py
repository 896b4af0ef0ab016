"""What went wrong, as one or two sentences and an exit code; never a traceback for what can be expected."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from postroom.errors import (
    DraftInvalid,
    JobNotFound,
    JobPurged,
    PostroomError,
    ResultMissing,
    StoreError,
    WaitTimedOut,
)
from postroom.plaintext import for_terminal

DONE = 0
JOB_ENDED_BADLY = 1
USAGE = 2
STORE_UNREACHABLE = 3
NO_SUCH_JOB = 4
WAIT_TIMED_OUT = 5

MEANINGS = {
    DONE: "done",
    JOB_ENDED_BADLY: "the job failed or was cancelled, or verify found something",
    USAGE: "wrong usage, or what was asked is refused",
    STORE_UNREACHABLE: "the store cannot be reached",
    NO_SUCH_JOB: "no such job",
    WAIT_TIMED_OUT: "the wait timed out",
}
"""What the exit codes say."""

CODES: tuple[tuple[type[PostroomError], int], ...] = (
    (JobNotFound, NO_SUCH_JOB),
    (JobPurged, NO_SUCH_JOB),
    (WaitTimedOut, WAIT_TIMED_OUT),
    (ResultMissing, JOB_ENDED_BADLY),
    (StoreError, STORE_UNREACHABLE),
    (PostroomError, USAGE),
)
"""The first that fits."""


class Ended(Exception):
    """A command ends here with this exit code, after it said what there was to say."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Misused(PostroomError):
    """Options that do not go together, or a value that cannot be."""


def exit_code(error: PostroomError) -> int:
    """The exit code of an error of ours."""
    return next(code for kind, code in CODES if isinstance(error, kind))


def refuse(message: str) -> NoReturn:
    """End with a usage error."""
    raise Misused(message)


def guarded(run: Callable[[], Any]) -> int:
    """Run a command; its exit code."""
    try:
        run()
    except Ended as ended:
        return ended.code
    except PostroomError as error:
        report(error)
        return exit_code(error)
    except OSError as error:
        if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EIO):
            raise
        drop_output()
        print(f"postroom: the output cannot be written: {error.strerror}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else USAGE
    return DONE


def drop_output() -> None:
    """What is still to be flushed goes nowhere: its reader has gone, or there is no room for it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def report(error: PostroomError) -> None:
    """Say on stderr what is wrong."""
    trace = getattr(error, "trace", None)
    if trace:
        print(for_terminal(trace), file=sys.stderr)
    print(f"postroom: {for_terminal(_sentence(error))}", file=sys.stderr)


def _sentence(error: PostroomError) -> str:
    if isinstance(error, JobNotFound) and error.job_id:
        return f"there is no job {error.job_id}"
    if isinstance(error, DraftInvalid) and len(error.problems) > 1:
        return "not accepted\n" + "\n".join(f"  {p.path}: {p.message}" for p in error.problems)
    return str(error)
