"""Files in folders and buckets, durable when a write returns: what the WAL and the lake are stored in.

`base` has the protocol, `local` and `s3` implement it. Never overwrites unless asked to.
"""

from frazil.storage.base import Entry, Listing, Store, StoreName

__all__ = ["Entry", "Listing", "Store", "StoreName"]
