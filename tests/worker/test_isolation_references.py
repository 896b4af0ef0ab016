"""Finding a handler again in a fresh process, by name."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from postroom import Inbox
from postroom.assistant import KINDS, register
from postroom.errors import HandlerInvalid
from postroom.handlers import Handler, Registry
from postroom.model import Limits
from postroom.settings import Settings
from postroom.worker.reference import HandlerReference, for_handler
from tests.worker import isolated_handlers
from tests.worker.isolated_handlers import made_by, not_isolated

MODULE = "tests.worker.isolated_handlers"
SETTINGS = Settings()


def through_json(reference: HandlerReference | None) -> HandlerReference:
    assert reference is not None
    return HandlerReference.from_json(reference.to_json())


def test_a_handler_of_the_inbox_that_the_worker_was_started_with() -> None:
    handler = isolated_handlers.inbox.handlers.get("shout")
    assert handler is not None
    reference = through_json(for_handler(handler, f"{MODULE}:inbox"))
    assert (reference.source, reference.target) == ("app", f"{MODULE}:inbox")
    assert reference.load(SETTINGS) == handler


def test_a_function_at_the_top_of_a_module_with_its_options() -> None:
    limits = Limits(max_attempts=2, timeout_seconds=5)
    handler = Handler("mine", not_isolated, False, "process", 3, limits)
    reference = through_json(for_handler(handler))
    assert (reference.source, reference.target) == ("function", f"{MODULE}:not_isolated")
    assert reference.load(SETTINGS) == handler


def test_a_function_that_another_decorator_hid_is_found_through_its_inbox(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handler = isolated_handlers.inbox.handlers.get("later")
    assert handler is not None
    monkeypatch.setattr(isolated_handlers, "later", print)
    reference = through_json(for_handler(handler))
    assert (reference.source, reference.target) == ("app", f"{MODULE}:inbox")
    assert reference.load(SETTINGS) == handler


@pytest.mark.parametrize("kind", KINDS)
def test_the_shipped_kinds(kind: str) -> None:
    registry = Registry()
    register(registry, SETTINGS)
    handler = registry.get(kind)
    assert handler is not None
    found = through_json(for_handler(handler)).load(SETTINGS)
    assert (found.kind, found.is_shipped, found.limits) == (kind, True, handler.limits)


@pytest.mark.parametrize(
    "function",
    [made_by("x"), lambda item, run: None, partial(made_by("x"), run=None)],
    ids=["closure", "lambda", "partial"],
)
def test_what_has_no_name_has_no_reference(function: Any) -> None:
    assert for_handler(Handler("mine", function)) is None


def test_what_has_no_name_is_found_through_an_inbox_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    inbox = Inbox("memory://", settings=SETTINGS)
    inbox.handler("closed")(made_by("x"))
    handler = inbox.handlers.get("closed")
    assert handler is not None
    monkeypatch.setattr(isolated_handlers, "made_inbox", inbox, raising=False)
    reference = for_handler(handler, f"{MODULE}:made_inbox")
    assert reference is not None
    assert reference.target == f"{MODULE}:made_inbox"


def test_an_inbox_without_the_kind_is_refused() -> None:
    with pytest.raises(HandlerInvalid, match="no inbox with a handler for kind 'other'"):
        HandlerReference("other", "app", f"{MODULE}:inbox").load(SETTINGS)


SCRIPT = """
import asyncio, json, os, sys
from postroom import Inbox
from postroom.settings import Settings
from postroom.worker.isolation import run_in_child
from postroom.worker.reference import for_handler
from tests.worker.bench import SHORT, bench

inbox = Inbox("memory://", settings=Settings())
GREETING = "hello"

@inbox.handler("greet", isolation="process")
def greet(item, run):
    return [GREETING, item, __name__, os.getpid()]

def wrapped(function):
    return lambda item, run: function(item, run)

@inbox.handler("wrapped", isolation="process")
@wrapped
def inner(item, run):
    return [GREETING, item, __name__, os.getpid()]

async def main():
    async with bench() as made:
        for kind in ("greet", "wrapped"):
            handler = inbox.handlers.get(kind)
            lease = await made.lease(kind, "you")
            outcome = await run_in_child(
                lease, handler, made.recorder(lease), settings=SHORT, reference=for_handler(handler)
            )
            greeting, item, name, pid = json.loads(outcome.result)
            assert (greeting, item) == ("hello", "you"), outcome
            assert name != "__main__" and pid != os.getpid(), (name, pid)
            print("ran", kind)

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.parametrize("as_module", [False, True], ids=["by-its-file", "as-a-module"])
def test_the_handlers_of_a_script_run_in_children_and_the_script_does_not(
    tmp_path: Path, as_module: bool
) -> None:
    (tmp_path / "greeter.py").write_text(SCRIPT)
    how = ["-m", "greeter"] if as_module else [str(tmp_path / "greeter.py")]
    root = Path(__file__).parent.parent.parent
    answer = subprocess.run(
        [sys.executable, *how],
        cwd=tmp_path,
        env={"PYTHONPATH": str(root), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert answer.stdout.split("\n")[:2] == ["ran greet", "ran wrapped"], answer.stderr
