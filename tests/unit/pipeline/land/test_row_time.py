"""The `time` of a row depends on that row alone, and is the same in the tail and in the table."""

from __future__ import annotations

import contextlib
import datetime
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from frazil.config import Config
from frazil.lake.catalog import ensure_namespace, open_catalog
from frazil.lake.tables import open_table
from frazil.otlp.decode import Decoder
from frazil.pipeline.datafile import Layout
from frazil.pipeline.land.task import segment_of, with_segment
from frazil.pipeline.partition_sort import DAY_MICROS, Horizon, partition_and_sort
from frazil.position import LandingPosition, WalPosition
from frazil.query.tail import Tail
from frazil.query.tail.decode import SegmentDecoder
from frazil.tables import landed_spec
from frazil.wal.names import SegmentName
from frazil.wal.rowgroups import read_row_groups
from frazil.wal.segment import SegmentWriter
from tests.support.known_lake import STREAM, KnownLake

NOW = 20_000 * DAY_MICROS + 5_000
PAST, AHEAD = 30 * DAY_MICROS, DAY_MICROS


@dataclass(frozen=True)
class Row:
    tenant: str
    time: int
    received: int

    @property
    def shown(self) -> int:
        """`time` as it must be."""
        inside = self.received - PAST <= self.time <= self.received + AHEAD
        return self.time if inside else self.received


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Layout]:
    config = Config.model_validate({"data_dir": tmp_path_factory.mktemp("data")})
    with contextlib.closing(open_catalog(config)) as catalog:
        ensure_namespace(catalog, config.lake.namespace)
        opened = open_table(catalog, config.lake.namespace, landed_spec("logs"), LandingPosition().to_text())
        yield Layout.of(opened.table, landed_spec("logs"), 1)


def segment(name: SegmentName, rows: Sequence[tuple[int, Row]]) -> bytes:
    """The body of a row is its number."""
    bodies = []
    for number, row in rows:
        request = ExportLogsServiceRequest()
        record = request.resource_logs.add().scope_logs.add().log_records.add(time_unix_nano=row.time * 1000)
        record.body.string_value = str(number)
        bodies.append(request.SerializeToString())
    writer = SegmentWriter(1)
    received = [row.received * 1000 for _, row in rows]
    writer.write(Decoder("logs").decode(bodies, [row.tenant for _, row in rows], received).table)
    return writer.finish(name, stream_rows=0, received=(min(received), max(received)))


def times(table: pa.Table) -> dict[int, int]:
    micros = table["time"].cast(pa.timestamp("us")).cast(pa.int64()).to_pylist()
    return {int(body): time for body, time in zip(table["body"].to_pylist(), micros, strict=True)}


rows_of_tenants = st.lists(
    st.builds(
        Row,
        tenant=st.integers(0, 40).map("t{}".format),
        time=st.integers(NOW - 40 * DAY_MICROS, NOW + 3 * DAY_MICROS) | st.integers(1, 2 * NOW),
        received=st.integers(NOW - DAY_MICROS, NOW),
    ),
    min_size=1,
    max_size=60,
)


@settings(max_examples=40, deadline=None)
@given(rows=rows_of_tenants, data=st.data())
def test_time_follows_from_its_own_row_however_rows_are_mixed_and_cut_into_tasks(
    rows: list[Row], data: st.DataObject, layout: Layout
) -> None:
    segment_of_row = data.draw(st.lists(st.integers(0, 4), min_size=len(rows), max_size=len(rows)))
    decoder = SegmentDecoder(Config(), "logs")
    tail: dict[int, int] = {}
    tasks: dict[int, list[pa.Table]] = {}
    for sequence in sorted(set(segment_of_row)):
        name = SegmentName("logs", STREAM, sequence)
        inside = [(n, row) for n, row in enumerate(rows) if segment_of_row[n] == sequence]
        written = segment(name, inside)
        for tenant in {row.tenant for _, row in inside}:
            summary, table = decoder.decode(name, written, tenant, decoder.schema(None))
            assert table is not None
            tail |= (found := times(table))
            assert summary.time_min <= min(found.values()) <= max(found.values()) <= summary.time_max
        facts, groups = read_row_groups(name, written, layout.coded)
        task = tasks.setdefault(data.draw(st.integers(0, 2)), [])
        task += [with_segment(layout.filled(table, facts.fill), segment_of(name), layout) for table in groups]
    landed: dict[int, int] = {}
    for task in tasks.values():
        for part in partition_and_sort(task, layout.spec, Horizon(PAST, AHEAD)).parts:
            landed |= times(part.rows)
    assert landed == {number: row.shown for number, row in enumerate(rows)}
    assert tail == landed


def test_many_tenants_at_midnight_keep_their_times_when_they_land(tmp_path: Path) -> None:
    kept = KnownLake(tmp_path, land={"horizon_past_seconds": "30d"})
    tenants = [f"t{number:03d}" for number in range(130)]
    kept.write([(tenant, f"{tenant} svc", 9, age) for tenant in tenants for age in (0.0, 1.0)])
    before: Counter[tuple[str, datetime.datetime]] = Counter()
    with contextlib.closing(Tail(kept.config, tmp_path / "tail")) as tail:
        for tenant in tenants:
            cut = tail.cut("logs", WalPosition(), tenant)
            for chunk in cut.chunks:
                assert not chunk.ranges
                rows = pq.read_table(chunk.path, columns=["time"], partitioning=None)
                before.update((tenant, time) for time in rows["time"].to_pylist())
            cut.release()
    kept.land()
    landed = kept.table().scan(selected_fields=("tenant_id", "time")).to_arrow().to_pylist()
    assert Counter((row["tenant_id"], row["time"]) for row in landed) == before
    assert len(before) == 260
    kept.close()
