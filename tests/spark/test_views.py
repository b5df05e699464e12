"""Views on Spark: what Spark computes in rounds equals its single pass over all rows, and one row stops no
view.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from pyspark.sql import SparkSession

from frazil.errors import Refused
from frazil.lake.views import known_views
from frazil.pipeline.derive.check import checked_views
from frazil.pipeline.derive.views.declare import analysed
from frazil.pipeline.runner import SparkRunner
from frazil.tables.columns import type_name
from tests.support.known_lake import DAY
from tests.support.view_lake import ViewLake

CHECKOUT = """
SELECT date_trunc('minute', time) AS time, service_name, attributes['cloud.region'] AS region, -- of the span
       count(*) AS calls, sum(CASE WHEN status_code = 2 THEN 1 ELSE 0 END) AS errors,
       max(duration_nano) AS slowest, min(duration_nano) FILTER (WHERE status_code <> 2) AS fastest,
       bool_or(status_code = 2) AS has_errors, max(time) AS last_time,
       sum(try_cast(attributes['price'] AS DOUBLE)) AS price
FROM spans AS s WHERE s.kind = 2 AND name NOT LIKE '%health%' GROUP BY ALL
"""
HOSTILE = """
SELECT date_trunc('hour', time) AS time, name, count(attributes['n']) AS given,
       sum(CAST(attributes['n'] AS BIGINT)) AS total, max(CAST(attributes['x'] AS DOUBLE)) AS largest,
       min(CAST(attributes['x'] AS DOUBLE)) AS smallest, max(1 / CAST(attributes['n'] AS INT)) AS inverse
