"""Leaves out rows that would add almost nothing to a row that was written before.

A table with `Derived.once_per_seconds` describes things that stay, such as series: its rows hold the
attributes of a key and the first and last time at which it was seen. A row is written only if it is the
first of its key, if one of its times is in another period than in all rows of the key that were written
since the pipeline started, or if an integer that merges by `min` or `max` is another than in all of them.
So times are right to one period, and each key costs one row a period and not one a round.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import xxhash

from frazil.tables import TableSpec
from frazil.tables.hashing import Hashes, mixed

KEPT_MAX = 2_000_000
"""The most rows that are remembered for one table, 16 MB. Beyond it all are forgotten, and written once
more.
"""
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def unwritten(rows: pa.Table, spec: TableSpec, *written: Hashes | None) -> tuple[pa.Table, Hashes]:
    """Returns the rows that are not in `written`, and what to remember of them."""
    assert spec.derived is not None  # noqa: S101
    seconds = spec.derived.once_per_seconds
    if seconds is None or rows.num_rows == 0:
        return rows, np.zeros(0, np.uint64)
    hashes = _hashes(rows, spec, seconds)
    is_new = np.ones(len(hashes), np.bool_)
    for known in written:
        if known is not None and len(known):
            is_new &= ~np.isin(hashes, known)
    return rows.filter(pa.array(is_new)), hashes[is_new]


def _hashes(rows: pa.Table, spec: TableSpec, seconds: int) -> Hashes:
    """Returns a hash of each row's key, of the periods of its other times, and of its integers that merge by
    `min` or `max`.
    """
    total = np.zeros(rows.num_rows, np.uint64)
    for column in spec.columns:
        assert column.merge is not None  # noqa: S101
        values = rows.column(column.name).combine_chunks()
        if column.merge.rule == "key":
            part = _values(values)
        elif pa.types.is_timestamp(values.type):
            part = _values(values) // np.uint64(seconds * 1_000_000)
        elif column.merge.rule in ("min", "max") and pa.types.is_integer(values.type):
            part = _values(values)
        else:
            continue
        total = mixed(total * _FACTOR + part)
    return total


def _values(values: pa.Array) -> Hashes:
    if pa.types.is_timestamp(values.type) or pa.types.is_integer(values.type):
        numbers = values.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
        bits: Hashes = numbers.astype(np.int64).view(np.uint64)
        return bits
    encoded = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
    distinct = [xxhash.xxh3_64_intdigest(str(text).encode()) for text in encoded.dictionary.to_pylist()]
    codes = encoded.indices.fill_null(len(distinct)).to_numpy()
    found: Hashes = np.array([*distinct, 0], np.uint64)[codes]
    return found
