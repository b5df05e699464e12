"""Writes sorted rows as durable Parquet data files, with the statistics that Iceberg uses to skip files."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    DataFileStatistics,
    StatisticsCollector,
    StatsAggregator,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from pyiceberg.types import NestedField

from frazil.lake.files import LakeFileIO
from frazil.lake.schema import parquet_schema
from frazil.pipeline.partition_sort import Part
from frazil.tables import SEGMENT, Fill, TableSpec
from frazil.tables.encoding import leaves, with_dictionary
from frazil.tables.promoted import file_suffix, fingerprint_of
from frazil.times import day_text
from frazil.wal.rowgroups import coded_table, fill_columns

_BLOOM_FALSE_POSITIVES = 0.01
_RANDOM = frozenset({"trace_id", "span_id", "parent_span_id"})
_UNSORTED = 0
_PAGE_BYTES = 128 * 2**10
"""Measured: files are no larger than with pages of 1 MiB. A merge holds one page per column and input file.
"""


@dataclass(frozen=True)
class Layout:
    """The facts about a table that a worker needs to write its data files."""

    spec: TableSpec
    coded: pa.Schema
    """The Arrow schema of the rows to write, with dictionary-encoded columns."""
    location: str
    schema: Schema
    properties: dict[str, str]
    io_properties: dict[str, str]
    spec_id: int
    sort_order_id: int
    compression_level: int
    changed_ms: int
    """Time of the table's last change, since 1970."""
    batch: str = field(default_factory=lambda: uuid.uuid4().hex)

    @classmethod
    def of(cls, table: Table, spec: TableSpec, compression_level: int, *, rewriting: bool = False) -> Layout:
        """Returns the layout of new files. With `rewriting`, it has all columns of the table: rewritten files
        keep columns that other engines added, and columns that are no longer promoted.
        """
        coded = list(spec.write_schema)
        if rewriting:
            coded += [_as_arrow(field) for field in table.schema().fields if not spec.has(field.name)]
        return cls(
            spec,
            pa.schema(coded),
            table.location(),
            table.schema(),
            dict(table.properties),
            dict(table.io.properties),
            table.metadata.default_spec_id,
            table.metadata.default_sort_order_id,
            compression_level,
            table.metadata.last_updated_ms,
        )

    @cached_property
    def fill(self) -> Fill:
        """How promoted columns are filled now, and how they were filled in the table's files."""
        return Fill.of(self.spec.promoted, self.properties)

    @cached_property
    def parquet(self) -> pa.Schema:
        return parquet_schema(self.coded, self.schema)

    @cached_property
    def io(self) -> LakeFileIO:
        return LakeFileIO(self.io_properties)

    @cached_property
    def statistics_plan(self) -> tuple[dict[int, StatisticsCollector], dict[str, int]]:
        return compute_statistics_plan(self.schema, self.properties), parquet_path_to_id_mapping(self.schema)

    @cached_property
    def columns_with_statistics(self) -> list[str]:
        """The columns that the table's properties name."""
        prefix = "write.metadata.metrics.column."
        return [name for name in self.coded.names if prefix + name in self.properties]

    @cached_property
    def delta_encoded(self) -> list[str]:
        """Columns with DELTA_BINARY_PACKED, which makes exact times small. Only cold columns: an engine that
        does not support the encoding can still read the columns that are queried often.
        """
        cold = {column.name for column in self.spec.columns if column.tier == "cold"}
        return [
            field.name
            for field in self.coded
            if field.name in cold and (pa.types.is_int64(field.type) or pa.types.is_timestamp(field.type))
        ]

    @cached_property
    def compression_levels(self) -> dict[str, int]:
        """By leaf column. Measured: higher levels make random ids slower to write, but not smaller."""
        return {leaf: 1 if leaf in _RANDOM else self.compression_level for leaf, _ in leaves(self.coded)}

    @cached_property
    def dictionaries(self) -> list[str]:
        return with_dictionary(self.coded)

    def filled(self, table: pa.Table, fingerprint: str) -> pa.Table:
        """Returns the table with all columns of the layout except `_segment`. Missing columns are filled from
        the attribute maps, else with NULL. `fingerprint` identifies how existing promoted columns were
        filled.
        """
        schema = pa.schema([field for field in self.coded if field.name != SEGMENT.name])
        return fill_columns(table, schema, self.fill.promoted, self.fill.unfilled(fingerprint))

    def is_unfilled(self, file: DataFile) -> bool:
        """Returns whether some promoted column of the file has its values only in the attribute map."""
        if self.fill.unfilled(fingerprint_of(file.file_path)):
            return True
        columns = {*(file.value_counts or ()), *(file.column_sizes or ())}
        promoted = {field.field_id for field in self.schema.fields if field.name in self.fill.promoted}
        return bool(columns) and not promoted <= columns

    def path(self, tenant: str | None, day: int | None, name: str) -> str:
        """Returns the path of a data file. Its suffix identifies how the promoted columns are filled."""
        name += file_suffix(self.fill.fingerprint if self.spec.promoted else "")
        folders = partition_folders(tenant, day)[: len(self.spec.partition_by)]
        return "/".join([f"{self.location}/data", *folders, name])


