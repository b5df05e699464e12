"""From requests to messages' values: checked by decoding, without invalid records, of bounded size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import cast

import pyarrow as pa

from frazil.config import Config
from frazil.config.wal import KafkaConfig
from frazil.errors import RequestTooLarge
from frazil.otlp.decode import Decoder
from frazil.otlp.encode import encode
from frazil.otlp.split import split
from frazil.tables import Signal
from frazil.wal.group import _OTHER_FIELDS_MAX, Lane, LaneSettings, Observer, Receipt, _Tally, _Waiting
from frazil.wal.kafka.messages import value_of
from frazil.wal.store import Store

_FRAMING_BYTES = 64
"""A part of a request may be this much larger than asked for."""
_JSON_GROWTH = 4
"""JSON is two to four times as large as protobuf; what is larger still is cut once more, more slowly."""
_GROUP_WAIT_SECONDS = 0.02
"""Small requests are decoded together for half the CPU; the producer batches messages by itself."""
_PIECE_BYTES = 16 * 1024
"""Of a request with invalid records, so much around each of them is encoded anew; the rest stays as it came.
"""


@dataclass(frozen=True)
class Prepared(Receipt):
    """What the client will be told once all `values` are durable."""

    values: tuple[bytes, ...] = ()


@dataclass
class _PreparedTally(_Tally):
    values: tuple[bytes, ...] = ()

    def receipt(self, signal: Signal) -> Prepared:
        plain = super().receipt(signal)
        return Prepared(plain.accepted, plain.rejected, plain.reason, self.values)


class PreparingLane(Lane):
    """A lane that ends where others write a segment: it makes values of its requests and stores nothing.

    What waits together is decoded together, in one thread; a malformed request harms no other.
    """

    def __init__(self, decoder: Decoder, config: Config, kafka: KafkaConfig, observer: Observer) -> None:
        wait = config.wal.group_wait_seconds
        settings = LaneSettings(
            group_wait_seconds=_GROUP_WAIT_SECONDS if wait is None else wait,
            segment_bytes_max=config.wal.segment_bytes_max,
            compression_level=config.wal.compression_level,
            records_per_request_max=config.receive.limits.records_per_request_max,
            stream_use_seconds=math.inf,
        )
        super().__init__(cast(Store, None), decoder, settings, observer)
        self._kafka = kafka
        growth = _JSON_GROWTH if kafka.encoding == "otlp_json" else 1
        self._part_bytes_max = kafka.message_bytes_max // growth - _FRAMING_BYTES

    async def prepare(self, body: bytes, tenant: str, received_unix_nano: int) -> Prepared:
        """RequestInvalid if it cannot be decoded, RequestTooLarge if a record does not fit in a message."""
        return cast(Prepared, await self.append(body, tenant, received_unix_nano))

    # What follows runs in the lane's thread.

    def _write(self, group: list[_Waiting], attempt: int = 1) -> list[_Tally]:
        parts = [self._parts(waiting) for waiting in group]
        counted = [[_Tally() for _ in of_request] for of_request in parts]
        self._count(list(chain(*parts)), list(chain(*counted)))
        return [self._prepared(*of_request) for of_request in zip(parts, counted, strict=True)]

    def _parts(self, waiting: _Waiting) -> list[_Waiting]:
        """The request, cut where it is too large for a message. What is malformed stays whole."""
        fields_max = self._settings.records_per_request_max + _OTHER_FIELDS_MAX
        pieces = split(waiting.body, self._part_bytes_max, fields_max)
        return [replace(waiting, body=piece) for piece in pieces]

    def _count(self, parts: list[_Waiting], tallies: list[_Tally]) -> None:
        """Rows are made only to know which are valid."""
        for _ in self._decoded(parts, tallies):
            pass

    def _prepared(self, parts: list[_Waiting], tallies: list[_Tally]) -> _PreparedTally:
        request = _PreparedTally(
            seen=sum(tally.seen for tally in tallies),
            rejected=sum(tally.rejected for tally in tallies),
            reasons=[reason for tally in tallies for reason in tally.reasons],
        )
        if request.seen > (bound := self._settings.records_per_request_max):
            raise RequestTooLarge(f"a request may have at most {bound} records", bytes_max=0)
        request.values = tuple(
            value
            for part, tally in zip(parts, tallies, strict=True)
            if tally.seen > tally.rejected
            for value in self._values(part, has_rejects=tally.rejected > 0)
        )
        return request

    def _values(self, waiting: _Waiting, *, has_rejects: bool) -> Iterator[bytes]:
        body = self._accepted(waiting) if has_rejects else waiting.body
        for part in split(body, self._part_bytes_max, len(body)):
            value = self._value(part)
            if len(value) <= self._kafka.message_bytes_max:
                yield value
            else:  # a metric of many points, or records whose resource is most of them
                for rows in self._rows(replace(waiting, body=part)):
                    yield from self._values_of_rows(rows)

    def _accepted(self, waiting: _Waiting) -> bytes:
        """The request without its invalid records. Requests one after the other are one, in protobuf."""
        pieces = split(waiting.body, _PIECE_BYTES, len(waiting.body))
        parts = [replace(waiting, body=piece) for piece in pieces]
        tallies = [_Tally() for _ in parts]
        self._count(parts, tallies)
        spoilt = [part for part, tally in zip(parts, tallies, strict=True) if tally.rejected]
        sound = [part.body for part, tally in zip(parts, tallies, strict=True) if not tally.rejected]
        return b"".join([*sound, *map(self._encoded, self._rows(*spoilt))])

    def _rows(self, *parts: _Waiting) -> Iterator[pa.Table]:
        for decoded in self._decoded([*parts], [_Tally() for _ in parts]):
            yield decoded.table

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
