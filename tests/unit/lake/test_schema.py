"""Iceberg's view of a table is derived from its spec, with ids that agree between catalog and files."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.schema import Schema

from frazil.lake.schema import iceberg_schema, parquet_schema, partition_spec, properties, sort_order
from frazil.otlp.decode import Decoder
from frazil.tables import SET_ASIDE, SIGNALS, Signal, landed_spec, table_spec


def ids_of(schema: pa.Schema) -> list[bytes]:
    def below(field: pa.Field) -> list[bytes]:
        own = [field.metadata[b"PARQUET:field_id"]]
        if pa.types.is_map(field.type):
            return [*own, *below(field.type.key_field), *below(field.type.item_field)]
        if pa.types.is_list(field.type):
            return [*own, *below(field.type.value_field)]
        if pa.types.is_struct(field.type):
            return [*own, *(identity for inner in field.type for identity in below(inner))]
        return own

    return [identity for field in schema for identity in below(field)]


@pytest.mark.parametrize("signal", SIGNALS)
def test_every_field_of_a_file_nested_ones_too_has_the_tables_id(signal: Signal) -> None:
    spec = table_spec(signal)
    schema = iceberg_schema(spec)
    written = parquet_schema(Decoder(signal).schema, schema)
    assert written.names == [column.name for column in spec.columns]
    assert sorted(int(identity) for identity in ids_of(written)) == sorted(schema.field_ids)
    plain = parquet_schema(spec.arrow_schema, schema)
    assert same(pyarrow_to_schema(plain), schema)


def same(found: Schema, wanted: Schema) -> bool:
    """But for the documentation, which files do not carry."""
    return [(field.field_id, field.name, field.field_type, field.required) for field in found.fields] == [
        (field.field_id, field.name, field.field_type, field.required) for field in wanted.fields
    ]


def test_what_a_spec_requires_may_not_be_null_in_a_file() -> None:
    spec = landed_spec("logs")
    written = parquet_schema(spec.arrow_schema, iceberg_schema(spec))
    for column in spec.columns:
        assert written.field(column.name).nullable is not column.required


def test_a_file_may_lack_columns_that_the_table_has() -> None:
    schema = iceberg_schema(landed_spec("logs"))
    some = parquet_schema(pa.schema([("body", pa.string())]), schema)
    assert (
        some.field("body").metadata[b"PARQUET:field_id"] == str(schema.find_field("body").field_id).encode()
    )


def test_a_table_without_partitions_has_none() -> None:
    spec = dataclasses.replace(SET_ASIDE, partition_by=())
    schema = iceberg_schema(spec)
    assert partition_spec(spec, schema).is_unpartitioned()
    assert [field.source_id for field in sort_order(spec, schema).fields] == [2]


def test_bounds_are_kept_of_hot_columns_only_and_never_of_bodies_or_maps() -> None:
    prefix = "write.metadata.metrics.column."
    for signal in SIGNALS:
        spec = landed_spec(signal)
        bounded = {key.removeprefix(prefix) for key in properties(spec) if key.startswith(prefix)}
        assert bounded <= {column.name for column in spec.columns if column.tier == "hot"}
        assert not bounded & {"body", "attributes", "resource_attributes"}
        assert {"time", "tenant_id"} <= bounded
