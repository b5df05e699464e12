"""Messages that cannot be read are kept, within bounds, and whatever they bring about stays theirs."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from frazil.config.wal import KafkaConfig
from frazil.otlp.decode import Decoder
from frazil.pipeline.arrange import Horizon
from frazil.pipeline.land import messages
from frazil.pipeline.land.messages import Reading, land_messages
from frazil.pipeline.land.results import TaskResult

READING = Reading(KafkaConfig(brokers=("nowhere:1",)), "logs", "otlp_logs", "default", 32)
HORIZON = Horizon(1, 1)


class NoLayout:
    """Nothing is written here: no message has a row."""

    extra = ()
    batch = "batch"


def landed(*values: bytes | None) -> TaskResult:
    rows = [
        {"partition": 0, "offset": offset, "timestamp": 0, "key": None, "value": value, "headers": None}
        for offset, value in enumerate(values)
    ]
    types = {"partition": pa.int32(), "offset": pa.int64(), "timestamp": pa.timestamp("us", "UTC")}
    others = {"key": pa.binary(), "value": pa.binary(), "headers": pa.null()}
    batch = pa.RecordBatch.from_pylist(rows, pa.schema((types | others).items()))
    layout: Any = NoLayout()
    return land_messages([batch], layout, HORIZON, READING, files_max=None)


def test_a_defect_that_a_message_brings_about_sets_it_aside(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_topic_full_of_garbage_does_not_fill_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "PAYLOAD_BYTES_PER_TASK_MAX", 100)
    result = landed(*[b"\xff" * 40 for _ in range(5)])
    assert [len(item.payload or b"") for item in result.unreadable] == [40, 40, 0, 0, 0]
    assert [item.size for item in result.unreadable] == [40] * 5
    assert "in Kafka alone" in result.unreadable[-1].reason
