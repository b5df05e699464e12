"""Searches of logs and spans: what the filters mean, and that pages skip and repeat no record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frazil.query.reads.filters import LogFilter, Searched, SpanFilter
from frazil.query.reads.records import Order, RecordSearch, page, record_hash, stored_log
from frazil.query.reads.time_range import TimeRange
from tests.support.query.read_engine import Engine
from tests.support.query.read_telemetry import BEGIN, exception, logs, spans

RANGE = TimeRange((BEGIN - 10) * 10**6, (BEGIN + 100) * 10**6)


@pytest.fixture
def engine() -> Engine:
    return Engine()


def bodies(engine: Engine, **filter: Any) -> list[str]:
    found = engine.run(page(RecordSearch(LogFilter(**filter), RANGE)))
    return sorted(found.rows["body"].to_pylist())


def names(engine: Engine, **filter: Any) -> list[str]:
    found = engine.run(page(RecordSearch(SpanFilter(**filter), RANGE)))
    return sorted(found.rows["name"].to_pylist())


def pages(engine: Engine, limit: int, order: Order = "desc") -> Iterator[pa.Table]:
    search = RecordSearch(LogFilter(), RANGE, order, limit)
    while True:
        found = engine.run(page(search))
        yield found.rows
        if found.end is None:
            return
        search = replace(search, after=found.end)


def test_words_are_separated_by_any_space_and_all_must_occur(engine: Engine) -> None:
    engine.add("logs", logs({"body": "Connection refused by db"}, {"body": "connection open"}))
    assert bodies(engine, words="refused \t\n CONNECTION ") == ["Connection refused by db"]
    assert len(bodies(engine, words="connect")) == 2
    assert bodies(engine, words="connection closed") == []
    assert len(bodies(engine, words="  ")) == len(bodies(engine, words="")) == 2


def test_a_regular_expression_looks_at_each_text_by_itself(engine: Engine) -> None:
    failed = {"name": "pay", "events": [exception("ValueError", "Kaboom in aisle 7")]}
    engine.add("spans", spans(failed, {"name": "other"}))
    for regex in ("^Kaboom", "aisle 7$", "^pay$", "^ValueError$"):
        assert names(engine, regex=regex) == ["pay"]
    assert names(engine, regex="pay.*Kaboom") == []


def test_attributes_are_of_the_record_its_resource_or_an_event(engine: Engine) -> None:
    made = {"name": "a", "attributes": {"k": 1}, "events": [exception("KeyError", "x")]}
    engine.add("spans", spans(made, {"name": "b"}))
    assert names(engine, attributes=[("k", "1")]) == ["a"]
    assert names(engine, attributes=[("service.name", "cart")]) == ["a", "b"]
    assert names(engine, attributes=[("k", "1"), ("exception.type", "KeyError")]) == ["a"]
    assert names(engine, attributes=[("k", "2")]) == []


def test_a_status_that_was_not_sent_is_unset(engine: Engine) -> None:
    engine.add(
        "spans", spans({"name": "a", "status": {"code": 2}}, {"name": "b"}, {"name": "c", "status": {}})
    )
    assert names(engine, status=0) == ["b", "c"]
    assert names(engine, status=2) == ["a"]


def test_records_without_a_severity_are_below_all(engine: Engine) -> None:
    engine.add("logs", logs({"body": "a", "severity_number": 1}, {"body": "b"}))
    assert bodies(engine, severity_min=1) == ["a"]


def test_equal_records_across_a_page_boundary_are_neither_lost_nor_repeated(engine: Engine) -> None:
    """Five that are the same in everything, between two others, with pages of every size."""
    same = {"body": "same", "nanos": 5_000}
    sent = [{"body": "first", "nanos": 4_000}, *[same] * 5, {"body": "last", "nanos": 6_000}]
    engine.add("logs", logs(*sent))
    orders: tuple[Order, ...] = ("desc", "asc")
    for limit in range(1, 8):
        for order, expected in zip(orders, ("last", "first"), strict=True):
            shown = [body for rows in pages(engine, limit, order) for body in rows["body"].to_pylist()]
            assert sorted(shown) == ["first", "last", *["same"] * 5]
            assert shown[0] == expected


RECORDS = st.lists(
    st.fixed_dictionaries(
        {
            "nanos": st.sampled_from([0, 1, 999, 1_000, 1_001, 2_000, 5 * 10**9]),
            "body": st.sampled_from(["a", "b"]),
            "span_id": st.sampled_from([b"", b"\1" * 8]),
            "attributes": st.sampled_from([{}, {"k": 1}, {"k": "1"}]),
        }
    ),
    max_size=30,
)


def canonical(tables: list[pa.Table]) -> Counter[str]:
    return Counter(repr(row) for rows in tables for row in rows.to_pylist())


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(records=RECORDS, limit=st.integers(1, 12), order=st.sampled_from(["asc", "desc"]))
def test_pages_together_are_everything_in_order(records: list[Any], limit: int, order: Order) -> None:
    engine = Engine()
    engine.add("logs", logs(*records))
    paged = list(pages(engine, limit, order))
    assert canonical(paged) == canonical(list(pages(engine, 1000, order)))
    times = [nanos for rows in paged for nanos in rows["time_unix_nano"].to_pylist()]
    assert len(times) == len(records)
    assert times == sorted(times, reverse=order == "desc")


@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(records=RECORDS, limit=st.integers(1, 5), late=RECORDS)
def test_records_that_arrive_between_pages_disturb_nothing(
    records: list[Any], limit: int, late: list[Any]
) -> None:
    """Those already there are all shown once, whatever arrives between the pages, with whatever times."""
    engine = Engine()
    engine.add("logs", logs(*({**record, "severity_text": "early"} for record in records)))
    before = canonical(list(pages(engine, 1000)))
    shown: list[pa.Table] = []
    for number, rows in enumerate(pages(engine, limit)):
        shown.append(rows)
        if number < len(late):
            engine.add("logs", logs({**late[number], "severity_text": f"late {number}"}), received=2)
    early = [rows.filter(pa.compute.equal(rows["severity_text"], "early")) for rows in shown]
    assert canonical(early) == before
    arrived = Counter(text for rows in shown for text in rows["severity_text"].to_pylist() if text != "early")
    assert all(count == 1 for count in arrived.values())


@pytest.mark.parametrize("table", ["logs", "spans"])
def test_a_record_keeps_its_place_when_it_moves_from_memory_to_a_file(
    tmp_path: Path, table: Searched
) -> None:
    engine = Engine()
    engine.add("logs", logs({"body": "a", "attributes": {"k": 1}}, {"body": "b", "trace_id": b"\1" * 16}))
    engine.add("spans", spans({"attributes": {"k": "v"}, "events": [{"name": "e"}]}, {}))
    rows = engine.rows[table][0]
    pq.write_table(rows, tmp_path / "rows.parquet")
    with duckdb.connect() as connection:
        connection.register("rows", rows)
        hashes = f"SELECT {record_hash(table)} AS h FROM {{}} ORDER BY h"
        from_memory = connection.execute(hashes.format("rows")).fetchall()
        from_file = connection.execute(hashes.format(f"'{tmp_path}/rows.parquet'")).fetchall()
    assert from_memory == from_file
    assert len(set(from_file)) == 2


def test_a_record_of_the_api_is_found_as_it_is_stored(engine: Engine) -> None:
    engine.add("logs", logs({"body": "a", "attributes": {"n": 27}, "trace_id": b"\1" * 16}, {"body": "b"}))
    record = {
        "time": "2026-09-21T14:13:20.000000Z",
        "received_time": "1970-01-01T00:00:01.000000Z",
        "service_name": "cart",
        "trace_id": "01" * 16,
    }
    (found,) = engine.records(stored_log(record))
    assert (found["body"], found["attributes"], found["attribute_types"]) == (
        "a",
        [("n", "27")],
        '{"n":"int"}',
    )
    assert [row["body"] for row in engine.records(stored_log(record | {"trace_id": None}))] == ["b"]
