"""Unreadable messages are set aside, within limits, and their errors do not affect other messages."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from frazil.config import Config
from frazil.config.wal import KafkaConfig
from frazil.lake.catalog import ensure_namespace, open_catalog
from frazil.lake.tables import open_table
from frazil.otlp.decode import Decoder
from frazil.pipeline.datafile import Layout
from frazil.pipeline.land import messages
from frazil.pipeline.land.messages import ReadSettings, land_messages, received_bounds
from frazil.pipeline.land.source import TaskResult
from frazil.pipeline.partition_sort import Horizon
from frazil.tables import landed_spec
from frazil.wal.kafka.messages import RECEIVED_HEADER

NOW = 1_790_000_000_123_456_789
DAY = 86_400 * 10**9
SETTINGS = ReadSettings(
    KafkaConfig(brokers=("nowhere:1",)),
    "logs",
    "otlp_logs",
    "default",
    (),
    32,
    now_unix_nano=NOW,
    received_max_unix_nano=NOW + DAY,
)
HORIZON = Horizon(DAY // 1000, DAY // 1000)


class NoLayout:
    """Nothing is written here: no message has a row."""

    batch = "batch"


def landed(
    *values: bytes | None,
    timestamp: int = 0,
    header: int | None = None,
    tenant: bytes | None = None,
    layout: Any = NoLayout,
    settings: ReadSettings = SETTINGS,
    files_max: int | None = None,
) -> TaskResult:
    """`timestamp` is Kafka's, in microseconds; `header` is a receiver's, in nanoseconds; `tenant` names one
    in a header.
    """
    headers = None if header is None else [{"key": RECEIVED_HEADER, "value": str(header).encode()}]
    headers = headers if tenant is None else [{"key": "frazil-tenant", "value": tenant}]
    rows = [
        {
            "partition": 0,
            "offset": offset,
            "timestamp": timestamp,
            "key": None,
            "value": value,
            "headers": headers,
        }
        for offset, value in enumerate(values)
    ]
    types = {"partition": pa.int32(), "offset": pa.int64(), "timestamp": pa.timestamp("us", "UTC")}
    header_type = pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}.items()))
    others = {"key": pa.binary(), "value": pa.binary(), "headers": header_type}
    batch = pa.RecordBatch.from_pylist(rows, pa.schema((types | others).items()))
    return land_messages([batch], layout, HORIZON, settings, files_max=files_max)


def test_a_message_that_causes_an_unknown_error_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    class Panic(BaseException): ...

    def panics(*_: Any) -> None:
        raise Panic("index out of bounds")

    monkeypatch.setattr(Decoder, "decode", panics)
    result = landed(b"one", b"two")
    assert [(item.source, item.payload) for item in result.unreadable] == [
        ("otlp_logs/0/0", b"one"),
        ("otlp_logs/0/1", b"two"),
    ]
    assert all("index out of bounds" in item.reason for item in result.unreadable)
    assert (result.partitions[0].messages, result.partitions[0].set_aside) == (2, 2)


@pytest.mark.parametrize(
    ("source", "header", "expected"),
    [
        ("header", b"acme", "acme"),
        ("header", None, None),
        ("header", b"no tenant's name!", None),
        ("key", b"acme", None),
        ("fixed", b"acme", "default"),
    ],
)
def test_data_set_aside_belongs_to_the_tenant_that_the_message_names(
    source: str, header: bytes | None, expected: str | None
) -> None:
    kafka = KafkaConfig.model_validate({"brokers": ["nowhere:1"], "tenant": {"source": source}})
    settings = dataclasses.replace(SETTINGS, kafka=kafka)
    (item,) = landed(b"\xff", tenant=header, settings=settings).unreadable
    assert item.tenant == expected


def test_a_topic_full_of_garbage_does_not_fill_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "PAYLOAD_BYTES_PER_TASK_MAX", 100)
    result = landed(*[b"\xff" * 40 for _ in range(5)])
    assert [len(item.payload or b"") for item in result.unreadable] == [40, 40, 0, 0, 0]
    assert [item.size for item in result.unreadable] == [40] * 5
    assert "only in Kafka" in result.unreadable[-1].reason


@pytest.fixture
def layout(tmp_path: Path) -> Iterator[Layout]:
    config = Config.model_validate({"data_dir": tmp_path})
    with contextlib.closing(open_catalog(config)) as catalog:
        ensure_namespace(catalog, config.lake.namespace)
        opened = open_table(catalog, config.lake.namespace, landed_spec("logs"), "at 0")
        yield Layout.of(opened.table, landed_spec("logs"), 1)


@pytest.mark.parametrize("by_header", [False, True])
@pytest.mark.parametrize(
    ("said", "taken"),
    [
        (NOW - 400 * DAY, NOW - 400 * DAY),  # a backlog may be old
        (NOW, NOW),
        (NOW + DAY // 2, NOW + DAY // 2),  # the clock here may be slow
        (NOW + DAY + 10**9, NOW),
        (NOW + 50_000 * DAY, NOW),
    ],
)
def test_a_message_was_not_received_in_the_future_whatever_its_producer_says(
    layout: Layout, by_header: bool, said: int, taken: int
) -> None:
    request = ExportLogsServiceRequest()
    record = request.resource_logs.add().scope_logs.add().log_records.add(time_unix_nano=said)
    record.body.string_value = "x"
    when = {"header": said} if by_header else {"timestamp": said // 1000}
    result = landed(request.SerializeToString(), layout=layout, **when)
    (file,) = result.files
    assert file.partition[1] == taken // DAY
    rows = pq.read_table(pa.BufferReader(Path(file.file_path.removeprefix("file://")).read_bytes()))
    (received,) = rows["received_time"].cast(pa.timestamp("us")).cast(pa.int64()).to_pylist()
    assert received // 1000 == taken // 10**6
    assert rows["time_unix_nano"].to_pylist() == [said]


def test_the_clock_that_bounds_received_times_is_never_behind_the_tables_last_change() -> None:
    """A pipeline whose clock is far behind must not move right times."""
    wall, changed = NOW - 200 * DAY, NOW // 10**6
    assert received_bounds(wall, changed, ahead_micros=DAY // 1000) == (
        NOW // 10**6 * 10**6,
        NOW // 10**6 * 10**6 + DAY,
    )
    assert received_bounds(NOW, changed - 1000, ahead_micros=DAY // 1000) == (NOW, NOW + DAY)


@pytest.mark.parametrize(("files_max", "written"), [(None, 2), (2, 2), (1, 0)])
def test_a_task_that_needs_more_files_than_its_share_writes_none_and_says_so(
    layout: Layout, files_max: int | None, written: int
) -> None:
    values = []
    for days in range(2):
        request = ExportLogsServiceRequest()
        request.resource_logs.add().scope_logs.add().log_records.add(time_unix_nano=NOW - days * DAY)
        values.append(request.SerializeToString())
    result = landed(*values, layout=layout, files_max=files_max, header=NOW)
    assert (len(result.files), result.files_needed) == (written, 2)
    assert result.too_many_files == (written == 0)
