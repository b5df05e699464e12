"""The Spark task that lands Kafka messages: OTLP requests in, durable data files out."""

from __future__ import annotations

import contextlib
import time
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
from frazil.pipeline.land.source import MessageCounts, TaskResult, UnreadableSegment
from frazil.pipeline.land.task import ChunkWriter, measured
from frazil.pipeline.partition_sort import Horizon
from frazil.pipeline.runner import Batches
from frazil.tables import SEGMENT, Promoted, Signal
from frazil.wal.kafka.messages import Headers, body_of, received_unix_nano, tenant_of
from frazil.wal.rowgroups import coded_table

PAYLOAD_BYTES_PER_TASK_MAX = 8 * 2**20
"""Bytes of unreadable messages that a task sends to the driver. A topic may have many of them."""
COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers")


@dataclass(frozen=True)
class ReadSettings:
    """Settings to read the messages of one topic. `label` is its name in `_segment` and in the position."""

    kafka: KafkaConfig
    signal: Signal
    label: str
    tenant: str
    extra: tuple[Promoted, ...]
    """The columns that the configuration promotes."""
    depth_max: int
    now_unix_nano: int
    """The received time of messages that have none, or one after `received_max_unix_nano`."""
    received_max_unix_nano: int


@dataclass(frozen=True)
class _Message:
    partition: int
    source: str
    body: bytes
    value: bytes
    named_tenant: str | None
    """The tenant that the message names, if any."""
    tenant: str
    received: int


def land_messages(
    batches: Batches,
    layout: Layout,
    horizon: Horizon,
    settings: ReadSettings,
    *,
    files_max: int | None,
) -> TaskResult:
    """Decodes the messages, and sorts and writes their rows. Stops if they need more than `files_max`
    files.
    """
    begin, result = time.process_time(), TaskResult()
    chunks = ChunkWriter(layout, horizon, file_name(layout), result, files_max=files_max)
    decoder = _decoder(settings.signal, settings.extra, settings.depth_max)
    for batch in batches:
        if result.too_many_files:
            continue  # Spark's worker requires that its input is read to the end
        messages = _readable(batch, settings, result)
        for group, decoded in _decoded(messages, decoder, result):
            _set_aside_rejected(group, decoded, settings.signal, result)
            for message, rows in zip(group, decoded.seen - decoded.rejected, strict=True):
                result.partitions[message.partition].rows += int(rows)
            chunks.add(_with_sources(group, decoded, layout))
    chunks.flush()
    return measured(result, begin)


def received_bounds(wall_unix_nano: int, table_changed_ms: int, *, ahead_micros: int) -> tuple[int, int]:
    """Returns the current time, and the latest received time that is accepted: producers choose the
    timestamps of their messages, and the horizon is measured from them. The current time is at least that of
    the table's last change: a clock behind it is wrong.
    """
    now = max(wall_unix_nano, table_changed_ms * 1_000_000)
    return now, now + ahead_micros * 1000


@lru_cache(maxsize=8)
def _decoder(signal: Signal, extra: tuple[Promoted, ...], depth_max: int) -> Decoder:
    return Decoder(signal, extra, depth_max=depth_max)


def _readable(batch: pa.RecordBatch, settings: ReadSettings, result: TaskResult) -> list[_Message]:
    """Returns the messages of a batch that hold a request. The others are set aside."""
    found = []
    # As integers: Kafka allows times outside of Python's dates, and floats would lose the last millisecond.
    timestamps_ms = pc.divide(batch.column("timestamp").cast(pa.timestamp("us")).cast(pa.int64()), 1000)
    for row, timestamp_ms in zip(
        batch.drop_columns("timestamp").to_pylist(), timestamps_ms.to_pylist(), strict=True
    ):
        value = row["value"]
        source = f"{settings.label}/{row['partition']}/{row['offset']}"
        counts = result.partitions.setdefault(row["partition"], MessageCounts())
        counts.messages += 1
        counts.bytes += len(value or b"")
        headers = [(item["key"], item["value"]) for item in row["headers"] or ()]
        named = _named_tenant(headers, row["key"], settings)
        try:
            with _decode_errors():
                body = body_of(value, settings.kafka.encoding, settings.signal, depth_max=settings.depth_max)
        except RequestInvalid as error:
            _set_aside(row["partition"], source, value or b"", named, str(error), result)
            continue
        received = received_unix_nano(headers, timestamp_ms)
        if not 0 < received <= settings.received_max_unix_nano:
            received = settings.now_unix_nano
        result.received(received)
        tenant = named or settings.tenant
        found.append(_Message(row["partition"], source, body, value, named, tenant, received))
    return found


def _decoded(
    messages: list[_Message], decoder: Decoder, result: TaskResult
) -> Iterable[tuple[list[_Message], Decoded]]:
    """Decodes all messages at once. If that fails, decodes each half, down to the invalid messages."""
    if not messages:
        return
    try:
        with _decode_errors():
            decoded = decoder.decode(
                [message.body for message in messages],
                [message.tenant for message in messages],
                [message.received for message in messages],
            )
    except RequestInvalid as error:
        if len(messages) == 1:
            _set_aside_message(messages[0], str(error), result)
            return
        half = len(messages) // 2
        yield from _decoded(messages[:half], decoder, result)
        yield from _decoded(messages[half:], decoder, result)
        return
    yield messages, decoded


def _set_aside_rejected(group: list[_Message], decoded: Decoded, signal: Signal, result: TaskResult) -> None:
    """Sets aside the whole message if some of its records are invalid: the producer cannot be informed."""
    for index, reasons in decoded.reasons.items():
        _set_aside_message(group[index], explain(signal, int(decoded.rejected[index]), reasons), result)


def _named_tenant(headers: Headers, key: bytes | None, settings: ReadSettings) -> str | None:
    """Returns the tenant that a message names or that the configuration fixes, else None: the records of an
    unreadable message may belong to any tenant.
    """
    default = settings.tenant if settings.kafka.tenant.source == "fixed" else ""
    return tenant_of(headers, key, settings.kafka, default) or None


def _set_aside_message(message: _Message, reason: str, result: TaskResult) -> None:
    _set_aside(message.partition, message.source, message.value, message.named_tenant, reason, result)


def _set_aside(
    partition: int, source: str, value: bytes, tenant: str | None, reason: str, result: TaskResult
) -> None:
    result.partitions[partition].set_aside += 1
    kept = sum(len(item.payload or b"") for item in result.unreadable)
    if kept + len(value) <= PAYLOAD_BYTES_PER_TASK_MAX:
        result.unreadable.append(UnreadableSegment(source, reason, len(value), value, tenant))
    else:
        reason += "; its bytes are only in Kafka: the batch has too many unreadable messages"
        result.unreadable.append(UnreadableSegment(source, reason, len(value), tenant=tenant))


@contextlib.contextmanager
def _decode_errors() -> Iterator[None]:
    """Turns every error, including panics of Rust extensions, into RequestInvalid: one message must not stop
    the landing of its table.
    """
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
