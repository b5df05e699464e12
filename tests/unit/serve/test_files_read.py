"""Counts and traces over landed files and the log, by the real query service: which files they read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import orjson
import pytest

from frazil.query.model import Answer, Question
from frazil.serve.auth import Caller
from frazil.serve.counts import Counting, count
from frazil.serve.search import Filter
from frazil.serve.trace_search import TraceSearch, find_traces
from tests.unit.query.made import LANDED_PER_DAY, TAIL_ROWS, Service, rows_of, running

ACME = Caller("acme", "acme", ("read",))
NO_TAIL = {"begin": "-30h", "end": "-20h"}
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

    def files(self) -> list[tuple[int, int]]:
        return [(answer.stats.files, answer.stats.files_total) for _, answer in self.asked]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running(tmp_path_factory.mktemp("lake"), workers=1) as service:
        yield service


@pytest.fixture
def queries(service: Service) -> Any:
    return Overheard(service)


@pytest.mark.parametrize(
    ("signal", "by"), [("logs", "severity"), ("logs", "service"), ("spans", "status"), ("spans", "none")]
)
def test_counts_read_the_files_of_their_range_alone(
    queries: Any, signal: Literal["logs", "spans"], by: str
) -> None:
    work = count(queries, ACME, Counting(signal, Filter(), **NO_TAIL, by=by, buckets_max=60))
    answer = orjson.loads(queries.service.run(work))
    assert answer["total"] == sum(sum(series["counts"]) for series in answer["series"])
    assert answer["total"] == LANDED_PER_DAY["acme"]
    assert queries.files() == [(1, 2)]
    whole = Counting(signal, Filter(), "-9d", "now", by, 1)
    assert orjson.loads(queries.service.run(count(queries, ACME, whole)))["total"] == rows_of("acme")


@pytest.mark.parametrize("order", ["newest", "slowest"])
def test_traces_are_read_near_the_spans_that_match(queries: Any, order: str) -> None:
    work = find_traces(queries, ACME, TraceSearch(Filter(), **NO_TAIL, order=order, limit=10))
    answer = orjson.loads(queries.service.run(work))
    assert len(answer["traces"]) == 10
    assert queries.files() == [(1, 2), (1, 2)]
    assert not answer["complete"]
    assert all("attributes" not in question.sql for question, _ in queries.asked)


def test_traces_of_the_log_need_no_file(queries: Any) -> None:
    search = TraceSearch(Filter(), "-10m", "now", "newest", 50)
    answer = orjson.loads(queries.service.run(find_traces(queries, ACME, search)))
    assert (len(answer["traces"]), answer["complete"]) == (TAIL_ROWS["acme"], True)
    assert all(trace["spans"] == trace["matched"] == 1 for trace in answer["traces"])
    assert queries.files() == [(0, 2), (0, 2)]
