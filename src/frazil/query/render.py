"""Renders results as JSON, CSV, an Arrow stream or Parquet, one batch at a time."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import orjson
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from frazil.query.model import Format, Stats
from frazil.query.values import plain_values, texts


class Renderer(Protocol):
    def begin(self) -> bytes: ...

    def batch(self, batch: pa.RecordBatch) -> bytes: ...

    def end(self) -> bytes: ...


def renderer(format_: Format, schema: pa.Schema, types: Sequence[str]) -> Renderer:
    """Return the renderer of a format. `types` are DuckDB's names of the column types."""
    if format_ == "json":
        return _Json(schema, types)
    if format_ == "csv":
        return _Csv(schema)
    if format_ == "parquet":
        return _Parquet(schema)
    return _Arrow(schema)


def json_end(stats: Stats) -> bytes:
    """Render the end of a JSON result. The statistics are known only after the rows are rendered."""
    return b',"stats":' + orjson.dumps(stats) + b"}"


class _Json:
    """Renders `{"columns": …, "rows": …`; `json_end` renders the rest."""

    def __init__(self, schema: pa.Schema, types: Sequence[str]) -> None:
        self._columns = [
            {"name": name, "type": type_} for name, type_ in zip(schema.names, types, strict=True)
        ]
        self._first = True

    def begin(self) -> bytes:
        return b'{"columns":' + orjson.dumps(self._columns) + b',"rows":['

    def batch(self, batch: pa.RecordBatch) -> bytes:
        columns = [plain_values(values) for values in batch.columns]
        text = orjson.dumps(list(zip(*columns, strict=True)))[1:-1] if columns and batch.num_rows else b""
        if not text:
            return b""
        separator = b"" if self._first else b","
        self._first = False
        return separator + text

    def end(self) -> bytes:
        return b"]"


class _Csv:
    """Renders lists and maps as JSON text, because CSV has no form for them."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = _with_texts(schema, _is_text_in_csv)

    def begin(self) -> bytes:
        sink = io.BytesIO()
        pa.csv.write_csv(self._schema.empty_table(), sink)
        return sink.getvalue()

    def batch(self, batch: pa.RecordBatch) -> bytes:
        sink = io.BytesIO()
        pa.csv.write_csv(
            _as_texts(batch, self._schema),
            sink,
            pa.csv.WriteOptions(include_header=False),
        )
        return sink.getvalue()

    def end(self) -> bytes:
        return b""


def _is_text_in_csv(type_: pa.DataType) -> bool:
    plain = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_string)
    return not any(is_plain(type_) for is_plain in plain)


def _is_text_in_parquet(type_: pa.DataType) -> bool:
    """Return whether the type is or contains a union or an interval, which Parquet does not have."""
    if pa.types.is_union(type_) or pa.types.is_interval(type_):
        return True
    if not pa.types.is_nested(type_):
        return False
    return any(_is_text_in_parquet(type_.field(at).type) for at in range(type_.num_fields))


def _with_texts(schema: pa.Schema, is_text: Callable[[pa.DataType], bool]) -> pa.Schema:
    return pa.schema(
        [
            field.with_type(pa.string()).remove_metadata() if is_text(field.type) else field
            for field in schema.remove_metadata()
        ]
    )


def _as_texts(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        values if values.type == field.type else texts(values)
        for values, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.record_batch(columns, schema=schema)


class _OutputBuffer(io.RawIOBase):
    """A write-only file whose content is taken out piece by piece."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []
        self._position = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        part = bytes(data)
        self._parts.append(part)
        self._position += len(part)
        return len(part)

    def tell(self) -> int:
        return self._position

    def take(self) -> bytes:
        data, self._parts = b"".join(self._parts), []
        return data


class _Arrow:
    def __init__(self, schema: pa.Schema) -> None:
        self._file = _OutputBuffer()
        self._writer = pa.ipc.new_stream(pa.PythonFile(self._file, mode="w"), schema)

    def begin(self) -> bytes:
        return self._file.take()

    def batch(self, batch: pa.RecordBatch) -> bytes:
        self._writer.write_batch(batch)
        return self._file.take()

    def end(self) -> bytes:
        self._writer.close()
        return self._file.take()


class _Parquet:
    """Writes a row group for every 122,880 rows or 64 MiB."""

    _ROWS = 122_880
    _BYTES = 64 << 20

    def __init__(self, schema: pa.Schema) -> None:
        self._file = _OutputBuffer()
        self._schema = _with_texts(schema, _is_text_in_parquet)
        self._writer = pq.ParquetWriter(pa.PythonFile(self._file, mode="w"), self._schema, compression="zstd")
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def begin(self) -> bytes:
        return self._file.take()

    def batch(self, batch: pa.RecordBatch) -> bytes:
        self._waiting.append(_as_texts(batch, self._schema))
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= self._ROWS or self._bytes >= self._BYTES:
            self._flush()
        return self._file.take()

    def _flush(self) -> None:
        self._writer.write_table(pa.Table.from_batches(self._waiting, self._schema))
        self._waiting, self._rows, self._bytes = [], 0, 0

    def end(self) -> bytes:
        if self._waiting:
            self._flush()
        self._writer.close()
        return self._file.take()
