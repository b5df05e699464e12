"""Splits a large OTLP request into several smaller, together equivalent requests.

Decoding needs several times a request's size in memory, and holds the interpreter lock. Large requests are
therefore split at record boundaries first. Only protobuf's framing is read, not the records.
"""

from __future__ import annotations

from collections.abc import Iterator

from frazil.errors import RequestTooLarge
from frazil.otlp.framing import RECORD_BYTES, UNBOUNDED, Malformed, read_field, skip_run, varint
from frazil.otlp.shape import OTHER_FIELDS_MAX
from frazil.tables import Signal

_Levels = tuple[tuple[int, ...], ...]
_TO_RECORDS: _Levels = ((0x0A,), (0x12,), (0x12,))
"""Tags by level: resources in a request, scopes in a resource, records (or metrics) in a scope."""
_LEVELS: dict[Signal, _Levels] = {
    "logs": _TO_RECORDS,
    "spans": _TO_RECORDS,
    "metrics": (*_TO_RECORDS, (0x2A, 0x3A, 0x4A, 0x52, 0x5A), (0x0A,)),
}
"""Metrics add the gauge, sum, histogram, exponential histogram or summary, and the data points in it."""

_SKIPPED_AT_ONCE = 200_000
"""Records skipped in one step, which takes 20 to 60 ms."""
_LIGHT_SHARE = 2**5 * (1 + RECORD_BYTES // 2)
"""A child smaller than this fraction of a part is never split, though room is halved at each level."""


def split(
    signal: Signal, body: bytes, bytes_max: int, records_max: int = UNBOUNDED
) -> Iterator[bytes | None]:
    """Yields parts whose size plus RECORD_BYTES per record is at most about `bytes_max`.

    A body that is small, malformed or cannot be split is returned whole. Yields None between steps of work on
    a body with very many records. Raises RequestTooLarge if the body has more than `records_max` log records,
    spans or data points.
    """
    levels = _LEVELS[signal]
    if not _is_heavy(body, 0, len(body), bytes_max, levels):
        yield body
        return
    splitter = _Splitter(body, bytes_max, records_max)
    try:
        yield from splitter.check(0, len(body), levels)
    except Malformed:
        yield body  # decoding will report the error
        return
    yield from splitter.parts(0, len(body), bytes_max, levels)


def _is_heavy(message: bytes, start: int, end: int, room: int, levels: _Levels) -> bool:
    """Returns whether the cost may exceed `room`. Each byte equal to a record's tag counts as a record."""
    size = end - start
    if size > room or size * (1 + RECORD_BYTES // 2) <= room:
        return size > room
    records = max(message.count(bytes([tags[0]]), start, end) for tags in levels[-1:] + _TO_RECORDS[-1:])
    return size + RECORD_BYTES * records > room


class _Splitter:
    """Splits one body. Call `check` first: it reads all framing that `parts` will read."""

    def __init__(self, body: bytes, bytes_max: int, records_max: int) -> None:
        self._body = body
        self._records_left = records_max
        self._light_bytes = bytes_max // _LIGHT_SHARE
        self._others: dict[int, bytes] = {}
        """The fields that all children of a message share, by the message's start."""
        self._unsplittable: set[int] = set()
        """Starts of messages whose children depend on each other, such as two members of a oneof."""
        self._fields_read = 0

    def check(self, start: int, end: int, levels: _Levels) -> Iterator[None]:
        """Raises Malformed or RequestTooLarge, so that `parts` cannot fail half-way. Works in steps."""
        body, tags, deeper = self._body, levels[0], levels[1:]
        others: list[bytes] = []
        chosen, at = 0, start
        while at < end:
            if len(tags) == 1:
                size_max = self._light_bytes if deeper else UNBOUNDED
                at, count = skip_run(body, at, end, tags[0], count_max=_SKIPPED_AT_ONCE, size_max=size_max)
                if not deeper:
                    self._count(count)
                if count == _SKIPPED_AT_ONCE:
                    yield
                    continue
                if at == end:
                    break
            begin = at
            tag, payload, at = read_field(body, at, end)
            self._fields_read += 1
            if self._fields_read > OTHER_FIELDS_MAX:
                raise Malformed
            if tag not in tags:
                others.append(body[begin:at])
                continue
            chosen += 1
            if deeper:
                yield from self.check(payload, at, deeper)
            else:
                self._count(1)
        self._others[start] = b"".join(others)
        if len(tags) > 1 and chosen > 1:
            self._unsplittable.add(start)

    def _count(self, records: int) -> None:
        self._records_left -= records
        if self._records_left < 0:
            raise RequestTooLarge(
                "the request has more records than receive.limits.records_per_request_max; send smaller "
                "batches",
                bytes_max=0,
            )

    def parts(self, start: int, end: int, bytes_max: int, levels: _Levels) -> Iterator[bytes]:
        body, tags, deeper = self._body, levels[0], levels[1:]
        header = self._others[start]
        room = bytes_max - len(header)
        # If the shared fields are more than half, copies of them would cost more than splitting saves.
        if room < bytes_max // 2 or start in self._unsplittable:
            yield body[start:end]
            return
        light = self._light_bytes if deeper else UNBOUNDED
        part, size, at = [header], 0, start
        while at < end:
            if len(tags) == 1:
                stop, count = skip_run(body, at, end, tags[0], room - size, size_max=light)
                if count:
                    part.append(body[at:stop])
                    size += stop - at + RECORD_BYTES * count
                    at = stop
                    continue
            tag, payload, stop = read_field(body, at, end)
            at = stop
            if tag not in tags:
                continue
            divide = bool(deeper) and _is_heavy(body, payload, stop, room, levels)
            for piece in self.parts(payload, stop, room, deeper) if divide else (body[payload:stop],):
                cost = room if divide else len(piece) + RECORD_BYTES  # a piece of a split child is full
                if size and size + cost > room:
                    yield b"".join(part)
                    part, size = [header], 0
                part += (bytes([tag]), varint(len(piece)), piece)
                size += cost
        if len(part) > 1 or header:
            yield b"".join(part)
