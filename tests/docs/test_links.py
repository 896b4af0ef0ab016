"""No link of the documentation leads nowhere, and no page stands where no link leads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT, all_pages, anchors_of, prose_of

LINK = re.compile(r"\]\(([^()\s]+)\)")


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def links_of(page: Path) -> list[str]:
    return [target for target in LINK.findall(prose_of(page)) if "://" not in target]


@pytest.mark.parametrize("page", all_pages(), ids=named)
def test_links_lead_to_a_page_and_a_heading(page):
    dead = []
    for target in links_of(page):
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (anchor and there.suffix == ".md" and anchor not in anchors_of(there)):
            dead.append(target)
    assert not dead


def test_every_page_is_reached_from_the_first_one():
    seen: set[Path] = set()
    waiting = [DOCS / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md" or not page.is_file():
            continue
        seen.add(page)
        waiting += [(page.parent / target.partition("#")[0]).resolve() for target in links_of(page)]
    lost = sorted(
        named(page) for page in DOCS.rglob("*.md") if page not in seen and "decisions" not in page.parts
    )
    assert not lost, "link them from docs/README.md"


def test_the_readme_leads_to_the_documentation():
    assert "docs/README.md" in links_of(ROOT / "README.md")


def test_pages_that_the_code_names_exist():
    named: dict[str, list[str]] = {}
    for path in (ROOT / "src").rglob("*.py"):
        for target in re.findall(r"\bdocs/[\w/-]+\.md\b", path.read_text(encoding="utf-8")):
            named.setdefault(target, []).append(path.name)
    assert not {target: where for target, where in named.items() if not (ROOT / target).exists()}
