"""Commands that set frazil up: doctor, config, keys, version."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from frazil.cli.app import CommandGroup, FrazilTyper, app, load, print_json
from frazil.errors import ConfigError

if TYPE_CHECKING:
    from frazil.config import Config
    from frazil.doctor import Check

keys_app = FrazilTyper(cls=CommandGroup, no_args_is_help=True, help="Create API keys.")
app.add_typer(keys_app, name="keys")


class RoleName(StrEnum):
    """The roles as an Enum: Typer accepts no list of a Literal."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


@app.command()
def doctor(
    context: typer.Context,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    rebuild_catalog: Annotated[
        bool,
        typer.Option(
            "--rebuild-catalog", help="First register the tables of the warehouse in an empty catalog."
        ),
    ] = False,
) -> None:
    """Check this machine and the configuration. Exits 1 if a check fails."""
    from frazil.doctor import run_checks

    config = load(context)
    if rebuild_catalog:
        _rebuild_catalog(config)
    checks = run_checks(config)
    if json_output:
        print_json([{"name": c.name, "status": c.status, "found": c.found, "fix": c.fix} for c in checks])
    else:
        _print_checks(checks)
    raise typer.Exit(1 if any(check.status == "fail" for check in checks) else 0)


@app.command()
def config(
    context: typer.Context,
    check: Annotated[bool, typer.Option("--check", help="Validate the configuration and exit.")] = False,
) -> None:
    """Print the default configuration with comments, as a start for frazil.yaml."""
    from frazil.config import example_yaml

    if check:
        loaded = load(context)
        if loaded.maintain.retention.rules:
            from frazil.pipeline.maintain.retain.check import check_rules

            if problems := check_rules(loaded):
                raise ConfigError("\n".join(problems))
        from frazil.pipeline.derive.check import check_tables, checked_views

        if problems := [*check_tables(loaded), *checked_views(loaded)[1].values()]:
            raise ConfigError("\n".join(problems))
        unchecked = ""
        if loaded.tables.promoted:
            from frazil.lake.tables import check_promoted
            from frazil.tables.promoted import promoted

            found = check_promoted(loaded, promoted(loaded))
            if found.problems:
                raise ConfigError("\n".join(found.problems))
            unchecked = found.unchecked
        typer.echo("the configuration is valid")
        if unchecked:
            typer.echo(f"not checked: tables.promoted against the existing tables: {unchecked}")
    else:
        typer.echo(example_yaml(), nl=False)


@keys_app.command("new")
def keys_new(
    tenant: Annotated[str, typer.Option(help="Tenant of the key.")],
    name: Annotated[str | None, typer.Option(help="Name of the key. Default: from the tenant.")] = None,
    role: Annotated[
        list[RoleName] | None, typer.Option(help="Role of the key; can be repeated. Default: write and read.")
    ] = None,
) -> None:
    """Create an API key. It is shown once; the configuration holds only its hash."""
    from frazil.keys import new_key

    try:
        key, hash = new_key(tenant)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--tenant") from None
    _print_key(key, hash, tenant, name or f"{tenant}-key", role or [RoleName.WRITE, RoleName.READ])


@app.command()
def version() -> None:
    """Print the version."""
    from frazil import __version__

    typer.echo(f"frazil {__version__}")


def _rebuild_catalog(config: Config) -> None:
    from frazil.lake.state.recover import rebuild_catalog
    from frazil.paths import keep_private

    keep_private(config)
    tables = rebuild_catalog(config)
    for table in tables:
        typer.echo(f"registered {table}", err=True)
    typer.echo(f"the catalog was rebuilt with {len(tables)} tables of {config.warehouse}", err=True)


def _print_checks(checks: list[Check]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    marks = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "bold red")}
    table = Table(box=None, show_header=False, padding=(0, 1))
    for check in checks:
        mark, style = marks[check.status]
        found = Text(check.found)
        if check.fix is not None:
            found.append(f"\n→ {check.fix}", style=style)
        table.add_row(Text(mark, style=style), Text(check.name, style="bold"), found)
    console = Console()
    console.print(table)
    fails = sum(check.status == "fail" for check in checks)
    warns = sum(check.status == "warn" for check in checks)
    console.print(Text(f"{len(checks)} checks, {fails} failed, {warns} warnings", style="dim"))


def _print_key(key: str, hash: str, tenant: str, name: str, roles: list[RoleName]) -> None:
    import json

    typer.echo(f"New API key, shown only once. Clients send it as `Authorization: Bearer {key[:3]}…`:\n")
    typer.echo(f"  {key}\n")
    typer.echo("Add to frazil.yaml (below auth: keys:, if the section exists):\n")
    typer.echo("auth:\n  keys:")
    typer.echo(f"    - name: {json.dumps(name)}")
    typer.echo(f"      tenant: {json.dumps(tenant)}")
    typer.echo(f"      hash: {hash}")
    typer.echo(f"      roles: [{', '.join(sorted(set(roles)))}]")
