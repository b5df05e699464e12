"""Derives the Iceberg schema, partitions, sort order and properties of a table from its spec."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import DayTransform, IdentityTransform, Transform
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from frazil.lake.pyiceberg_compat import schema_of
from frazil.tables.columns import TableSpec
from frazil.tables.derived.view import VIEW
from frazil.tables.promoted import Fill

_PARTITION_FIELD_ID_FIRST = 1000
_METADATA_VERSIONS_KEPT = 10
_FIELD_ID = b"PARQUET:field_id"
_PARTIAL = "Rows are partial: merge rows of one key with GROUP BY."


def iceberg_schema(spec: TableSpec) -> Schema:
    """Returns the schema with new field ids."""
    return schema_of(
        pa.schema(
            column.field.with_metadata({"doc": f"{column.doc}. From: {column.source}"})
            for column in spec.columns
        )
    )


def partition_spec(spec: TableSpec, schema: Schema) -> PartitionSpec:
    """Returns `tenant_id` and `day(time)` as Iceberg transforms."""
    fields = []
    for number, part in enumerate(spec.partition_by):
        transform: Transform[Any, Any] = IdentityTransform()
        name = column = part
        if part.startswith("day("):
            column = part[len("day(") : -1]
            name, transform = f"{column}_day", DayTransform()
        fields.append(
            PartitionField(
                source_id=schema.find_field(column).field_id,
                field_id=_PARTITION_FIELD_ID_FIRST + number,
                transform=transform,
                name=name,
            )
        )
    return PartitionSpec(*fields, spec_id=0)


def sort_order(spec: TableSpec, schema: Schema) -> SortOrder:
    return SortOrder(
        *(
            SortField(
                source_id=schema.find_field(name).field_id,
                transform=IdentityTransform(),
                direction=SortDirection.ASC,
                null_order=NullOrder.NULLS_FIRST,
            )
            for name in spec.sort_by
        ),
        order_id=1,
    )


def properties(spec: TableSpec) -> dict[str, str]:
    """Returns the table properties that writers of any engine should follow."""
    found = {
        "comment": spec.doc if spec.derived is None else f"{spec.doc} {_PARTIAL}",
        "format-version": "2",
        "write.format.default": "parquet",
        "write.parquet.compression-codec": "zstd",
        "write.metadata.delete-after-commit.enabled": "true",
        "write.metadata.previous-versions-max": str(_METADATA_VERSIONS_KEPT),
        # Copy-on-write, so that no reader has to apply delete files.
        "write.delete.mode": "copy-on-write",
        "write.update.mode": "copy-on-write",
        "write.merge.mode": "copy-on-write",
        # Bounds of columns that no query filters by only make manifests larger.
        "write.metadata.metrics.default": "none",
    }
    for column in spec.columns:
        if column.tier == "hot" and not pa.types.is_nested(column.type) and column.name != "body":
            found[f"write.metadata.metrics.column.{column.name}"] = "truncate(32)"
    for name in spec.bloom_filters:
        found[f"write.parquet.bloom-filter-enabled.column.{name}"] = "true"
    if spec.derived is not None and spec.derived.view is not None:
        found[VIEW] = spec.derived.view.to_text()
    return found | (Fill.of(spec.promoted).properties if spec.promoted else {})


def parquet_schema(coded: pa.Schema, schema: Schema) -> pa.Schema:
    """Returns the Arrow schema of data files: types of `coded`; names, ids and NOT NULLs of `schema`."""
    return pa.schema([_parquet_field(field, schema.find_field(field.name)) for field in coded])


def _parquet_field(field: pa.Field, iceberg: NestedField) -> pa.Field:
    return _with_id(field.name, _parquet_type(field.type, iceberg.field_type), iceberg)


def _with_id(name: str, type_: pa.DataType, iceberg: NestedField) -> pa.Field:
    metadata = {_FIELD_ID: str(iceberg.field_id).encode()}
    return pa.field(name, type_, nullable=not iceberg.required, metadata=metadata)


def _parquet_type(type_: pa.DataType, iceberg: IcebergType) -> pa.DataType:
    if isinstance(iceberg, MapType):
        key, value = iceberg.key_field, iceberg.value_field
        return pa.map_(
            _with_id("key", _parquet_type(type_.key_type, key.field_type), key),
            _with_id("value", _parquet_type(type_.item_type, value.field_type), value),
        )
    if isinstance(iceberg, ListType):
        element = iceberg.element_field
        return pa.list_(_with_id("element", _parquet_type(type_.value_type, element.field_type), element))
    if isinstance(iceberg, StructType):
        return pa.struct([_parquet_field(type_.field(inner.name), inner) for inner in iceberg.fields])
    return type_
