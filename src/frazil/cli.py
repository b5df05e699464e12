"""The command `frazil`: one function a verb, no logic.

What a verb needs is imported inside it, so that `frazil --help` and shell completion stay fast.
"""

from __future__ import annotations

import signal
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from frazil.errors import ConfigError, FrazilError

if TYPE_CHECKING:
    from frazil.config import Config
    from frazil.doctor import Check

Protocol = Literal["grpc", "http"]
Incident = Literal["errors", "slow", "drop"]
Compression = Literal["gzip", "none"]
QueryFormat = Literal["table", "json", "csv", "arrow", "parquet"]
MaintainTask = Literal["retention", "compact", "tier", "manifests", "expire", "orphans", "fill"]


class RoleName(StrEnum):
    """Typer takes no list of a Literal."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


class FrazilGroup(TyperGroup):
    """Shows frazil's own errors as what they are: something for the user to read, not a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except FrazilError as error:
            _print_error(error)
            raise typer.Exit(2) from None


app = typer.Typer(
    cls=FrazilGroup,
    no_args_is_help=True,
    # Local variables may hold keys and payloads.
    pretty_exceptions_show_locals=False,
    help="An OpenTelemetry lakehouse: OTLP in, Apache Iceberg tables out, SQL over all of it.",
)
keys_app = typer.Typer(no_args_is_help=True, help="API keys.")
app.add_typer(keys_app, name="keys")
tag_app = typer.Typer(
    no_args_is_help=True, help="Names for all tables at one moment, to ask them as of then."
)
app.add_typer(tag_app, name="tag")


