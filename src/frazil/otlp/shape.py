"""Counts the resources, scopes and records of a request before it is decoded.

An empty message has two bytes and costs as much to decode as a full one, so requests are counted first. Small
bodies are counted by protobuf's parser (upb) with a schema that has only the path to the records: measured
0.4 ns per byte. It holds the interpreter lock and copies the body, so larger bodies are scanned here field by
field, up to the limits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto
from google.protobuf.message import DecodeError

from frazil.otlp.framing import Malformed, read_field, read_fields, skip_run
from frazil.otlp.wire import REQUESTS, partial_field, partial_list, partial_request
from frazil.tables import Signal

_PARSED_BYTES_MAX = 4 * 2**20
"""Two million empty records have this size, and take 25 ms and 64 MB to parse."""
OTHER_FIELDS_MAX = 100_000
"""Limit on fields other than resources, scopes and records in a scan: each takes 0.5 µs."""
REPEATED_BYTES_MAX = 1 << 36
"""Limit on the bytes of resources and scopes, counted once for each of their records. A slice may repeat 1
GiB of text; a request with more than this could not be split into slices.
"""
COUNTED_AT_ONCE = 10_000
_RESOURCES, _SCOPES, _RECORDS = 0x0A, 0x12, 0x12
_SHARED = 0x0A
"""The tag of the part of a resource or scope that its records share."""


@dataclass(frozen=True)
class Shape:
    """Counts of a request: `groups` are resources plus scopes; `records` are log records, spans or metrics.

    `repeated_bytes` are the bytes of resources and scopes, counted once for each of their records. Counting
    stops at the limits, so a number above its limit is a lower bound.
    """

    groups: int
    records: int
    repeated_bytes: int = 0


@dataclass(frozen=True)
class ShapeLimits:
    groups_max: int
    records_max: int


def shape_of(body: bytes, limits: ShapeLimits, parsed_bytes_max: int = _PARSED_BYTES_MAX) -> Shape | None:
    """Returns the shape of a request of any signal; None if its framing is malformed.

    A body with more than OTHER_FIELDS_MAX other fields is reported with too many groups.
    """
    try:
        if len(body) <= parsed_bytes_max:
            return _parse(body, limits)
        return _scan(body, limits)
    except (DecodeError, Malformed):
        return None


def _parse(body: bytes, limits: ShapeLimits) -> Shape:
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


class _Scan:
    """Counts by reading the framing only. Stops at the limits, so that the time is bounded."""

    def __init__(self, body: bytes, limits: ShapeLimits) -> None:
        self._body = body
        self._limits = limits
        self.groups = self.records = self.others = self.repeated_bytes = 0

    def count(self) -> None:
        for tag, _, at, stop in read_fields(self._body, 0, len(self._body)):
            if self._is_group(tag == _RESOURCES):
                before, shared = self.records, 0
                for inner, _, begin, end in read_fields(self._body, at, stop):
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
            at, count = skip_run(
                self._body, at, end, _RECORDS, count_max=self._limits.records_max - self.records
            )
            self.records += count
            if at < end:
                tag, begin, at = read_field(self._body, at, end)
                if tag == _RECORDS:  # beyond the limit, or with an overlong tag
                    self.records += 1
                elif tag == _SHARED:
                    shared = at - begin
                self._is_group(False)
                if self.records > self._limits.records_max:
                    raise _TooMany
        self.repeated_bytes += shared * (self.records - before)


def _scan(body: bytes, limits: ShapeLimits) -> Shape:
    scan = _Scan(body, limits)
    try:
        scan.count()
    except _TooMany:
        if scan.others > OTHER_FIELDS_MAX:
            return Shape(limits.groups_max + 1, scan.records)
    return Shape(scan.groups, scan.records, scan.repeated_bytes)


def count_elements(signal: Signal, body: bytes) -> Iterator[int]:
    """Counts the fields of a request's messages at any depth, including each packed number.

    Yields the count so far, at least every COUNTED_AT_ONCE, and finally the total. Raises Malformed. Takes
    about 1 µs per field, so it is used only for bodies that cannot be split.
    """
    counted, yielded = 0, 0
    pending = [(REQUESTS[signal].DESCRIPTOR, 0, len(body))]
    while pending:
        message, begin, end = pending.pop()
        for tag, _, at, stop in read_fields(body, begin, end):
            counted += 1
            known = message.fields_by_number.get(tag >> 3)
            if tag & 7 == 2 and known is not None:
                if known.message_type is not None:
                    pending.append((known.message_type, at, stop))
                elif known.is_repeated and known.type not in (known.TYPE_STRING, known.TYPE_BYTES):
                    counted += (stop - at) // _packed_bytes(known)
            if counted >= yielded + COUNTED_AT_ONCE:
                yielded = counted
                yield counted
    yield counted


def _packed_bytes(known: Any) -> int:
    eight = (known.TYPE_DOUBLE, known.TYPE_FIXED64, known.TYPE_SFIXED64)
    return 8 if known.type in eight else 1


# Not a list: adding up half a million empty ones would take long. The last one counts.
_SHARED_FIELD = partial_field("shared", 1)


@cache
def _schema() -> Any:
    """Returns the message class that has only the path to the records; the same for all signals."""
    return partial_request(
        [
            DescriptorProto(name="Request", field=[partial_list("resources", 1, "Resource")]),
            DescriptorProto(name="Resource", field=[_SHARED_FIELD, partial_list("scopes", 2, "Scope")]),
            DescriptorProto(name="Scope", field=[_SHARED_FIELD, partial_list("records", 2)]),
        ]
    )
