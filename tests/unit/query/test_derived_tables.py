"""SQL sees derived tables through merging views: one row for each key, from any number of partial rows."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from frazil.errors import QueryInvalid, QueryRefused
from frazil.pipeline.maintain.show import print_tags
from frazil.query.model import AsOf
from frazil.tables import declared
from frazil.tables.columns import TIMESTAMP, Column, TableSpec
from frazil.tables.derived.rules import KEY, MAX, MIN, SUM, UNION, Derived, Merge
from frazil.tables.specs import derived_specs, table_specs
from tests.support.derived_tables import derive_nothing
from tests.support.known_lake import KnownLake
from tests.support.query.derived_rows import append_derived, append_partial_rows, position_of
from tests.support.query.small_lake import Service, Told, serving

NOON = dt.datetime(2026, 11, 10, 12, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)
HOUR = dt.timedelta(hours=1)
SPAN_METRICS = table_specs()["span_metrics"]


def _column(name: str, type_: pa.DataType, merge: Merge, *, required: bool = False) -> Column:
    return Column(name, type_, "the spans", "For the test", "hot", required=required, merge=merge)


JOURNEYS = TableSpec(
    "journeys",
    "A table whose time is not part of its key.",
    (
        _column("tenant_id", pa.string(), KEY, required=True),
        _column("time", TIMESTAMP, MIN, required=True),
        _column("trace_id", pa.string(), KEY),
        _column("ended", TIMESTAMP, MAX),
        _column("spans", pa.int64(), SUM),
        _column("services", pa.list_(pa.string()), UNION),
        _column("codes", pa.list_(pa.int32()), Merge("counted")),
        _column("counts", pa.list_(pa.int64()), Merge("counts", by="codes")),
    ),
    sort_by=("trace_id",),
    bloom_filters=("trace_id",),
    erased="no",
    derived=Derived("spans", (), derive_nothing, spread_seconds=3600),
)


def spans(*rows: tuple[str, str, str, dt.datetime, int, int]) -> pa.Table:
    """Rows are (tenant, service, operation, time, nanoseconds, status)."""
    names = ("tenant_id", "service_name", "name", "time", "duration_nano", "status_code")
    made = [dict(zip(names, row, strict=True)) | {"kind": 2} for row in rows]
    spec = table_specs()["spans"]
    schema = pa.schema([(name, spec.column(name).type) for name in (*names, "kind", "parent_span_id")])
    return pa.Table.from_pylist(made, schema=schema)


def journey(trace: str, time: dt.datetime, count: int = 1, **more: Any) -> dict[str, Any]:
    facts = {"tenant_id": "acme", "trace_id": trace, "time": time, "ended": time, "spans": count}
    return {**facts, "services": ["web"], "codes": [40_000], "counts": [count], **more}


class Derivations(KnownLake):
    def derive(self, *rows: tuple[str, str, str, dt.datetime, int, int]) -> None:
        append_derived(self.config, self.catalog, SPAN_METRICS, spans(*rows))

    def travel(self, *rows: dict[str, Any]) -> None:
        table = pa.Table.from_pylist(rows, schema=JOURNEYS.arrow_schema)
        append_partial_rows(self.config, self.catalog, JOURNEYS, table)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Derivations]:
    """Two services with rows on three days, each in two commits."""
    with declared(JOURNEYS), contextlib.closing(Derivations(tmp_path)) as made:
        for _ in range(2):
            for day in range(3):
                at = NOON - day * DAY
                made.derive(
                    ("acme", "cart", "buy", at, 1000, 0),
                    ("acme", "cart", "buy", at + HOUR, 3000, 2),
                    ("globex", "gate", "open", at, 500, 0),
                )
                made.derive(("acme", "web", "GET /", at, 9000, 0))
        yield made


@pytest.fixture
def service(lake: Derivations) -> Iterator[Service]:
    with serving(lake.config) as running:
        yield running


def of_day(service: Service, sql: str, **more: Any) -> list[list[Any]]:
    return service.execute(f"{sql} WHERE resolution = 86400", **more).rows


def test_partial_rows_are_one_row_of_each_key(service: Service) -> None:
    sql = (
        "SELECT service_name, status_code, time::DATE::VARCHAR, calls, errors, duration_nano_sum, "
        "duration_nano_min, duration_nano_max FROM span_metrics WHERE resolution = 86400 ORDER BY ALL"
    )
    days = ["2026-11-08", "2026-11-09", "2026-11-10"]
    assert service.execute(sql).rows == [
        *(["cart", 0, day, 2, 0, 2000.0, 1000, 1000] for day in days),
        *(["cart", 2, day, 2, 2, 6000.0, 3000, 3000] for day in days),
        *(["web", 0, day, 2, 0, 18000.0, 9000, 9000] for day in days),
    ]
    assert of_day(service, "SELECT count(*), sum(calls) FROM span_metrics", tenant="globex") == [[3, 6]]
    assert of_day(service, "SELECT count(*) FROM otel.span_metrics") == [[9]]


def test_a_query_that_names_no_key_column_groups_by_the_whole_key(service: Service) -> None:
    rows = service.execute("SELECT calls FROM span_metrics").rows
    assert rows == [[2]] * len(rows)
    assert [[len(rows)]] == service.execute("SELECT count(*) FROM span_metrics").rows
    assert len(service.execute("SELECT duration_counts FROM span_metrics").rows) == len(rows)


def test_quantiles_of_the_view_are_those_of_the_spans(service: Service) -> None:
    sql = (
        "SELECT service_name, merged_quantile(duration_codes, duration_counts, 0.99) FROM span_metrics "
        "WHERE resolution = 3600 GROUP BY ALL ORDER BY ALL"
    )
    assert service.execute(sql).rows == [
        ["cart", pytest.approx(3000, rel=0.01)],
        ["web", pytest.approx(9000, rel=0.01)],
    ]


def read(told: Told) -> tuple[int, int]:
    return told.stats.files, told.stats.files_total


def test_conditions_on_key_columns_reach_the_files(service: Service) -> None:
    every = service.execute("SELECT sum(calls) FROM span_metrics")
    assert read(every) == (12, 12)
    for condition, files in (
        ("service_name = 'web'", 6),
        ("service_name = 'nobody'", 0),
        ("resolution = 7", 0),
        ("time >= '2026-11-10'", 4),
        ("time >= '2026-11-10' AND service_name = 'cart' AND resolution = 3600", 2),
        ("date_trunc('hour', time) = '2026-11-09 12:00'", 4),
    ):
        told = service.execute(f"SELECT sum(calls) FROM span_metrics WHERE {condition}")
        assert read(told) == (files, 12), condition
    joined = (
        "SELECT count(*) FROM span_metrics a JOIN span_metrics b USING (time) WHERE a.service_name = 'web'"
    )
    assert read(service.execute(joined)) == (12, 12)


@pytest.mark.parametrize(
    "condition", ["calls > 100", "duration_nano_min > 8000", "errors = 0", "duration_nano_max < 0"]
)
def test_a_condition_on_a_merged_column_excludes_no_file(service: Service, condition: str) -> None:
    told = service.execute(f"SELECT count(*) FROM span_metrics WHERE {condition}")
    assert read(told) == (12, 12)


def test_a_condition_on_a_sum_holds_for_merged_rows(service: Service) -> None:
    assert service.execute("SELECT count(*) FROM span_metrics WHERE calls = 1").rows == [[0]]
    found = service.execute("SELECT count(*) FROM span_metrics WHERE calls = 2 AND resolution = 86400")
    assert found.rows == [[9]]


def test_the_partial_rows_have_no_name(service: Service) -> None:
    tables = "SELECT table_schema, table_name FROM information_schema.tables WHERE table_name LIKE '%metrics'"
    expected = [[schema, name] for schema in ("main", "otel") for name in ("metrics", "span_metrics")]
    assert sorted(service.execute(tables).rows) == expected
    assert sorted({*map(tuple, service.execute("SHOW TABLES").rows)}) == [
        (name,) for name in sorted([*table_specs(), "events"])
    ]
    described = service.execute("DESCRIBE span_metrics").rows
    assert [row[0] for row in described] == SPAN_METRICS.arrow_schema.names
    for hidden in ("partial_rows", "span_metrics_partial", "stored"):
        with pytest.raises(QueryInvalid, match="there is no table"):
            service.execute(f"SELECT * FROM {hidden}")
    with pytest.raises((QueryInvalid, QueryRefused)):
        service.execute("SELECT sql FROM duckdb_views()")


def test_columns_have_the_types_of_the_table_in_every_derived_table(service: Service) -> None:
    listed = {table.name: table for table in service.run(service.queries.tables("acme"))}
    for spec in derived_specs():
        described = {row[0]: row[1] for row in service.execute(f"DESCRIBE {spec.name}").rows}
        declared_types = {column.name: column.type for column in listed[spec.name].columns}
        assert {name: type_.replace('"', "") for name, type_ in described.items()} == declared_types


def test_a_table_without_rows_is_empty(service: Service) -> None:
    assert service.execute("SELECT * FROM log_rollups").rows == []
    assert service.execute("SELECT * FROM journeys").rows == []


def test_an_earlier_state_is_merged_too(lake: Derivations, service: Service) -> None:
    first = lake.table("span_metrics").metadata.snapshots[1].snapshot_id
    sql = "SELECT sum(calls) FROM span_metrics WHERE resolution = 60"
    assert service.execute(sql, as_of=AsOf(snapshot_id=first)).rows == [[2]]


def test_the_position_of_a_derived_table_is_shown_with_its_tags(capsys: pytest.CaptureFixture[str]) -> None:
    tag = {
        "table": "span_metrics",
        "committed_at_ms": 0,
        "snapshot_id": 1,
        "position": position_of(SPAN_METRICS),
    }
    print_tags([{"name": "incident-1", "tables": [tag], "missing": []}])
    assert "span_metrics" in capsys.readouterr().out


@pytest.fixture
def journeys(lake: Derivations) -> Iterator[Service]:
    """A trace whose parts are on both sides of midnight, and one on each of three days."""
    midnight = NOON.replace(hour=0)
    before, after = midnight - dt.timedelta(minutes=5), midnight + dt.timedelta(minutes=5)
    lake.travel(journey("long", before, 2, ended=before, services=["web"]))
    lake.travel(journey("long", after, 3, services=["cart", "web"], codes=[40_100], counts=[3]))
    for day in range(1, 4):
        lake.travel(journey(f"short-{day}", NOON - day * DAY))
    with serving(lake.config) as running:
        yield running


def test_parts_on_both_sides_of_a_time_range_are_read(journeys: Service) -> None:
    sql = "SELECT trace_id, spans, services, ended::VARCHAR FROM journeys WHERE "
    long = ["long", 5, ["cart", "web"], "2026-11-10 00:05:00+00"]
    until_midnight = journeys.execute(sql + "time < '2026-11-10' AND time >= '2026-11-09 18:00'")
    assert until_midnight.rows == [long]
    from_midnight = journeys.execute(sql + "time >= '2026-11-10'")
    assert from_midnight.rows == []
    assert read(until_midnight) == (2, 5)
    assert read(from_midnight) == (2, 5)


def test_the_time_range_is_widened_by_the_spread_and_not_more(journeys: Service) -> None:
    for condition, files in (
        ("time >= '2026-11-08' AND time < '2026-11-08 20:00'", 1),
        ("time BETWEEN '2026-11-08 02:00' AND '2026-11-08 22:00'", 1),
        ("time = '2026-11-08 12:00'", 1),
        ("time = '2026-11-09 23:55'", 2),
        ("time > '2026-11-11'", 0),
        ("time IN ('2026-11-07 12:00', '2026-11-08 12:00')", 2),
    ):
        told = journeys.execute(f"SELECT count(*) FROM journeys WHERE {condition}")
        assert read(told) == (files, 5), condition
    bucketed = "SELECT count(*) FROM journeys WHERE date_trunc('day', time) = '2026-11-09'"
    assert journeys.execute(bucketed).rows == [[2]]


def test_a_key_column_is_looked_up_in_bloom_filters_and_a_merged_one_is_not(journeys: Service) -> None:
    found = journeys.execute("SELECT spans FROM journeys WHERE trace_id = 'long'")
    assert (found.rows, read(found)) == ([[5]], (2, 5))
    assert read(journeys.execute("SELECT spans FROM journeys WHERE spans = 5")) == (5, 5)


def test_both_lists_of_a_sketch_are_in_the_same_order(journeys: Service) -> None:
    both = "list_transform(list_zip(codes, counts), lambda pair: [pair[1], pair[2]])"
    [[pairs]] = journeys.execute(f"SELECT {both} FROM journeys WHERE trace_id = 'long'").rows
    assert sorted(pairs) == [[40_000, 2], [40_100, 3]]
    [[counts]] = journeys.execute("SELECT counts FROM journeys WHERE trace_id = 'long'").rows
    assert sorted(counts) == [2, 3]
