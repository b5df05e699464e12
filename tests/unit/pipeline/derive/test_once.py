"""Rows of things that stay, such as series, are written once for each key and period."""

from __future__ import annotations

import contextlib
import datetime as dt
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from frazil.pipeline.derive.once import unwritten
from frazil.tables import table_specs
from frazil.tables.columns import TIMESTAMP
from frazil.tables.derived.combine import completed
from tests.support.derived_lake import DerivedLake

SERIES = table_specs()["series"]
HOUR = dt.timedelta(hours=1)
NOON = dt.datetime(2026, 11, 18, 12, tzinfo=dt.UTC)
_TIMES = [
    each.name
    for each in SERIES.columns
    if pa.types.is_timestamp(each.type) and each.merge is not None and each.merge.rule != "key"
]


def seen(series_id: int, at: dt.datetime, tenant: str = "acme") -> pa.Table:
    made = {"tenant_id": pa.array([tenant]), "series_id": pa.array([series_id], pa.int64())}
    made["time"] = pa.array([NOON.replace(hour=0)], TIMESTAMP)
    return completed(pa.table(made | {name: pa.array([at], TIMESTAMP) for name in _TIMES}), SERIES)


def test_a_key_is_written_again_only_in_another_period() -> None:
    assert _TIMES
    first, known = unwritten(seen(1, NOON), SERIES)
    assert first.num_rows == 1
    assert unwritten(seen(1, NOON + HOUR / 2), SERIES, known)[0].num_rows == 0
    assert unwritten(seen(1, NOON + HOUR), SERIES, known)[0].num_rows == 1


def test_other_keys_are_written_also_if_they_differ_only_in_text() -> None:
    _, known = unwritten(seen(1, NOON), SERIES)
    rows = pa.concat_tables([seen(2, NOON), seen(1, NOON, "globex"), seen(1, NOON)])
    assert unwritten(rows, SERIES, known)[0].column("tenant_id").to_pylist() == ["acme", "globex"]


def test_files_have_no_text_of_rows_that_are_not_written(tmp_path: Path) -> None:
    with contextlib.closing(DerivedLake(tmp_path)) as lake:
        lake.now -= lake.now % 3600 - 60  # the whole test is in one hour
        lake.land_requests("metrics", [("acme", point(lake, "cpu")), ("globex", point(lake, "secret"))])
        lake.derive("metrics")
        before = paths(lake)
        lake.land_requests("metrics", [("acme", point(lake, "memory")), ("globex", point(lake, "secret"))])
        lake.derive("metrics")
        (new,) = paths(lake) - before
    names = pq.read_table(new, read_dictionary=["metric_name"]).column("metric_name").chunk(0)
    assert names.dictionary.to_pylist() == ["memory"]


def point(lake: DerivedLake, name: str) -> bytes:
    request = ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name=name)
    metric.gauge.data_points.add(as_int=1, time_unix_nano=int(lake.now * 1e9))
    return request.SerializeToString()


def paths(lake: DerivedLake) -> set[str]:
    files = lake.table("series").inspect.files().column("file_path").to_pylist()
    return {path.removeprefix("file://") for path in files}
