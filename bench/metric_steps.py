"""A histogram of 1,000 series over a day and over 30 days: from points, and from rollups by `metric_steps`.

The points are in merged files of closed days, and the rollups in a file for each resolution and day, as
compaction leaves both. The statements are those of the Metrics page.
"""

from __future__ import annotations

import datetime as dt
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from pyiceberg.catalog import Catalog
from tests.support.query.derived_rows import append_partial_rows

from bench.queries import QUICK_ROUNDS, ROUNDS, beside
from bench.serving import running_api
from bench.table import MIB, Bench, Row
from frazil.config import Config
from frazil.lake.catalog import ensure_namespace, open_catalog
from frazil.lake.commits.commit import Committer, checkpoint_of
from frazil.lake.tables import open_table
from frazil.otlp.decode import Decoder
from frazil.pipeline.datafile import Layout, write_part
from frazil.pipeline.land.task import with_segment
from frazil.pipeline.partition_sort import Horizon, partition_and_sort
from frazil.position import LandingPosition
from frazil.query.reads.metric_series import MetricRequest, metric_series
from frazil.query.reads.metric_steps import rolled_metric_series
from frazil.query.reads.metrics import Aggregation, Metric
from frazil.query.reads.statement import Statement
from frazil.query.reads.time_range import MICRO, TimeRange
from frazil.tables import landed_spec
from frazil.tables.derived.combine import rolled_up
from frazil.tables.derived.metric_rollups import METRIC_ROLLUPS, metric_rollup_rows
from frazil.tables.derived.rules import RESOLUTIONS
from frazil.wal.rowgroups import coded_table

