"""The format of a WAL segment: a Parquet file in the table's schema, with facts and a checksum in its footer.

Any Parquet reader can read it. The checksum covers every byte of the file, with its own digits as zeros.
"""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from frazil.errors import SegmentCorrupt, SegmentUnknown
from frazil.tables import Column, TableSpec, table_spec
from frazil.tables.encoding import leaves, with_dictionary
from frazil.wal.names import SegmentName

FORMAT = "1"
_TOMBSTONE_KEY = "frazil.tombstone"
_FILL_KEY = "frazil.promoted"
_CHECKSUM_KEY = b"frazil.checksum"
_CHECKSUM_MARK = b"xxh3:"
_CHECKSUM_ZERO = b"0" * 16


@dataclass(frozen=True)
class Facts:
    """The metadata in a segment's footer. `stream_rows` counts the stream's rows including this segment."""

    name: SegmentName
    rows: int
    stream_rows: int
    received_min_unix_nano: int
    received_max_unix_nano: int
    nonce: str
    tombstone: bool = False
    """The segment ends its stream. A tombstone has no rows and no receive times."""
    fill: str = ""
    """Fingerprint of the rule that filled the promoted columns; empty in segments of older versions."""


class SegmentWriter:
    """Collects tables as compressed row groups; `finish` returns the file's bytes."""

    def __init__(self, compression_level: int, fill: str = "") -> None:
        self._fill = fill
        self._sink = pa.BufferOutputStream()
        self._level = compression_level
        self._writer: pq.ParquetWriter | None = None
        self.rows = 0

    def write(self, table: pa.Table) -> None:
        if table.num_rows == 0:
            return
        if self._writer is None:
            compression = _compression(table)
            self._writer = pq.ParquetWriter(
                self._sink,
                table.schema,
                compression=compression,
                compression_level={
                    path: self._level for path, codec in compression.items() if codec == "zstd"
                },
                use_dictionary=with_dictionary(table.schema),
                write_statistics=["time", "tenant_id"],
                store_schema=False,  # readers get the table's plain types, not dictionaries
            )
        self._writer.write_table(table, row_group_size=table.num_rows)
        self.rows += table.num_rows

    def finish(self, name: SegmentName, *, stream_rows: int, received: tuple[int, int]) -> bytes:
        """Returns the file. `stream_rows` counts the rows of the stream's earlier segments."""
        if self._writer is None:
            raise ValueError("a segment needs at least one row")
        facts = Facts(
            name, self.rows, stream_rows + self.rows, *received, secrets.token_hex(16), fill=self._fill
        )
        return _sealed(self._writer, self._sink, facts)


def tombstone(name: SegmentName, stream_rows: int, spec: TableSpec | None = None) -> bytes:
    """Returns a segment without rows that ends the stream after `stream_rows` rows.

    It has the columns of `spec`, so that a query over all files of a folder can include it.
    """
    sink = pa.BufferOutputStream()
    writer = pq.ParquetWriter(sink, (spec or table_spec(name.signal)).arrow_schema, store_schema=False)
    return _sealed(writer, sink, Facts(name, 0, stream_rows, 0, 0, secrets.token_hex(16), tombstone=True))


def _sealed(writer: pq.ParquetWriter, sink: pa.BufferOutputStream, facts: Facts) -> bytes:
    """Writes the footer with the metadata and the checksum, and returns the file."""
    name = facts.name
    writer.add_key_value_metadata(
        {
            "frazil.format": FORMAT,
            "frazil.signal": name.signal,
            "frazil.stream": name.stream,
            "frazil.sequence": str(name.sequence),
            "frazil.rows": str(facts.rows),
            "frazil.stream_rows": str(facts.stream_rows),
            "frazil.received_min_unix_nano": str(facts.received_min_unix_nano),
            "frazil.received_max_unix_nano": str(facts.received_max_unix_nano),
            "frazil.nonce": facts.nonce,
            **({_TOMBSTONE_KEY: "1"} if facts.tombstone else {}),
            **({_FILL_KEY: facts.fill} if facts.fill else {}),
            _CHECKSUM_KEY.decode(): (_CHECKSUM_MARK + _CHECKSUM_ZERO).decode(),
        }
    )
    writer.close()
    data = bytearray(sink.getvalue())
    at = _checksum_at(data)
    data[at : at + 16] = xxhash.xxh3_64_hexdigest(data).encode()
    return bytes(data)