FROM spans GROUP BY time, name
"""


class SparkLake(ViewLake):
    """Tasks of landing run in this process; the SQL of views on Spark."""

    def __init__(self, folder: Path, views: dict[str, str], spark: SparkSession) -> None:
        off = ["service_edges", "service_versions", "span_metrics", "traces"]
        super().__init__(folder, views, derive={"disabled_tables": off})
        self.spark_runner = SparkRunner(lambda: spark, "derive")
        self.runner.run_sql = self.spark_runner.run_sql  # type: ignore[method-assign]
        self.runner.schema_of = self.spark_runner.schema_of  # type: ignore[method-assign]

    def land_spans(self, *spans: dict[str, Any], tenant: str = "acme") -> None:
        request = ExportTraceServiceRequest()
        for each in spans:
            resource = request.resource_spans.add()
            resource.resource.attributes.add(key="service.name").value.string_value = each.get(
                "service", "cart"
            )
            at = int((self.now - each.get("days", 0) * DAY) * 1e9)
            span = resource.scope_spans.add().spans.add(
                name=each.get("name", "pay"), kind=each.get("kind", 2), start_time_unix_nano=at
            )
            span.trace_id, span.span_id = b"\1" * 16, b"\2" * 8
            span.end_time_unix_nano = at + each.get("nanos", 1000)
            span.status.code = each.get("status", 0)
            for key, value in each.get("attributes", {}).items():
                span.attributes.add(key=key).value.string_value = value
        self.land_requests("spans", [(tenant, request.SerializeToString())])


@pytest.fixture
def lake_of(tmp_path: Path, spark: SparkSession) -> Iterator[Callable[[dict[str, str]], SparkLake]]:
    with contextlib.ExitStack() as stack:
        yield lambda views: stack.enter_context(contextlib.closing(SparkLake(tmp_path, views, spark)))


@pytest.mark.slow
def test_rounds_are_equal_to_a_single_pass(lake_of: Callable[[dict[str, str]], SparkLake]) -> None:
    lake, rng = lake_of({"checkout": CHECKOUT}), random.Random(7)
    for _ in range(4):
        for tenant in ("acme", "globex"):
            spans = [
                {
                    "service": rng.choice(["cart", "web"]),
                    "name": rng.choice(["pay", "/health", 'it\'s -- \\ "1"']),
                    "kind": rng.choice([2, 2, 3]),
                    "days": rng.choice([0, 0, 2]),
                    "nanos": rng.randint(0, 10**9),
                    "status": rng.choice([0, 1, 2]),
                    "attributes": {
                        "cloud.region": rng.choice(["eu", "us"]),
                        "price": rng.choice(["2.5", "no"]),
                    },
                }
                for _ in range(rng.randint(1, 20))
            ]
            lake.land_spans(*spans, tenant=tenant)
        lake.deriver("spans").round()
        if rng.random() < 0.5:
            lake.restart("spans")
    lake.derive("spans")
    assert lake.deriver("spans").problems == {}
    found = lake.merged("checkout")
    assert found == lake.expected("checkout")
    assert {row[0] for row in found} == {"acme", "globex"}
    assert {row[3] for row in found} == {"eu", "us"}
    lake.deriver("spans").rederive(["checkout"], {int(lake.now // DAY) - 2})
    assert lake.merged("checkout") == found
    assert len({spec.name for spec in known_views()}) == 1


def test_values_that_cannot_be_computed_are_null_and_stop_nothing(
    lake_of: Callable[[dict[str, str]], SparkLake],
) -> None:
    lake = lake_of({"hostile": HOSTILE})
    huge = str(2**62)
    for n, x in (("1", "NaN"), ("no number", "7.5"), (huge, "-Infinity"), ("0", "")):
        lake.land_spans({"attributes": {"n": n, "x": x}}, {"attributes": {"n": n, "x": x}})
        lake.derive("spans")
    assert lake.deriver("spans").problems == {}
    (row,) = lake.merged("hostile")
    spec = next(spec for spec in known_views() if spec.name == "hostile")
    names = [*spec.key, *(column.name for column in spec.columns if column.name not in spec.key)]
    found = dict(zip(names, row, strict=True))
    assert found["given"] == 8
    assert found["largest"] == 7.5, "NaN is no number"
    assert found["smallest"] == float("-inf")
    assert found["inverse"] == 1
    assert found["total"] == 2, "a sum that does not fit is NULL, and ignored where partial rows merge"


@pytest.mark.slow
def test_a_view_with_100000_groups_is_derived_and_one_with_more_is_stopped(
    spark: SparkSession, lake_of: Callable[[dict[str, str]], SparkLake]
) -> None:
    keys = "date_trunc('day', time) AS time, attributes['id'] AS id"
    lake = lake_of({"ids": f"SELECT {keys}, count(*) AS c FROM spans GROUP BY ALL"})
    runner, extra = lake.spark_runner, 0

    def multiplied(
        read: Callable[[Any], Iterable[pa.RecordBatch]], items: Sequence[Any], schema: pa.Schema, *rest: Any
    ) -> list[Any]:
        """Rows with 99,999 other ids follow those of the table, and `extra` more."""

        def more(item: Any) -> Iterator[pa.RecordBatch]:
            rows = list(read(item))
            yield from rows
            (row,) = rows[0].slice(0, 1).to_pylist()
            ids = [[("id", str(number))] for number in range(99_999 + extra)]
            yield pa.RecordBatch.from_pylist([{**row, "attributes": each} for each in ids], schema)

        return runner.run_sql(more, items[:1], schema, *rest)

    lake.runner.run_sql = multiplied  # type: ignore[method-assign]
    lake.land_spans({"attributes": {"id": "first"}})
    lake.derive("spans")
    assert lake.deriver("spans").problems == {}
    assert lake.table("ids").scan().to_arrow().num_rows == 100_000
    extra = 1
    lake.land_spans({"attributes": {"id": "second"}})
    lake.derive("spans")
    assert "more than 100,000 groups in a round" in lake.deriver("spans").problems["ids"]
    assert lake.table("ids").scan().to_arrow().num_rows == 100_000


def test_spark_gives_the_types_and_refuses_what_no_view_can_hold(
    lake_of: Callable[[dict[str, str]], SparkLake],
) -> None:
    start = "SELECT date_trunc('minute', time) AS time"
    lake = lake_of(
        {
            "checkout": CHECKOUT,
            "decimals": f"{start}, sum(duration_nano / 1000.0) AS s FROM spans GROUP BY ALL",
            "dates": f"{start}, to_date(time) AS d, count(*) AS c FROM spans GROUP BY ALL",
            "arguments": f"{start}, substring(name) AS s, count(*) AS c FROM spans GROUP BY ALL",
            "mixed": f"{start}, count_if(name + attributes) AS c FROM spans GROUP BY ALL",
        }
    )
    queries, problems = checked_views(lake.config)
    assert problems == {}
    spec = analysed(lake.config, "checkout", queries["checkout"], lake.spark_runner)
    types = {column.name: type_name(column.type) for column in spec.columns}
    assert types == {
        "tenant_id": "STRING",
        "time": "TIMESTAMP",
        "service_name": "STRING",
        "region": "STRING",
        "calls": "BIGINT",
        "errors": "BIGINT",
        "slowest": "BIGINT",
        "fastest": "BIGINT",
        "has_errors": "BOOLEAN",
        "last_time": "TIMESTAMP",
        "price": "DOUBLE",
    }
    for name, reason in (
        ("decimals", "s has type DECIMAL"),
        ("dates", "d has type DATE"),
        ("arguments", "WRONG_NUM_ARGS"),
        ("mixed", "DATATYPE_MISMATCH"),
    ):
        with pytest.raises(Refused, match=reason):
            analysed(lake.config, name, queries[name], lake.spark_runner)


def test_a_plan_with_other_steps_is_refused_whatever_the_text_said(spark: SparkSession) -> None:
    runner, schema = SparkRunner(lambda: spark, "derive"), pa.schema([("n", pa.int64())])
    for sql in (
        "SELECT rand() AS r FROM {0}",
        "SELECT a.n FROM {0} AS a JOIN {0} AS b ON a.n = b.n",
        "SELECT n FROM {0} WHERE n IN (SELECT n FROM {0})",
        "SELECT explode(array(n)) AS n FROM {0}",
        "SELECT n FROM {0} UNION ALL SELECT n FROM {0}",
    ):
        with pytest.raises(Refused, match="row by row"):
            runner.schema_of(schema, sql.format)
