"""All commands, in the order in which a newcomer needs them."""

from __future__ import annotations

from typing import Annotated

import typer

from postroom import __version__
from postroom.cli import browse, doctor, letters, models, serve, storage, submit, watch, work

CODES = (
    "Exit codes: 0 done, 1 the job failed or was cancelled or verify found something, 2 wrong usage, "
    "3 the store cannot be reached, 4 no such job, 5 the wait timed out."
)

app = typer.Typer(
    name="postroom",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help starts quicker, and the docs are made from it
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=f"{CODES}  Settings: flags, then POSTROOM_…, then postroom.toml; `postroom doctor` shows them.",
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"postroom {__version__}")
        raise typer.Exit()


@app.callback()
def postroom(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """An inbox for AI work that is never lost, never paid for twice, and always says where it stands."""


for _register in (
    serve.register,
    work.register,
    submit.register,
    browse.register,
    watch.register,
    letters.register,
    storage.register,
    doctor.register,
    models.register,
):
    _register(app)
