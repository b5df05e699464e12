"""A large OTLP request as several smaller ones that mean the same.

Decoding holds several times a request's bytes in memory, and the interpreter's lock while it runs. Requests
over a bound are therefore cut at record boundaries first. Only protobuf's framing is read; what is inside
stays bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

from frazil.errors import RequestTooLarge
from frazil.otlp.shape import OTHER_FIELDS_MAX, RECORD_BYTES, UNBOUNDED, Malformed, field, run
from frazil.otlp.varint import varint
from frazil.tables import Signal

_Levels = tuple[tuple[int, ...], ...]
_TO_RECORDS: _Levels = ((0x0A,), (0x12,), (0x12,))
"""Tags on the way down: resources in a request, scopes in a resource, records (or metrics) in a scope."""
_LEVELS: dict[Signal, _Levels] = {
    "logs": _TO_RECORDS,
    "spans": _TO_RECORDS,
    "metrics": (*_TO_RECORDS, (0x2A, 0x3A, 0x4A, 0x52, 0x5A), (0x0A,)),
}
"""In a metric: its gauge, sum, histogram, exponential histogram or summary, and the data points in that."""

_PASSED_AT_ONCE = 200_000
"""Records that are passed in one step: in 20 to 60 ms."""
_LIGHT_SHARE = 2**5 * (1 + RECORD_BYTES // 2)
"""A child smaller than this share of a part is not cut, though room is halved at each of the levels."""


def split(
    signal: Signal, body: bytes, bytes_max: int, records_max: int = UNBOUNDED
) -> Iterator[bytes | None]:
    """Parts whose bytes and RECORD_BYTES for each record are at most about `bytes_max`.

    A body that is small, malformed or cannot be cut comes back whole. None is no part: it comes between two
    steps of work on a body with very many records. RequestTooLarge if it has more than `records_max` log
    records, spans or data points.
    """
    levels = _LEVELS[signal]
    if not _is_heavy(body, 0, len(body), bytes_max, levels):
        yield body
        return
    cutter = _Cutter(body, bytes_max, records_max)
    try:
        yield from cutter.check(0, len(body), levels)
    except Malformed:
        yield body  # decoding will say what is wrong with it
        return
    yield from cutter.parts(0, len(body), bytes_max, levels)


def _is_heavy(message: bytes, start: int, end: int, room: int, levels: _Levels) -> bool:
    """Whether the cost may be above `room`. Bytes that look like the tag of a record count as a record."""
    size = end - start
    if size > room or size * (1 + RECORD_BYTES // 2) <= room:
        return size > room
    records = max(message.count(bytes([tags[0]]), start, end) for tags in levels[-1:] + _TO_RECORDS[-1:])
    return size + RECORD_BYTES * records > room


class _Cutter:
    """Cuts one body. `check` comes first, and walks all framing that `parts` will walk."""

    def __init__(self, body: bytes, bytes_max: int, records_max: int) -> None:
        self._body = body
        self._records_left = records_max
        self._light_bytes = bytes_max // _LIGHT_SHARE
        self._others: dict[int, bytes] = {}
        """What all children of a message share, by where the message begins."""
        self._whole: set[int] = set()
        """Where messages begin whose children depend on each other, as two members of a oneof do."""
        self._passed = 0

    def check(self, start: int, end: int, levels: _Levels) -> Iterator[None]:
        """Raises Malformed, so that cutting cannot fail half-way, and RequestTooLarge. Works in steps."""
        body, tags, deeper = self._body, levels[0], levels[1:]
        others: list[bytes] = []
        chosen, at = 0, start
        while at < end:
            if len(tags) == 1:
                size_max = self._light_bytes if deeper else UNBOUNDED
                at, count = run(body, at, end, tags[0], count_max=_PASSED_AT_ONCE, size_max=size_max)
                if not deeper:
                    self._count(count)
                if count == _PASSED_AT_ONCE:
                    yield
                    continue
                if at == end:
                    break
            begin = at
            tag, payload, at = field(body, at, end)
            self._passed += 1
            if self._passed > OTHER_FIELDS_MAX:
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
            self._whole.add(start)

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
        # Where most of it is what all records share, copies would cost more than they save.
        if room < bytes_max // 2 or start in self._whole:
            yield body[start:end]
            return
        light = self._light_bytes if deeper else UNBOUNDED
        part, size, at = [header], 0, start
        while at < end:
            if len(tags) == 1:
                stop, count = run(body, at, end, tags[0], room - size, size_max=light)
                if count:
                    part.append(body[at:stop])
                    size += stop - at + RECORD_BYTES * count
                    at = stop
                    continue
            tag, payload, stop = field(body, at, end)
            at = stop
            if tag not in tags:
                continue
            cut = bool(deeper) and _is_heavy(body, payload, stop, room, levels)
            for piece in self.parts(payload, stop, room, deeper) if cut else (body[payload:stop],):
                cost = room if cut else len(piece) + RECORD_BYTES  # a piece of a cut child is full
                if size and size + cost > room:
                    yield b"".join(part)
                    part, size = [header], 0
                part += (bytes([tag]), varint(len(piece)), piece)
                size += cost
        if len(part) > 1 or header:
            yield b"".join(part)
