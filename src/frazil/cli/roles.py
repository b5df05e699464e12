"""Commands that run a role: up, receive, pipeline, serve, dashboard, demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from frazil.cli.app import app, load, seconds

Protocol = Literal["grpc", "http"]
Incident = Literal["errors", "slow", "drop"]
Compression = Literal["gzip", "none"]


@app.command()
def up(
    context: typer.Context,
    demo: Annotated[
        bool | None,
        typer.Option("--demo/--no-demo", help="Send demo traffic. Default: demo.enabled."),
    ] = None,
) -> None:
    """Run all roles on this machine."""
    config = load(context)
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
    """Run the OTLP receiver."""
    from frazil.log import configure_logging
    from frazil.receive.supervise import run

    config = load(context)
    configure_logging(config.log)
    raise typer.Exit(run(config))


@app.command()
def pipeline(context: typer.Context) -> None:
    """Run the pipeline: land received data in the Iceberg tables and maintain them, on Spark."""
    config = load(context)
    from frazil.log import configure_logging
    from frazil.pipeline.run import run

    configure_logging(config.log)
    raise typer.Exit(run(config))


@app.command()
def serve(context: typer.Context) -> None:
    """Run the query service: SQL and the HTTP API."""
    config = load(context)
    from frazil.log import configure_logging
    from frazil.serve.run import run

    configure_logging(config.log)
    raise typer.Exit(run(config))


@app.command()
def dashboard(context: typer.Context) -> None:
    """Run the web dashboard: logs, traces, metrics, SQL and the pipeline."""
    config = load(context)
    from frazil.dashboard.run import run
    from frazil.log import configure_logging

    configure_logging(config.log)
    raise typer.Exit(run(config))


@app.command()
def demo(
    context: typer.Context,
    endpoint: Annotated[
        str | None,
        typer.Option(help="URL of the receiver. Default: client.endpoint, else the configured receiver."),
    ] = None,
    protocol: Annotated[Protocol, typer.Option(help="OTLP transport.")] = "grpc",
    rate: Annotated[
        float, typer.Option("--rate", "--traces-per-second", "-r", help="Traces per second.")
    ] = 5.0,
    duration: Annotated[
        str | None,
        typer.Option(
            "--duration",
            "-d",
            help="Duration, such as 30s or 5m. Default: until stopped.",
        ),
    ] = None,
    incident: Annotated[
        Incident | None,
        typer.Option(help="Simulate an error burst, a slow dependency, or a drop in traffic."),
    ] = None,
    incident_after: Annotated[str, typer.Option(help="Time from the start to the incident.")] = "20s",
    incident_length: Annotated[str, typer.Option(help="Duration of the incident.")] = "60s",
    api_key: Annotated[
        str | None,
        typer.Option(
            help="API key; @FILE reads it from a file. Default: FRAZIL_API_KEY, else client.api_key.",
            show_default=False,
        ),
    ] = None,
    ca_file: Annotated[
        Path | None, typer.Option(help="CA certificate (PEM) for the receiver. Default: client.ca_file.")
    ] = None,
    compression: Annotated[Compression, typer.Option(help="Compression of requests.")] = "gzip",
    seed: Annotated[
        int | None, typer.Option(help="Random seed: the same seed sends the same telemetry.")
    ] = None,
) -> None:
    """Send realistic telemetry from a simulated shop."""
    from frazil.client.http_transport import key_from_text
    from frazil.demo import DemoOptions
    from frazil.demo.progress import run_with_progress

    config = load(context)
    ca_file = ca_file or config.client.ca_file
    totals = run_with_progress(
        DemoOptions(
            endpoint=endpoint or config.client.endpoint or config.receive.url(protocol),
            protocol=protocol,
            traces_per_second=rate,
            duration_seconds=None if duration is None else seconds("--duration", duration),
            incident=incident,
            incident_after_seconds=seconds("--incident-after", incident_after),
            incident_seconds=seconds("--incident-length", incident_length),
            api_key=key_from_text(api_key, config.client),
            ca_file=None if ca_file is None else str(ca_file),
            compression=compression,
            seed=seed,
        )
    )
    raise typer.Exit(1 if totals.failed else 0)