def partition_folders(tenant: str | None, day: int | None) -> list[str]:
    """Returns the folders of a partition, named as in Hive. `day` counts from 1970. Rows without a tenant are
    in `no_tenant`, which no tenant's name can collide with.
    """
    owner = "no_tenant" if tenant is None else f"tenant_id={quote(tenant, safe='')}"
    return [owner] if day is None else [owner, f"time_day={day_text(day)}"]


def _as_arrow(field: NestedField) -> pa.Field:
    type_ = schema_to_pyarrow(Schema(field)).field(0).type
    return pa.field(field.name, pa.string() if pa.types.is_large_string(type_) else type_)


def file_name(layout: Layout) -> str:
    """Returns a name that is unique for each attempt of each task."""
    return f"{layout.batch}-{uuid.uuid4().hex[:12]}"


def write_part(layout: Layout, part: Part, name: str) -> DataFile:
    """Writes one data file. The file is durable when the function returns."""
    sink = pa.BufferOutputStream()
    writer = RowGroupWriter(layout, sink, part.rows.num_rows)
    writer.write(part.rows)
    metadata = writer.close()
    data = sink.getvalue()
    path = layout.path(part.tenant, part.day, name)
    layout.io.write(path, data)
    return data_file(layout, path, part.tenant, part.day, data.size, metadata)


class RowGroupWriter:
    """Writes Parquet, one row group at a time."""

    def __init__(self, layout: Layout, sink: pa.NativeFile, rows_per_group: int) -> None:
        """`rows_per_group` is the largest size of a row group. It sets the size of the Bloom filters."""
        self._schema, self._coded = layout.parquet, layout.coded
        self._writer = pq.ParquetWriter(
            sink,
            layout.parquet,
            compression=dict.fromkeys(layout.compression_levels, "zstd"),
            compression_level=layout.compression_levels,
            use_dictionary=layout.dictionaries,
            column_encoding=dict.fromkeys(layout.delta_encoded, "DELTA_BINARY_PACKED"),
            write_statistics=layout.columns_with_statistics,
            write_page_index=True,
            data_page_size=_PAGE_BYTES,
            bloom_filter_options={
                column: {"ndv": max(1, rows_per_group), "fpp": _BLOOM_FALSE_POSITIVES}
                for column in layout.spec.bloom_filters
            },
            store_schema=False,
        )

    def write(self, rows: pa.Table) -> None:
        """Writes one row group. The rows have the types of the layout or of its spec."""
        columns = coded_table(rows, self._coded).columns
        self._writer.write_table(
            pa.Table.from_arrays(columns, schema=self._schema), row_group_size=max(1, rows.num_rows)
        )

    def close(self) -> pq.FileMetaData:
        self._writer.close()
        return self._writer.writer.metadata

    def abandon(self) -> None:
        """Prevents the footer: ParquetWriter would write it to a closed sink when it is garbage-collected."""
        self._writer.is_open = False


