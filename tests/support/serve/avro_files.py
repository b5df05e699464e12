"""An encoder of Avro that shares nothing with the code under test."""

from __future__ import annotations

import json
import zlib
from typing import Any

import zstandard

SYNC = bytes(range(16))


def long(value: int) -> bytes:
    value = value * 2 if value >= 0 else -value * 2 - 1
    out = b""
    while value > 127:
        out, value = out + bytes([value % 128 + 128]), value // 128
    return out + bytes([value])


def sized(data: bytes) -> bytes:
    return long(len(data)) + data


def encoded(schema: Any, value: Any) -> bytes:
    if isinstance(schema, list):
        branch = 0 if value is None else 1
        return long(branch) + encoded(schema[branch], value)
    kind = schema if isinstance(schema, str) else schema["type"]
    match kind:
        case "null":
            return b""
        case "boolean":
            return bytes([value])
        case "int" | "long":
            return long(value)
        case "float" | "double" | "fixed":
            return bytes(value)
        case "string":
            return sized(value.encode())
        case "bytes":
            return sized(value)
        case "record":
            return b"".join(encoded(field["type"], value[field["name"]]) for field in schema["fields"])
        case "array":
            items = b"".join(encoded(schema["items"], item) for item in value)
            return blocks(len(value), items)
        case "map":
            items = b"".join(sized(k.encode()) + encoded(schema["values"], v) for k, v in value.items())
            return blocks(len(value), items)
    raise AssertionError(kind)


def blocks(count: int, items: bytes) -> bytes:
    """In both of the forms that Avro has: with the size in bytes for every other count."""
    if count == 0:
        return long(0)
    return (long(-count) + long(len(items)) if count % 2 else long(count)) + items + long(0)


def avro_file(schema: Any, records: list[Any], codec: str, per_block: int = 2) -> bytes:
    pack = {"null": bytes, "deflate": deflated, "zstandard": zstandard.ZstdCompressor().compress}[codec]
    header = {"avro.schema": json.dumps(schema).encode(), "avro.codec": codec.encode(), "made-by": b"a test"}
    entries = b"".join(sized(name.encode()) + sized(value) for name, value in header.items())
    out = b"Obj\x01" + long(len(header)) + entries + long(0) + SYNC
    for start in range(0, len(records), per_block):
        some = records[start : start + per_block]
        out += long(len(some)) + sized(pack(b"".join(encoded(schema, each) for each in some))) + SYNC
    return out


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()
