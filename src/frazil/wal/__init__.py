"""The write-ahead log (WAL): stores requests as durable segments, which landing reads exactly once.

Never acknowledges a request before the store confirms that it is durable. Never reuses a segment name.
Start with `journal.py` (write path) and `reader.py` (read path).
"""

from frazil.wal.names import SegmentName, new_stream
from frazil.wal.store import open_store

__all__ = ["SegmentName", "new_stream", "open_store"]