NAME = "http.server.request.duration"
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Those of the semantic conventions."""
SERIES_OF_PART, SERVICES_OF_PART = 250, 5
PARTS, QUICK_PARTS = 4, 1
POINT_SECONDS = 30
"""A usual interval of scrapes. SDKs export every 60 s by default: half of the points and bytes."""
ROUNDS_OF_POINTS = 2
FAR_POINT_SECONDS = 1800
"""Between points of days of which only rollups are read."""
DAYS = 30
HOUR, DAY = 3600, 86_400
COARSE = (HOUR, DAY)
FASTER_TARGET, FEWER_BYTES_TARGET, SECONDS_TARGET = 10, 50, 1.0
_ANY_TIME = Horizon(10**15, 10**15)
_MIDDLES = np.array([0.0025, *np.mean([BOUNDS[1:], BOUNDS[:-1]], axis=0), 12.0])


def metric_steps(bench: Bench) -> None:
    parts = QUICK_PARTS if bench.quick else PARTS
    series = parts * SERIES_OF_PART
    with tempfile.TemporaryDirectory(prefix="frazil-bench-steps-") as place:
        config = Config(data_dir=Path(place) / "data")
        last_day = int(dt.datetime.now(dt.UTC).timestamp()) // DAY - 1
        with closing(open_catalog(config)) as catalog:
            ensure_namespace(catalog, config.lake.namespace)
            _fill(config, catalog, parts, last_day)
        query = {"result_cache_bytes_max": 0, "seconds_max": 900, "memory_bytes_max": 8 << 30}
        with running_api(config.data_dir, query=query) as url, httpx.Client(timeout=900) as client:
            api = _Api(client, url)
            noon = last_day * DAY + DAY // 2
            day = TimeRange((noon - DAY) * MICRO, noon * MICRO)
            for how in ("p99", "rate"):
                _compare(bench, api, how, day, series)
            month = TimeRange((last_day + 1 - DAYS) * DAY * MICRO, (last_day + 1) * DAY * MICRO)
            for how, step in (("p99", DAY), ("rate", DAY), ("rate", 6 * HOUR)):
                _month(bench, api, how, month, step, series)


class _Source:
    """Series of one part of the services, whose counts grow from each point to the next."""

    def __init__(self, part: int, series: int, began: int) -> None:
        self._began = began
        self._first = _first_points(part, series)
        self._rng = np.random.default_rng(part)
        mean = self._rng.gamma(2.0, 0.5, (series, 1))
        self._per_second = mean * self._rng.dirichlet(np.ones(len(BOUNDS) + 1), series)
        self._counts = np.zeros((1, series, len(BOUNDS) + 1), np.int64)

    def points(self, first: int, end: int, step: int) -> pa.Table:
        """Return a point of each series at each time, in seconds since 1970. Times only grow."""
        times = np.arange(first, end, step, dtype=np.int64)
        new = self._rng.poisson(self._per_second * step, (len(times), *self._per_second.shape))
        every = self._counts + np.cumsum(new, axis=0)
        self._counts = every[-1:]
        series = len(self._per_second)
        at, counts = np.repeat(times, series), every.reshape(-1, len(BOUNDS) + 1)
        offsets = pa.array(np.arange(len(at) + 1, dtype=np.int32) * (len(BOUNDS) + 1))
        jitter = self._rng.integers(0, 1_000_000, len(at))
        micros = pa.array(at * MICRO + jitter)
        changed = {
            "time": micros.cast(pa.timestamp("us", "UTC")),
            "received_time": pa.array(at * MICRO + MICRO).cast(pa.timestamp("us", "UTC")),
            "time_unix_nano": pa.array((at * MICRO + jitter) * 1000),
            "start_time_unix_nano": pa.array(np.full(len(at), self._began * 10**9)),
            "count": pa.array(counts.sum(axis=1)),
            "sum": pa.array(counts @ _MIDDLES),
            "bucket_counts": pa.ListArray.from_arrays(offsets, pa.array(counts.reshape(-1))),
        }
        rows = self._first.take(pa.array(np.tile(np.arange(series), len(times))))
        for name, values in changed.items():
            place = rows.schema.get_field_index(name)
            field = rows.schema.field(place)
            rows = rows.set_column(place, field, values.cast(field.type))
        return rows


def _first_points(part: int, series: int) -> pa.Table:
    """Decode one point of each series, as SDKs send it."""
    request = ExportMetricsServiceRequest()
    for service in range(SERVICES_OF_PART):
        resource = request.resource_metrics.add()
        name = f"service-{part * SERVICES_OF_PART + service:02}"
        resource.resource.attributes.add(key="service.name").value.string_value = name
        resource.resource.attributes.add(key="service.instance.id").value.string_value = f"{name:>032}"
        metric = resource.scope_metrics.add().metrics.add(name=NAME, unit="s")
        metric.histogram.aggregation_temporality = 2
        for number in range(service, series, SERVICES_OF_PART):
            point = metric.histogram.data_points.add(
                time_unix_nano=2, start_time_unix_nano=1, count=1, sum=1.0, explicit_bounds=BOUNDS
            )
            point.bucket_counts.extend([1] + [0] * len(BOUNDS))
            route = f"/api/v1/resources/{number // SERVICES_OF_PART}"
            for key, text in (("http.route", route), ("http.request.method", "GET")):
                point.attributes.add(key=key).value.string_value = text
            point.attributes.add(key="http.response.status_code").value.int_value = 200
    return Decoder("metrics").decode([request.SerializeToString()], ["default"], [0]).table


def _fill(config: Config, catalog: Catalog, parts: int, last_day: int) -> None:
    """Fill the last two days with points, and all days with rollups. A merged file is sorted by series, so
    that each part is a file of the day.
    """
    spec = landed_spec("metrics")
    checkpoint = open_table(catalog, config.lake.namespace, spec, LandingPosition().to_text())
    layout = Layout.of(checkpoint.table, spec, config.land.compression_level)
    first_day = last_day + 1 - DAYS
    sources = [_Source(part, SERIES_OF_PART, first_day * DAY) for part in range(parts)]
    for day in range(first_day, last_day + 1):
        rolled, has_points = [], day >= last_day - 1
        for part, source in enumerate(sources):
            step = POINT_SECONDS if has_points else FAR_POINT_SECONDS
            table = source.points(day * DAY + 7, (day + 1) * DAY, step).unify_dictionaries().combine_chunks()
            rows = with_segment(coded_table(table, layout.coded), "bench/0", layout)
            rolled.append(rolled_up(metric_rollup_rows(rows), METRIC_ROLLUPS))
            if has_points:
                arranged = partition_and_sort([rows], spec, _ANY_TIME).parts
                files = [write_part(layout, each, f"{day}-{part}-{at}") for at, each in enumerate(arranged)]
                Committer(catalog, deadline_seconds=60).append(checkpoint, files, LandingPosition().to_text())
                checkpoint = checkpoint_of(catalog.load_table(checkpoint.table.name()))
        merged = pa.concat_tables(rolled)
        for resolution in RESOLUTIONS if has_points else COARSE:
            kept = merged.filter(pc.equal(merged["resolution"], resolution))
            append_partial_rows(config, catalog, METRIC_ROLLUPS, kept)


class _Api:
    def __init__(self, client: httpx.Client, url: str) -> None:
        self._client, self._url = client, f"{url}/api/v1/sql"
        self.stats: dict[str, Any] = {}
        self.rows = 0

    def run(self, statement: Statement) -> None:
        body = {"sql": statement.sql, "params": list(statement.params)}
        response = self._client.post(self._url, json=body)
        assert response.status_code == 200, response.text[:1000]
        answer = response.json()
        self.stats, self.rows = answer["stats"], len(answer["rows"])
        assert self.rows, "the statement has no result"
        assert not self.stats.get("missing"), self.stats


def _request(how: Aggregation, range: TimeRange, step: int) -> MetricRequest:
    metric = Metric(NAME, "histogram", "s", "", (), is_monotonic=False, has_cumulative=True, points=0)
    return MetricRequest(metric, how, range, by="service", width_seconds=step)


def _compare(bench: Bench, api: _Api, how: Aggregation, day: TimeRange, series: int) -> None:
    request = _request(how, day, HOUR)
    raw, rolled = metric_series(request), rolled_metric_series(request)
    api.run(raw)
    raw_bytes = api.stats["bytes"]
    api.run(rolled)
    read_bytes, files = api.stats["bytes"], api.stats["files"]
    of_points, of_rollups = beside(ROUNDS_OF_POINTS, lambda: api.run(raw), lambda: api.run(rolled))
    faster, fewer = of_points / of_rollups, raw_bytes / read_bytes
    bench.add(
        Row(
            f"{how} of a day in steps of 1 h, {series:,} series, by service",
            f"{of_rollups:.0f} ms",
            f"{of_points:.0f} ms from points",
            f"{faster:.0f} × as fast; {read_bytes / MIB:.1f} of {raw_bytes / MIB:.0f} MiB in {files} files, "
            f"1/{fewer:.0f}",
            f"≥ {FASTER_TARGET} ×, ≤ 1/{FEWER_BYTES_TARGET} of the bytes",
            faster >= FASTER_TARGET and fewer >= FEWER_BYTES_TARGET,
        )
    )


def _month(bench: Bench, api: _Api, how: Aggregation, month: TimeRange, step: int, series: int) -> None:
    statement = rolled_metric_series(_request(how, month, step))
    rounds = QUICK_ROUNDS if bench.quick else ROUNDS
    took, _ = beside(rounds, lambda: api.run(statement), lambda: None)
    is_target = step == DAY  # the step of the page
    bench.add(
        Row(
            f"{how} of {DAYS} days in steps of {step // HOUR} h, {series:,} series, by service",
            f"{took:.0f} ms",
            "",
            f"{api.stats['bytes'] / MIB:.1f} MiB in {api.stats['files']} files, {api.rows} rows",
            f"< {SECONDS_TARGET:g} s" if is_target else "",
            took < SECONDS_TARGET * 1000 if is_target else None,
        )
    )
