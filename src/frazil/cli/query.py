"""Commands that read through the API: query, status."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from frazil.cli.app import app, seconds

QueryFormat = Literal["table", "json", "csv", "arrow", "parquet"]


@app.command()
def query(
    context: typer.Context,
    sql: Annotated[
        str | None, typer.Argument(help="SELECT statement; - reads standard input. Default: open a prompt.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Read the SQL from a file.")] = None,
    format: Annotated[
        QueryFormat | None,
        typer.Option(help="Output format. Default: by the suffix of --output, else table."),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the result to a file.")] = None,
    param: Annotated[
        list[str] | None,
        typer.Option("--param", "-p", help="Value of the next ? or $N parameter; can be repeated."),
    ] = None,
    as_of: Annotated[
        str | None, typer.Option(help="Query the tables as of a time, snapshot:ID or tag:NAME.")
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Skip files that cannot be read, and report them.")
    ] = False,
    limit_rows: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of rows in the result.")
    ] = None,
    timeout: Annotated[
        str | None, typer.Option(help="Cancel the query after this time, such as 10s.")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(help="URL of the API. Default: client.url, else the local API if it runs, else files."),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            help="API key; @FILE reads it from a file. Default: FRAZIL_API_KEY, else client.api_key.",
            show_default=False,
        ),
    ] = None,
    ca_file: Annotated[
        Path | None, typer.Option(help="CA certificate (PEM) for the API. Default: client.ca_file.")
    ] = None,
    tenant: Annotated[
        str | None, typer.Option(help="Query the local files as this tenant, without the API.")
    ] = None,
) -> None:
    """Run a SQL query over landed and fresh data. Without a query, open a prompt."""
    import logging

    from frazil.client.command import QueryOptions, run

    if logging.lastResort is not None:
        logging.lastResort.setLevel(logging.ERROR)  # the result or the error says what a warning would
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
                timeout_seconds=None if timeout is None else seconds("--timeout", timeout),
                url=url,
                api_key=api_key,
                ca_file=ca_file,
                tenant=tenant,
                config=context.obj,
            )
        )
    )


@app.command()
def status(
    context: typer.Context,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every 2 s until Ctrl-C.")] = False,
    url: Annotated[
        str | None, typer.Option(help="URL of the API. Default: client.url, else the configured API.")
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            help="API key with the role admin; @FILE reads it from a file. Default: FRAZIL_API_KEY, else "
            "client.api_key.",
            show_default=False,
        ),
    ] = None,
    ca_file: Annotated[
        Path | None, typer.Option(help="CA certificate (PEM) for the API. Default: client.ca_file.")
    ] = None,
) -> None:
    """Show the status of all roles: rates, backlog, objectives. Exits 1 if any is degraded or down."""
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
