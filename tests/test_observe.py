"""What a running service or worker says of itself."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from postroom import observe

SOURCES = Path(observe.__file__).parent


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root, ours = logging.getLogger(), logging.getLogger("postroom")
    handlers, level = list(root.handlers), ours.level
    yield io.StringIO()
    root.handlers[:] = handlers
    ours.setLevel(level)


def test_every_logger_of_ours_is_named_with_what_it_says() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES.rglob("*.py"))
    used = set(re.findall(r'getLogger\("(postroom\.\w+)"\)', text))
    assert used == {name for name in observe.LOGGERS if name.startswith("postroom.")}


def test_lines_go_to_the_stream_once_however_often_it_is_set_up(stream: io.StringIO) -> None:
    observe.set_up_logging(stream=io.StringIO())
    observe.set_up_logging(stream=stream)
    logging.getLogger("postroom.worker").info("worker %s started", "w1")
    logging.getLogger("somebody.else").info("not of interest")
    logging.getLogger("somebody.else").warning("of interest")
    lines = stream.getvalue().splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == [
        "INFO postroom.worker: worker w1 started",
        "WARNING somebody.else: of interest",
    ]


def test_a_level_says_how_much_is_said(stream: io.StringIO) -> None:
    observe.set_up_logging("warning", stream)
    logging.getLogger("postroom.worker").info("nothing")
    assert stream.getvalue() == ""
