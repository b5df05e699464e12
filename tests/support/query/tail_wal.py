"""A write-ahead log of a few streams, and what a cut of the tail says about it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from frazil.config import Config
from frazil.otlp.decode import Decoder
from frazil.position import StreamPosition, WalPosition
from frazil.query.tail import Tail, TailCut
from frazil.tables import Signal, landed_spec
from frazil.wal.names import SegmentName
from frazil.wal.reader import NOTHING_LANDED
from frazil.wal.segment import SegmentWriter, tombstone
from tests.support.fault.records import logs_request
from tests.support.wal_stores import HandClock, MemoryStore

STREAMS = [f"20261115T08182312{number}-9f86d081884c7d65" for number in range(3)]
DECODER = Decoder("logs")
SPEC = landed_spec("logs")
TENANTS = ("acme", "globex")
Rows = dict[str, Sequence[str]]


def name_of(stream: int, sequence: int, signal: Signal = "logs") -> SegmentName:
    return SegmentName(signal, STREAMS[stream], sequence)


def segment(name: SegmentName, rows: Rows, *, stream_rows: int = 0, received: int | None = None) -> bytes:
    """By tenant, the bodies of its rows."""
    now = received or time.time_ns()
    writer = SegmentWriter(1)
    bodies = [logs_request(texts) for texts in rows.values()]
    writer.write(DECODER.decode(bodies, list(rows), [now] * len(bodies)).table)
    return writer.finish(name, stream_rows=stream_rows, received=(now, now))


class Wal:
    """A WAL whose rows are known, beside a tail that follows it."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.store = MemoryStore()
        self.clock = HandClock()
        self.folder = folder / "tail"
        config = Config.model_validate({"data_dir": folder, **settings})
        self.tail = Tail(config, self.folder, store=self.store, clock=self.clock)
        self.next = [0] * len(STREAMS)
        self.rows = [0] * len(STREAMS)

    def append(self, stream: int, rows: Rows | None = None, **facts: Any) -> SegmentName:
        name = name_of(stream, self.next[stream])
        where = f"{stream}/{name.sequence}"
        rows = rows or {tenant: [f"{where}/{tenant}/{number}" for number in range(3)] for tenant in TENANTS}
        self.store.create(name.path, segment(name, rows, stream_rows=self.rows[stream], **facts))
        self.next[stream] += 1
        self.rows[stream] += sum(len(texts) for texts in rows.values())
        return name

    def damage(self, name: SegmentName) -> None:
        data = bytearray(self.store.objects[name.path])
        data[len(data) // 2] ^= 0xFF
        self.store.objects[name.path] = bytes(data)

    def close_stream(self, stream: int) -> None:
        name = name_of(stream, self.next[stream])
        self.store.create(name.path, tombstone(name, self.rows[stream]))
        self.next[stream] += 1

    def bodies(self, position: WalPosition = NOTHING_LANDED, tenant: str = "acme", **more: Any) -> list[str]:
        cut = self.tail.cut("logs", position, tenant, **more)
        found = texts_of(cut)
        cut.release()
        return found

    def files(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}

    def count_reads(self) -> list[str]:
        """The paths of segments that are read from now on."""
        reads: list[str] = []
        read = self.store.read
        self.store.read = lambda path: (reads.append(path), read(path))[1]  # type: ignore[method-assign]
        return reads


def rows_of(cut: TailCut) -> pa.Table:
    tables = []
    for chunk in cut.chunks:
        table = pq.read_table(chunk.path, partitioning=None)
        for first, end in chunk.ranges or [(0, table.num_rows)]:
            assert first < end <= table.num_rows
            tables.append(table.slice(first, end - first))
    table = pa.concat_tables(tables) if tables else SPEC.arrow_schema.empty_table()
    assert table.num_rows == cut.rows
    return table


def texts_of(cut: TailCut) -> list[str]:
    texts: list[str] = rows_of(cut)["body"].to_pylist()
    return texts


def at(*sequences: int, closed: Sequence[int] = ()) -> WalPosition:
    return WalPosition(
        {
            STREAMS[stream]: StreamPosition(sequence, closed=stream in closed)
            for stream, sequence in enumerate(sequences)
        }
    )


def carts(text: str) -> bytes:
    """Of which the third has a clock that went wrong, and the fourth one that is years ahead."""
    request = ExportLogsServiceRequest()
    envelope = request.resource_logs.add()
    envelope.resource.attributes.add(key="shop").value.string_value = "corner"
    now = time.time_ns()
    for number, moment in enumerate([now, now - 10**9, 1, now + 10**18, now, now]):
        record = envelope.scope_logs.add().log_records.add(time_unix_nano=moment)
        record.body.string_value = f"{text}/{number}"
        record.attributes.add(key="cart.id").value.int_value = number
    return bytes(request.SerializeToString())
