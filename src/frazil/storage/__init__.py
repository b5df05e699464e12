"""Storage of the WAL and the lake, in local folders or S3 buckets. A write is durable when it returns.

`base` has the protocol; `local` and `s3` implement it. An existing file is overwritten only with `overwrite`.
"""

from frazil.storage.base import Entry, Listing, Store, StoreName

__all__ = ["Entry", "Listing", "Store", "StoreName"]
