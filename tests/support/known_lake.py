"""A small lake whose rows are known, kept by tasks that run here and not on Spark."""

from __future__ import annotations

import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import zstandard
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from frazil.config import Config
from frazil.lake.catalog import ensure_namespace, open_catalog
from frazil.otlp.decode import Decoder
from frazil.pipeline.land.lander import Lander
from frazil.pipeline.land.segments import SegmentSource
from frazil.pipeline.maintain.erase.erase import erase
from frazil.pipeline.maintain.erase.report import Erasure
from frazil.pipeline.maintain.erase.request import EraseRequest
from frazil.pipeline.maintain.report import TaskReport
from frazil.pipeline.maintain.retain.retain import retain
from frazil.pipeline.maintain.retain.rules import RetentionRun
from frazil.pipeline.metrics import Metrics
from frazil.tables import Signal
from frazil.wal.names import SegmentName
from frazil.wal.reader import WalReader
from frazil.wal.segment import SegmentWriter
from frazil.wal.store import open_store
from tests.support.local_runner import LocalRunner

STREAM = "20261001T081823120-9f86d081884c7d65"
DAY = 86_400


class KnownLake:
    """One data folder. Rows are (tenant, body, severity, age in days)."""

    def __init__(self, data_dir: Path, **settings: Any) -> None:
        land = {"commit_deadline_seconds": 20, "horizon_past_seconds": "400d", **settings.pop("land", {})}
        self.config = Config.model_validate({"data_dir": data_dir, "land": land, **settings})
        self.catalog = open_catalog(self.config)
        ensure_namespace(self.catalog, self.config.lake.namespace)
        self.store = open_store(self.config)
        self.runner = LocalRunner()
        self.now = time.time()
        self.slept: list[float] = []
        self._ends: dict[str, tuple[int, int]] = {}
        self._streams = 0

    def close(self) -> None:
        self.catalog.close()

    def write(self, rows: Sequence[tuple[str, str, int, float]], *, stream: str = STREAM) -> SegmentName:
        sequence, before = self._ends.get(stream, (0, 0))
        name = SegmentName("logs", stream, sequence)
        self.store.create(name.path, self._segment(name, rows, before))
        self._ends[stream] = (sequence + 1, before + len(rows))
        return name

    def _segment(self, name: SegmentName, rows: Sequence[tuple[str, str, int, float]], before: int) -> bytes:
        nanos = int(self.now * 1e9)
        tenants = sorted({row[0] for row in rows})
        bodies = []
        for tenant in tenants:
            request = ExportLogsServiceRequest()
            for _, body, severity, days in (row for row in rows if row[0] == tenant):
                resource = request.resource_logs.add()
                service = resource.resource.attributes.add(
                    key="service.name"
                )  # which manifests have bounds of
                service.value.string_value = body.split(" ")[min(1, body.count(" "))]
                record = resource.scope_logs.add().log_records.add(
                    time_unix_nano=nanos - int(days * DAY * 1e9), severity_number=severity
                )
                record.body.string_value = body
                record.attributes.add(key="user.id").value.string_value = body.partition(" ")[0]
            bodies.append(request.SerializeToString())
        writer = SegmentWriter(1)
        writer.write(Decoder("logs").decode(bodies, tenants, [nanos] * len(bodies)).table)
        return writer.finish(name, stream_rows=before, received=(nanos, nanos))

    def land(self, signal: Signal = "logs") -> None:
        reader = WalReader(self.store)
        source = SegmentSource(self.config, signal, reader)
        lander = Lander(
            self.config,
            signal,
            self.catalog,
            source,
            self.runner,
            Metrics(),
            reader=reader,
        )
        while lander.step(now_due=True) != "idle":
            pass

    def land_requests(self, signal: Signal, requests: Sequence[tuple[str, bytes]]) -> None:
        """Lands OTLP requests of tenants in one commit, from a stream of their own."""
        self._streams += 1
        name = SegmentName(signal, f"{STREAM[:-16]}{self._streams:016x}", 0)
        nanos = int(self.now * 1e9)
        writer = SegmentWriter(1)
        tenants, bodies = [tenant for tenant, _ in requests], [body for _, body in requests]
        writer.write(Decoder(signal).decode(bodies, tenants, [nanos] * len(bodies)).table)
        self.store.create(name.path, writer.finish(name, stream_rows=0, received=(nanos, nanos)))
        self.land(signal)

    def fill(self, *batches: Sequence[tuple[str, str, int, float]]) -> None:
        """Each lands in a commit of its own."""
        for batch in batches:
            self.write(batch)
            self.land()

    def retain(self, *, dry_run: bool = False, table: str = "logs", confirmed: bool = False) -> TaskReport:
        run = RetentionRun(self.now, dry_run, confirmed)
        return retain(self.config, self.catalog, self.runner, self.table(table), run)

    def erase(
        self, where: str, tenant: str = "acme", tables: Sequence[str] = ("logs",), **options: Any
    ) -> Erasure:
        return erase(
            self.config,
            self.catalog,
            EraseRequest(tenant, where, tables, **options),
            self.runner,
            sleep=self.slept.append,
            sync=lambda: None,  # minutes, beside other tests
        )

    def table(self, name: Signal | str = "logs") -> Any:
        return self.catalog.load_table((*self.config.lake.namespace.split("."), name))

    def bodies(self, tenant: str | None = None) -> Counter[str]:
        rows = self.table().scan(selected_fields=("tenant_id", "body")).to_arrow().to_pylist()
        return Counter(row["body"] for row in rows if tenant in (None, row["tenant_id"]))

    def data_files(self) -> set[str]:
        return {task.file.file_path for task in self.table().scan().plan_files()}


ZSTD_FRAME = b"\x28\xb5\x2f\xfd"


def holding(data_dir: Path, marker: str) -> list[str]:
    """Every file below a folder that contains the text, in whatever way it is packed: in pages of Parquet,
    also of dictionaries and of files that were cut off, in blocks of Avro, or as it is.
    """
    return sorted(
        str(path.relative_to(data_dir))
        for path in data_dir.rglob("*")
        if path.is_file() and marker.encode() in unpacked(path.read_bytes())
    )


def unpacked(data: bytes) -> bytes:
    parts = [data]
    at = data.find(ZSTD_FRAME)
    while at >= 0:
        parts.append(_decompressed(data[at:]))
        at = data.find(ZSTD_FRAME, at + 1)
    if data[:4] == b"Obj\x01":
        parts += _blocks(data)
    return b"\0".join(parts)


def _decompressed(data: bytes) -> bytes:
    """As much of a frame as there is."""
    decompressor = zstandard.ZstdDecompressor().decompressobj()
    try:
        return decompressor.decompress(data)
    except zstandard.ZstdError:
        return b""


def _blocks(data: bytes) -> Iterator[bytes]:
    at = 4
    while True:
        count, at = _long(data, at)
        if count == 0:
            break
        for _ in range(2 * count):
            length, at = _long(data, at)
            at += length
    at += 16
    while at < len(data):
        _, at = _long(data, at)
        length, at = _long(data, at)
        yield zlib.decompress(data[at : at + length], -15)
        at += length + 16


def _long(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return (number >> 1) ^ -(number & 1), at
