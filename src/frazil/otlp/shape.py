"""How many resources, scopes and records a request has, counted before it is decoded.

Decoding an empty message costs as much as decoding a full one, and two bytes are enough for it. A request is
therefore counted first. Small bodies are counted by protobuf's own parser (upb), which is given a schema of
nothing but the way down to the records: 0.4 ns a byte, measured. It holds the interpreter's lock and a copy
of the body, so larger bodies are walked here, field by field, and no further than the limits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto
from google.protobuf.message import DecodeError

from frazil.otlp.wire import REQUESTS, partial_field, partial_list, partial_request
from frazil.tables import Signal

RECORD_BYTES = 16
"""Added to a record's own bytes as its cost: an empty record takes no bytes, but a row when decoded."""
_PARSED_BYTES_MAX = 4 * 2**20
"""Two million empty records are as large as this, and take 25 ms and 64 MB to parse."""
OTHER_FIELDS_MAX = 100_000
"""Fields that a walk passes one by one, beside resources, scopes and records: each costs half a microsecond.
"""
REPEATED_BYTES_MAX = 1 << 36
"""Bytes of resources and scopes, counted again for each record that shares them. A slice may repeat a GiB of
text; a request with more than this could not be cut into slices.
"""
COUNTED_AT_ONCE = 10_000
UNBOUNDED = 1 << 62
_RESOURCES, _SCOPES, _RECORDS = 0x0A, 0x12, 0x12
_SHARED = 0x0A
"""In a resource and in a scope: the part that its records share."""


class Malformed(Exception):
    """The framing cannot be read."""


@dataclass(frozen=True)
class Shape:
    """`groups` are resources and scopes together. `records` are log records, spans or metrics.
    `repeated_bytes` are those that records share, counted for each record.

    Counting stops at the limits: a number above its limit says only that there are more than the limit.
    """

    groups: int
    records: int
    repeated_bytes: int = 0


@dataclass(frozen=True)
class ShapeLimits:
    groups_max: int
    records_max: int


def shape_of(body: bytes, limits: ShapeLimits, parsed_bytes_max: int = _PARSED_BYTES_MAX) -> Shape | None:
    """The shape of a request of any signal; None if its framing is malformed.

    A body with very many fields of other kinds has more groups than allowed.
    """
    try:
        if len(body) <= parsed_bytes_max:
            return _parsed(body, limits)
        return _walked(body, limits)
    except (DecodeError, Malformed):
        return None


def _parsed(body: bytes, limits: ShapeLimits) -> Shape:
    resources = _schema().FromString(body).resources
    groups, records, repeated = len(resources), 0, 0
    if groups > limits.groups_max:
        return Shape(groups, 0)
    for resource in resources:
        scopes, before = resource.scopes, records
        groups += len(scopes)
        if groups > limits.groups_max:
            break
        for scope in scopes:
            count = len(scope.records)
            records += count
            repeated += count * len(scope.shared)
        repeated += (records - before) * len(resource.shared)
        if records > limits.records_max:
            break
    return Shape(groups, records, repeated)


class _TooMany(Exception):
    pass


class _Walk:
    """Counts by reading the framing alone. Stops at the limits, so that no body takes long."""

    def __init__(self, body: bytes, limits: ShapeLimits) -> None:
        self._body = body
        self._limits = limits
        self.groups = self.records = self.others = self.repeated_bytes = 0

    def count(self) -> None:
        for tag, _, at, stop in fields(self._body, 0, len(self._body)):
            if self._is_group(tag == _RESOURCES):
                before, shared = self.records, 0
                for inner, _, begin, end in fields(self._body, at, stop):
                    if self._is_group(inner == _SCOPES):
                        self._count_records(begin, end)
                    elif inner == _SHARED:
                        shared = end - begin
                self.repeated_bytes += shared * (self.records - before)

    def _is_group(self, is_group: bool) -> bool:
        if is_group:
            self.groups += 1
        else:
            self.others += 1
        if self.groups > self._limits.groups_max or self.others > OTHER_FIELDS_MAX:
            raise _TooMany
        return is_group

    def _count_records(self, at: int, end: int) -> None:
        before, shared = self.records, 0
        while at < end:
            at, count = run(self._body, at, end, _RECORDS, count_max=self._limits.records_max - self.records)
            self.records += count
            if at < end:
                tag, begin, at = field(self._body, at, end)
                if tag == _RECORDS:  # beyond the limit, or with a tag in more bytes than it needs
                    self.records += 1
                elif tag == _SHARED:
                    shared = at - begin
                self._is_group(False)
                if self.records > self._limits.records_max:
                    raise _TooMany
        self.repeated_bytes += shared * (self.records - before)


