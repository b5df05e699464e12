"""A tenant that makes new series without end does not fill the table, and keeps its known series."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from frazil.lake.live_files import FilePartition
from frazil.pipeline.derive import derived_tables
from frazil.pipeline.derive.limit import Admission, Held, Limit
from frazil.tables import table_specs
from tests.support.derived_lake import DerivedLake
from tests.support.known_lake import DAY

MAX = 5
NOT_WRITTEN = "frazil_derive_series_not_written_total"
TENANTS = "frazil_derive_series_limited_tenants"


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[DerivedLake]:
    with contextlib.closing(DerivedLake(tmp_path, derive={"series_per_day_max": MAX})) as made:
        made.now -= made.now % DAY - 3600  # early on the day
        yield made


def points(lake: DerivedLake, names: Iterable[Any], *, days: float = 0.0) -> bytes:
    request = ExportMetricsServiceRequest()
    metrics = request.resource_metrics.add().scope_metrics.add().metrics
    for name in names:
        point = metrics.add(name="requests").gauge.data_points.add(as_int=1)
        point.time_unix_nano = int((lake.now - days * DAY) * 1e9)
        point.attributes.add(key="request").value.string_value = str(name)
    return request.SerializeToString()


def land(lake: DerivedLake, names: Iterable[Any], *, tenant: str = "acme", days: float = 0.0) -> None:
    lake.land_requests("metrics", [(tenant, points(lake, names, days=days))])


def series(lake: DerivedLake, tenant: str = "acme") -> Counter[str]:
    """The values of the attribute, with the days of each."""
    rows = lake.table("series").scan().to_arrow().to_pylist()
    found = {(dict(row["attributes"])["request"], row["time"]) for row in rows if row["tenant_id"] == tenant}
    return Counter(name for name, _ in found)


def sample(lake: DerivedLake, name: str) -> float | None:
    return lake.registry.get_sample_value(name)


def test_beyond_the_bound_new_series_are_not_written_and_known_ones_go_on(lake: DerivedLake) -> None:
    land(lake, "abc")
    lake.derive("metrics")
    land(lake, "cdefgh")
    lake.derive("metrics")
    known = series(lake)
    assert len(known) == MAX
    assert {*"abc"} <= known.keys()
    assert sample(lake, NOT_WRITTEN) == 3
    assert sample(lake, TENANTS) == 1
    lake.now += 3 * 3600
    land(lake, ["a", "new"])
    lake.derive("metrics")
    assert series(lake) == known
    of_a = [
        row
        for row in lake.table("series").scan().to_arrow().to_pylist()
        if ("request", "a") in row["attributes"]
    ]
    assert len({row["last_time"] for row in of_a}) == 2, "it is still written once per hour"


def test_the_points_of_series_beyond_the_bound_are_in_the_rollups(lake: DerivedLake) -> None:
    land(lake, range(20))
    lake.derive("metrics")
    assert len(series(lake)) == MAX
    rows = lake.table("metric_rollups").scan(row_filter="resolution == 60").to_arrow()
    assert len({*rows.column("series_id").to_pylist()}) == sum(rows.column("points").to_pylist()) == 20


def test_the_bound_holds_after_a_restart_and_for_each_tenant_and_day_alone(lake: DerivedLake) -> None:
    land(lake, range(20))
    lake.derive("metrics")
    known = series(lake)
    lake.restart("metrics")
    land(lake, range(20, 40))
    land(lake, range(4), tenant="globex")
    land(lake, range(20, 23), days=2)
    lake.derive("metrics")
    assert len(series(lake, "globex")) == 4
    assert series(lake) == known + Counter(["20", "21", "22"])
    assert sample(lake, TENANTS) == 1


def test_tasks_of_one_round_do_not_exceed_the_bound_together(
    lake: DerivedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(derived_tables, "tasks", lambda files, _: [[each] for each in files])
    for first in (0, 2, 4, 6, 8):
        land(lake, [f"{first}", f"{first + 1}"])
    lake.derive("metrics")
    assert len(series(lake)) == 4, "a third file would exceed it"
    assert sample(lake, NOT_WRITTEN) == 6
    files = [*(lake.config.data_dir / "warehouse" / "otel" / "series").rglob("*.parquet")]
    assert len(files) == 2, "files that are not committed are deleted"
    land(lake, ["x", "y"])
    lake.derive("metrics")
    assert len(series(lake)) == MAX


def test_tasks_that_see_the_same_series_write_all_of_them(
    lake: DerivedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(derived_tables, "tasks", lambda files, _: [[each] for each in files])
    for _ in range(3):
        land(lake, "abcd")
    lake.derive("metrics")
    assert series(lake) == Counter("abcd")
    assert sample(lake, NOT_WRITTEN) == 0


def test_a_day_that_is_derived_again_keeps_the_bound(lake: DerivedLake) -> None:
    for first in range(0, 12, 3):
        land(lake, range(first, first + 3))
        lake.derive("metrics")
    assert len(series(lake)) == MAX
    day = int(lake.now // DAY)
    assert lake.deriver("metrics").rederive(["series"], {day}) == set()
    assert len(series(lake)) == MAX


def test_the_metric_says_how_many_series_the_largest_tenant_has_today(lake: DerivedLake) -> None:
    land(lake, "ab")
    land(lake, "abc", tenant="globex")
    land(lake, "abcd", days=3)
    lake.derive("metrics")
    assert sample(lake, "frazil_derive_series_max") == 3


KEYS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=30)


@given(st.lists(KEYS, max_size=6), st.integers(1, 20))
@settings(deadline=None)
def test_a_task_writes_each_key_or_refuses_it_for_good(batches: list[list[int]], keys_max: int) -> None:
    at = FilePartition("acme", 20_000)
    admission = Admission(Limit("series_id", keys_max, {at: Held()}), _no_files())
    written: set[int] = set()
    for batch in batches:
        kept = np.array(batch, np.int64)[admission.admitted(_rows(batch, at))]
        assert written.intersection(batch) <= {*kept.tolist()}, "known keys go on"
        written |= {*kept.tolist()}
        assert len(written) == admission.counts.written[at] <= keys_max
    distinct = {key for batch in batches for key in batch}
    assert written == distinct or len(written) == keys_max


def _no_files() -> Any:
    return dataclasses.make_dataclass("NoFiles", [])()


def _rows(keys: list[int], at: FilePartition) -> pa.Table:
    spec = table_specs()["series"]
    time = pa.array([(at.day or 0) * 86_400_000_000] * len(keys), pa.int64())
    return pa.table(
        {
            "tenant_id": pa.array([at.tenant] * len(keys), pa.string()),
            "time": time.cast(pa.timestamp("us")).cast(spec.column("time").type),
            "series_id": pa.array(keys, pa.int64()),
        }
    )
