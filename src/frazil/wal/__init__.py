"""The write-ahead log: requests become durable segments, and are read back exactly once.

Never acks before the store says that the bytes are durable, and never uses a segment's name twice.
"""

from frazil.wal.names import SegmentName, new_stream
from frazil.wal.store import open_store

__all__ = ["SegmentName", "new_stream", "open_store"]
