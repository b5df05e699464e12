"""Which columns of a Parquet file are worth a dictionary. The same for segments and for data files."""

from __future__ import annotations

import pyarrow as pa

CODED = pa.dictionary(pa.int32(), pa.string())
"""Text that few distinct values are repeated in: rows hold codes."""
# Measured: a dictionary costs CPU for every value, and saves bytes only where few distinct values are
# repeated.
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
    """The Parquet leaf columns worth a dictionary: map keys, what is coded, and what has few values."""
    return [
        path
        for path, type_ in leaves(schema)
        if path.endswith(".key") or pa.types.is_dictionary(type_) or path.rpartition(".")[2] in FEW_VALUES
    ]


def leaves(schema: pa.Schema) -> list[tuple[str, pa.DataType]]:
    """Paths of the Parquet leaf columns, as the writer's options name them."""

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
