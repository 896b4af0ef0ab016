"""The public names, used as a caller uses them. Never run: the type checker reads it (python3 run.py check)."""

from __future__ import annotations

from typing import assert_type

import postroom

assert_type(postroom.__version__, str)
