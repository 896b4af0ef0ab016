"""The reference is complete and does not lag the code."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

import postroom
from postroom import errors, lifecycle
from postroom.api import problems
from postroom.inbox import Inbox
from postroom.model import Event, OutcomeKind, Priority, State
from postroom.settings import PREFIX, SETTING_FIELDS
from tests.docs.pages import DOCS


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATOR = generator()


@pytest.mark.parametrize("path", sorted(GENERATOR.pages()))
def test_a_computed_page_is_what_the_code_says(path):
    file = DOCS / path
    committed = file.read_text(encoding="utf-8") if file.exists() else ""
    assert committed == GENERATOR.pages()[path], (
        f"docs/{path} lags the code: run .venv/bin/python docs/generate.py"
    )


def text_of(name: str) -> str:
    return (DOCS / "reference" / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("error", GENERATOR.all_errors(), ids=lambda error: error.__name__)
def test_every_error_has_its_words(error):
    assert re.search(rf"^\| `{error.__name__}` \| .+ \| .+ \| .+ \|$", text_of("errors.md"), re.M)
    assert GENERATOR.error_tree()[1].keys() >= {error.__name__}, (
        "draw it in the tree at the head of errors.py"
    )


def test_the_tree_and_the_table_of_statuses_agree():
    table = {name: str(status) for name, status, _ in problems.rows()}
    drawn = {name: status for name, status in GENERATOR.error_tree()[1].items() if status}
    assert {name: status for name, status in drawn.items() if table[name] not in status.split("/")} == {}


def codes_in_the_code() -> set[str]:
    """Every code that stands in the code as text: of an ErrorInfo or a PermanentError, or as a name of lifecycle."""
    found = {lifecycle.WORKER_LOST, lifecycle.ITEMS_FAILED, lifecycle.TIMEOUT, lifecycle.STALLED}
    for path in (DOCS.parent / "src" / "postroom").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call):
                name = getattr(call.func, "id", getattr(call.func, "attr", ""))
                given = call.args[:1] if name == "ErrorInfo" else []
                if name in ("ErrorInfo", "PermanentError"):
                    given += [keyword.value for keyword in call.keywords if keyword.arg == "code"]
                found |= {
                    arg.value for arg in given if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
                }
    return found


def test_every_code_of_ours_has_its_words():
    assert codes_in_the_code() - set(GENERATOR.ERROR_CODES) == set()
    assert len(codes_in_the_code()) > 10, "the search finds nothing any more"


@pytest.mark.parametrize("event", Event)
def test_every_event_has_its_words(event):
    assert re.search(rf"^\| `{event}` \| \S.+\|", text_of("events.md"), re.M)


def test_the_example_journal_meets_every_event_but_the_ends_that_it_cannot_have():
    met = {line["event"] for line in GENERATOR.example_lines()}
    assert set(Event) - met == {Event.CANCELLED, Event.EXPIRED}


@pytest.mark.parametrize("state", State)
def test_every_state_has_its_words_and_its_box(state):
    assert re.search(rf"^\| `{state}` \| \S.+\|", text_of("states.md"), re.M)
    assert f">{state}</text>" in text_of("states.svg")
    assert f"`{state}`" in text_of("glossary.md")


def test_every_edge_of_the_table_is_drawn_and_described():
    drawn = text_of("states.svg")
    for verbs in GENERATOR.edges().values():
        for verb in verbs:
            assert verb in drawn
    assert {verb for _, verb in lifecycle.TRANSITIONS} == set(GENERATOR.VERBS)


def test_every_setting_has_its_words():
    page = text_of("settings.md")
    missing = [f.name for f in SETTING_FIELDS if f"{PREFIX}{f.name.upper()}" not in page]
    assert not missing


def test_every_setting_that_a_page_names_exists():
    known = {PREFIX + f.name.upper() for f in SETTING_FIELDS}
    named: dict[str, set[str]] = {}
    for page in [*DOCS.rglob("*.md"), DOCS.parent / "README.md"]:
        if "decisions" not in page.parts:
            for name in re.findall(r"\bPOSTROOM_[A-Z_]+\b", page.read_text(encoding="utf-8")):
                named.setdefault(name, set()).add(page.name)
    assert not {name: sorted(where) for name, where in named.items() if name not in known}


@pytest.mark.parametrize("name", sorted(set(postroom.__all__) - {"__version__"}))
def test_every_exported_name_has_its_words(name):
    page = "errors.md" if hasattr(errors, name) else "python.md"
    assert f"`{name}`" in text_of(page) or re.search(rf"^##+ {name}\b", text_of(page), re.M)


@pytest.mark.parametrize(
    "verb", [n for n in vars(Inbox) if not n.startswith("_") and n not in GENERATOR.INNER]
)
def test_every_verb_of_the_inbox_has_its_words(verb):
    if inspect.getdoc(getattr(Inbox, verb)):
        assert re.search(rf"^### .*\.{verb}\b", text_of("python.md"), re.M)


def test_every_command_has_its_words():
    from typer.main import get_command

    from postroom.cli.commands import app

    page = text_of("cli.md")
    command = get_command(app)
    missing = [name for name in getattr(command, "commands", {}) if f"postroom {name}" not in page]
    assert not missing


@pytest.mark.parametrize("word", [*OutcomeKind, *Priority])
def test_outcomes_and_priorities_are_in_the_glossary_or_the_states(word):
    assert f"`{word}`" in text_of("glossary.md") + text_of("states.md")


def test_every_room_is_on_the_page_of_rooms():
    page = (DOCS / "explanation" / "how-it-is-built.md").read_text(encoding="utf-8")
    rooms = [
        path
        for path in (DOCS.parent / "src" / "postroom").iterdir()
        if not path.name.startswith(("_", "py."))
    ]
    missing = [room.name for room in rooms if f"`{room.name}{'/' if room.is_dir() else ''}" not in page]
    assert not missing


def test_a_page_that_lags_is_named(tmp_path, monkeypatch, capsys):
    """The control: with another docs folder every page lags, and the command says how to mend it."""
    monkeypatch.setattr(GENERATOR, "DOCS", Path(tmp_path))
    assert GENERATOR.main(["--check"]) == 1
    assert "run .venv/bin/python docs/generate.py" in capsys.readouterr().out
