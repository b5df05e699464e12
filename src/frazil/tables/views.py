"""Makes the declaration of a view's table from its query."""

from __future__ import annotations

from typing import NoReturn

import pyarrow as pa

from frazil.tables.columns import TENANT, TIME, TIMESTAMP, Column, TableSpec
from frazil.tables.derived.rules import KEY, MAX, MIN, SUM, Derived, Merge
from frazil.tables.derived.view import ViewColumn, ViewQuery

TYPES: dict[str, pa.DataType] = {
    "STRING": pa.string(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "TIMESTAMP": TIMESTAMP,
}
_KEYS = ("STRING", "INT", "BIGINT")
_ALLOWED = {
    "sum": ("BIGINT", "DOUBLE"),
    "min": ("INT", "BIGINT", "DOUBLE", "BOOLEAN", "TIMESTAMP"),
    "max": ("INT", "BIGINT", "DOUBLE", "BOOLEAN", "TIMESTAMP"),
}
_MERGES: dict[str, Merge] = {"key": KEY, "sum": SUM, "min": MIN, "max": MAX}


def view_spec(name: str, query: ViewQuery) -> TableSpec:
    """Returns the table of a view whose columns have types. Raises ValueError if a column has a type that it
    cannot have.
    """
    tenant = Column(
        TENANT, pa.string(), f"{query.source}.{TENANT}", "Tenant of the rows", "hot", True, True, merge=KEY
    )
    keys = [_column(each, query) for each in query.columns if each.rule == "key"]
    values = [_column(each, query) for each in query.columns if each.rule != "key"]
    others = [column.name for column in keys if column.name != TIME]
    counts = next(
        (each.name for each in query.columns if each.function == "count" and each.argument == "*"), ""
    )
    is_whole = not query.where and not any(each.filter for each in query.columns if each.name == counts)
    return TableSpec(
        name,
        f"View of {query.source}: {query.sql}",
        (tenant, *keys, *values),
        sort_by=(*others, TIME),
        derived=Derived(
            query.source,
            query.reads,
            _derived_by_spark,
            kept_days=((0, query.kept_days),),
            counts=counts if is_whole else "",
            view=query,
        ),
    )


def _derived_by_spark(rows: pa.Table) -> NoReturn:
    raise TypeError("a view is derived by Spark SQL")


def _column(column: ViewColumn, query: ViewQuery) -> Column:
    allowed = ("TIMESTAMP",) if column.name == TIME else _ALLOWED.get(column.rule, _KEYS)
    if column.type not in allowed:
        what = "a key" if column.rule == "key" else column.function
        raise ValueError(
            f"{column.name} has type {column.type}, but {what} can only be {' or '.join(allowed)}: write "
            f"CAST(… AS {'DOUBLE' if 'DOUBLE' in allowed else allowed[0]})"
        )
    is_key = column.rule == "key"
    return Column(
        column.name,
        TYPES[column.type],
        query.source,
        column.expression,
        "hot" if is_key else "warm",
        required=column.name == TIME,
        coded=is_key and column.type == "STRING",
        merge=_MERGES[column.rule],
    )
