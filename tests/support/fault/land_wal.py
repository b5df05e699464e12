"""A write-ahead log whose every row is known, and the whole content of the table that it should become."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from pyiceberg.exceptions import NoSuchTableError

from frazil.config import Config
from frazil.lake.catalog import open_catalog
from frazil.ledger import balance
from frazil.otlp.decode import Decoder
from frazil.storage.local import LocalStore
from frazil.wal.names import SegmentName
from frazil.wal.segment import SegmentWriter, tombstone
from tests.support.fault.records import logs_request

STREAMS = tuple(f"20261115T08182312{number}-9f86d081884c7d65" for number in range(3))
ROWS = 3
Content = Counter[tuple[str, str]]
_DECODER = Decoder("logs")


def config_of(data_dir: Path) -> Config:
    return Config.model_validate({"data_dir": data_dir})


def segment_bytes(name: SegmentName, rows: int = ROWS) -> bytes:
    """Rows of two tenants; each row's body says where it is from."""
    writer = SegmentWriter(1)
    bodies = [
        logs_request(f"{name.stream}/{name.sequence}/{number}" for number in range(rows) if number % 2 == odd)
        for odd in range(2)
    ]
    now = time.time_ns()
    writer.write(_DECODER.decode(bodies, ["acme", "globex"], [now, now]).table)
    return writer.finish(name, stream_rows=name.sequence * rows, received=(now, now))


def write_segments(data_dir: Path, stream: str, sequences: Iterable[int]) -> Content:
    """What the table holds when these have landed."""
    store = LocalStore(config_of(data_dir).wal_dir)
    content: Content = Counter()
    for sequence in sequences:
        name = SegmentName("logs", stream, sequence)
        store.create(name.path, segment_bytes(name))
        content += expected(stream, sequence)
    return content


def expected(stream: str, sequence: int) -> Content:
    source = f"{stream}/{sequence}"
    return Counter({(f"{source}/{number}", source): 1 for number in range(ROWS)})


def write_tombstone(data_dir: Path, stream: str, sequence: int) -> None:
    name = SegmentName("logs", stream, sequence)
    LocalStore(config_of(data_dir).wal_dir).create(name.path, tombstone(name, sequence * ROWS))


def damage(data_dir: Path, stream: str, sequence: int) -> None:
    path = config_of(data_dir).wal_dir / SegmentName("logs", stream, sequence).path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def table_content(data_dir: Path) -> Content:
    """Every row of the table, as PyIceberg reads it."""
    with contextlib.closing(open_catalog(config_of(data_dir))) as catalog:
        try:
            table = catalog.load_table("otel.logs")
        except NoSuchTableError:
            return Counter()
        rows = table.scan(selected_fields=("body", "_segment")).to_arrow()
    return Counter(zip(rows["body"].to_pylist(), rows["_segment"].to_pylist(), strict=True))


def set_aside_sources(data_dir: Path) -> list[str]:
    with contextlib.closing(open_catalog(config_of(data_dir))) as catalog:
        rows = catalog.load_table("otel.set_aside").scan(selected_fields=("source", "location")).to_arrow()
    return sorted(rows["source"].to_pylist())


def assert_landed(data_dir: Path, content: Content) -> None:
    """Every row once, and the ledger agrees."""
    found = table_content(data_dir)
    assert found - content == Counter(), "rows that should not be there, or are there twice"
    assert content - found == Counter(), "rows that are missing"
    assert balance(config_of(data_dir)).problems == []