def main() -> None:
    """Entry point of the command."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # `__main__` has put it off until now
    try:
        app()
    except KeyboardInterrupt:  # before typer was ready to hear it
        raise SystemExit(130) from None


@app.callback()
def options(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="The configuration. Without it: ./frazil.yaml, if there."),
    ] = None,
) -> None:
    context.obj = config


@app.command()
def up(
    context: typer.Context,
    demo: Annotated[
        bool | None,
        typer.Option("--demo/--no-demo", help="Send demo traffic; otherwise as demo.enabled says."),
    ] = None,
) -> None:
    """Run everything on this machine."""
    config = _load(context)
    if demo is not None:
        config = config.model_copy(update={"demo": config.demo.model_copy(update={"enabled": demo})})
    from frazil.log import configure_logging
    from frazil.preflight import check_before_start
    from frazil.up import run

    configure_logging(config.log)
    check_before_start(config)
    raise typer.Exit(run(config, context.obj))


@app.command()
def receive(context: typer.Context) -> None:
    """Run the OTLP receiver alone."""
    from frazil.log import configure_logging
    from frazil.receive.supervise import run

    config = _load(context)
    configure_logging(config.log)
    raise typer.Exit(run(config))


@app.command()
def pipeline(context: typer.Context) -> None:
    """Land what was received in the Iceberg tables, on Spark."""
    config = _load(context)
    from frazil.log import configure_logging
    from frazil.pipeline.run import run

    configure_logging(config.log)
    raise typer.Exit(run(config))


@app.command()
def serve(context: typer.Context) -> None:
    """Answer SQL and the API."""
    config = _load(context)
    from frazil.log import configure_logging
    from frazil.serve.run import run

    configure_logging(config.log)
    raise typer.Exit(run(config))


@app.command()
def dashboard(context: typer.Context) -> None:
    """Show logs, traces, metrics and the pipeline in the browser."""
    config = _load(context)
    from frazil.dashboard.run import run
    from frazil.log import configure_logging

    configure_logging(config.log)
    raise typer.Exit(run(config))


@app.command()
def demo(
    context: typer.Context,
    endpoint: Annotated[
        str | None, typer.Option(help="The receiver's URL. Without it: where the configuration listens.")
    ] = None,
    protocol: Annotated[Protocol, typer.Option(help="How to send.")] = "grpc",
    rate: Annotated[
        float, typer.Option("--rate", "--traces-per-second", "-r", help="Traces a second.")
    ] = 5.0,
    duration: Annotated[
        str | None,
        typer.Option(
            "--duration",
            "-d",
            help="How long, such as 30s or 5m. Without it: until stopped.",
        ),
    ] = None,
    incident: Annotated[
        Incident | None, typer.Option(help="A burst of errors, a slow dependency, or a drop in traffic.")
    ] = None,
    incident_after: Annotated[str, typer.Option(help="When the incident begins.")] = "20s",
    incident_length: Annotated[str, typer.Option(help="How long the incident lasts.")] = "60s",
    api_key: Annotated[str | None, typer.Option(help="The API key to send with.")] = None,
    ca_file: Annotated[
        Path | None, typer.Option(help="The authority (PEM) of the receiver's certificate.")
    ] = None,
    compression: Annotated[Compression, typer.Option(help="How to compress.")] = "gzip",
    seed: Annotated[int | None, typer.Option(help="The same seed sends the same telemetry.")] = None,
) -> None:
    """Send believable telemetry from a simulated shop."""
    from frazil.demo import DemoOptions
    from frazil.demo.progress import run_with_progress

    totals = run_with_progress(
        DemoOptions(
            endpoint=endpoint or _load(context).receive.url(protocol),
            protocol=protocol,
            traces_per_second=rate,
            duration_seconds=None if duration is None else _seconds("--duration", duration),
            incident=incident,
            incident_after_seconds=_seconds("--incident-after", incident_after),
            incident_seconds=_seconds("--incident-length", incident_length),
            api_key=api_key,
            ca_file=None if ca_file is None else str(ca_file),
            compression=compression,
            seed=seed,
        )
    )
    raise typer.Exit(1 if totals.failed else 0)


@app.command()
def query(
    context: typer.Context,
    sql: Annotated[
        str | None, typer.Argument(help="The SELECT; - reads standard input. Without it: a prompt.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="A file with the SQL.")] = None,
    format: Annotated[
        QueryFormat | None,
        typer.Option(help="How rows are written. Without it: as --output is called, else a table."),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The file to write.")] = None,
    param: Annotated[
        list[str] | None,
        typer.Option("--param", "-p", help="What ? or $1 in the SQL stands for, in order; can be repeated."),
    ] = None,
    as_of: Annotated[
        str | None, typer.Option(help="Ask the tables as of a time, snapshot:ID or tag:NAME.")
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Answer without files that cannot be read now, and say so.")
    ] = False,
    limit_rows: Annotated[int | None, typer.Option(min=1, help="Cut the answer after so many rows.")] = None,
    timeout: Annotated[str | None, typer.Option(help="Give up after this time, such as 10s.")] = None,
    url: Annotated[
        str | None, typer.Option(help="The API's URL. Without it: the configured one if it runs, else none.")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(help="The API key; @FILE reads it from a file.", show_default=False)
    ] = None,
    ca_file: Annotated[
        Path | None, typer.Option(help="The authority (PEM) of the API's certificate.")
    ] = None,
    tenant: Annotated[
        str | None, typer.Option(help="Read this machine's files as this tenant, without the API.")
    ] = None,
) -> None:
    """Ask SQL over what has landed and what arrived a moment ago; alone it opens a prompt."""
    from frazil.client.command import QueryOptions, run

    raise typer.Exit(
        run(
            QueryOptions(
                sql=sql,
                file=file,
                format=format,
                output=output,
                params=tuple(param or ()),
                as_of=as_of,
                partial=partial,
                limit_rows=limit_rows,
                timeout_seconds=None if timeout is None else _seconds("--timeout", timeout),
                url=url,
                api_key=api_key,
                ca_file=ca_file,
                tenant=tenant,
                config=context.obj,
            )
        )
    )


@app.command()
def doctor(
    context: typer.Context,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    rebuild_catalog: Annotated[
        bool,
        typer.Option(
            "--rebuild-catalog", help="First fill an empty catalog with the tables found in the warehouse."
        ),
    ] = False,
) -> None:
    """Check this machine and the configuration, and say what to fix."""
    from frazil.doctor import run_checks

    config = _load(context)
    if rebuild_catalog:
        _rebuild_catalog(config)
    checks = run_checks(config)
    if json_output:
        _print_json([{"name": c.name, "status": c.status, "found": c.found, "fix": c.fix} for c in checks])
    else:
        _print_checks(checks)
    raise typer.Exit(1 if any(check.status == "fail" for check in checks) else 0)


@app.command()
def config(
    context: typer.Context,
    check: Annotated[
        bool, typer.Option("--check", help="Only say whether the configuration is valid.")
    ] = False,
) -> None:
    """Print the complete default configuration, commented, to start a frazil.yaml from."""
    from frazil.config import example_yaml

    if check:
        loaded = _load(context)
        if loaded.maintain.retention.rules:
            from frazil.pipeline.maintain.retain.check import check_rules

            if problems := check_rules(loaded):
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
            typer.echo(f"not checked: whether tables.promoted fits the tables: {unchecked}")
    else:
        typer.echo(example_yaml(), nl=False)


@app.command()
def status(
    context: typer.Context,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Look again every 2 s, until Ctrl-C.")] = False,
    url: Annotated[str | None, typer.Option(help="The API's URL. Without it: the configured one.")] = None,
    api_key: Annotated[
        str | None,
        typer.Option(help="An API key with the role admin; @FILE reads it from a file.", show_default=False),
    ] = None,
    ca_file: Annotated[
        Path | None, typer.Option(help="The authority (PEM) of the API's certificate.")
    ] = None,
) -> None:
    """How the whole does: every role, rates, backlog, objectives; 1 if anything is degraded or down."""
    from frazil.client.status import StatusOptions, run

    raise typer.Exit(
        run(
            StatusOptions(
                json_output=json_output,
                watch=watch,
                url=url,
                api_key=api_key,
                ca_file=ca_file,
                config=context.obj,
            )
        )
    )


@app.command()
def verify(
    context: typer.Context,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """The ledger: what was made durable, what has landed, what waits; 1 if anything is missing or twice."""
    from frazil.ledger import main as show_ledger

    raise typer.Exit(show_ledger(_load(context), json_output=json_output))


@app.command()
def maintain(
    context: typer.Context,
    task: Annotated[
        MaintainTask | None,
        typer.Argument(help="The task to run. Without it: all tasks except fill."),
    ] = None,
    table: Annotated[
        list[str] | None, typer.Option("--table", "-t", help="The table; can be repeated. Without it: all.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    confirm: Annotated[
        list[str] | None,
        typer.Option(
            "--confirm",
            metavar="TABLE",
            help="With `retention`: remove all rows of TABLE that are due, without checking clock and share. "
            "Check the clock, the rules and the result of --dry-run first. Can be repeated.",
        ),
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Merge small files, expire snapshots, apply retention, remove orphans: now, and by hand."""
    config = _load(context)
    from frazil.paths import keep_private
    from frazil.pipeline.maintain.command import maintain as run

    _quiet(config)
    keep_private(config)
    raise typer.Exit(
        run(config, task, table or [], dry_run=dry_run, json_output=json_output, confirmed=confirm or [])
    )


