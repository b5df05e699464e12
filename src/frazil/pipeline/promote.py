"""Promoted columns of segments and files that were written before the configuration promoted them, or by a
version that filled them from other attributes.
"""

from __future__ import annotations

import pyarrow as pa

from frazil.pipeline.datafile import Layout
from frazil.tables import SEGMENT
from frazil.wal.promote import fill_columns


def fill_promoted(table: pa.Table, layout: Layout, fingerprint: str) -> pa.Table:
    """Adds the columns of the layout, but for `_segment`, that the table does not have: from its maps, or
    NULL. `fingerprint` says how the columns that it has were filled.
    """
    schema = pa.schema([field for field in layout.coded if field.name != SEGMENT.name])
    return fill_columns(table, schema, layout.fill.promoted, layout.fill.unfilled(fingerprint))
