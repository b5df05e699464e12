"""Distinct values of chosen attributes of metrics are counted in rounds, past days, queries and after an
erasure.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from frazil.config.derive import CARDINALITY_TABLE
from frazil.errors import Refused
from frazil.pipeline.derive.backfill import backfill
from frazil.pipeline.derive.request import BackfillRequest
from tests.support.derived_lake import DerivedLake
from tests.support.integration.documented import block
from tests.support.known_lake import DAY
from tests.support.query.small_lake import serving

Make = Callable[..., DerivedLake]
COUNT = (
    "SELECT attribute, round(merged_cardinality(register, rank)) FROM metric_cardinality "
    "WHERE resolution = {} GROUP BY attribute ORDER BY attribute"
)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    with contextlib.ExitStack() as stack:

        def made(*attributes: str) -> DerivedLake:
            derive = {"cardinality_attributes": list(attributes)}
            lake = stack.enter_context(contextlib.closing(DerivedLake(tmp_path, derive=derive)))
            lake.now -= lake.now % DAY - 3600 - 60  # the whole test is in one hour
            return lake

        yield made


def land(lake: DerivedLake, users: Iterable[Any], *, host: str = "a", days: float = 0.0) -> None:
    request = ExportMetricsServiceRequest()
    of_host = request.resource_metrics.add()
    of_host.resource.attributes.add(key="host.name").value.string_value = host
    metrics = of_host.scope_metrics.add().metrics
    for user in users:
        point = metrics.add(name="requests").gauge.data_points.add(as_int=1)
        point.time_unix_nano = int((lake.now - days * DAY) * 1e9)
        point.attributes.add(key="user.id").value.string_value = str(user)
    lake.land_requests("metrics", [("acme", request.SerializeToString())])


def counts(lake: DerivedLake, resolution: int = 86_400) -> list[list[Any]]:
    with serving(lake.config) as service:
        return service.execute(COUNT.format(resolution)).rows


def stored(lake: DerivedLake) -> int:
    return lake.table(CARDINALITY_TABLE).scan().to_arrow().num_rows


def test_chosen_attributes_are_counted_over_rounds_and_the_rows_that_have_just_landed(make: Make) -> None:
    lake = make("user.id", "host.name")
    land(lake, range(20))
    lake.derive("metrics")
    land(lake, range(10, 30), host="b")
    before_derivation = counts(lake)
    lake.derive("metrics")
    assert counts(lake) == before_derivation == counts(lake, 3600)
    assert before_derivation == [["host.name", 2], ["user.id", pytest.approx(30, abs=2)]]


def test_duckdb_counts_the_partial_rows_as_the_page_of_other_engines_says(make: Make) -> None:
    lake = make("user.id", "host.name")
    for host in "ab":
        land(lake, range(10), host=host)
        lake.derive("metrics")
    page = block("docs/engines.md", "-- DuckDB: how many distinct values").text
    with duckdb.connect(config={"threads": 1}) as engine:
        engine.register("rows", lake.table(CARDINALITY_TABLE).scan().to_arrow())
        engine.execute("ATTACH ':memory:' AS lake; CREATE SCHEMA lake.otel")
        engine.execute("CREATE TABLE lake.otel.metric_cardinality AS FROM rows")
        found = engine.execute(page).fetchall()
    assert sorted([attribute, round(count)] for _, _, attribute, count in found) == counts(lake)


def test_values_that_were_written_in_the_hour_are_not_written_again(make: Make) -> None:
    lake = make("user.id")
    land(lake, range(20))
    lake.derive("metrics")
    before = stored(lake)
    assert before > 0
    land(lake, range(20))
    lake.derive("metrics")
    assert stored(lake) == before
    land(lake, [*range(20), "new"])
    lake.derive("metrics")
    assert stored(lake) == before + 2


def test_without_attributes_the_table_is_not_derived_and_queries_find_it_empty(make: Make) -> None:
    lake = make()
    land(lake, range(3))
    assert CARDINALITY_TABLE not in lake.deriver("metrics").tables
    lake.derive("metrics")
    assert not lake.catalog.table_exists(("otel", CARDINALITY_TABLE))
    assert counts(lake) == []
    labels = {"table": CARDINALITY_TABLE}
    assert lake.registry.get_sample_value("frazil_derive_disabled", labels) == 1
    assert lake.registry.get_sample_value("frazil_derive_disabled", {"table": "series"}) == 0


def test_days_of_before_the_attribute_was_chosen_are_counted_by_the_first_start(make: Make) -> None:
    lake = make()
    land(lake, range(5), days=2)
    lake.derive("metrics")
    later = make("user.id")
    later.now = lake.now
    later.derive("metrics")
    assert counts(later) == [["user.id", 5]]


def test_an_erasure_counts_again_without_the_erased_values(make: Make) -> None:
    lake = make("user.id")
    land(lake, range(20))
    land(lake, range(5), days=2)
    lake.derive("metrics")
    assert lake.erase("attributes['user.id'] IN ('1', '2')", tables=("metrics",)).is_proven
    assert counts(lake) == [["user.id", pytest.approx(18, abs=1)]]


def test_a_backfill_without_attributes_is_refused_with_the_remedy(make: Make) -> None:
    lake = make()
    with pytest.raises(Refused, match=r"name attributes in derive\.cardinality_attributes"):
        backfill(lake.config, lake.catalog, BackfillRequest(CARDINALITY_TABLE, "2026-11-01"), lake.runner)
