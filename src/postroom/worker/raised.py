"""What a handler raised that is not simply an exception: what would end the process, and groups of errors."""

from __future__ import annotations

from asyncio import runners
from opcode import opname

from postroom.errors import LeaseLost, PermanentError, RetryLater
from postroom.worker.recorder import RunCancelled


class NoException(Exception):
    """Carries what a handler raised that is no `Exception` (the panic of a library in Rust, a test's failure), or a
    group of errors: nobody would catch the first on its way, and the run would stay without an outcome."""

    def __init__(self, raised: BaseException) -> None:
        super().__init__(raised)
        self.raised = raised


def was_raised_by_code(error: BaseException) -> bool:
    """False where it came from outside: an interrupt by its signal, or a coroutine that was closed.

    What a ``raise`` raised stands at one; a signal's exception stands wherever the code happened to be.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_lasti < 0:
        return False
    code = trace.tb_frame.f_code
    return code.co_filename != runners.__file__ and opname[code.co_code[trace.tb_lasti]] == "RAISE_VARARGS"


def out_of_group(group: BaseExceptionGroup[BaseException]) -> Exception:
    """What a group of errors (of an `asyncio.TaskGroup`, say) means to a run: that it must end, where one of them says
    so; to wait or to give up, where all of them do; else it is an error that names them."""
    errors = leaves(group)
    for error in errors:
        if isinstance(error, LeaseLost | RunCancelled):
            return error
    holds = [error for error in errors if isinstance(error, RetryLater)]
    if len(holds) == len(errors):
        return max(holds, key=lambda hold: hold.after_seconds)
    permanent = [error for error in errors if isinstance(error, PermanentError)]
    return permanent[0] if len(permanent) == len(errors) else NoException(group)


def leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """The errors in a group, and in the groups within it."""
    found: list[BaseException] = []
    for error in group.exceptions:
        found += leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
