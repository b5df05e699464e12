"""The command `frazil`: one function per command, no logic.

Each command imports its modules when it runs, so that `frazil --help` and shell completion stay fast.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from frazil.cli import query, roles, setup, tables
from frazil.cli.app import app

__all__ = ["app", "main", "query", "roles", "setup", "tables"]


def main() -> None:
    """Run the command."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # `__main__` disabled it during imports
    try:
        app()
    except KeyboardInterrupt:  # before typer handles it
        raise SystemExit(130) from None


def _print_version(value: bool) -> None:
    if value:
        setup.version()
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version.",
            callback=_print_version,
            is_eager=True,
            show_default=False,
            expose_value=False,
        ),
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="Configuration file. Default: ./frazil.yaml, if it exists."),
    ] = None,
) -> None:
    context.obj = config
