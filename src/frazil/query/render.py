"""Results as bytes: JSON, CSV, an Arrow stream or Parquet, a batch at a time."""

from __future__ import annotations

import base64
import datetime
import io
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Protocol

import orjson
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from frazil.query.model import Format


class Renderer(Protocol):
    def begin(self) -> bytes: ...

    def batch(self, batch: pa.RecordBatch) -> bytes: ...

    def end(self) -> bytes: ...


def renderer(format_: Format, schema: pa.Schema, types: Sequence[str]) -> Renderer:
    """`types` are DuckDB's names of the columns' types."""
    if format_ == "json":
        return _Json(schema, types)
    if format_ == "csv":
        return _Csv(schema)
    if format_ == "parquet":
        return _Parquet(schema)
    return _Arrow(schema)


class _Json:
    """`{"columns": …, "rows": …` without its end: who knows what it cost adds that."""

    def __init__(self, schema: pa.Schema, types: Sequence[str]) -> None:
        self._columns = [
            {"name": name, "type": type_} for name, type_ in zip(schema.names, types, strict=True)
        ]
        self._converters = [_converter(field.type) for field in schema]
        self._first = True

    def begin(self) -> bytes:
        return b'{"columns":' + orjson.dumps(self._columns) + b',"rows":['

    def batch(self, batch: pa.RecordBatch) -> bytes:
        columns = [
            values.to_pylist()
            if convert is None
            else [None if v is None else convert(v) for v in values.to_pylist()]
            for values, convert in zip(batch.columns, self._converters, strict=True)
        ]
        text = orjson.dumps(list(zip(*columns, strict=True)))[1:-1] if columns and batch.num_rows else b""
        if not text:
            return b""
        separator = b"" if self._first else b","
        self._first = False
        return separator + text

    def end(self) -> bytes:
        return b"]"


def _converter(type_: pa.DataType) -> Callable[[Any], Any] | None:
    """From Arrow's Python values to what JSON can say; None where they are the same."""
    if pa.types.is_timestamp(type_):
        return _timestamp if type_.tz else lambda value: value.isoformat()
    if pa.types.is_decimal(type_):
        return _decimal
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        return lambda value: base64.b64encode(value).decode()
    if pa.types.is_map(type_):
        key, item = _converter(type_.key_type), _converter(type_.item_type)
        return lambda value: {_key(_with(key, k)): _with(item, v) for k, v in value}
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        element = _converter(type_.value_type)
        return None if element is None else lambda value: [_with(element, each) for each in value]
    if pa.types.is_struct(type_):
        fields = {field.name: _converter(field.type) for field in type_}
        if not any(fields.values()):
            return None
        return lambda value: {name: _with(fields.get(name), each) for name, each in value.items()}
    if pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_boolean(type_):
        return None
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return None
    return str


def _with(convert: Callable[[Any], Any] | None, value: Any) -> Any:
    return value if value is None or convert is None else convert(value)


def _key(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


def _timestamp(value: datetime.datetime) -> str:
    return value.astimezone(datetime.UTC).isoformat().replace("+00:00", "Z")


def _decimal(value: Decimal) -> int | float:
    """Sums of integers are decimals without a fraction. What JSON's readers take is 64 bits."""
    if value == value.to_integral_value() and abs(value) < 2**63:
        return int(value)
    return float(value)


class _Csv:
    """Lists and maps become JSON texts: CSV has no other way to say them."""

    def __init__(self, schema: pa.Schema) -> None:
        fields = [field.with_type(pa.string()) if _needs_text(field.type) else field for field in schema]
        self._schema = pa.schema([field.remove_metadata() for field in fields])
        self._converters = [
            _converter(field.type) or _same if _needs_text(field.type) else None for field in schema
        ]

    def begin(self) -> bytes:
        sink = io.BytesIO()
        pa.csv.write_csv(self._schema.empty_table(), sink)
        return sink.getvalue()

    def batch(self, batch: pa.RecordBatch) -> bytes:
        columns = [
            values if convert is None else _texts(values, convert)
            for values, convert in zip(batch.columns, self._converters, strict=True)
        ]
        sink = io.BytesIO()
        pa.csv.write_csv(
            pa.record_batch(columns, schema=self._schema),
            sink,
            pa.csv.WriteOptions(include_header=False),
        )
        return sink.getvalue()

    def end(self) -> bytes:
        return b""


def _needs_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_nested(type_) or pa.types.is_timestamp(type_) or pa.types.is_binary(type_))


def _same(value: Any) -> Any:
    return value


def _texts(values: pa.Array, convert: Callable[[Any], Any]) -> pa.Array:
    found = [None if value is None else convert(value) for value in values.to_pylist()]
    return pa.array(
        [
            None if value is None else value if isinstance(value, str) else orjson.dumps(value).decode()
            for value in found
        ],
        pa.string(),
    )


class _Taken(io.RawIOBase):
    """A file that only grows, and gives away what it has."""

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
        taken, self._parts = b"".join(self._parts), []
        return taken


class _Arrow:
    def __init__(self, schema: pa.Schema) -> None:
        self._file = _Taken()
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
    """A row group for about a hundred thousand rows."""

    _ROWS = 122_880

    def __init__(self, schema: pa.Schema) -> None:
        self._file = _Taken()
        self._schema = schema
        self._writer = pq.ParquetWriter(pa.PythonFile(self._file, mode="w"), schema, compression="zstd")
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0

    def begin(self) -> bytes:
        return self._file.take()

    def batch(self, batch: pa.RecordBatch) -> bytes:
        self._waiting.append(batch)
        self._rows += batch.num_rows
        if self._rows >= self._ROWS:
            self._flush()
        return self._file.take()

    def _flush(self) -> None:
        self._writer.write_table(pa.Table.from_batches(self._waiting, self._schema))
        self._waiting, self._rows = [], 0

    def end(self) -> bytes:
        if self._waiting:
            self._flush()
        self._writer.close()
        return self._file.take()
