"""`frazil maintain`, `frazil tag`: by hand what the pipeline does by itself, and what only people decide."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import sys
import time
from collections.abc import Iterator, Sequence

from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession
from rich.console import Console
from rich.filesize import decimal as filesize
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from frazil.config import Config
from frazil.errors import FrazilError, Refused, StoreUnavailable, reason_of
from frazil.lake.catalog import open_catalog
from frazil.lease import open_lease
from frazil.pipeline.cluster import wait_for_executor
from frazil.pipeline.maintain.background import LEASE, kept
from frazil.pipeline.maintain.maintainer import Maintainer
from frazil.pipeline.maintain.metrics import MaintainMetrics
from frazil.pipeline.maintain.report import TASKS, Task, TaskReport
from frazil.pipeline.maintain.tag_tables import TaggedTables, create_cut, delete_cut, list_cuts
from frazil.pipeline.metrics import Metrics
from frazil.pipeline.runner import Runner, SparkRunner
from frazil.pipeline.session import spark_session, stop
from frazil.position import landing_position

_WAIT_SECONDS = 0.5


@contextlib.contextmanager
def opened(config: Config) -> Iterator[tuple[Catalog, Runner]]:
    """Yield the catalog and a runner whose Spark starts with the first job and stops at the end. If a cluster
    has no cores for it, each job raises JobFailed, and only the first waits.
    """
    if config.lake.catalog.type == "sqlite" and not config.catalog_file.exists():
        raise Refused(
            f"there are no tables yet: {config.catalog_file} is not there; has `frazil up` run here?"
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
            yield catalog, SparkRunner(start_spark, "maintain", config.maintain.compact.parallel_tasks)
    finally:
        for session in sessions:
            stop(session)


@contextlib.contextmanager
def our_turn(config: Config, console: Console) -> Iterator[None]:
    """Waits until the maintenance lease is free, and says why it waits."""
    lease = open_lease(config, LEASE)
    said = ""
    while True:
        try:
            if lease.acquire():
                break
            reason = "another process holds the maintenance lease; waiting for it"
        except StoreUnavailable as error:
            reason = f"the maintenance lease cannot be acquired: {error}; retrying"
        if reason != said:
            console.print(reason, style="dim", highlight=False)
            said = reason
        time.sleep(_WAIT_SECONDS)
    with kept(lease, config.pipeline.lease_seconds):
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
    """Does one task, or all, on the tables, or all of them, and says what was done, and what was not: then it
    returns 1. Retention of the tables in `confirmed` trusts the clock and removes any share of the rows.
    """
    if confirmed and task != "retention":
        raise Refused("--confirm is for retention: `frazil maintain retention --confirm TABLE`")
    tables = [*tables, *(name for name in confirmed if name not in tables)]
    if task == "tier" and config.maintain.tier is None:
        raise Refused("there is no other place for old files; say where, with maintain.tier")
    console = Console(stderr=True)
    reports: list[TaskReport] = []
    failures: list[str] = []
    turn = contextlib.nullcontext() if dry_run else our_turn(config, console)
    with opened(config) as (catalog, runner), turn, _bar(console) as bar:

        def progress(done: int, total: int) -> None:
            bar.update(line, completed=done, total=max(total, 1))

        metrics = MaintainMetrics(Metrics().registry)
        maintainer = Maintainer(config, catalog, runner, metrics, progress=progress)
        there = maintainer.tables()
        if unknown := [name for name in tables if name not in there]:
            raise Refused(f"there is no table {unknown[0]}; there are: {', '.join(there) or 'none yet'}")
        line = bar.add_task("", total=None)
        for each in (task,) if task is not None else TASKS:
            for table in tables or there:
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
    """A round ends at a bound so that other tasks have their turn; a command waits for all of them."""
    reports = [maintainer.run(task, table, dry_run=dry_run, confirmed=confirmed)]
    while reports[-1].is_unfinished:
        reports.append(maintainer.run(task, table, confirmed=confirmed))
    return reports


def tag_create(config: Config, name: str, *, json_output: bool) -> int:
    with opened(config) as (catalog, runner):
        cut = create_cut(config, catalog, runner, Metrics(), name)
    if json_output:
        print(json.dumps(_facts(cut)))
        return 0
    _print_cuts([cut])
    _console().print(f"\nask it:  frazil query --as-of tag:{name} …")
    return 0


def tag_list(config: Config, *, json_output: bool) -> int:
    with opened(config) as (catalog, _):
        cuts = list_cuts(config, catalog)
    if json_output:
        print(json.dumps([_facts(cut) for cut in cuts]))
    elif cuts:
        _print_cuts(cuts)
    else:
        _console().print("there are no tags; `frazil tag create incident-42` makes one")
    return 0


def tag_delete(config: Config, name: str) -> int:
    with opened(config) as (catalog, _):
        tables = delete_cut(config, catalog, name)
    _console().print(f"{name} is deleted from {tables} tables; what only it kept goes with the next expiry")
    return 0


def _bar(console: Console) -> Progress:
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _print(reports: Sequence[TaskReport], *, dry_run: bool) -> None:
    console = _console()
    shown = [report for report in reports if not report.is_nothing]
    if not shown:
        console.print(f"nothing to do in {len(reports)} tasks")
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("task", "table", "files", "bytes", "rows", "removed", "seconds"):
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
            f"{report.seconds:.1f}",
            ", ".join(f"{value:,} {key.replace('_', ' ')}" for key, value in report.detail.items() if value),
        )
    console.print(table)
    if dry_run:
        console.print("nothing was changed: this is what would be done", style="dim")


def _from_to(report: TaskReport, before: str, after: str) -> str:
    if not report.files_in:
        return ""
    return f"{before} → {after}" if report.files_out else f"-{before}"


def _console() -> Console:
    """Whole lines where nobody looks."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=200)


def _print_cuts(cuts: Sequence[TaggedTables]) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("tag", "table", "committed", "snapshot", "rows ever landed"):
        table.add_column(heading, justify="right" if heading.startswith("rows") else "left", overflow="fold")
    for cut in cuts:
        for tag in cut.tags:
            committed = _utc(tag.committed_at_ms)
            table.add_row(cut.name, tag.table, committed, str(tag.snapshot_id), _rows(tag.position))
        for name in cut.missing:
            table.add_row(cut.name, name, "[red]not tagged: delete the tag and make it anew[/red]", "", "")
    _console().print(table)


def _facts(cut: TaggedTables) -> dict[str, object]:
    return {
        "name": cut.name,
        "tables": [dataclasses.asdict(tag) for tag in cut.tags],
        "missing": list(cut.missing),
    }


def _utc(milliseconds: int) -> str:
    moment = datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _rows(position: str | None) -> str:
    return "" if position is None else f"{landing_position(position).rows:,}"
