"""Reads what the Services page shows: at most three queries, from rollups for ranges beyond an hour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from frazil.dashboard.derived import DerivedTable, Tables, read_all, rollups_of
from frazil.dashboard.services.graph import CallGraph, call_graph
from frazil.dashboard.view import View
from frazil.query.reads.edges import edges_range, service_edges, service_graph
from frazil.query.reads.rolled import Rolled
from frazil.query.reads.services import (
    OneService,
    ServiceFigures,
    of_service,
    one_service,
    red,
    service_figures,
)
from frazil.query.reads.statement import Statement
from frazil.query.reads.time_range import Buckets, TimeRange
from frazil.query.reads.versions import Version, service_versions, versions

TABLES_CACHE_SECONDS = 4.0
_EDGES, _VERSIONS, _METRICS = "service_edges", "service_versions", "span_metrics"


@dataclass(frozen=True)
class Calls:
    graph: CallGraph
    """Empty if no calls were found."""
    edges_left_out: int
    table: DerivedTable
    missing: Sequence[str]
    """Why rows are missing in the result."""


@dataclass(frozen=True)
class AllServices:
    range: TimeRange
    buckets: Buckets
    figures: ServiceFigures
    calls: Calls
    newest: Mapping[str, Version]
    """The newest version of each service."""


@dataclass(frozen=True)
class Service:
    range: TimeRange
    buckets: Buckets
    figures: OneService
    calls: Calls


def has_spans(listed: Tables) -> bool:
    spans = next((table for table in listed if table["name"] == "spans"), {})
    return bool((spans.get("rows") or 0) + (spans.get("tail_rows") or 0))


def read_all_services(view: View, listed: Tables) -> AllServices:
    step = view.time_range.step_seconds
    range, buckets, rollups = _range(view, listed)

    def statements(rolled: Rolled | None) -> list[Statement]:
        return [red(range, buckets, rolled)]

    (requests,), rollups = read_all(view, statements, rollups, cache_seconds=step - 1)
    shown, shown_buckets = (range, buckets) if rollups is None else (rollups.range, rollups.buckets)
    figures = service_figures(requests)
    newest: dict[str, Version] = {}
    if versions_table(listed).state in ("ok", "catching up"):  # else the last version may be an old one
        found = versions(view.api.read(service_versions(range, view.now_micros), cache_seconds=step - 1))
        newest = {version.service: version for version in found}
    calls = _calls(view, listed, range, figures, shown.seconds)
    return AllServices(shown, shown_buckets, figures, calls, newest)


def read_service(view: View, listed: Tables, service: str) -> Service:
    step = view.time_range.step_seconds
    range, buckets, rollups = _range(view, listed)

    def statements(rolled: Rolled | None) -> list[Statement]:
        return [of_service(service, range, buckets, rolled)]

    (requests,), rollups = read_all(view, statements, rollups, cache_seconds=step - 1)
    shown, shown_buckets = (range, buckets) if rollups is None else (rollups.range, rollups.buckets)
    figures = one_service(requests)
    own = ServiceFigures(figures.whole, {service: figures.whole} if figures.whole.requests else {}, {})
    return Service(shown, shown_buckets, figures, _calls(view, listed, range, own, shown.seconds, service))


def read_versions(view: View, service: str) -> Sequence[Version]:
    step = view.time_range.step_seconds
    statement = service_versions(view.time_range.rounded(step), view.now_micros, service)
    return versions(view.api.read(statement, cache_seconds=step - 1))


def versions_table(listed: Tables) -> DerivedTable:
    return DerivedTable.of(listed, _VERSIONS)


def _range(view: View, listed: Tables) -> tuple[TimeRange, Buckets, Rolled | None]:
    range = view.time_range.rounded(view.time_range.step_seconds)
    return range, Buckets.of(range), rollups_of(listed, (_METRICS,), range, view.now_micros)


def _calls(
    view: View,
    listed: Tables,
    range: TimeRange,
    figures: ServiceFigures,
    seconds: float,
    service: str | None = None,
) -> Calls:
    statement = service_edges(range, view.now_micros, service)
    result = view.api.sql(statement.sql, statement.params, cache_seconds=view.time_range.step_seconds - 1)
    rows: list[dict[str, Any]] = result.records()
    found = service_graph(rows)
    whole, _ = edges_range(range, view.now_micros)
    return Calls(
        call_graph(found.edges, whole.seconds, figures.by_service, seconds),
        found.left_out,
        DerivedTable.of(listed, _EDGES),
        result.stats.get("missing") or (),
    )
