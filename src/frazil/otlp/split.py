"""A large OTLP request as several smaller ones that mean the same.

Decoding holds several times a request's bytes in memory, and the interpreter's lock while it runs. Requests
over a bound are therefore cut at record boundaries first. Only protobuf's framing is read; what is inside
stays bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

from frazil.errors import RequestTooLarge
from frazil.otlp.varint import varint

_CHILDREN = (1, 2, 2)
"""Field numbers on the way down: resources in a request, scopes in a resource, records (or metrics) in a
scope.
"""


_RECORD_BYTES = 16
"""What a record counts beside its own bytes: an empty one takes none on the wire, but a row when decoded."""


class _Malformed(Exception):
    pass


def split(body: bytes, bytes_max: int, fields_max: int = 2_000_000) -> Iterator[bytes]:
    """Parts of at most about `bytes_max`. A body that is small, malformed or cannot be cut comes back whole.

    Raises RequestTooLarge if a body to cut has more than `fields_max` resources, scopes and records.
    """
    if len(body) <= bytes_max:
        yield body
        return
    try:
        _check(body, 0, len(body), 0, fields_max)
    except _Malformed:
        yield body  # decoding will say what is wrong with it
        return
    yield from _parts(body, 0, len(body), bytes_max, 0)


def _check(message: bytes, start: int, end: int, level: int, fields_left: int) -> int:
    """Walks all framing that `_parts` will walk, so that cutting cannot fail half-way."""
    for is_child, _, at, stop in _fields(message, start, end, _CHILDREN[level]):
        fields_left -= 1
        if fields_left < 0:
            raise RequestTooLarge("the request has too many records; send smaller batches", bytes_max=0)
        if is_child and level + 1 < len(_CHILDREN):
            fields_left = _check(message, at, stop, level + 1, fields_left)
    return fields_left


def _parts(message: bytes, start: int, end: int, bytes_max: int, level: int) -> Iterator[bytes]:
    child_field = _CHILDREN[level]
    header = b"".join(
        message[field:stop]
        for is_child, field, _, stop in _fields(message, start, end, child_field)
        if not is_child
    )
    room = bytes_max - len(header)
    if room < bytes_max // 2:  # what all records share is most of it: copies would cost more than they save
        yield message[start:end]
        return
    tag = bytes([child_field << 3 | 2])
    part, size = [header], 0
    for is_child, _, at, stop in _fields(message, start, end, child_field):
        if not is_child:
            continue
        cut = stop - at > room and level + 1 < len(_CHILDREN)
        for piece in _parts(message, at, stop, room, level + 1) if cut else (message[at:stop],):
            cost = room if cut else len(piece) + _RECORD_BYTES  # a piece of a cut child is full
            if size and size + cost > room:
                yield b"".join(part)
                part, size = [header], 0
            part += (tag, varint(len(piece)), piece)
            size += cost
    if len(part) > 1 or header:
        yield b"".join(part)


def _fields(message: bytes, at: int, end: int, child_field: int) -> Iterator[tuple[bool, int, int, int]]:
    """For each field: whether it is a child, where the field begins, where its payload begins and ends."""
    child_tag = child_field << 3 | 2
    while at < end:
        start = at
        tag, at = _read_varint(message, at)
        wire_type = tag & 7
        if wire_type == 2:
            length, at = _read_varint(message, at)
            stop = at + length
        elif wire_type == 0:
            _, stop = _read_varint(message, at)
        elif wire_type in (1, 5):
            stop = at + (8 if wire_type == 1 else 4)
        else:
            raise _Malformed
        if stop > end:
            raise _Malformed
        yield tag == child_tag, start, at, stop
        at = stop


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    try:
        byte = data[at]
        if byte < 0x80:
            return byte, at + 1
        value, shift = byte & 0x7F, 7
        for position in range(at + 1, at + 10):
            byte = data[position]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, position + 1
            shift += 7
    except IndexError:
        pass
    raise _Malformed
