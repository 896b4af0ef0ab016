"""``postroom worker`` with its guardian switched off, for the controls."""

from __future__ import annotations

from postroom.cli import main
from postroom.worker.guardian import Guardian

if __name__ == "__main__":
    Guardian.start = lambda self: None  # type: ignore[method-assign]
    main(["worker", "--app", "tests.faults.works:inbox"])
