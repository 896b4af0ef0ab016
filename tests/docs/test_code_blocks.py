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


def run_page(page: Path, folder: Path, port: int) -> subprocess.CompletedProcess[str]:
    """Run the blocks of a page in a folder of their own, on a store of their own."""
    steps = [
        {
            "place": f"{page.name}:{block.line}",
            "line": block.line,
            "tag": block.tag,
            "text": block.text,
            "marks": [list(mark) for mark in block.marks],
        }
        for block in blocks_of(page)
        if block.is_run or block.mark("file") is not None
    ]
    (folder / "steps.json").write_text(json.dumps(steps), encoding="utf-8")
    here = folder / "page"
    here.mkdir()
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(here),
        "POSTROOM_STORE": f"sqlite:///{here}/postroom.db",
        "POSTROOM_PORT": str(port),
        "POSTROOM_DRAIN_SECONDS": "5",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return subprocess.run(
        [sys.executable, str(DRIVER), str(folder / "steps.json"), str(port)],
        cwd=here,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=230,
        check=False,
    )


@pytest.mark.timeout(240)
@pytest.mark.parametrize("page", PAGES, ids=named)
def test_the_blocks_of_a_page_do_what_it_says(page, short_path, free_port):
    ended = run_page(page, short_path, free_port)
    assert ended.returncode == 0, ended.stdout


@pytest.mark.parametrize("page", all_pages(), ids=named)
def test_every_block_says_what_it_is(page):
    for block in blocks_of(page):
        assert block.tag in RUN_TAGS | SHOWN_TAGS, f"{block.place}: nobody runs or shows {block.tag!r}"
        assert block.mark("not run") != "", f"{block.place}: say why it is not run"
        if block.marks:
            is_used = block.is_run or block.mark("file") or block.mark("not run")
            assert is_used, f"{block.place}: marked, and not run"


# ---------------------------------------------------------------- controls: a page that is wrong is found


WRONG = {
    "python that raises": ("", "python", "x = 1\nassert x == 2", "AssertionError"),
    "a command that fails": ("", "sh", "false", "ended with 1 instead of 0"),
    "a failure in the middle": ("", "sh", "false\necho on", "ended with 1 instead of 0"),
    "a command that should fail": ("<!-- fails: 3 -->\n", "sh", "true", "ended with 0 instead of 3"),
    "an output that lacks": ("<!-- shows: seven -->\n", "sh", "echo six", "the output lacks 'seven'"),
    "an answer that is no JSON": ("<!-- keeps: A = b -->\n", "sh", "echo six", "the output is no JSON"),
    "a service that dies": ("<!-- starts: /health -->\n", "sh", "false", "did not get ready"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_page_that_is_wrong_is_found(wrong, short_path, free_port):
    marks, tag, code, says = WRONG[wrong]
    page = short_path / "wrong.md"
    page.write_text(f"# Wrong\n\n{marks}```{tag}\n{code}\n```\n", encoding="utf-8")
    ended = run_page(page, short_path, free_port)
    assert ended.returncode == 1
    assert ended.stdout.startswith(f"wrong.md:{4 + marks.count(chr(10))}: ")
    assert says in ended.stdout


def test_blocks_share_a_namespace_and_a_shell(short_path, free_port):
    page = short_path / "right.md"
    page.write_text(
        "```python\nx = 1\n```\n\n```python\nassert x == 1\n```\n\n"
        '<!-- keeps: KEPT = a.0.b -->\n```sh\necho \'{"a": [{"b": 5}]}\'\nOWN=7\n```\n\n'
        "<!-- shows: 5 7 -->\n```sh\necho $KEPT $OWN\n```\n\n"
        "<!-- file: made.txt -->\n```text\nmade\n```\n\n<!-- shows: made -->\n```sh\ncat made.txt\n```\n",
        encoding="utf-8",
    )
    ended = run_page(page, short_path, free_port)
    assert ended.returncode == 0, ended.stdout


@pytest.mark.parametrize("text", ["```python\nx = 1\n", "<!-- shows: x -->\nprose\n```sh\ntrue\n```\n"])
def test_a_page_that_cannot_be_read_is_refused(text, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"not closed|right above its block"):
        blocks_of(page)


def test_the_marks_are_those_that_the_driver_knows():
    text = DRIVER.read_text(encoding="utf-8")
    assert all(f'"{mark}"' in text for mark in MARKS - {"not run"})
