"""The same app and clients as for the native doors."""

from __future__ import annotations

from tests.api.conftest import app, caller, client, clock, desk, settings

__all__ = ["app", "caller", "client", "clock", "desk", "settings"]
