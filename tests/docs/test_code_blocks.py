"""Every code block of the README and the documentation is run, page by page, as a reader would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import MARKS, ROOT, RUN_TAGS, SHOWN_TAGS, all_pages, blocks_of

DRIVER = Path(__file__).with_name("driver.py")
PAGES = [page for page in all_pages() if any(block.is_run for block in blocks_of(page))]


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.timeout(240)
@pytest.mark.parametrize("page", PAGES, ids=named)
def test_the_blocks_of_a_page_do_what_it_says(page, short_path, free_port):
    steps = [
        {
            "place": block.place,
            "line": block.line,
            "tag": block.tag,
            "text": block.text,
            "marks": [list(mark) for mark in block.marks],
        }
        for block in blocks_of(page)
        if block.is_run or block.mark("file") is not None
    ]
    (short_path / "steps.json").write_text(json.dumps(steps), encoding="utf-8")
    folder = short_path / "page"
    folder.mkdir()
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(folder),
        "POSTROOM_STORE": f"sqlite:///{folder}/postroom.db",
        "POSTROOM_PORT": str(free_port),
        "POSTROOM_DRAIN_SECONDS": "5",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    ended = subprocess.run(
        [sys.executable, str(DRIVER), str(short_path / "steps.json"), str(free_port)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=230,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout


@pytest.mark.parametrize("page", all_pages(), ids=named)
def test_every_block_says_what_it_is(page):
    for block in blocks_of(page):
        assert block.tag in RUN_TAGS | SHOWN_TAGS, f"{block.place}: nobody runs or shows {block.tag!r}"
        assert block.mark("not run") != "", f"{block.place}: say why it is not run"
        if block.marks:
            assert block.is_run or block.mark("file") or block.mark("not run"), (
                f"{block.place}: marked, not run"
            )


def test_the_marks_are_those_that_the_driver_knows():
    text = DRIVER.read_text(encoding="utf-8")
    assert all(f'"{mark}"' in text for mark in MARKS - {"not run"})
