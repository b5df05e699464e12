"""Finds duplicate spans that are equal in every field. Clients create them when they retry a request."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from frazil.pipeline.inputs import Input
from frazil.pipeline.maintain.merge.order import Longs, row_keys
from frazil.tables import SEGMENT

Mask = npt.NDArray[np.bool_]

_IDS = ("trace_id", "span_id")
_OWN = frozenset({"received_time", SEGMENT.name})
"""Columns in which duplicates differ: when and where each was made durable."""
_ID_ROWS = 65_536
_MEMORY = 4
"""Memory of rows, as a multiple of their size in Parquet's metadata."""


def find_duplicates(inputs: Sequence[Input], bytes_max: int) -> tuple[list[Mask], Counter[str]]:
    """Returns a mask of the rows to keep for each input, and the number of duplicates by `_segment`. The span
    that was received first is kept. Spans without ids are never duplicates.

    Only rows with equal ids are read completely, at most about `bytes_max` at a time.
    """
    parts = [_hashes(each) for each in inputs]
    bounds = np.cumsum([len(part) for part in parts])[:-1]
    hashes = np.concatenate(parts)
    candidates = np.flatnonzero(_repeated(hashes))
    kept, removed = np.ones(len(hashes), bool), Counter[str]()
    memory = len(candidates) * sum(each.bytes for each in inputs) * _MEMORY / max(1, len(hashes))
    buckets = max(1, math.ceil(memory / max(1, bytes_max)))
    for bucket in range(buckets):
        chosen = candidates[(hashes[candidates] >> np.uint64(1)) % np.uint64(buckets) == bucket]
        if not len(chosen):
            continue
        mask = np.zeros(len(hashes), bool)
        mask[chosen] = True
        found = pa.concat_tables(_read(inputs, np.split(mask, bounds))).unify_dictionaries().combine_chunks()
        duplicate = _duplicates(found)
        kept[chosen[duplicate]] = False
        removed.update(found[SEGMENT.name].filter(pa.array(duplicate)).to_pylist())
    return np.split(kept, bounds), removed


def _hashes(each: Input) -> npt.NDArray[np.uint64]:
    """Returns a hash of the ids of each row; 0 if an id is missing."""
    parts = [np.zeros(0, np.uint64)]
    for table in each.tables(_ID_ROWS, columns=_IDS):
        whole = np.ones(table.num_rows, np.uint64)
        missing = np.zeros(table.num_rows, bool)
        for name in _IDS:
            numbers, empty = _text_hashes(table[name].combine_chunks())
            whole = (whole ^ numbers) * np.uint64(0x9E3779B97F4A7C15)
            whole ^= whole >> np.uint64(29)
            missing |= empty
        whole |= np.uint64(1)
        whole[missing] = 0
        parts.append(whole)
    return np.concatenate(parts)


def _text_hashes(column: pa.Array | pa.ChunkedArray) -> tuple[npt.NDArray[np.uint64], Mask]:
    """Hashes the first and last eight bytes of each text, which is enough for random ids. Also returns which
    texts are empty.
    """
    array = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
    array = array.cast(pa.string()).fill_null("")
    offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
    begin, end = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
    data = np.frombuffer(array.buffers()[2] or b"", np.uint8)
    padded = np.concatenate([data, np.zeros(8, np.uint8)])
    hashes = np.zeros(len(array), np.uint64)
    for place in range(8):
        # Bytes after the end count as 0, so that ids may have any length.
        front = np.where(begin + place < end, padded[np.minimum(begin + place, len(data))], 0)
        back = np.where(end - 1 - place >= begin, padded[np.maximum(end - 1 - place, 0)], 0)
        hashes = hashes * np.uint64(257) + front.astype(np.uint64)
        hashes = hashes * np.uint64(263) + back.astype(np.uint64)
    return hashes, begin == end


def _repeated(hashes: npt.NDArray[np.uint64]) -> Mask:
    order = np.argsort(hashes)
    ordered = hashes[order]
    same = (ordered[1:] == ordered[:-1]) & (ordered[1:] != 0)
    repeated = np.zeros(len(hashes), bool)
    repeated[order[1:][same]] = True
    repeated[order[:-1][same]] = True
    return repeated


def _read(inputs: Sequence[Input], masks: Sequence[Mask]) -> Iterator[pa.Table]:
    for each, mask in zip(inputs, masks, strict=True):
        first = 0
        for group in each.row_groups:
            within = mask[first : first + group.rows]
            first += group.rows
            if not within.any():
                continue
            row = 0
            for table in each.tables(_ID_ROWS, row_groups=[group.number]):
                yield table.filter(pa.array(within[row : row + table.num_rows]))
                row += table.num_rows


def _duplicates(table: pa.Table) -> Mask:
    """Returns the rows that are equal to a row that was received earlier."""
    classes = np.zeros(table.num_rows, np.int64)
    for name in table.column_names:
        if name not in _OWN:
            classes = _pair_codes(classes, _codes(table[name].combine_chunks()))
    (place,) = row_keys([table], ["received_time", SEGMENT.name])
    order = np.lexsort((place, classes))
    duplicate = np.zeros(table.num_rows, bool)
    duplicate[order[1:]] = classes[order[1:]] == classes[order[:-1]]
    return duplicate


def _codes(array: pa.Array | pa.ChunkedArray) -> Longs:
    """Returns numbers that are equal exactly where values are equal, bit by bit; -1 for NULL. No loops over
    rows.
    """
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    type_ = array.type
    if pa.types.is_dictionary(type_):
        places = np.append(_codes(array.dictionary), -1)
        codes: Longs = places[array.indices.fill_null(len(array.dictionary)).to_numpy()]
        return codes
    if pa.types.is_map(type_):
        return _lists(array, _pair_codes(_codes(array.keys), _codes(array.items)))
    if pa.types.is_list(type_):
        return _lists(array, _codes(array.values))
    if pa.types.is_struct(type_):
        codes = np.zeros(len(array), np.int64)
        for number in range(type_.num_fields):
            codes = _pair_codes(codes, _codes(array.field(number)))
        return _nulls(array, codes)
    if pa.types.is_float64(type_):
        array = array.view(pa.int64())
    return _encoded(array)


def _lists(array: pa.Array, codes: Longs) -> Longs:
    """Returns codes of lists: a list is encoded as the bytes of its values' codes."""
    offsets = array.offsets.to_numpy().astype(np.int64) * codes.itemsize
    data = np.ascontiguousarray(codes)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return _nulls(array, _encoded(pa.Array.from_buffers(pa.large_binary(), len(array), buffers)))


def _pair_codes(first: Longs, second: Longs) -> Longs:
    """Returns codes of pairs. Both codes are below the number of rows or values, so their product fits."""
    size = int(second.max()) + 2 if len(second) else 1
    return _encoded(pa.array((first + 1) * size + second + 1))


def _encoded(array: pa.Array) -> Longs:
    indices = array.dictionary_encode().indices
    codes: Longs = (indices.fill_null(-1) if indices.null_count else indices).to_numpy().astype(np.int64)
    return codes


def _nulls(array: pa.Array, codes: Longs) -> Longs:
    return np.where(array.is_null().to_numpy(zero_copy_only=False), -1, codes) if array.null_count else codes
