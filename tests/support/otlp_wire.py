"""Protobuf written by hand: what no library would write, and nesting deeper than any would allow."""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator
from itertools import chain

Numbers = tuple[int, ...]

RECORD: dict[str, Numbers] = {"logs": (1, 2, 2), "spans": (1, 2, 2), "metrics": (1, 2, 2)}
"""Field numbers from a request down to a log record, span or metric."""


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def delimited(field: int, payload: bytes) -> bytes:
    """A message, string or bytes field."""
    return varint(field << 3 | 2) + varint(len(payload)) + payload


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def fixed64(field: int, value: int) -> bytes:
    return varint(field << 3 | 1) + struct.pack("<Q", value)


def double(field: int, value: float) -> bytes:
    return varint(field << 3 | 1) + struct.pack("<d", value)


def within(path: Numbers, payload: bytes) -> bytes:
    """`payload` in messages inside one another, `path` from the outermost in."""
    for field in reversed(path):
        payload = delimited(field, payload)
    return payload


@functools.cache
def nested_value(depth: int, *, kvlist: bool = False) -> bytes:
    """An AnyValue of arrays (or key-value lists) inside one another; any depth, without recursion."""
    heads: list[bytes] = []
    size = 0
    for field in chain.from_iterable(((2, 1, 6) if kvlist else (1, 5)) for _ in range(depth)):
        head = varint(field << 3 | 2) + varint(size)
        size += len(head)
        heads.append(head)
    return b"".join(reversed(heads))


def log_with_body(value: bytes) -> bytes:
    """A logs request of one record whose body is the AnyValue in `value`."""
    return within((1, 2, 2, 5), value)


def log_with_attribute(value: bytes, key: bytes = b"k") -> bytes:
    return within((1, 2, 2, 6), delimited(1, key) + delimited(2, value))


def prefixes(body: bytes, step: int = 1) -> Iterator[bytes]:
    """Every proper beginning of `body`."""
    return (body[:length] for length in range(0, len(body), step))
