"""Figures by service: the SQL is run in DuckDB, and the meaning of its rows."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import pytest

from frazil.query.reads import services
from frazil.query.reads.rolled import rolled
from frazil.query.reads.services import UNNAMED, Figures, service_figures
from frazil.query.reads.time_range import Buckets, TimeRange
from tests.support.query.read_engine import Engine
from tests.support.query.read_telemetry import BEGIN, logs, spans

MS, SECOND = 10**6, 10**9
AT = dt.datetime(2026, 11, 15, 12, 0, tzinfo=dt.UTC)
RANGE = TimeRange((BEGIN - 20) * 10**6, (BEGIN + 100) * 10**6)
BUCKETS = Buckets.of(RANGE, 2)
"""Of a minute."""
SERVER, CLIENT, CONSUMER = 2, 3, 5
ERROR = {"code": 2}


@pytest.fixture
def engine() -> Engine:
    return Engine()


def row(service: str, bucket: int, requests: int) -> dict[str, Any]:
    quantiles = [1_000_000, 2_000_000, 3_000_000]
    return {
        "part": 0,
        "service_name": service,
        "bucket": bucket,
        "requests": requests,
        "errors": 0,
        "quantiles": quantiles,
    }


def figures(engine: Engine) -> services.ServiceFigures:
    return service_figures(engine.records(services.red(RANGE, BUCKETS)))


def test_requests_are_spans_of_servers_and_consumers_and_roots(engine: Engine) -> None:
    child = {"parent_span_id": b"\1" * 8}
    engine.add(
        "spans",
        spans(
            {"kind": SERVER, "took": 2 * MS, "status": ERROR, **child},
            {"kind": CONSUMER, "took": 2 * MS, **child},
            {"kind": CLIENT, "took": 9 * SECOND, "status": ERROR, **child},
            {"took": 9 * SECOND, **child},
        ),
    )
    engine.add("spans", spans({"took": 4 * MS}, service="cron"))
    found = figures(engine)
    assert found.by_service["cart"] == Figures(2, 1, 2.0, 2.0, 2.0)
    assert found.by_service["cron"] == Figures(1, 0, 4.0, 4.0, 4.0)
    assert (found.whole.requests, found.whole.errors, found.whole.error_share) == (3, 1, pytest.approx(1 / 3))


def test_buckets_begin_at_multiples_of_their_width(engine: Engine) -> None:
    """BEGIN is 20 s after a full minute."""
    engine.add("spans", spans(*({"nanos": second * SECOND} for second in (-19, 0, 39, 40))))
    assert [bucket.figures.requests for bucket in figures(engine).over_time("cart", RANGE, BUCKETS)] == [3, 1]


def test_a_tenant_without_spans_has_no_figures(engine: Engine) -> None:
    found = figures(engine)
    assert (found.whole, found.by_service) == (Figures(), {})


def test_spans_without_a_service_are_counted_under_no_name(engine: Engine) -> None:
    unnamed = spans({}, {}, {})
    del unnamed.resource_spans[0].resource.attributes[:]
    engine.add("spans", unnamed)
    engine.add("spans", spans({}))
    found = figures(engine)
    assert {name: each.requests for name, each in found.by_service.items()} == {UNNAMED: 3, "cart": 1}
    assert found.whole.requests == 4


def test_logs_are_counted_by_service_with_errors_from_severity_17_on(engine: Engine) -> None:
    engine.add("logs", logs(*({"severity_number": number} for number in (16, 17, 24, 9))))
    engine.add("logs", logs({}, service="pay"))
    outside = logs({"nanos": 100 * SECOND, "severity_number": 17}, service="late")
    engine.add("logs", outside)
    rows = {row["service_name"]: row for row in engine.records(services.log_errors(RANGE))}
    assert {name: (row["logs"], row["errors"]) for name, row in rows.items()} == {
        "cart": (4, 2),
        "pay": (1, 0),
    }


def test_operations_come_by_how_often_they_occur(engine: Engine) -> None:
    engine.add("spans", spans({"name": "rare"}, {"name": "often"}, {"name": "often"}))
    rows = engine.records(services.operations(RANGE))
    assert [(row["service_name"], row["name"], row["spans"]) for row in rows] == [
        ("cart", "often", 2),
        ("cart", "rare", 1),
    ]


def test_a_bucket_without_requests_is_a_zero_and_one_that_is_cut_off_counts_for_its_part() -> None:
    found = service_figures([row("cart", 0, 4), row("cart", 2, 3)])
    range = TimeRange.between(AT + dt.timedelta(seconds=20), AT + dt.timedelta(minutes=2, seconds=30))
    minutes = Buckets.of(range, 3)
    buckets = found.over_time("cart", range, minutes)
    assert [bucket.time for bucket in buckets] == [AT + dt.timedelta(minutes=n) for n in (0, 1, 2)]
    assert [bucket.seconds for bucket in buckets] == [40, 60, 30]
    assert [bucket.requests_per_second for bucket in buckets] == [0.1, 0, 0.1]
    assert [bucket.figures.p95_ms for bucket in buckets] == [2.0, None, 2.0]
    assert all(bucket.requests_per_second == 0 for bucket in found.over_time("unheard of", range, minutes))


def counts(found: services.ServiceFigures) -> dict[Any, tuple[int, int]]:
    """Requests and errors by service, and by service and bucket."""
    every: dict[Any, Figures] = dict(found.by_service)
    for name, buckets in found.by_bucket.items():
        every |= {(name, bucket): figures for bucket, figures in buckets.items()}
    return {key: (figures.requests, figures.errors) for key, figures in every.items()}


@pytest.mark.parametrize("hours", [2, 30, 24 * 8])
def test_rollups_give_the_figures_of_raw_rows(engine: Engine, hours: int) -> None:
    rng = random.Random(hours)
    end = BEGIN + hours * 3600
    for service in ("cart", "pay"):
        made: list[dict[str, Any]] = [
            {
                "nanos": int(rng.uniform(-3600, (hours + 1) * 3600) * SECOND),
                "took": int(rng.lognormvariate(2, 1) * MS),
                "kind": rng.choice((SERVER, CLIENT, CONSUMER)),
                "status": rng.choice((ERROR, {})),
                **rng.choice(({}, {"parent_span_id": b"\1" * 8})),
            }
            for _ in range(600)
        ]
        engine.add("spans", spans(*made, service=service))
        records = [{"nanos": each["nanos"], "severity_number": rng.randrange(25)} for each in made]
        engine.add("logs", logs(*records, service=service))
    read = rolled(TimeRange(BEGIN * 10**6, end * 10**6), "span_metrics", (end + 7200) * 10**6)
    assert read is not None
    raw = service_figures(engine.records(services.red(read.range, read.buckets)))
    found = service_figures(engine.records(services.red(read.range, read.buckets, read)))
    assert found.whole.requests == raw.whole.requests > 500
    assert counts(found) == counts(raw)
    counted = [
        {row["service_name"]: (row["logs"], row["errors"]) for row in engine.records(statement)}
        for statement in (
            services.log_errors(read.range),
            services.log_errors(read.range, read),
        )
    ]
    assert counted[0] == counted[1]
    shares = "[0.5, 0.95, 0.99]"
    exact = engine.run_sql(
        f"SELECT quantile_disc(duration_nano, {shares}) AS q FROM spans WHERE time >= $1 AND time < $2 "
        "AND (kind IN (2, 5) OR parent_span_id IS NULL)",
        (read.range.start_time, read.range.end_time),
    )[0]["q"][0].as_py()
    whole = (found.whole.p50_ms, found.whole.p95_ms, found.whole.p99_ms)
    assert whole == pytest.approx([nanos / MS for nanos in exact], rel=0.0101)
