"""The SQLite store: one file, one writer, readers that nothing blocks."""
