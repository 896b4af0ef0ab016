"""Postroom: an inbox for AI work that is never lost, never paid for twice, and always says where it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

from postroom.errors import (
    DraftInvalid,
    DuplicateJob,
    HandlerInvalid,
    HandlerMissing,
    HandlerSignal,
    JobNotFound,
    JobPurged,
    LeaseLost,
    PermanentError,
    PostroomError,
    ResultMissing,
    RetryLater,
    SettingsInvalid,
    StoreError,
    StoreUnavailable,
    TooLarge,
    TransitionRefused,
    WaitTimedOut,
)
from postroom.model import Priority, State

if TYPE_CHECKING:
    from postroom.client import Client
    from postroom.inbox import Inbox
    from postroom.settings import Settings
    from postroom.worker.context import Run

_LAZY = {
    "Inbox": "postroom.inbox",
    "Client": "postroom.client",
    "Settings": "postroom.settings",
    "Run": "postroom.worker.context",
}


def __getattr__(name: str) -> Any:
    """Import the larger parts when they are first asked for, so that ``import postroom`` stays quick."""
    if name in _LAZY:
        from importlib import import_module

        value = getattr(import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'postroom' has no attribute {name!r}")


__all__ = [
    "Client",
    "DraftInvalid",
    "DuplicateJob",
    "HandlerInvalid",
    "HandlerMissing",
    "HandlerSignal",
    "Inbox",
    "JobNotFound",
    "JobPurged",
    "LeaseLost",
    "PermanentError",
    "PostroomError",
    "Priority",
    "ResultMissing",
    "RetryLater",
    "Run",
    "Settings",
    "SettingsInvalid",
    "State",
    "StoreError",
    "StoreUnavailable",
    "TooLarge",
    "TransitionRefused",
    "WaitTimedOut",
    "__version__",
]