def _walked(body: bytes, limits: ShapeLimits) -> Shape:
    walk = _Walk(body, limits)
    try:
        walk.count()
    except _TooMany:
        if walk.others > OTHER_FIELDS_MAX:
            return Shape(limits.groups_max + 1, walk.records)
    return Shape(walk.groups, walk.records, walk.repeated_bytes)


def elements(signal: Signal, body: bytes) -> Iterator[int]:
    """Counts the fields of all messages of a request, at any depth, with packed numbers one by one.

    Gives the number so far, at least every COUNTED_AT_ONCE, and at last the number of all. Raises Malformed.
    Each field costs about a microsecond, so this is for the few bodies that cannot be cut.
    """
    counted, said = 0, 0
    pending = [(REQUESTS[signal].DESCRIPTOR, 0, len(body))]
    while pending:
        message, begin, end = pending.pop()
        for tag, _, at, stop in fields(body, begin, end):
            counted += 1
            known = message.fields_by_number.get(tag >> 3)
            if tag & 7 == 2 and known is not None:
                if known.message_type is not None:
                    pending.append((known.message_type, at, stop))
                elif known.is_repeated and known.type not in (known.TYPE_STRING, known.TYPE_BYTES):
                    counted += (stop - at) // _packed_bytes(known)
            if counted >= said + COUNTED_AT_ONCE:
                said = counted
                yield counted
    yield counted


def _packed_bytes(known: Any) -> int:
    eight = (known.TYPE_DOUBLE, known.TYPE_FIXED64, known.TYPE_SFIXED64)
    return 8 if known.type in eight else 1


# Framing ------------------------------------------------------------------------------------------


def run(
    message: bytes,
    at: int,
    end: int,
    tag: int,
    room: int = UNBOUNDED,
    count_max: int = UNBOUNDED,
    size_max: int = UNBOUNDED,
) -> tuple[int, int]:
    """Passes length-delimited fields of this one-byte tag; returns where it stopped, and how many it passed.

    It stops before a field of another kind, a malformed one, one beyond `count_max`, one larger than
    `size_max`, and one that would make the bytes and RECORD_BYTES for each field more than `room`. Every
    record is passed here, in 0.1 µs.
    """
    count, limit = 0, at + room
    try:
        while at < end and message[at] == tag and count < count_max:
            size = message[at + 1]
            if size < 0x80:
                stop = at + 2 + size
            else:
                more = message[at + 2]
                if more < 0x80:
                    stop = at + 3 + (size & 0x7F | more << 7)
                else:
                    size, payload = read_varint(message, at + 1)
                    stop = payload + size
            limit -= RECORD_BYTES
            if stop > end or stop > limit or stop - at > size_max:
                break
            at = stop
            count += 1
    except (IndexError, Malformed):
        pass
    return at, count


def fields(message: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """For each field: its tag, where the field begins, where its payload begins and ends."""
    while at < end:
        start = at
        tag, at, stop = field(message, at, end)
        yield tag, start, at, stop
        at = stop


def field(message: bytes, at: int, end: int) -> tuple[int, int, int]:
    """The tag of the field at `at`, where its payload begins and where it ends."""
    tag, at = read_varint(message, at)
    wire_type = tag & 7
    if wire_type == 2:
        length, at = read_varint(message, at)
        stop = at + length
    elif wire_type == 0:
        _, stop = read_varint(message, at)
    elif wire_type in (1, 5):
        stop = at + (8 if wire_type == 1 else 4)
    else:  # also for groups, as protobuf 2 had them: no client writes them
        raise Malformed
    if stop > end:
        raise Malformed
    return tag, at, stop


def read_varint(data: bytes, at: int) -> tuple[int, int]:
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
    raise Malformed


# Not a list: half a million empty ones would take long to add up. The last one counts.
_SHARED_FIELD = partial_field("shared", 1)


@cache
def _schema() -> Any:
    """The class of requests of which only the way to the records is known. It is the same in all signals."""
    return partial_request(
        [
            DescriptorProto(name="Request", field=[partial_list("resources", 1, "Resource")]),
            DescriptorProto(name="Resource", field=[_SHARED_FIELD, partial_list("scopes", 2, "Scope")]),
            DescriptorProto(name="Scope", field=[_SHARED_FIELD, partial_list("records", 2)]),
        ]
    )
