"""The rows that are durable in the write-ahead log and have not landed yet. Begin with `tail.Tail.cut`.

Segments are decoded when a query needs them: its tenant's rows, its columns, its time range. Decoded rows are
kept as Parquet files for a while. A WAL file is never handed to a query: tenants share it.
"""

from frazil.query.tail.listing import PositionTooOld
from frazil.query.tail.tail import KEPT_SECONDS, Tail, TailCut

__all__ = ["KEPT_SECONDS", "PositionTooOld", "Tail", "TailCut"]
