"""The pages of the documentation, taken apart: prose, links, headings, and code blocks with what stands above them.

What a comment above a block says to the tests (readers never see it):

    <!-- not run: REASON -->      leave the block alone; a reason is required
    <!-- file: NAME -->           write the block into a file of that name instead of running it
    <!-- starts -->               a command that goes on: run behind, waited for until it is ready, stopped at the end
    <!-- starts: /PATH -->        the same, ready when this address answers
    <!-- ends -->                 the block is expected to end the last one started (it is waited for)
    <!-- keeps: NAME = FIELD -->  of the JSON that the block prints, keep a field as a shell variable
    <!-- shows: TEXT -->          the output must contain this, however it is spaced; /TEXT/ is a pattern
    <!-- until: TEXT -->          run the block again until its output contains this
    <!-- fails: CODE -->          the block must end with this exit code

Blocks tagged `python` and `sh` are run; `text`, `json`, `toml`, `ini` and blocks without a tag are shown only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
RUN_TAGS = frozenset({"python", "sh"})
SHOWN_TAGS = frozenset({"", "text", "json", "toml", "ini", "sql", "go", "js"})
MARKS = frozenset({"not run", "file", "starts", "ends", "keeps", "shows", "until", "fails"})

COMMENT = re.compile(r"^\s*<!--\s*(?P<mark>[a-z ]+?)\s*(?::\s*(?P<value>.*?))?\s*-->\s*$")
FENCE = re.compile(r"^(?P<indent>\s*)(?P<ticks>`{3,})(?P<tag>\w*)\s*$")


@dataclass(frozen=True)
class Block:
    """A fenced block. ``line`` is that of its first line of code, from 1."""

    page: Path
    line: int
    tag: str
    text: str
    marks: tuple[tuple[str, str], ...] = ()

    def mark(self, name: str) -> str | None:
        """The value of the first mark of that name; None where there is none."""
        return next((value for mark, value in self.marks if mark == name), None)

    def all_marks(self, name: str) -> list[str]:
        return [value for mark, value in self.marks if mark == name]

    @property
    def is_run(self) -> bool:
        return self.tag in RUN_TAGS and self.mark("not run") is None

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@dataclass
class _Reading:
    """Where the reading of a page stands."""

    blocks: list[Block] = field(default_factory=list)
    marks: list[tuple[str, str]] = field(default_factory=list)
    fence: re.Match[str] | None = None
    start: int = 0
    code: list[str] = field(default_factory=list)


def all_pages() -> list[Path]:
    """Every page for users: README, CONTRIBUTING and the like, and all of docs."""
    top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
    return [*top, *sorted(DOCS.rglob("*.md"))]


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order.

    Raises:
        ValueError: a block that is not closed, or a mark that means nothing.
    """
    reading = _Reading()
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        if reading.fence is not None:
            _inside(reading, page, line)
        elif match := FENCE.match(line):
            reading.fence, reading.start, reading.code = match, number + 1, []
        elif match := COMMENT.match(line):
            if match["mark"] in MARKS:
                reading.marks.append((match["mark"], match["value"] or ""))
        elif line.strip() and reading.marks:
            raise ValueError(f"{page}:{number}: a mark must stand right above its block")
    if reading.fence is not None:
        raise ValueError(f"{page}:{reading.start}: the block is not closed")
    return reading.blocks


def _inside(reading: _Reading, page: Path, line: str) -> None:
    fence = reading.fence
    assert fence is not None
    if line.strip() == fence["ticks"]:
        text = "\n".join(reading.code) + "\n"
        reading.blocks.append(Block(page, reading.start, fence["tag"], text, tuple(reading.marks)))
        reading.fence, reading.marks = None, []
    else:
        reading.code.append(line.removeprefix(fence["indent"]))


def prose_of(page: Path) -> str:
    """A page without its blocks and code spans."""
    return re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.S)


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    for heading in re.findall(r"^#{1,6}\s+(.+?)\s*$", text, re.M):
        bare = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", bare).replace(" ", "-")
        count = 0
        while (numbered := f"{anchor}-{count}" if count else anchor) in found:
            count += 1
        found.add(numbered)
    return found
