"""The commands `frazil views check` and `frazil views list`."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from rich.table import Table as Grid

from frazil.config import Config
from frazil.errors import FrazilError, Refused
from frazil.lake.catalog import catalog_errors, open_existing_catalog, table_or_none
from frazil.lake.derived_days import days_left, lag_seconds
from frazil.lake.views import is_off, stored_views
from frazil.pipeline.derive.check import checked_views
from frazil.pipeline.derive.views.declare import analysed
from frazil.pipeline.maintain.show import output
from frazil.pipeline.runner import SparkRunner
from frazil.pipeline.session import spark_session, stop
from frazil.tables import TableSpec
from frazil.tables.columns import type_name
from frazil.tables.derived.view import ViewQuery


def check(config: Config, name: str | None, *, json_output: bool) -> int:
    """Prints the columns of a view, or of all, with their types and the rules by which they merge."""
    if name is not None and name not in config.views:
        raise Refused(f"there is no view {name}; there are: {', '.join(config.views) or 'none'}")
    queries, problems = checked_views(config)
    wanted = [each for each in config.views if name in (None, each)]
    found: dict[str, TableSpec] = {}
    failed = {each: problems[each] for each in wanted if each in problems}
    valid = {each: queries[each] for each in wanted if each in queries}
    if valid:
        _analyse(config, valid, found, failed)
    if json_output:
        columns = {each: _columns(spec) for each, spec in found.items()}
        print(json.dumps({"views": columns, "problems": failed}))
        return 1 if failed else 0
    for each, spec in found.items():
        _print_columns(each, spec)
    for problem in failed.values():
        print(problem, file=sys.stderr)
    if not wanted:
        output().print("no views are configured; see docs/views.md")
    return 1 if failed else 0


def _analyse(
    config: Config, queries: Mapping[str, ViewQuery], found: dict[str, TableSpec], failed: dict[str, str]
) -> None:
    session = spark_session(config, app_name="frazil-views")
    try:
        runner = SparkRunner(lambda: session, "derive")
        for name, query in queries.items():
            try:
                found[name] = analysed(config, name, query, runner)
            except FrazilError as error:
                failed[name] = str(error)
    finally:
        stop(session)


def _columns(spec: TableSpec) -> list[dict[str, str]]:
    return [
        {
            "name": column.name,
            "type": type_name(column.type),
            "merge": "" if column.merge is None else column.merge.rule,
            "expression": column.doc,
        }
        for column in spec.columns
    ]


def _print_columns(name: str, spec: TableSpec) -> None:
    source = "" if spec.derived is None else spec.derived.source
    grid = Grid(title=f"{name}, from {source}", title_justify="left", box=None, pad_edge=False)
    for heading in ("column", "type", "merge", "from"):
        grid.add_column(heading, overflow="fold")
    for column in _columns(spec):
        grid.add_row(*column.values())
    output().print(grid)


@dataclass(frozen=True)
class ListedView:
    name: str
    source: str
    state: str
    """`refused`, `changed`, `off`, `stopped`, `failing`, `not derived yet`, `catching up` or `derived`."""
    lag_seconds: float | None = None
    """Since the landing of the oldest rows that are not in the view."""
    partial_rows: int | None = None
    """Rows of all tenants, before rows with the same key are merged."""
    problem: str = ""


Failures = Mapping[str, tuple[str, str]]
"""State and reason of the views that the active pipeline reports as stopped or failing."""


def list_views(config: Config, failures: Failures | None, *, json_output: bool) -> int:
    """Prints the views. `failures` is None if there is no active pipeline, which alone knows them."""
    found = listed_views(config, failures or {})
    if found and failures is None:
        print(
            "no active pipeline responds, so stopped and failing views are not shown as such", file=sys.stderr
        )
    if json_output:
        print(json.dumps([asdict(each) for each in found]))
        return 0
    if not found:
        output().print("no views are configured; see docs/views.md")
        return 0
    grid = Grid(box=None, pad_edge=False)
    for heading in ("view", "source", "state", "lag", "partial rows"):
        grid.add_column(heading)
    for each in found:
        lag = "" if each.lag_seconds is None else f"{each.lag_seconds:.0f} s"
        rows = "" if each.partial_rows is None else f"{each.partial_rows:,}"
        grid.add_row(each.name, each.source, each.state, lag, rows)
    output().print(grid)
    for each in found:
        if each.problem:
            print(each.problem, file=sys.stderr)
    return 0


def listed_views(config: Config, failures: Failures | None = None) -> list[ListedView]:
    """Returns the views of the configuration, then those that only the lake has. Reads metadata alone."""
    listed = _from_catalog(config)
    return [_with_failure(each, (failures or {}).get(each.name)) for each in listed]


def _with_failure(view: ListedView, failure: tuple[str, str] | None) -> ListedView:
    # What the configuration says comes first: the pipeline may not have been restarted with it.
    if failure is None or view.state in ("refused", "changed", "off"):
        return view
    state, reason = failure
    return replace(view, state=state, problem=f"view {view.name}: {reason}")


def _from_catalog(config: Config) -> list[ListedView]:
    queries, problems = checked_views(config)
    catalog = open_existing_catalog(config)
    with contextlib.nullcontext() if catalog is None else contextlib.closing(catalog):
        stored = {} if catalog is None else stored_views(catalog, config.lake.namespace)
        return [
            _listed(config, catalog, name, queries.get(name), problems.get(name, ""), stored.get(name))
            for name in dict.fromkeys([*config.views, *stored])
        ]


def _listed(
    config: Config,
    catalog: Catalog | None,
    name: str,
    query: ViewQuery | None,
    problem: str,
    stored: tuple[TableSpec, Table] | None,
) -> ListedView:
    if stored is None or catalog is None or stored[0].derived is None or stored[0].derived.view is None:
        source = "" if query is None else query.source
        return ListedView(name, source, "refused" if problem else "not derived yet", problem=problem)
    table, derived = stored[1], stored[0].derived
    summary = None if (snapshot := table.current_snapshot()) is None else snapshot.summary
    rows = None if summary is None else int(summary.additional_properties.get("total-records", "0"))
    is_disabled = not config.derive.enabled or name in config.derive.disabled_tables
    state = "derived"
    if problem:
        state = "refused"
    elif name not in config.views or is_off(table.metadata) or is_disabled:
        state = "off"
    elif query is not None and derived.view is not None and not query.means(derived.view):
        state = "changed"
    elif days_left(table.metadata):
        state = "catching up"
    with catalog_errors():
        source_table = table_or_none(catalog, config.lake.namespace, derived.source)
    metadata = None if source_table is None else source_table.metadata
    return ListedView(name, derived.source, state, lag_seconds(table.metadata, metadata), rows, problem)
