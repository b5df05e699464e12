"""Chooses the dictionary-encoded columns of Parquet files, for segments and data files alike."""

from __future__ import annotations

import pyarrow as pa

CODED = pa.dictionary(pa.int32(), pa.string())
"""The type of dictionary-encoded text."""
# Measured: a dictionary costs CPU for every value, and saves bytes only for few distinct values.
FEW_VALUES = frozenset(
    {
        "severity_number",
        "severity_text",
        "event_name",
        "name",
        "kind",
        "status_code",
        "attribute_types",
        "http_request_method",
        "http_route",
        "http_response_status_code",
    }
)


def with_dictionary(schema: pa.Schema) -> list[str]:
    """Returns the Parquet leaf columns to dictionary-encode: map keys, coded columns and `FEW_VALUES`."""
    return [
        path
        for path, type_ in leaves(schema)
        if path.endswith(".key") or pa.types.is_dictionary(type_) or path.rpartition(".")[2] in FEW_VALUES
    ]


def leaves(schema: pa.Schema) -> list[tuple[str, pa.DataType]]:
    """Returns the Parquet leaf columns, named as in the writer's options."""

    def below(path: str, type_: pa.DataType) -> list[tuple[str, pa.DataType]]:
        if pa.types.is_map(type_):
            return [
                *below(f"{path}.key_value.key", type_.key_type),
                *below(f"{path}.key_value.value", type_.item_type),
            ]
        if pa.types.is_list(type_):
            return below(f"{path}.list.element", type_.value_type)
        if pa.types.is_struct(type_):
            return [leaf for field in type_ for leaf in below(f"{path}.{field.name}", field.type)]
        return [(path, type_)]

    return [leaf for field in schema for leaf in below(field.name, field.type)]
