"""The campaigns stand on the same ground as `tests/faults`, and count their faults in the same way."""

from __future__ import annotations

from tests.faults.conftest import faults, ground, pytest_terminal_summary, quick

__all__ = ["faults", "ground", "pytest_terminal_summary", "quick"]
