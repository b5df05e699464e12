"""Turns requests into message values: valid records only, and of bounded size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from frazil.config import Config
from frazil.config.wal import KafkaConfig
from frazil.errors import RequestTooLarge
from frazil.otlp.decode import Decoder
from frazil.otlp.encode import encode
from frazil.otlp.split import split
from frazil.wal.group import Lane, LaneSettings, Observer, Receipt, Steps
from frazil.wal.kafka.drop_records import drop_records
from frazil.wal.kafka.messages import value_of
from frazil.wal.slices import PendingRequest, Slice, Tally

_FRAMING_BYTES = 64
"""A split part of a request may exceed the requested size by this much."""
_JSON_GROWTH = 4
"""JSON is two to four times as large as protobuf. Larger parts are split again, more slowly."""
_GROUP_WAIT_SECONDS = 0.02
"""Decoding small requests together halves the CPU time. The producer batches messages independently."""


@dataclass(frozen=True)
class PreparedRequest(Receipt):
    """The receipt to return once all `values` are durable."""

    values: tuple[bytes, ...] = ()


@dataclass
class _Part:
    """A part of a request that fits into one message. A large part is decoded in pieces."""

    request: PendingRequest
    has_rejects: bool = False
    accepted: list[bytes] = field(default_factory=list)
    """The pieces with valid records; invalid records are removed."""

    @property
    def body(self) -> bytes:
        """The part with its valid records only. Concatenated protobuf requests are one request."""
        return b"".join(self.accepted) if self.has_rejects else self.request.body


class PreparingLane(Lane[PreparedRequest]):
    """The lane that turns requests into message values. It stores nothing.

    `append` raises RequestInvalid if decoding fails, RequestTooLarge if a record exceeds the message size.
    """

    _span_name = "wal.prepare"

    def __init__(self, decoder: Decoder, config: Config, kafka: KafkaConfig, observer: Observer) -> None:
        wait = config.wal.group_wait_seconds
        settings = LaneSettings(
            group_wait_seconds=_GROUP_WAIT_SECONDS if wait is None else wait,
            group_bytes_max=config.wal.segment_bytes_max,
            records_per_request_max=config.receive.limits.records_per_request_max,
        )
        super().__init__(decoder, settings, observer)
        self._records_per_request_max = settings.records_per_request_max
        self._kafka = kafka
        growth = _JSON_GROWTH if kafka.encoding == "otlp_json" else 1
        self._part_bytes_max = kafka.message_bytes_max // growth - _FRAMING_BYTES

    # The methods below run in the lane's thread.

    def _process(self, requests: Sequence[PendingRequest]) -> Steps[list[PreparedRequest]]:
        tallies = [Tally() for _ in requests]
        parts: list[list[_Part]] = [[] for _ in requests]
        for request, of_request in zip(requests, parts, strict=True):
            of_request += yield from self._parts(request)
        yield from self._decode(
            [part for of_request in parts for part in of_request],
            [tally for tally, of_request in zip(tallies, parts, strict=True) for _ in of_request],
        )
        prepared = []
        for tally, of_request in zip(tallies, parts, strict=True):
            prepared.append((yield from self._prepared(tally, of_request)))
        return prepared

    def _parts(self, request: PendingRequest) -> Steps[list[_Part]]:
        """Splits the request into parts that fit into a message. Malformed requests stay whole."""
        if len(request.body) <= self._part_bytes_max:
            return [_Part(request)]
        parts = []
        bound = self._records_per_request_max
        for piece in split(self._decoder.signal, request.body, self._part_bytes_max, bound):
            if piece is not None:
                parts.append(_Part(replace(request, body=piece, records=0)))
            yield
        return parts

    def _decode(self, parts: Sequence[_Part], tallies: Sequence[Tally]) -> Steps[None]:
        """Decodes the parts to find their valid records. `tallies` belong to the parts' requests."""
        slices = self._slice_decoder.slices([part.request for part in parts], tallies)
        for number, piece in enumerate(slices):
            if number:
                yield
            if piece is not None:
                for position, owner in enumerate(piece.owners):
                    self._keep_valid(parts[owner], piece, position)

    def _keep_valid(self, part: _Part, of: Slice, position: int) -> None:
        body, seen = of.bodies[position], int(of.decoded.seen[position])
        rejected = of.decoded.rejected_records.get(position)
        if rejected is not None:
            part.has_rejects = True
            if len(rejected) == seen:
                return
            body = drop_records(self._decoder.signal, body, seen, rejected)
        if seen:
            part.accepted.append(body)

    def _prepared(self, tally: Tally, parts: Sequence[_Part]) -> Steps[PreparedRequest]:
        values: list[bytes] = []
        for number, part in enumerate(parts):
            if number:
                yield
            if part.accepted:
                values += self._values(part)
        reason = tally.reason(self._decoder.signal)
        return PreparedRequest(tally.accepted, tally.rejected, reason, tuple(values))

    def _values(self, of: _Part) -> Iterator[bytes]:
        whole = of.body
        for body in split(self._decoder.signal, whole, self._part_bytes_max):
            if body is None:
                continue
            value = self._value(body)
            if len(value) <= self._kafka.message_bytes_max:
                yield value
            else:  # a metric with many points, or small records with a large resource
                request = replace(of.request, body=body, records=0)
                for piece in self._slice_decoder.slices([request], [Tally()]):
                    if piece is not None:
                        yield from self._values_of_rows(piece.decoded.table)

    def _values_of_rows(self, rows: pa.Table) -> Iterator[bytes]:
        value = self._value(self._encoded(rows))
        bound = self._kafka.message_bytes_max
        if len(value) <= bound:
            yield value
        elif rows.num_rows > 1:
            half = rows.num_rows // 2
            yield from self._values_of_rows(rows.slice(0, half))
            yield from self._values_of_rows(rows.slice(half))
        else:
            raise RequestTooLarge(
                f"a record takes {len(value)} bytes as a message; the limit is {bound}", bytes_max=bound
            )

    def _encoded(self, rows: pa.Table) -> bytes:
        return encode(rows, self._decoder.spec).SerializeToString()

    def _value(self, body: bytes) -> bytes:
        return value_of(body, self._kafka.encoding, self._decoder.signal)