@app.command()
def erase(
    context: typer.Context,
    tenant: Annotated[str, typer.Option(help="Whose rows.")],
    where: Annotated[str, typer.Option(help="Which of them, as in SQL: \"attributes['user.id'] = 'u42'\".")],
    table: Annotated[
        list[str] | None, typer.Option("--table", "-t", help="The table; can be repeated. Without it: all.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would go.")] = False,
    drop_tags: Annotated[
        bool, typer.Option("--drop-tags", help="Also delete tags that pin what must go.")
    ] = False,
    drop_set_aside: Annotated[
        bool,
        typer.Option(
            "--drop-set-aside", help="Also delete all that could not be read: it may hold such rows."
        ),
    ] = False,
    delete_kafka_records: Annotated[
        bool,
        typer.Option("--delete-kafka-records", help="Also delete from the topics whatever has landed."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    report: Annotated[Path | None, typer.Option(help="Where to write the report, as JSON.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Remove rows from every table, old snapshots and the write-ahead log, and prove that they are gone."""
    config = _load(context)
    from frazil.paths import keep_private
    from frazil.pipeline.maintain.erase.command import run
    from frazil.pipeline.maintain.erase.erase import EraseRequest

    _quiet(config)
    keep_private(config)
    request = EraseRequest(
        tenant=tenant,
        where=where,
        tables=tuple(table or ()),
        dry_run=dry_run,
        drop_tags=drop_tags,
        drop_set_aside=drop_set_aside,
        delete_kafka_records=delete_kafka_records,
        yes=yes,
    )
    raise typer.Exit(run(config, request, report=report, json_output=json_output))


@tag_app.command("create")
def tag_create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Such as incident-42.")],
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Land what has arrived, then pin every table where it stands."""
    config = _load(context)
    from frazil.paths import keep_private
    from frazil.pipeline.maintain.command import tag_create as run

    _quiet(config)
    keep_private(config)
    raise typer.Exit(run(config, name, json_output=json_output))


@tag_app.command("list")
def tag_list(
    context: typer.Context,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Which there are, and where each table stood."""
    config = _load(context)
    from frazil.pipeline.maintain.command import tag_list as run

    _quiet(config)
    raise typer.Exit(run(config, json_output=json_output))


@tag_app.command("delete")
def tag_delete(context: typer.Context, name: Annotated[str, typer.Argument(help="The tag.")]) -> None:
    """Let go of what a tag has pinned."""
    config = _load(context)
    from frazil.paths import keep_private
    from frazil.pipeline.maintain.command import tag_delete as run

    _quiet(config)
    keep_private(config)
    raise typer.Exit(run(config, name))


@app.command()
def version() -> None:
    """Print the version."""
    from frazil import __version__

    typer.echo(f"frazil {__version__}")


@keys_app.command("new")
def keys_new(
    tenant: Annotated[str, typer.Option(help="The tenant that the key reads and writes.")],
    name: Annotated[
        str | None, typer.Option(help="What the key is called. Without it: after the tenant.")
    ] = None,
    role: Annotated[list[RoleName] | None, typer.Option(help="What it may do; can be repeated.")] = None,
) -> None:
    """Make an API key. It is shown once; the configuration keeps only its hash."""
    from frazil.keys import new_key

    try:
        key, hash = new_key(tenant)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--tenant") from None
    _print_key(key, hash, tenant, name or f"{tenant}-key", role or [RoleName.WRITE, RoleName.READ])


def _load(context: typer.Context) -> Config:
    from frazil.config import load_config

    return load_config(context.obj)


def _quiet(config: Config) -> None:
    """Commands print what they did; their log would say it twice."""
    from frazil.log import configure_logging

    configure_logging(config.log.model_copy(update={"level": "warning"}))


def _seconds(option: str, text: str) -> float:
    from frazil.config import parse_seconds

    try:
        return float(parse_seconds(text))
    except ValueError as error:
        raise typer.BadParameter(f"{error}, such as 30s or 5m", param_hint=option) from None


def _rebuild_catalog(config: Config) -> None:
    from frazil.lake.state.recover import rebuild_catalog
    from frazil.paths import keep_private

    keep_private(config)
    tables = rebuild_catalog(config)
    for table in tables:
        typer.echo(f"registered {table}", err=True)
    typer.echo(f"the catalog was rebuilt with {len(tables)} tables of {config.warehouse}", err=True)


def _print_error(error: FrazilError) -> None:
    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text

    console = Console(stderr=True)
    if console.is_terminal:
        console.print(
            Panel(Text(str(error)), title="frazil cannot go on", title_align="left", border_style="red")
        )
    else:
        # No frame and no wrapping where nobody looks: the lines stay whole for whatever reads them.
        typer.echo(f"frazil: error: {error}", err=True)


def _print_json(value: Any) -> None:
    import json

    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


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
    console.print(Text(f"{len(checks)} checks, {fails} to fix, {warns} to know about", style="dim"))


def _print_key(key: str, hash: str, tenant: str, name: str, roles: list[RoleName]) -> None:
    import json

    typer.echo(f"The key, shown only this once. Clients send it as `Authorization: Bearer {key[:3]}…`:\n")
    typer.echo(f"  {key}\n")
    typer.echo("Add to frazil.yaml (below auth: keys:, if that is there already):\n")
    typer.echo("auth:\n  keys:")
    typer.echo(f"    - name: {json.dumps(name)}")
    typer.echo(f"      tenant: {json.dumps(tenant)}")
    typer.echo(f"      hash: {hash}")
    typer.echo(f"      roles: [{', '.join(sorted(set(roles)))}]")
