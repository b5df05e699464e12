"""Counts and traces over landed files and the log, by the real query service: which files they read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import pytest

from frazil.query.model import Answer, Question
from frazil.query.reads.counts import Counting, Counts, count
from frazil.query.reads.filters import Filter, LogFilter, SpanFilter
from frazil.query.reads.statement import Read
from frazil.query.reads.traces import FoundTraces, TraceOrder, TraceSearch, find_traces
from frazil.serve.auth import Caller
from frazil.serve.filters import Written
from frazil.serve.reads import run
from tests.unit.query.made import LANDED_PER_DAY, TAIL_ROWS, Service, rows_of, running

T = TypeVar("T")
ACME = Caller("acme", "acme", ("read",))
NO_TAIL = Written("-30h", "-20h")
"""Holds yesterday's rows, which are in one of the two files."""


class Overheard:
    """The query service, and what it was asked and read."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.asked: list[tuple[Question, Answer]] = []

    async def ask(self, question: Question) -> Answer:
        answer = await self.service.queries.ask(question)
        self.asked.append((question, answer))
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
    whole = Counting(filter, Written("-9d", "now").range(), by, 1)
    assert queries.result(count(whole)).total == rows_of("acme")


@pytest.mark.parametrize("order", ["newest", "slowest"])
def test_traces_are_read_near_the_spans_that_match(queries: Overheard, order: TraceOrder) -> None:
    search = TraceSearch(SpanFilter(), NO_TAIL.range(), order, limit=10)
    found: FoundTraces = queries.result(find_traces(search))
    assert len(found.traces) == 10
    assert queries.files() == [(1, 2), (1, 2)]
    assert not found.complete
    assert all("attributes" not in question.sql for question, _ in queries.asked)


def test_traces_of_the_log_need_no_file(queries: Overheard) -> None:
    search = TraceSearch(SpanFilter(), Written("-10m", "now").range())
    found: FoundTraces = queries.result(find_traces(search))
    assert (len(found.traces), found.complete) == (TAIL_ROWS["acme"], True)
    assert all(trace.spans == trace.matched == 1 for trace in found.traces)
    assert queries.files() == [(0, 2), (0, 2)]
