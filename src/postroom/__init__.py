"""Postroom: an inbox for AI work that is never lost, never paid for twice, always says where it stands."""

__version__ = "0.1.0"
