"""The SQLite store."""

from postroom.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
