"""Files from before a column was promoted: their maps have what the column would."""

from __future__ import annotations

from frazil.query.types import duckdb_type, text
from frazil.tables import Promoted
from frazil.wal.promote import FITTING


def from_map(item: Promoted) -> str:
    """The value of a promoted column, as landing would have copied it from the map."""
    prefix = "resource_" if item.source == "resource" else ""
    value = f"{prefix}attributes[{text(item.attribute)}]"
    if item.type == "string":
        return value
    fitting = ", ".join(text(name) for name in FITTING[item.type])
    path = text('$."' + item.attribute.replace('"', '\\"') + '"')
    kind = f"json_extract_string({prefix}attribute_types, {path})"
    return f"CASE WHEN {kind} IN ({fitting}) THEN TRY_CAST({value} AS {duckdb_type(item.arrow_type)}) END"
