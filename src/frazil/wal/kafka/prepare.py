"""From requests to messages' values: checked by decoding, without invalid records, of bounded size."""

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
from frazil.wal.kafka.drop_records import without
from frazil.wal.kafka.messages import value_of
from frazil.wal.slices import PendingRequest, Slice, Tally

_FRAMING_BYTES = 64
"""A part of a request may be this much larger than asked for."""
_JSON_GROWTH = 4
"""JSON is two to four times as large as protobuf; what is larger still is cut once more, more slowly."""
_GROUP_WAIT_SECONDS = 0.02
"""Small requests are decoded together for half the CPU; the producer batches messages by itself."""


@dataclass(frozen=True)
class Prepared(Receipt):
    """What the client will be told once all `values` are durable."""

    values: tuple[bytes, ...] = ()


@dataclass
class _Part:
    """Of a request, so much as may be one message. A large part is decoded in pieces."""

    request: PendingRequest
    has_rejects: bool = False
    accepted: list[bytes] = field(default_factory=list)
    """The pieces that have valid records, without the invalid ones."""

    @property
    def body(self) -> bytes:
        """With its valid records alone. Requests one after the other are one, in protobuf."""
        return b"".join(self.accepted) if self.has_rejects else self.request.body


class PreparingLane(Lane[Prepared]):
    """Makes messages' values of its requests, and stores nothing.

    What waits together is decoded together, in one thread; a malformed request harms no other.
    """

    _work = "wal.prepare"

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

    async def prepare(self, body: bytes, tenant: str, received_unix_nano: int, records: int = 0) -> Prepared:
        """RequestInvalid if it cannot be decoded, RequestTooLarge if a record does not fit in a message."""
        return await self.append(body, tenant, received_unix_nano, records)

    # What follows runs in the lane's thread.

    def _process(self, requests: Sequence[PendingRequest]) -> Steps[list[Prepared]]:
        tallies = [Tally() for _ in requests]
        parts: list[list[_Part]] = [[] for _ in requests]
        for request, of_request in zip(requests, parts, strict=True):
            of_request += yield from self._parts(request)
        yield from self._check(
            [part for of_request in parts for part in of_request],
            [tally for tally, of_request in zip(tallies, parts, strict=True) for _ in of_request],
        )
        prepared = []
        for tally, of_request in zip(tallies, parts, strict=True):
            prepared.append((yield from self._prepared(tally, of_request)))
        return prepared

    def _parts(self, request: PendingRequest) -> Steps[list[_Part]]:
        """The request, cut where it is too large for a message. What is malformed stays whole."""
        if len(request.body) <= self._part_bytes_max:
            return [_Part(request)]
        parts = []
        bound = self._records_per_request_max
        for piece in split(self._decoder.signal, request.body, self._part_bytes_max, bound):
            if piece is not None:
                parts.append(_Part(replace(request, body=piece, records=0)))
            yield
        return parts

    def _check(self, parts: Sequence[_Part], tallies: Sequence[Tally]) -> Steps[None]:
        """Decodes all parts, only to know which records are valid. `tallies` are those of their requests."""
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
            body = without(self._decoder.signal, body, seen, rejected)
        if seen:
            part.accepted.append(body)

    def _prepared(self, tally: Tally, parts: Sequence[_Part]) -> Steps[Prepared]:
        values: list[bytes] = []
        for number, part in enumerate(parts):
            if number:
                yield
            if part.accepted:
                values += self._values(part)
        reason = tally.explained(self._decoder.signal)
        return Prepared(tally.accepted, tally.rejected, reason, tuple(values))

    def _values(self, of: _Part) -> Iterator[bytes]:
        whole = of.body
        for body in split(self._decoder.signal, whole, self._part_bytes_max):
            if body is None:
                continue
            value = self._value(body)
            if len(value) <= self._kafka.message_bytes_max:
                yield value
            else:  # a metric of many points, or records whose resource is most of them
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
                f"a record takes {len(value)} bytes as a message, where {bound} are allowed", bytes_max=bound
            )

    def _encoded(self, rows: pa.Table) -> bytes:
        return encode(rows, self._decoder.spec).SerializeToString()

    def _value(self, body: bytes) -> bytes:
        return value_of(body, self._kafka.encoding, self._decoder.signal)
