"""The declaration of every table, from which schemas, documentation and codecs are derived. Start at `specs`.

Pure: reads no files, opens no connections and depends on no query engine.
"""

from frazil.tables.columns import (
    ATTRIBUTES,
    Column,
    Signal,
    TableSpec,
    Tier,
    View,
    markdown,
)
from frazil.tables.promoted import DEFAULT_PROMOTED, Fill, Promoted, column_name
from frazil.tables.specs import (
    SEGMENT,
    SET_ASIDE,
    SIGNALS,
    declare_views,
    declared,
    derived_specs,
    forget_views,
    landed_spec,
    reserved_names,
    table_spec,
    table_specs,
    view_tables,
)

__all__ = [
    "ATTRIBUTES",
    "DEFAULT_PROMOTED",
    "SEGMENT",
    "SET_ASIDE",
    "SIGNALS",
    "Column",
    "Fill",
    "Promoted",
    "Signal",
    "TableSpec",
    "Tier",
    "View",
    "column_name",
    "declare_views",
    "declared",
    "derived_specs",
    "forget_views",
    "landed_spec",
    "markdown",
    "reserved_names",
    "table_spec",
    "table_specs",
    "view_tables",
]
