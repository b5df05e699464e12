"""The root command, and the functions that all commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from frazil.errors import FrazilError

if TYPE_CHECKING:
    from frazil.config import Config

Function = TypeVar("Function", bound=Callable[..., Any])

_COMMANDS = (
    *("up", "query", "status", "verify", "doctor", "demo"),
    *("receive", "pipeline", "serve", "dashboard"),
    *("maintain", "backfill", "views", "erase", "tag", "keys", "config", "version"),
)


class _FlagsWithoutType:
    """Help without `<bool>` beside flags, which take no value."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
        return params


class FrazilCommand(_FlagsWithoutType, TyperCommand):
    """A command."""


class CommandGroup(_FlagsWithoutType, TyperGroup):
    """A group of commands."""


class FrazilGroup(CommandGroup):
    """The root group. Lists frequent commands first. Prints frazil's own errors without a traceback."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=_COMMANDS.index)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except FrazilError as error:
            _print_error(error)
            raise typer.Exit(2) from None


class FrazilTyper(typer.Typer):
    """Makes commands of the classes above."""

    def command(self, name: str | None = None, **options: Any) -> Callable[[Function], Function]:
        return super().command(name, cls=FrazilCommand, **options)


app = FrazilTyper(
    cls=FrazilGroup,
    no_args_is_help=True,
    # Local variables may hold keys and payloads.
    pretty_exceptions_show_locals=False,
    help="An OpenTelemetry lakehouse: OTLP in, Apache Iceberg tables out, SQL over everything.",
)


def load(context: typer.Context) -> Config:
    from frazil.config import load_config

    return load_config(context.obj)


def quiet(config: Config) -> None:
    """Log warnings only: commands print their result."""
    from frazil.log import configure_logging

    configure_logging(config.log.model_copy(update={"level": "warning"}))


def seconds(option: str, text: str) -> float:
    from frazil.config import parse_seconds

    try:
        return float(parse_seconds(text))
    except ValueError as error:
        raise typer.BadParameter(f"{error}, such as 30s or 5m", param_hint=option) from None


def _print_error(error: FrazilError) -> None:
    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text

    console = Console(stderr=True)
    if console.is_terminal:
        console.print(Panel(Text(str(error)), title="frazil: error", title_align="left", border_style="red"))
    else:
        # No frame and no wrapping for pipes and files: programs read whole lines.
        typer.echo(f"frazil: error: {error}", err=True)


def print_json(value: Any) -> None:
    import json

    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))
