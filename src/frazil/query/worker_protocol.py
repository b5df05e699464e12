"""The messages between the query service and its workers: length, kind and payload."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from typing import Any, BinaryIO

import orjson

HEADER = struct.Struct("<IB")
CONTROL, DATA = 0, 1


def pack(kind: int, payload: bytes) -> bytes:
    return HEADER.pack(len(payload), kind) + payload


def control(message: Mapping[str, Any]) -> bytes:
    return pack(CONTROL, orjson.dumps(message))


def read(stream: BinaryIO) -> tuple[int, bytes] | None:
    """Read one message; None at the end of the stream."""
    header = stream.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    size, kind = HEADER.unpack(header)
    payload = stream.read(size)
    return None if len(payload) < size else (kind, payload)


async def receive(stream: asyncio.StreamReader) -> tuple[int, bytes]:
    """Read one message. Raises asyncio.IncompleteReadError at the end of the stream."""
    size, kind = HEADER.unpack(await stream.readexactly(HEADER.size))
    return kind, await stream.readexactly(size)
