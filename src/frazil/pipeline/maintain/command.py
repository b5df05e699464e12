"""The commands `frazil maintain` and `frazil tag`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence

from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession
from rich.console import Console
from rich.filesize import decimal as filesize
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from frazil.config import Config
from frazil.errors import FrazilError, Refused, reason_of
from frazil.lake.catalog import open_catalog
from frazil.lake.views import load_views
from frazil.lease import open_lease
from frazil.pipeline.cluster import wait_for_executor
from frazil.pipeline.maintain.background import LEASE, hold_lease, wait_for_lease
from frazil.pipeline.maintain.maintainer import NO_TIER, Maintainer, no_table
from frazil.pipeline.maintain.metrics import MaintainMetrics
from frazil.pipeline.maintain.report import TASKS, Task, TaskReport
from frazil.pipeline.maintain.show import output, print_tags
from frazil.pipeline.maintain.tag_tables import list_tagged, untag_tables
from frazil.pipeline.metrics import Metrics
from frazil.pipeline.runner import Runner, SparkRunner
from frazil.pipeline.session import spark_session, stop


@contextlib.contextmanager
def opened(config: Config) -> Iterator[tuple[Catalog, Runner]]:
    """Yields the catalog and a runner. Spark starts with the first job and stops at the end. If the cluster
    has no free cores, each job raises JobFailed; only the first one waits for cores.
    """
    if config.lake.catalog.type == "sqlite" and not config.catalog_file.exists():
        raise Refused(
            f"no tables found: {config.catalog_file} does not exist; start `frazil up`, or check data_dir"
        )
    sessions: list[SparkSession] = []
    failures: list[FrazilError] = []
    console = Console(stderr=True)

    def start_spark() -> SparkSession:
        if failures:
            raise failures[0].again()
        if not sessions:
            sessions.append(spark_session(config, app_name="frazil-maintain"))
            try:
                wait_for_executor(sessions[0], lambda text: console.print(text, style="dim", highlight=False))
            except FrazilError as error:
                failures.append(error)
                raise
        return sessions[0]

    try:
        with contextlib.closing(open_catalog(config)) as catalog:
            load_views(catalog, config.lake.namespace)
            yield catalog, SparkRunner(start_spark, "maintain", config.maintain.compact.parallel_tasks)
    finally:
        for session in sessions:
            stop(session)


@contextlib.contextmanager
def maintenance_lease(config: Config, console: Console) -> Iterator[None]:
    """Waits for the maintenance lease, prints why it waits, and holds the lease while the block runs."""
    lease = open_lease(config, LEASE)
    wait_for_lease(lease, lambda text: console.print(text, style="dim", highlight=False))
    with hold_lease(lease, config.pipeline.lease_seconds):
        yield


def maintain(
    config: Config,
    task: Task | None,
    tables: Sequence[str],
    *,
    dry_run: bool,
    json_output: bool,
    confirmed: Sequence[str] = (),
) -> int:
    """Runs one task (all tasks if None) on the tables (all if empty) and prints the reports and failures.
    Returns 1 if anything failed or is held. Retention of the tables in `confirmed` trusts the clock and may
    remove any share of the rows.
    """
    if confirmed and task != "retention":
        raise Refused("--confirm only works with retention: `frazil maintain retention --confirm TABLE`")
    tables = [*tables, *(name for name in confirmed if name not in tables)]
    if task == "tier" and config.maintain.tier is None:
        raise Refused(NO_TIER)
    console = Console(stderr=True)
    reports: list[TaskReport] = []
    failures: list[str] = []
    lease = contextlib.nullcontext() if dry_run else maintenance_lease(config, console)
    with opened(config) as (catalog, runner), lease, _bar(console) as bar:

        def progress(done: int, total: int) -> None:
            bar.update(line, completed=done, total=max(total, 1))

        metrics = MaintainMetrics(Metrics().registry)
        maintainer = Maintainer(config, catalog, runner, metrics, progress=progress)
        existing = maintainer.tables()
        if unknown := [name for name in tables if name not in existing]:
            raise no_table(unknown[0], existing)
        line = bar.add_task("", total=None)
        for each in (task,) if task is not None else TASKS:
            for table in tables or existing:
                if not maintainer.can(each, table):
                    continue
                bar.update(line, description=f"{each} {table}", completed=0, total=None)
                try:
                    done = _all_rounds(maintainer, each, table, dry_run=dry_run, confirmed=table in confirmed)
                except Exception as error:
                    failures.append(f"{each} {table}: {reason_of(error)}")
                else:
                    reports += done
                    failures += [f"{each} {table}: {done[-1].held}"] if done[-1].held else []
    if json_output:
        print(json.dumps([dataclasses.asdict(report) for report in reports], default=str))
    else:
        _print(reports, dry_run=dry_run)
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


def _all_rounds(
    maintainer: Maintainer, task: Task, table: str, *, dry_run: bool, confirmed: bool
) -> list[TaskReport]:
    """Runs rounds until the task is finished. One round is bounded, for the sake of other tasks."""
    reports = [maintainer.run(task, table, dry_run=dry_run, confirmed=confirmed)]
    while reports[-1].is_unfinished:
        reports.append(maintainer.run(task, table, confirmed=confirmed))
    return reports


def tag_list(config: Config, *, json_output: bool) -> int:
    with opened(config) as (catalog, _):
        found = list_tagged(config, catalog)
    if json_output:
        print(json.dumps([each.as_dict() for each in found]))
    elif found:
        print_tags([each.as_dict() for each in found])
    else:
        output().print("no tags; create one with `frazil tag create incident-42`")
    return 0


def tag_delete(config: Config, name: str) -> int:
    with opened(config) as (catalog, _):
        tables = untag_tables(config, catalog, name)
    output().print(
        f"{name} deleted from {tables} tables; the next expiry deletes the files that only this tag kept"
    )
    return 0


def _bar(console: Console) -> Progress:
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _print(reports: Sequence[TaskReport], *, dry_run: bool) -> None:
    console = output()
    shown = [report for report in reports if not report.is_nothing]
    idle: dict[str, list[str]] = {}
    for report in reports:
        if report.is_nothing:
            idle.setdefault(report.task, []).append(report.table)
    for task, tables in idle.items():
        console.print(f"[dim]{task}: nothing to do in {', '.join(tables)}[/dim]")
    if not shown:
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("task", "table", "files", "bytes", "rows", "removed", "combined", "seconds"):
        table.add_column(heading, justify="left" if heading in ("task", "table") else "right", no_wrap=True)
    table.add_column("", overflow="fold")
    for report in shown:
        table.add_row(
            report.task,
            report.table,
            _from_to(report, f"{report.files_in:,}", f"{report.files_out:,}"),
            _from_to(report, filesize(report.bytes_in), filesize(report.bytes_out)),
            f"{report.rows:,}" if report.rows else "",
            f"{report.rows_removed:,}" if report.rows_removed else "",
            f"{report.rows_combined:,}" if report.rows_combined else "",
            f"{report.seconds:.1f}",
            ", ".join(f"{value:,} {key.replace('_', ' ')}" for key, value in report.detail.items() if value),
        )
    console.print(table)
    if dry_run:
        console.print("dry run: nothing was changed", style="dim")


def _from_to(report: TaskReport, before: str, after: str) -> str:
    if not report.files_in:
        return ""
    return f"{before} → {after}" if report.files_out else f"-{before}"
