"""`metric_steps` in the query service: which files it reads, which names it has, and how fresh it is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow.compute as pc
import pytest

from frazil.errors import QueryInvalid, QueryRefused
from frazil.query.model import AsOf
from frazil.tables import table_specs
from frazil.tables.derived.combine import rolled_up
from tests.support.known_lake import KnownLake
from tests.support.query.derived_rows import append_derived, append_partial_rows
from tests.support.query.metric_steps import BEGIN, Row, point, points_table
from tests.support.query.small_lake import Service, Told, serving

HOUR, DAY = 3600, 86_400
ROLLUPS, SERIES = table_specs()["metric_rollups"], table_specs()["series"]


def resolution_file(lake: KnownLake, resolution: int, rows: list[Row]) -> None:
    """A file with the rows of one resolution, as merged files of closed days have."""
    assert ROLLUPS.derived is not None
    made = rolled_up(ROLLUPS.derived.derive(points_table(rows)), ROLLUPS)
    kept = made.filter(pc.equal(made["resolution"], resolution))
    append_partial_rows(lake.config, lake.catalog, ROLLUPS, kept)


def orders(day: int, *, tenant: str = "acme", metric: str = "orders") -> list[Row]:
    """A counter of two services, one point an hour, of a day."""
    return [
        point(
            day * DAY + hour * HOUR + 60,
            float(10 * (day * 24 + hour)),
            began=-DAY,
            tenant_id=tenant,
            metric_name=metric,
            service_name=service,
            series_id=number,
            attributes=[("shard", str(number))],
            resource_attributes=[],
        )
        for hour in range(24)
        for number, service in enumerate(("cart", "web"))
    ]


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[KnownLake]:
    """Two resolutions of three days and two metrics: 12 files of one tenant, and one of another."""
    with contextlib.closing(KnownLake(tmp_path)) as made:
        for day in range(3):
            for resolution in (60, HOUR):
                for metric in ("orders", "visits"):
                    resolution_file(made, resolution, orders(day, metric=metric))
        resolution_file(made, HOUR, orders(1, tenant="globex"))
        append_derived(
            made.config, made.catalog, SERIES, points_table([r for d in range(3) for r in orders(d)])
        )
        yield made


@pytest.fixture
def service(lake: KnownLake) -> Iterator[Service]:
    with serving(lake.config) as running:
        yield running


def call(metric: str = "orders", step: str = "INTERVAL 1 HOUR", begin: int = DAY, end: int = 2 * DAY) -> str:
    return f"metric_steps('{metric}', {step}, to_timestamp({BEGIN + begin}), to_timestamp({BEGIN + end}))"


def read(told: Told) -> tuple[int, int]:
    return told.stats.files, told.stats.files_total


def test_the_arguments_choose_the_files(service: Service) -> None:
    """The row before the first step is read too: if it is on the day before, so is that day."""
    for table, files, increase in (
        (call(), 2, 480.0),
        (call(begin=DAY + HOUR), 1, 460.0),
        (call(step="INTERVAL 30 MINUTE", begin=DAY + HOUR), 0, None),
        (call(step="INTERVAL 1 MINUTE", begin=DAY + HOUR), 1, 440.0),
        (call(metric="visits", begin=2 * DAY + HOUR, end=3 * DAY), 1, 460.0),
        (call(metric="nothing"), 0, None),
        (call(begin=30 * DAY, end=31 * DAY), 0, None),
    ):
        told = service.execute(f"SELECT sum(increase) FROM {table}")
        assert (told.rows, read(told)) == ([[increase]], (files, 12)), table
    named = service.execute(
        f"SELECT sum(increase) FROM {call(begin=DAY + HOUR)} WHERE service_name = 'zebra'"
    )
    assert (named.rows, read(named)) == ([[None]], (0, 12))
    both = f"SELECT (SELECT sum(increase) FROM {call()}), (SELECT count(*) FROM {call(metric='visits')})"
    assert (service.execute(both).rows, read(service.execute(both))) == ([[480.0, 48]], (4, 12))


def test_parameters_and_the_clock_choose_files_too(service: Service) -> None:
    sql = "SELECT sum(rate) FROM metric_steps($1, INTERVAL 1 HOUR, $2, $3::TIMESTAMPTZ + INTERVAL 1 DAY)"
    begin = "2026-09-22T01:00:00Z"
    told = service.execute(sql, params=("orders", begin, "2026-09-22"))
    assert read(told) == (1, 12)
    assert told.rows == [[pytest.approx(460 / 3600)]]
    days = ", ".join(f"now() + INTERVAL {days} DAY" for days in (900, 901))
    recent = f"SELECT * FROM metric_steps('orders', INTERVAL 1 HOUR, {days})"
    assert read(service.execute(recent)) == (0, 12)


def test_attributes_come_from_the_series(service: Service) -> None:
    sql = f"""