class DataFileWriter:
    """Writes a data file row group by row group, in bounded memory. The file gets its name and is durable
    after `finish`. A `with` block that ends without `finish` leaves no file.
    """

    def __init__(
        self, layout: Layout, tenant: str | None, day: int | None, name: str, rows_per_group: int
    ) -> None:
        self._layout = layout
        self._partition = (tenant, day)
        self._path = layout.path(tenant, day, name)
        self._temporary = layout.io.temporary(self._path)
        self._sink = pa.OSFile(str(self._temporary), "wb")
        self._writer = RowGroupWriter(layout, self._sink, rows_per_group)
        self.rows = 0
        self.row_groups = 0

    @property
    def bytes(self) -> int:
        """The bytes written so far."""
        return int(self._sink.tell())

    def write(self, rows: pa.Table) -> None:
        self._writer.write(rows)
        self.rows += rows.num_rows
        self.row_groups += 1

    def finish(self, *, is_sorted: bool = True) -> DataFile:
        """Publishes the file. `is_sorted`: the whole file is in the table's sort order."""
        metadata = self._writer.close()
        size = self._sink.tell()
        self._sink.close()
        self._layout.io.publish(self._path, self._temporary)
        return data_file(self._layout, self._path, *self._partition, size, metadata, is_sorted=is_sorted)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.abandon()
        self._sink.close()
        self._temporary.unlink(missing_ok=True)


def data_file(
    layout: Layout,
    path: str,
    tenant: str | None,
    day: int | None,
    size: int,
    metadata: pq.FileMetaData,
    *,
    is_sorted: bool = True,
) -> DataFile:
    """Returns the manifest's description of a written file."""
    plan, ids = layout.statistics_plan
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=metadata, stats_columns=plan, parquet_column_mapping=ids
    )
    unknown = _without_bounds(metadata, ids)
    bounds = {key: each for key, each in statistics.column_aggregates.items() if key not in unknown}
    statistics = replace(statistics, column_aggregates=bounds)
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(*layout.spec.partition(tenant, day)),
        file_size_in_bytes=size,
        sort_order_id=layout.sort_order_id if is_sorted else _UNSORTED,
        spec_id=layout.spec_id,
        equality_ids=None,
        key_metadata=None,
        **_facts(statistics),
    )
    file.spec_id = layout.spec_id
    return file


def _without_bounds(metadata: pq.FileMetaData, ids: dict[str, int]) -> set[int]:
    """Returns the text columns for which some row group has no bounds: Parquet omits bounds of texts over 4
    KiB. PyIceberg would use the bounds of the other row groups for the whole file. Numeric columns have no
    bounds only if all values are NaN, which bounds do not include.
    """
    unknown = set()
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for position in range(metadata.num_columns):
            column = group.column(position)
            if column.physical_type != "BYTE_ARRAY" or not column.is_stats_set:
                continue
            found = column.statistics
            if not found.has_min_max and not (found.has_null_count and found.null_count == column.num_values):
                unknown.add(ids[column.path_in_schema])
    return unknown


def _facts(statistics: DataFileStatistics) -> dict[str, Any]:
    """Serializes the statistics. PyIceberg increments the last character of a truncated upper bound, and
    fails if the result is a surrogate: such a column gets no upper bound.
    """
    try:
        return statistics.to_serialized_dict()
    except UnicodeEncodeError:
        valid = {key: _valid_bounds(aggregate) for key, aggregate in statistics.column_aggregates.items()}
        return replace(statistics, column_aggregates=valid).to_serialized_dict()


def _valid_bounds(aggregate: StatsAggregator) -> StatsAggregator:
    try:
        aggregate.max_as_bytes()
    except UnicodeEncodeError:
        aggregate.current_max = None
    return aggregate
