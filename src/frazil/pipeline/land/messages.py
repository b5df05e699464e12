"""What a Spark task does with messages of Kafka: OTLP requests in, durable data files out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.config.wal import KafkaConfig
from frazil.errors import FrazilError, RequestInvalid
from frazil.otlp.decode import Decoded, Decoder, explain
from frazil.pipeline.datafile import Layout, file_name
from frazil.pipeline.land.results import MessageCounts, TaskResult, UnreadableSegment
from frazil.pipeline.land.task import Chunks, cpu_seconds, measured
from frazil.pipeline.partition_sort import Horizon
from frazil.pipeline.runner import Batches
from frazil.tables import SEGMENT, Promoted, Signal
from frazil.wal.kafka.messages import Headers, body_of, received_unix_nano, tenant_of
from frazil.wal.rowgroups import coded_table

PAYLOAD_BYTES_PER_TASK_MAX = 8 * 2**20
"""What a task sends to the driver of messages that cannot be read. A topic may be full of them."""
COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers")


@dataclass(frozen=True)
class Reading:
    """How to read the messages of one topic. `label` is its name in `_segment` and in the position."""

    kafka: KafkaConfig
    signal: Signal
    label: str
    tenant: str
    extra: tuple[Promoted, ...]
    """The columns that the configuration promotes."""
    depth_max: int
    now_unix_nano: int
    """When a message was received that does not say it, or says a time after the next one."""
    received_max_unix_nano: int


@dataclass(frozen=True)
class _Message:
    partition: int
    source: str
    body: bytes
    value: bytes
    told: str | None
    """The tenant that the message names."""
    tenant: str
    received: int


def land_messages(
    batches: Batches,
    layout: Layout,
    horizon: Horizon,
    reading: Reading,
    *,
    files_max: int | None,
) -> TaskResult:
    """Decodes, arranges and writes. Stops when the rows need more than `files_max` files."""
    begin, result = cpu_seconds(), TaskResult()
    chunks = Chunks(layout, horizon, file_name(layout), result, files_max=files_max)
    decoder = _decoder(reading.signal, reading.extra, reading.depth_max)
    for batch in batches:
        if result.too_many_files:
            continue  # Spark's worker expects that its input is read to the end
        messages = _readable(batch, reading, result)
        for group, decoded in _decoded(messages, decoder, result):
            _note_rejected(group, decoded, reading.signal, result)
            for message, rows in zip(group, decoded.seen - decoded.rejected, strict=True):
                result.partitions[message.partition].rows += int(rows)
            chunks.add(_with_sources(group, decoded, layout))
    chunks.flush()
    return measured(result, begin)


def received_bounds(wall_unix_nano: int, table_changed_ms: int, *, ahead_micros: int) -> tuple[int, int]:
    """The present, and the latest time at which a message may have been received: producers choose the times
    of their messages, and the horizon is measured from them. A clock that is behind the table's last change
    is wrong.
    """
    now = max(wall_unix_nano, table_changed_ms * 1_000_000)
    return now, now + ahead_micros * 1000


@lru_cache(maxsize=8)
def _decoder(signal: Signal, extra: tuple[Promoted, ...], depth_max: int) -> Decoder:
    return Decoder(signal, extra, depth_max=depth_max)


def _readable(batch: pa.RecordBatch, reading: Reading, result: TaskResult) -> list[_Message]:
    """The messages of a batch; what holds no request is noted."""
    found = []
    # As numbers: Kafka takes times that Python has no date for, and a float would lose the last millisecond.
    timestamps_ms = pc.divide(batch.column("timestamp").cast(pa.timestamp("us")).cast(pa.int64()), 1000)
    for row, timestamp_ms in zip(
        batch.drop_columns("timestamp").to_pylist(), timestamps_ms.to_pylist(), strict=True
    ):
        value = row["value"]
        source = f"{reading.label}/{row['partition']}/{row['offset']}"
        counts = result.partitions.setdefault(row["partition"], MessageCounts())
        counts.messages += 1
        counts.bytes += len(value or b"")
        headers = [(item["key"], item["value"]) for item in row["headers"] or ()]
        told = _told(headers, row["key"], reading)
        try:
            with _defects_are_the_messages():
                body = body_of(value, reading.kafka.encoding, reading.signal, depth_max=reading.depth_max)
        except RequestInvalid as error:
            _set_aside(row["partition"], source, value or b"", told, str(error), result)
            continue
        received = received_unix_nano(headers, timestamp_ms)
        if not 0 < received <= reading.received_max_unix_nano:
            received = reading.now_unix_nano
        result.received(received)
        found.append(_Message(row["partition"], source, body, value, told, told or reading.tenant, received))
    return found


def _decoded(
    messages: list[_Message], decoder: Decoder, result: TaskResult
) -> Iterable[tuple[list[_Message], Decoded]]:
    """Together while that goes; halves where it does not, down to the culprits."""
    if not messages:
        return
    try:
        with _defects_are_the_messages():
            decoded = decoder.decode(
                [message.body for message in messages],
                [message.tenant for message in messages],
                [message.received for message in messages],
            )
    except RequestInvalid as error:
        if len(messages) == 1:
            (message,) = messages
            _set_aside(message.partition, message.source, message.value, message.told, str(error), result)
            return
        half = len(messages) // 2
        yield from _decoded(messages[:half], decoder, result)
        yield from _decoded(messages[half:], decoder, result)
        return
    yield messages, decoded


def _note_rejected(group: list[_Message], decoded: Decoded, signal: Signal, result: TaskResult) -> None:
    """Nobody can be told now that some records are invalid, so the message is kept whole, with the reason."""
    for index, reasons in decoded.reasons.items():
        message = group[index]
        reason = explain(signal, int(decoded.rejected[index]), reasons)
        _set_aside(message.partition, message.source, message.value, message.told, reason, result)


def _told(headers: Headers, key: bytes | None, reading: Reading) -> str | None:
    """Returns the tenant that a message names, or that the configuration fixes. None if it names none: the
    records of an unreadable message may belong to any tenant.
    """
    default = reading.tenant if reading.kafka.tenant.source == "fixed" else ""
    return tenant_of(headers, key, reading.kafka, default) or None


def _set_aside(
    partition: int, source: str, value: bytes, tenant: str | None, reason: str, result: TaskResult
) -> None:
    result.partitions[partition].set_aside += 1
    kept = sum(len(item.payload or b"") for item in result.unreadable)
    if kept + len(value) <= PAYLOAD_BYTES_PER_TASK_MAX:
        result.unreadable.append(UnreadableSegment(source, reason, len(value), value, tenant))
    else:
        reason += "; its bytes are in Kafka alone, as there are many like it"
        result.unreadable.append(UnreadableSegment(source, reason, len(value), tenant=tenant))


@contextlib.contextmanager
def _defects_are_the_messages() -> Iterator[None]:
    """A defect, or a panic in Rust, that a message brings about must not stop its table for ever."""
    try:
        yield
    except (FrazilError, MemoryError):
        raise
    except BaseException as error:
        raise RequestInvalid(f"the message cannot be decoded: {error!r}"[:500]) from None


def _with_sources(group: list[_Message], decoded: Decoded, layout: Layout) -> pa.Table:
    sources = pa.DictionaryArray.from_arrays(
        pa.array(decoded.request_of_row.astype(np.int32)), pa.array([message.source for message in group])
    )
    table = decoded.table.append_column(layout.coded.field(SEGMENT.name), sources)
    return coded_table(table.select(layout.coded.names), layout.coded)
