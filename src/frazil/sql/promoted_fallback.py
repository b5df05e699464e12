"""SQL for promoted columns in files that lack them: the attribute maps have the values."""

from __future__ import annotations

from frazil.sql.types import duckdb_type, text
from frazil.tables import Promoted
from frazil.tables.promoted import ACCEPTED_KINDS


def from_map(item: Promoted) -> str:
    """Return SQL for the value of a promoted column, as landing copies it from the map."""
    found = [_value(item, name) for name in item.attributes]
    return found[0] if len(found) == 1 else f"coalesce({', '.join(found)})"


def source_columns(item: Promoted) -> tuple[str, str]:
    """Return the columns that `from_map` reads."""
    prefix = "resource_" if item.source == "resource" else ""
    return f"{prefix}attributes", f"{prefix}attribute_types"


def _value(item: Promoted, attribute: str) -> str:
    prefix = "resource_" if item.source == "resource" else ""
    value = f"{prefix}attributes[{text(attribute)}]"
    if item.type == "string":
        return value
    fitting = ", ".join(text(name) for name in ACCEPTED_KINDS[item.type])
    path = text('$."' + attribute.replace('"', '\\"') + '"')
    kind = f"json_extract_string({prefix}attribute_types, {path})"
    return f"CASE WHEN {kind} IN ({fitting}) THEN TRY_CAST({value} AS {duckdb_type(item.arrow_type)}) END"