def _compression(table: pa.Table) -> dict[str, str]:
    """Returns the codec of each leaf column. Measured: zstd costs at least 20 µs per column, so columns that
    are empty or dictionary-encoded stay uncompressed.
    """
    tiny = {
        name
        for name, column in zip(table.column_names, table.columns, strict=True)
        if pa.types.is_dictionary(column.type) or column.null_count == len(column)
    }
    return {path: "none" if path.partition(".")[0] in tiny else "zstd" for path, _ in leaves(table.schema)}


def _checksum_at(data: bytes | bytearray) -> int:
    """Returns the offset of the checksum's digits, or -1."""
    key = data.rfind(_CHECKSUM_KEY)
    mark = data.find(_CHECKSUM_MARK, key) if key >= 0 else -1
    return mark + len(_CHECKSUM_MARK) if mark >= 0 else -1


def read_facts(name: SegmentName, data: bytes) -> Facts:
    """Verifies the whole file and returns its metadata. Raises SegmentCorrupt or SegmentUnknown."""
    return open_segment(name, data)[0]


def open_segment(name: SegmentName, data: bytes) -> tuple[Facts, pq.ParquetFile]:
    """Returns the facts like `read_facts`, and the open file: parsing the footer again would be expensive."""
    path = name.path
    if len(data) < 12 or data[:4] != b"PAR1" or data[-4:] != b"PAR1":
        raise SegmentCorrupt(path, f"not a complete Parquet file ({len(data)} bytes)")
    at = _checksum_at(data)
    if at < 0:
        raise SegmentCorrupt(path, "no checksum in the footer")
    digest = xxhash.xxh3_64(memoryview(data)[:at])
    digest.update(_CHECKSUM_ZERO)
    digest.update(memoryview(data)[at + 16 :])
    if digest.hexdigest().encode() != data[at : at + 16]:
        raise SegmentCorrupt(path, "the checksum does not match")
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
    except MemoryError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: names that are not UTF-8
        raise SegmentCorrupt(path, str(error)) from None
    try:
        found = {key.decode(): value.decode() for key, value in (file.metadata.metadata or {}).items()}
        return _facts(name, found), file
    except (KeyError, ValueError) as error:
        raise SegmentCorrupt(path, f"the footer has no valid segment metadata: {error!r}") from None


def _facts(name: SegmentName, facts: dict[str, str]) -> Facts:
    path = name.path
    if (version := facts.get("frazil.format", "none")) != FORMAT:
        raise SegmentUnknown(path, version)
    found = SegmentName.parse(
        f"{facts['frazil.signal']}/{facts['frazil.stream']}/{int(facts['frazil.sequence']):020d}.parquet"
    )
    if found != name:
        raise SegmentCorrupt(path, f"the footer names {found.path if found else 'an invalid segment'}")
    return Facts(
        name,
        int(facts["frazil.rows"]),
        int(facts["frazil.stream_rows"]),
        int(facts["frazil.received_min_unix_nano"]),
        int(facts["frazil.received_max_unix_nano"]),
        facts["frazil.nonce"],
        tombstone=facts.get(_TOMBSTONE_KEY) == "1",
        fill=facts.get(_FILL_KEY, ""),
    )


def read_rows(name: SegmentName, data: bytes, spec: TableSpec) -> tuple[Facts, pa.Table]:
    """Reads the rows in the spec's schema. Columns that the file lacks are NULL."""
    facts, file = open_segment(name, data)
    try:
        table = file.read()
    except MemoryError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise SegmentCorrupt(name.path, str(error)) from None
    if table.num_rows != facts.rows:
        raise SegmentCorrupt(name.path, f"{table.num_rows} rows, but the footer says {facts.rows}")
    columns = [_cast(table, column) for column in spec.columns]
    return facts, pa.table(columns, schema=spec.arrow_schema)


def _cast(table: pa.Table, column: Column) -> pa.ChunkedArray:
    """Returns NULLs if the file lacks the column, or has it with another type (older configuration)."""
    if column.name in table.column_names:
        with contextlib.suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return table.column(column.name).cast(column.type)
    return pa.chunked_array([pa.nulls(table.num_rows, column.type)])
