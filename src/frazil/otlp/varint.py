"""Protobuf's variable-length integers."""

from __future__ import annotations


def varint(number: int) -> bytes:
    """`number`, which is not negative, in as few bytes as it takes."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
