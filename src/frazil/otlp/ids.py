"""Trace and span ids: bytes on the wire, lower-case hex in tables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Mask = npt.NDArray[np.bool_]

_HEX_PAIRS = np.array([int.from_bytes(f"{byte:02x}".encode(), "little") for byte in range(256)], dtype="<u2")


@dataclass(frozen=True)
class Ids:
    """Decoded ids. `text` is NULL for a missing id; each mask is None if it would be all false."""

    text: pa.StringArray
    wrong_length: Mask | None
    absent: Mask | None
    zero: Mask | None


def hex_ids(column: pa.BinaryArray, width: int, *, keep_zero: bool = False) -> Ids:
    """Converts ids of `width` bytes to hex. All-zero ids mean "none" in OTLP: NULL unless `keep_zero`."""
    count = len(column)
    if count == 0:
        return Ids(pa.array([], pa.string()), None, None, None)
    offsets = np.frombuffer(column.buffers()[1], dtype=np.int32, count=count + 1, offset=column.offset * 4)
    lengths = np.diff(offsets)
    total = int(offsets[-1] - offsets[0])
    if total == 0:
        return Ids(pa.nulls(count, pa.string()), None, np.ones(count, dtype=np.bool_), None)
    raw = np.frombuffer(column.buffers()[2], dtype=np.uint8, count=total, offset=int(offsets[0]))
    present = lengths == width
    if present.all():
        values, wrong, absent = raw.reshape(count, width), None, None
    else:
        values = raw[np.repeat(present, lengths)].reshape(-1, width)
        absent = lengths == 0
        wrong = ~present & ~absent
    zero_values = ~values.any(axis=1)
    zero: Mask | None = None
    if zero_values.any():
        zero = np.zeros(count, dtype=np.bool_)
        zero[present] = zero_values
        if not keep_zero:
            values = values[~zero_values]
            present = present & ~zero
    return Ids(
        _strings(values, present, width), wrong if wrong is not None and wrong.any() else None, absent, zero
    )


def _strings(values: npt.NDArray[np.uint8], present: Mask, width: int) -> pa.StringArray:
    offsets = np.zeros(len(present) + 1, dtype=np.int32)
    np.cumsum(present, out=offsets[1:], dtype=np.int32)
    offsets *= 2 * width
    validity = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.StringArray.from_buffers(
        len(present), pa.py_buffer(offsets), pa.py_buffer(_HEX_PAIRS[values]), validity
    )