SELECT attributes['shard'] AS shard, sum(increase) AS increase
FROM {call()} JOIN (
  SELECT series_id, any_value(attributes) AS attributes FROM series WHERE metric_name = 'orders' GROUP BY ALL
) USING (series_id)
GROUP BY ALL ORDER BY ALL"""
    assert service.execute(sql).rows == [["0", 240.0], ["1", 240.0]]


def test_a_tenant_gets_its_own_steps(service: Service) -> None:
    assert service.execute(f"SELECT sum(increase) FROM {call()}", tenant="globex").rows == [[460.0]]
    assert service.execute(f"SELECT * FROM {call()}", tenant="initech").rows == []


def test_all_columns_and_few_columns_give_the_same(service: Service) -> None:
    every = service.execute(f"SELECT * FROM {call()} ORDER BY time, series_id").rows
    few = service.execute(f"SELECT series_id, rate FROM {call()} ORDER BY time, series_id").rows
    described = [row[0] for row in service.execute(f"DESCRIBE SELECT * FROM {call()}").rows]
    at = [described.index(name) for name in ("series_id", "rate")]
    assert [[row[each] for each in at] for row in every] == few
    assert service.execute(f"SELECT steps FROM {call()} AS steps").rows[0][0]["metric_name"] == "orders"


def test_the_function_has_one_name_and_earlier_states(lake: KnownLake, service: Service) -> None:
    quoted = call().replace("metric_steps", 'main."METRIC_STEPS"')
    assert service.execute(f"SELECT sum(increase) FROM {quoted}").rows == [[480.0]]
    with pytest.raises(QueryRefused, match="cannot be used as a table"):
        service.execute(f"SELECT * FROM otel.{call()}")
    with pytest.raises((QueryRefused, QueryInvalid)):
        service.execute(f"SELECT {call()}")
    with pytest.raises(QueryInvalid):
        service.execute("SELECT * FROM metric_steps('orders')")
    first = lake.catalog.load_table("otel.metric_rollups").metadata.snapshots[1].snapshot_id
    assert service.execute(f"SELECT * FROM {call()}", as_of=AsOf(snapshot_id=first)).rows == []


def test_a_step_that_cannot_be_answered_is_refused_with_or_without_rows(service: Service) -> None:
    for metric in ("orders", "nothing"):
        for step in ("INTERVAL 90 SECOND", "INTERVAL 1 MONTH"):
            with pytest.raises(QueryInvalid, match="must be whole minutes, hours, days or weeks"):
                service.execute(f"SELECT * FROM {call(metric=metric, step=step)}")


def test_arguments_read_nothing_else(service: Service) -> None:
    for argument in ("(SELECT content FROM read_text('/etc/passwd'))", "getenv('HOME')"):
        with pytest.raises((QueryRefused, QueryInvalid)):
            service.execute(f"SELECT * FROM metric_steps({argument}, INTERVAL 1 HOUR, now(), now())")
    chosen = "(SELECT min(metric_name) FROM metric_rollups)"
    assert service.execute(
        f"SELECT sum(increase) FROM {call().replace(chr(39) + 'orders' + chr(39), chosen)}"
    ).rows == [[480.0]]
