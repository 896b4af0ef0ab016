"""What a test of one's own handlers, or of a store, needs: ships with the package."""

from postroom.testing.clock import ManualClock

__all__ = ["ManualClock"]
