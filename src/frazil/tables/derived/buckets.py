"""The buckets of histograms in one form for both kinds: a list of upper bounds and a list of counts.
Histograms merge by adding the counts of equal bounds.

The bounds of exponential histograms are computed so that equal numbers are equal bits: buckets of a scale
have all bounds of the lower scales, on every machine. So histograms of different scales merge without
rescaling.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from frazil.tables.derived.combine import whole

Longs = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

SCALE_MAX = 20
"""The largest scale of OTLP. Bounds of a larger one are rounded up to a bound of this one."""
_HALF = SCALE_MAX // 2
_EXPONENT_MAX = 1100
"""Powers of 2 beyond it are infinite, or zero."""
_BLOCK_ROWS = 4096
"""Histograms whose buckets are computed together. Measured: twice as fast as all at once, which does not fit
into the processor's cache.
"""


def _roots() -> tuple[Doubles, Doubles]:
    """Returns 2^(i / 2^10) and 2^(i / 2^20) for i below 2^10. Made of square roots and products, which are
    the same on every machine; `exp2` is not.
    """
    roots = [2.0]
    for _ in range(SCALE_MAX):
        roots.append(math.sqrt(roots[-1]))  # roots[n] is 2^(2^-n)
    tables = []
    for last in (_HALF, SCALE_MAX):
        table = np.ones(2**_HALF)
        for bit in range(_HALF):
            table[(np.arange(2**_HALF) >> bit) & 1 == 1] *= roots[last - bit]
        tables.append(table)
    return tables[0], tables[1]


_COARSE, _FINE = _roots()


def power_bounds(index: Longs, scale: Longs) -> Doubles:
    """Returns 2^(index * 2^-scale), with equal bits for equal exponents."""
    with np.errstate(over="ignore", under="ignore"):
        shift = np.clip(SCALE_MAX - scale, -_EXPONENT_MAX, _EXPONENT_MAX).astype(np.int32)
        steps = np.ceil(np.ldexp(index.astype(np.float64), shift))
        steps = np.clip(steps, -_EXPONENT_MAX * 2**SCALE_MAX, _EXPONENT_MAX * 2**SCALE_MAX).astype(np.int64)
        fraction = steps & (2**SCALE_MAX - 1)
        mantissa = _COARSE[fraction >> _HALF] * _FINE[fraction & (2**_HALF - 1)]
        found: Doubles = np.ldexp(mantissa, (steps >> SCALE_MAX).astype(np.int32))
    return found


class Entries(NamedTuple):
    """Buckets of several rows."""

    rows: Longs
    bounds: Doubles
    counts: Longs


def bucket_lists(points: pa.Table, explicit: Mask, exponential: Mask) -> tuple[pa.ListArray, pa.ListArray]:
    """Returns the bounds and counts of the rows in the masks; NULL for other rows, and for histograms without
    buckets. In each list the bounds ascend.
    """
    kinds = [each for each in (_explicit(points, explicit), _exponential(points, exponential)) if each]
    size = points.num_rows
    lengths = np.zeros(size, np.int64)
    for entries, _ in kinds:
        lengths += np.bincount(entries.rows, minlength=size)
    ends = np.cumsum(lengths)
    bounds, counts = np.empty(int(lengths.sum())), np.empty(int(lengths.sum()), np.int64)
    nulls = np.ones(size, np.bool_)
    for entries, has_buckets in kinds:
        own = np.bincount(entries.rows, minlength=size)
        places = np.arange(len(entries.rows)) + (ends - np.cumsum(own))[entries.rows]
        bounds[places], counts[places] = entries.bounds, entries.counts
        nulls &= ~has_buckets
    offsets = pa.array(np.concatenate((np.zeros(1, np.int32), ends.astype(np.int32))))
    mask = pa.array(nulls)
    made = [pa.ListArray.from_arrays(offsets, pa.array(values), mask=mask) for values in (bounds, counts)]
    return made[0], made[1]


def _lengths(lists: pa.Array) -> Longs:
    found: Longs = pc.list_value_length(lists).fill_null(0).to_numpy().astype(np.int64)
    return found


def _array(points: pa.Table, name: str, rows: Longs) -> pa.Array:
    return whole(points.column(name)).take(pa.array(rows))


def _explicit(points: pa.Table, mask: Mask) -> tuple[Entries, Mask] | None:
    rows = np.flatnonzero(mask)
    if not len(rows):
        return None
    bounds, counts = (_array(points, name, rows) for name in ("explicit_bounds", "bucket_counts"))
    lengths = _lengths(counts)
    is_usable = (lengths > 0) & (_lengths(bounds) == lengths - 1)
    if not is_usable.all():
        rows, lengths = rows[is_usable], lengths[is_usable]
        bounds, counts = (each.filter(pa.array(is_usable)) for each in (bounds, counts))
    values = np.full(int(lengths.sum()), np.inf)
    is_bound = np.ones(len(values), np.bool_)
    is_bound[np.cumsum(lengths) - 1] = False
    values[is_bound] = bounds.flatten().to_numpy() + 0.0  # -0.0 is 0.0
    has_buckets = np.zeros(len(mask), np.bool_)
    has_buckets[rows] = True
    numbers = counts.flatten().to_numpy().astype(np.int64)
    return Entries(np.repeat(rows, lengths), values, numbers), has_buckets


def _exponential(points: pa.Table, mask: Mask) -> tuple[Entries, Mask] | None:
    rows = np.flatnonzero(mask)
    if not len(rows):
        return None
    parts = [_block(points, rows[start : start + _BLOCK_ROWS]) for start in range(0, len(rows), _BLOCK_ROWS)]
    return _joined(parts), mask


def _block(points: pa.Table, rows: Longs) -> Entries:
    scale = _longs(points, "scale", rows)
    negative, positive = (_side(points, side, rows, scale) for side in ("negative", "positive"))
    found = _joined([negative, _zero(points, rows), positive])
    # Rows are ascending within each part, and a stable sort by row keeps negative, zero and positive in order.
    order = np.argsort(found.rows, kind="stable")
    return _ascending(Entries(found.rows[order], found.bounds[order], found.counts[order]))


def _joined(parts: Sequence[Entries]) -> Entries:
    rows, bounds, counts = ([part[place] for part in parts] for place in range(3))
    return Entries(np.concatenate(rows), np.concatenate(bounds), np.concatenate(counts))


def _longs(points: pa.Table, name: str, rows: Longs) -> Longs:
    found: Longs = _array(points, name, rows).fill_null(0).to_numpy().astype(np.int64)
    return found


def _side(points: pa.Table, side: str, rows: Longs, scale: Longs) -> Entries:
    """Returns the buckets with measurements, and an empty one before each run of them, which ends where the
    run starts. Bucket i has numbers from 2^(i * 2^-scale) to 2^((i + 1) * 2^-scale), with the sign of the
    side.
    """
    lists = _array(points, f"{side}_bucket_counts", rows)
    lengths = _lengths(lists)
    owner = np.repeat(np.arange(len(rows)), lengths)
    counts = lists.flatten().to_numpy().astype(np.int64)
    first = _longs(points, f"{side}_offset", rows) - (np.cumsum(lengths) - lengths)
    index = np.arange(len(counts)) + np.repeat(first, lengths)
    kept = counts != 0
    owner, counts, index = owner[kept], counts[kept], index[kept]
    if side == "negative":  # the largest index has the smallest numbers
        order = np.lexsort((-index, owner))
        owner, counts, index = owner[order], counts[order], index[order]
    step = -1 if side == "negative" else 1
    starts_run = np.ones(len(owner), np.bool_)
    starts_run[1:] = (owner[1:] != owner[:-1]) | (index[1:] != index[:-1] + step)
    # Each bucket that starts a run comes twice: first as the empty bucket before it.
    times = 1 + starts_run
    places = np.cumsum(times) - 1
    is_before = np.ones(int(times.sum()), np.bool_)
    is_before[places] = False
    owner, index = np.repeat(owner, times), np.repeat(index, times)
    exponents = index + ~is_before if step > 0 else index + is_before
    all_counts = np.zeros(len(owner), np.int64)
    all_counts[places] = counts
    return Entries(rows[owner], step * power_bounds(exponents, scale[owner]), all_counts)


def _zero(points: pa.Table, rows: Longs) -> Entries:
    """Returns the zero buckets with measurements, each after an empty bucket that ends where it starts."""
    counts = _longs(points, "zero_count", rows)
    widths = _array(points, "zero_threshold", rows).fill_null(0.0).to_numpy()
    kept = counts != 0
    owner, counts, widths = rows[kept], counts[kept], np.abs(widths[kept]) + 0.0
    bounds = np.stack((-widths + 0.0, widths), axis=1).ravel()
    return Entries(np.repeat(owner, 2), bounds, np.stack((np.zeros_like(counts), counts), axis=1).ravel())


def _ascending(entries: Entries) -> Entries:
    """Merges equal bounds of a row, and sorts the bounds where they are not ascending: zero thresholds may
    overlap other buckets.
    """
    rows, bounds, counts = entries
    is_same_row = rows[1:] == rows[:-1]
    if (is_same_row & ~(bounds[1:] > bounds[:-1])).any():
        order = np.lexsort((bounds, rows))
        rows, bounds, counts = rows[order], bounds[order], counts[order]
        is_new = np.ones(len(rows), np.bool_)
        is_new[1:] = (rows[1:] != rows[:-1]) | (bounds[1:] != bounds[:-1])
        starts = np.flatnonzero(is_new)
        rows, bounds, counts = rows[starts], bounds[starts], np.add.reduceat(counts, starts)
    return Entries(rows, bounds, counts)
