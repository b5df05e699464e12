"""Commands on the tables: verify, maintain, backfill, erase, tag."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from frazil.cli.app import CommandGroup, FrazilTyper, app, load, quiet

MaintainTask = Literal["retention", "compact", "tier", "manifests", "expire", "orphans", "fill"]

tag_app = FrazilTyper(
    cls=CommandGroup, no_args_is_help=True, help="Named snapshots of all tables, for time-travel queries."
)
app.add_typer(tag_app, name="tag")
views_app = FrazilTyper(
    cls=CommandGroup,
    no_args_is_help=True,
    help="Derived tables that the configuration declares in SQL.",
)
app.add_typer(views_app, name="views")


@app.command()
def verify(
    context: typer.Context,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare rows made durable, landed and derived. Exits 1 if rows are missing or duplicated."""
    from frazil.ledger import main as show_ledger

    raise typer.Exit(show_ledger(load(context), json_output=json_output))


@app.command()
def maintain(
    context: typer.Context,
    task: Annotated[
        MaintainTask | None,
        typer.Argument(help="Task to run. Default: all tasks except fill."),
    ] = None,
    table: Annotated[
        list[str] | None, typer.Option("--table", "-t", help="Table; can be repeated. Default: all tables.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the changes without making them.")
    ] = False,
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
    """Run maintenance now: merge small files, expire snapshots, apply retention, remove orphans."""
    config = load(context)
    from frazil.paths import keep_private
    from frazil.pipeline.maintain.command import maintain as run

    quiet(config)
    keep_private(config)
    raise typer.Exit(
        run(config, task, table or [], dry_run=dry_run, json_output=json_output, confirmed=confirm or [])
    )


@app.command()
def backfill(
    context: typer.Context,
    table: Annotated[str, typer.Argument(help="Derived table, such as log_rollups.")],
    first: Annotated[str, typer.Option("--from", metavar="DAY", help="First day (UTC): 2026-11-18.")],
    last: Annotated[str | None, typer.Option("--to", metavar="DAY", help="Last day. Default: today.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what the days hold without changing anything.")
    ] = False,
    yes: Annotated[
        bool,
        typer.Option("--yes", help="Also derive days of which rows of the source are gone: they get lost."),
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Derive past days of a table again from its source, newest first."""
    config = load(context)
    from frazil.client.http_transport import key_from_text
    from frazil.paths import keep_private
    from frazil.pipeline.control.command import backfill as run
    from frazil.pipeline.derive.request import BackfillRequest

    quiet(config)
    keep_private(config)
    request = BackfillRequest(table, first, last, dry_run=dry_run, yes=yes)
    raise typer.Exit(
        run(config, request, api_key=key_from_text(None, config.client), json_output=json_output)
    )


@app.command()
def erase(
    context: typer.Context,
    tenant: Annotated[str, typer.Option(help="Tenant whose rows are erased.")],
    where: Annotated[str, typer.Option(help="SQL condition of the rows: \"attributes['user.id'] = 'u42'\".")],
    table: Annotated[
        list[str] | None, typer.Option("--table", "-t", help="Table; can be repeated. Default: all tables.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the rows without erasing them.")] = False,
    drop_tags: Annotated[
        bool, typer.Option("--drop-tags", help="Also delete tags that pin the rows.")
    ] = False,
    drop_set_aside: Annotated[
        bool,
        typer.Option(
            "--drop-set-aside", help="Also delete all set-aside data: it cannot be searched for the rows."
        ),
    ] = False,
    delete_kafka_records: Annotated[
        bool,
        typer.Option("--delete-kafka-records", help="Also delete landed records from the Kafka topics."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    report: Annotated[Path | None, typer.Option(help="Write the report to this file, as JSON.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Erase rows from all tables, old snapshots and the write-ahead log, and verify the erasure."""
    config = load(context)
    from frazil.client.http_transport import key_from_text
    from frazil.paths import keep_private
    from frazil.pipeline.control.command import erase as run
    from frazil.pipeline.maintain.erase.request import EraseRequest

    quiet(config)
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
    raise typer.Exit(
        run(
            config,
            request,
            api_key=key_from_text(None, config.client),
            report=report,
            json_output=json_output,
        )
    )


@tag_app.command("create")
def tag_create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the tag, such as incident-42.")],
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Land all pending data, then tag the current snapshot of every table."""
    config = load(context)
    from frazil.client.http_transport import key_from_text
    from frazil.paths import keep_private
    from frazil.pipeline.control.command import tag_create as run

    quiet(config)
    keep_private(config)
    raise typer.Exit(run(config, name, api_key=key_from_text(None, config.client), json_output=json_output))


@tag_app.command("list")
def tag_list(
    context: typer.Context,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List tags, and the snapshot of each table."""
    config = load(context)
    from frazil.pipeline.maintain.command import tag_list as run

    quiet(config)
    raise typer.Exit(run(config, json_output=json_output))


@tag_app.command("delete")
def tag_delete(context: typer.Context, name: Annotated[str, typer.Argument(help="Name of the tag.")]) -> None:
    """Delete a tag, so that its snapshots can expire."""
    config = load(context)
    from frazil.paths import keep_private
    from frazil.pipeline.maintain.command import tag_delete as run

    quiet(config)
    keep_private(config)
    raise typer.Exit(run(config, name))


@views_app.command("check")
def views_check(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="View. Default: all views.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Analyse the SQL of views with Spark, without data. Exits 1 if a view is not valid."""
    config = load(context)
    from frazil.pipeline.derive.views.command import check as run

    quiet(config)
    raise typer.Exit(run(config, name, json_output=json_output))


@views_app.command("list")
def views_list(
    context: typer.Context,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the views of the configuration and of the lake."""
    config = load(context)
    from frazil.pipeline.derive.views.command import list_views as run
    from frazil.status import failing_tables

    quiet(config)
    failures = failing_tables(config) if config.derive.enabled else {}
    raise typer.Exit(run(config, failures, json_output=json_output))
