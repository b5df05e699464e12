"""The tail: rows that are durable in the WAL and have not landed yet. Start reading at `tail.Tail.cut`.

Segments are decoded when a query needs them: only its tenant's rows, its columns, its time range. Decoded
rows are kept as Parquet files for a while. A query never reads a WAL segment itself, because tenants share
segments.
"""

from frazil.query.tail.listing import PositionTooOld
from frazil.query.tail.tail import KEPT_SECONDS, Tail, TailCut

__all__ = ["KEPT_SECONDS", "PositionTooOld", "Tail", "TailCut"]
