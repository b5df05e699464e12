"""From requests to messages' values: checked by decoding, without invalid records, of bounded size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import cast

import pyarrow as pa

from frazil.config import Config
from frazil.config.wal import KafkaConfig
from frazil.errors import RequestTooLarge
from frazil.otlp.decode import Decoder
from frazil.otlp.encode import encode
from frazil.otlp.split import split
from frazil.tables import Signal
from frazil.wal.group import Lane, LaneSettings, Observer, Receipt, _Tally, _Waiting
from frazil.wal.kafka.messages import value_of
from frazil.wal.store import Store

_FRAMING_BYTES = 64
"""A part of a request may be this much larger than asked for."""
_JSON_GROWTH = 4
"""JSON is two to four times as large as protobuf; what is larger still is cut once more, more slowly."""
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
        settings = LaneSettings(
            group_wait_seconds=config.wal.group_wait_seconds or 0.0,  # the producer waits for company itself
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
        prepared = [_PreparedTally() for _ in group]
        tallies: list[_Tally] = [*prepared]
        self._count(group, tallies)
        for waiting, tally in zip(group, prepared, strict=True):
            if tally.seen > tally.rejected:
                tally.values = tuple(self._values(waiting, has_rejects=tally.rejected > 0))
        return tallies

    def _count(self, group: list[_Waiting], tallies: list[_Tally]) -> None:
        """Rows are made only to know which are valid."""
        for _ in self._decoded(group, tallies):
            pass

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
        parts = split(waiting.body, _PIECE_BYTES, len(waiting.body))
        pieces = [replace(waiting, body=part) for part in parts]
        tallies = [_Tally() for _ in pieces]
        self._count(pieces, tallies)
        return b"".join(
            b"".join(map(self._encoded, self._rows(piece))) if True else piece.body
            for piece, tally in zip(pieces, tallies, strict=True)
        )

    def _rows(self, waiting: _Waiting) -> Iterator[pa.Table]:
        for decoded in self._decoded([waiting], [_Tally()]):
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
