"""Counts and traces over landed files and the log, by the real query service: which files they read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from frazil.query.model import Query, QueryResult
from frazil.query.reads import services
from frazil.query.reads.counts import Counting, Counts, count
from frazil.query.reads.filters import Filter, LogFilter, SpanFilter
from frazil.query.reads.metric_series import MetricRequest, metric_series
from frazil.query.reads.metrics import AGGREGATIONS, Metric, metric_attributes, metric_list
from frazil.query.reads.records import Order, Page, RecordSearch, page, stored_log
from frazil.query.reads.statement import Read, Statement
from frazil.query.reads.time_range import Buckets
from frazil.query.reads.traces import FoundTraces, TraceOrder, TraceSearch, find_traces
from frazil.serve.auth import Caller
from frazil.serve.filters import TimeParameters
from frazil.serve.reads import run
from tests.support.query.small_lake import LANDED_PER_DAY, TAIL_ROWS, Service, rows_of, running

T = TypeVar("T")
ACME = Caller("acme", "acme", ("read",))
NO_TAIL = TimeParameters("-30h", "-20h")
"""Holds yesterday's rows, which are in one of the two files."""


class Overheard:
    """The query service, and what it was asked and read."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.asked: list[tuple[Query, QueryResult]] = []

    async def execute(self, query: Query) -> QueryResult:
        answer = await self.service.queries.execute(query)
        self.asked.append((query, answer))
        return answer

    def result(self, read: Read[T]) -> T:
        found: T = self.service.run(run(self, ACME, read, "the result"))[0]  # type: ignore[arg-type]
        return found

    def files(self) -> list[tuple[int, int]]:
        return [(answer.stats.files, answer.stats.files_total) for _, answer in self.asked]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running(tmp_path_factory.mktemp("lake"), workers=1) as service:
        yield service


@pytest.fixture
def queries(service: Service) -> Overheard:
    return Overheard(service)


@pytest.mark.parametrize(
    ("filter", "by"),
    [(LogFilter(), "severity"), (LogFilter(), "service"), (SpanFilter(), "status"), (SpanFilter(), "none")],
)
def test_counts_read_the_files_of_their_range_alone(queries: Overheard, filter: Filter, by: str) -> None:
    found: Counts = queries.result(count(Counting(filter, NO_TAIL.range(), by)))
    assert found.total == sum(sum(series.counts) for series in found.series)
    assert found.total == LANDED_PER_DAY["acme"]
    assert queries.files() == [(1, 2)]
    whole = Counting(filter, TimeParameters("-9d", "now").range(), by, 1)
    assert queries.result(count(whole)).total == rows_of("acme")


@pytest.mark.parametrize("order", ["newest", "slowest"])
def test_traces_are_read_near_the_spans_that_match(queries: Overheard, order: TraceOrder) -> None:
    search = TraceSearch(SpanFilter(), NO_TAIL.range(), order, limit=10)
    found: FoundTraces = queries.result(find_traces(search))
    assert len(found.traces) == 10
    assert queries.files() == [(1, 2), (1, 2)]
    assert not found.complete
    assert all("attributes" not in query.sql for query, _ in queries.asked)


@pytest.mark.parametrize("order", ["desc", "asc"])
def test_pages_are_complete_over_files_and_the_log(queries: Overheard, order: Order) -> None:
    search: RecordSearch | None = RecordSearch(LogFilter(), TimeParameters("-9d", "now").range(), order, 7)
    times: list[Any] = []
    while search is not None:
        found: Page = queries.result(page(search))
        times += found.rows["time"].to_pylist()
        search = None if found.end is None else replace(search, after=found.end)
    assert len(times) == rows_of("acme")
    assert times == sorted(times, reverse=order == "desc")


def test_the_query_service_runs_the_statements_of_all_reads(queries: Overheard) -> None:
    """Its guard refuses SQL by what it names."""
    range = TimeParameters("-9d", "now").range()
    metric = Metric("m", "sum", "", "", (), True, True, 1)
    statements = [
        services.red(range, Buckets.of(range)),
        services.log_errors(range),
        services.operations(range),
        stored_log({"time": "2026-11-15T10:00:00Z", "received_time": "2026-11-15T10:00:00Z"}),
        metric_list(range),
        metric_attributes(metric, range),
    ]
    for type in ("sum", "gauge", "histogram", "exponential_histogram", "summary"):
        for is_monotonic in (True, False):
            kind = replace(metric, type=type, is_monotonic=is_monotonic)
            for aggregation in AGGREGATIONS[kind.kind]:
                request = MetricRequest(
                    kind, aggregation, range, ["a"], [("k", "v")], "by", now=range.end_time
                )
                statements.append(metric_series(request))

    def read(statement: Statement) -> Read[int]:
        return len((yield statement))

    rows = [queries.result(read(statement)) for statement in statements]
    assert rows[1] == 1  # of one service


def test_traces_of_the_log_need_no_file(queries: Overheard) -> None:
    search = TraceSearch(SpanFilter(), TimeParameters("-10m", "now").range())
    found: FoundTraces = queries.result(find_traces(search))
    assert (len(found.traces), found.complete) == (TAIL_ROWS["acme"], True)
    assert all(trace.spans == trace.matched == 1 for trace in found.traces)
    assert queries.files() == [(0, 2), (0, 2)]
