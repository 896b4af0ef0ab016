"""The composition root: settings -> store -> inbox with its handlers, for a service, a worker, or one command.

The only place that knows how the parts fit. Nothing is opened here; an inbox opens itself at its first use.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from postroom.errors import SettingsInvalid, StoreUnavailable
from postroom.inbox import Inbox
from postroom.settings import Settings, load_settings

if TYPE_CHECKING:
    from fastapi import FastAPI

    from postroom.assistant.choosing import Models


class AppBroken(SettingsInvalid):
    """The user's module was found and failed by itself; ``trace`` is its traceback."""

    def __init__(self, message: str, trace: str) -> None:
        super().__init__(message)
        self.trace = trace


@dataclass(frozen=True)
class Shop:
    """An inbox with all handlers that this process can run.

    Attributes:
        inbox: the user's own one where an app was named, so that its handlers and we speak to the same store.
        models: what the shipped handlers ask; to be closed at the end. None without shipped handlers.
        app: ``module:inbox`` that was loaded.
    """

    inbox: Inbox
    models: Models | None = None
    app: str | None = None

    async def close(self) -> None:
        """Close the models, then the store."""
        if self.models is not None:
            await self.models.close()
        await self.inbox.close()


def open_inbox(overrides: Mapping[str, Any] | None = None) -> Inbox:
    """An inbox without handlers, for a command that reads or asks.

    Args:
        overrides: flags by setting name; None values are left out.
    Raises:
        SettingsInvalid
    """
    return Inbox(settings=load_settings(overrides))


def open_shop(overrides: Mapping[str, Any] | None = None, *, with_shipped: bool = True) -> Shop:
    """An inbox with the user's handlers (setting ``app``) and, where those leave a kind free, the shipped ones.

    Raises:
        SettingsInvalid: a setting, or the app, cannot be used.
    """
    settings = load_settings(overrides)
    inbox = Inbox(settings=settings)
    if settings.app is not None:
        inbox = load_app(settings.app)
        _point(inbox, settings)
    models = None
    if with_shipped:
        from postroom.assistant import register

        models = register(inbox.handlers, inbox.settings)
    return Shop(inbox, models, settings.app)


def _point(inbox: Inbox, settings: Settings) -> None:
    """Let flags win over what the user's inbox was made with; it has read environment and file itself.

    It is the same object that the user's handlers hold, and nothing has opened it yet.
    """
    flags = {n: getattr(settings, n) for n, source in settings.sources.items() if source == "flag"}
    sources = {**inbox.settings.sources, **dict.fromkeys(flags, "flag")}
    if "store" not in flags and inbox.url != inbox.settings.store:
        flags["store"], sources["store"] = inbox.url, "app"
    inbox.adopt(replace(inbox.settings, **flags, sources=sources))


def load_app(spec: str) -> Inbox:
    """The inbox that ``module:inbox`` names; the working directory is searched first, as ``python -m`` does.

    Raises:
        SettingsInvalid: there is no such module or inbox; the message names what is near.
        AppBroken: the module raised while it was imported.
    """
    module_name, _, inside = spec.partition(":")
    if not module_name or not inside or not all(part.isidentifier() for part in inside.split(".")):
        raise SettingsInvalid(f"--app takes module:inbox, such as handlers:inbox, found {spec!r}")
    if module_name.endswith(".py") or "/" in module_name:
        guess = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise SettingsInvalid(f"--app takes a module and not a file: did you mean {guess}:{inside}?")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    found: Any = _import(module_name)
    for part in inside.split("."):
        if not hasattr(found, part):
            raise SettingsInvalid(_no_attribute(module_name, found, part))
        found = getattr(found, part)
    if not isinstance(found, Inbox):
        others = _inboxes(sys.modules[module_name])
        hint = f"; {module_name} has {', '.join(others)}" if others else ""
        raise SettingsInvalid(f"{spec} is a {type(found).__name__} and not an Inbox{hint}")
    return found


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise SettingsInvalid(_no_module(name, error.name)) from None
        raise AppBroken(f"the module {name} could not be imported: {error}", _trace(error)) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001  # the user's module may raise anything
        raise AppBroken(
            f"the module {name} could not be imported: {type(error).__name__}: {error}", _trace(error)
        ) from None


def _trace(error: BaseException) -> str:
    """The user's part of a traceback: without our frames and the import machinery's."""
    ours = (__file__, importlib.__file__, "<frozen importlib")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(ours)]
    parts = ["Traceback (most recent call last):\n", *traceback.format_list(frames)] if frames else []
    return "".join([*parts, *traceback.format_exception_only(error)]).rstrip()


def _no_module(name: str, missing: str) -> str:
    parent, _, last = missing.rpartition(".")
    near = difflib.get_close_matches(last, _modules_in(parent), n=1)
    hint = f"; did you mean {parent + '.' if parent else ''}{near[0]}?" if near else ""
    return f"there is no module {missing!r}, looked for in {os.getcwd()} and the installed packages{hint}"


def _modules_in(parent: str) -> list[str]:
    """Modules that stand in a package, or in the working directory."""
    if parent:
        spec = PathFinder.find_spec(parent, [os.getcwd()])
        folders = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    else:
        folders = [Path.cwd()]
    found = []
    for folder in folders:
        for path in folder.iterdir():
            if path.suffix == ".py" or (path / "__init__.py").exists():
                found.append(path.stem)
    return found


def _no_attribute(module_name: str, found: Any, part: str) -> str:
    inboxes = _inboxes(found) if isinstance(found, ModuleType) else []
    near = difflib.get_close_matches(part, [n for n in vars(found) if not n.startswith("_")], n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    if inboxes and not near:
        hint = f"; it has the inbox {', '.join(inboxes)}"
    return f"the module {module_name} has no {part!r}{hint}"


def _inboxes(module: ModuleType) -> list[str]:
    return sorted(name for name, value in vars(module).items() if isinstance(value, Inbox))


def require_store(url: str) -> None:
    """Refuse to make an empty store only to read from it: a command typed in another folder should say so.

    Raises:
        StoreUnavailable: the URL names a file that does not exist.
    """
    path = store_path(url)
    if path is not None and not path.exists():
        raise StoreUnavailable(
            f"there is no store at {path}; `postroom serve` makes one, or say with --store where it is"
        )


def store_path(url: str) -> Path | None:
    """The file of a ``sqlite:///`` URL, None for other stores."""
    if not url.lower().startswith("sqlite:///"):
        return None
    return Path(unquote(url[len("sqlite:///") :])).absolute()


def make_app(shop: Shop) -> FastAPI:
    """The service over a shop's inbox, with all its doors."""
    from postroom.api.app import create_app
    from postroom.doors.inbox.routes import router as inbox_door

    return create_app(shop.inbox, shop.inbox.settings, doors=(inbox_door,))
