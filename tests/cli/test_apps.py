"""Loading the user's inbox: what is near is named, and the user's own errors are shown as they are."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from postroom import Inbox
from postroom.errors import SettingsInvalid
from postroom.wiring import AppBroken, load_app, open_shop
from tests.cli.conftest import Cli

MODULE = """
from postroom import Inbox
inbox = Inbox("sqlite:///own.db")
number = 3


class Holder:
    inner = inbox


@inbox.handler("summarize")
async def mine(item, run):
    return "mine"
"""


@pytest.fixture
def letters(folder: Path) -> Path:
    """A module ``letters`` beside ``handlers``."""
    path = folder / "letters.py"
    path.write_text(MODULE, encoding="utf-8")
    sys.modules.pop("letters", None)
    return path


def test_an_inbox_is_found_in_the_working_directory(letters: Path) -> None:
    inbox = load_app("letters:inbox")
    assert isinstance(inbox, Inbox)
    assert load_app("letters:Holder.inner") is inbox


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("letters", "takes module:inbox, such as handlers:inbox, found 'letters'"),
        ("letters:", "takes module:inbox"),
        ("letters:a b", "takes module:inbox"),
        ("letters.py:inbox", "a module and not a file: did you mean letters:inbox"),
        ("./src/letters.py:inbox", "did you mean src.letters:inbox"),
        ("leters:inbox", "there is no module 'leters', looked for in .*; did you mean letters?"),
        ("letters.deep:inbox", "there is no module 'letters.deep'"),
        ("letters:inbx", "the module letters has no 'inbx'; did you mean inbox?"),
        ("letters:other", "the module letters has no 'other'; it has the inbox inbox"),
        ("letters:number", "letters:number is a int and not an Inbox; letters has inbox"),
        ("letters:Holder", "letters:Holder is a type and not an Inbox"),
    ],
)
def test_what_is_not_there_is_said_with_what_is_near(letters: Path, spec: str, says: str) -> None:
    with pytest.raises(SettingsInvalid, match=says):
        load_app(spec)


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import not_installed_here", "No module named 'not_installed_here'"),
        ("def broken(:\n    pass", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit"),
    ],
)
def test_an_error_of_the_users_module_is_shown_with_its_traceback(
    cli: Cli, folder: Path, source: str, error: str
) -> None:
    (folder / "letters.py").write_text(f"from postroom import Inbox\n{source}\n", encoding="utf-8")
    sys.modules.pop("letters", None)
    ran = cli("worker", "--app", "letters:inbox")
    assert ran.code == 2
    assert error in ran.err
    assert "letters.py" in ran.err
    assert "importlib" not in ran.err
    assert "wiring.py" not in ran.err
    assert "postroom: the module letters could not be imported" in ran.err


def test_a_broken_module_is_told_from_a_missing_one(folder: Path) -> None:
    (folder / "letters.py").write_text("import leters\n", encoding="utf-8")
    sys.modules.pop("letters", None)
    with pytest.raises(AppBroken, match="No module named 'leters'"):
        load_app("letters:inbox")


def test_the_users_handler_takes_over_and_the_other_shipped_kinds_stay(letters: Path) -> None:
    shop = open_shop({"app": "letters:inbox"})
    handlers = shop.inbox.handlers
    summarize = handlers.get("summarize")
    assert summarize is not None
    assert not summarize.is_shipped
    assert re.search("mine", summarize.function.__name__)
    assert {"assistant", "classify", "summarize"} <= set(handlers.kinds())
    assert open_shop({"app": "letters:inbox"}, with_shipped=False).inbox is shop.inbox


def test_the_apps_own_store_holds_until_a_flag_says_another(letters: Path) -> None:
    assert open_shop({"app": "letters:inbox"}).inbox.url == "sqlite:///own.db"
    shop = open_shop({"app": "letters:inbox", "store": "sqlite:///other.db", "concurrency": 3})
    assert shop.inbox.url == "sqlite:///other.db"
    assert shop.inbox.settings.concurrency == 3
    assert sys.modules["letters"].inbox is shop.inbox


def test_an_app_that_names_no_store_follows_the_environment(
    letters: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROOM_STORE", "sqlite:///from-environment.db")
    letters.write_text(MODULE.replace('"sqlite:///own.db"', ""), encoding="utf-8")
    monkeypatch.setenv("POSTROOM_APP", "letters:inbox")
    assert open_shop().inbox.url == "sqlite:///from-environment.db"
