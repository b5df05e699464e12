"""Decoding a group of requests in slices of bounded size, and counting what each request had."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import structlog

from frazil.errors import FrazilError, RequestInvalid, RequestTooLarge
from frazil.otlp.decode import Decoded, Decoder, explain
from frazil.otlp.split import split
from frazil.tables import Signal

SLICE_BYTES = 2 * 2**20
"""Decoded at once. Bounds the memory beside the request itself, and how long the interpreter's lock is held.
"""
_OTHER_FIELDS_MAX = 1_000_000
"""Resources, scopes and what they hold, in a request that is cut: each costs about a microsecond."""

log = structlog.get_logger("frazil.wal")


@dataclass(frozen=True)
class Request:
    """An OTLP request in protobuf, whose it is and when it came."""

    body: bytes
    tenant: str
    received_unix_nano: int


@dataclass
class Tally:
    """What a request had: all of its records, and those of them that are invalid on their own."""

    seen: int = 0
    rejected: int = 0
    reasons: list[str] = field(default_factory=list)

    @property
    def accepted(self) -> int:
        return self.seen - self.rejected

    def explained(self, signal: Signal) -> str:
        return explain(signal, self.rejected, self.reasons) if self.rejected else ""


@dataclass(frozen=True)
class Slice:
    """What was decoded together: small requests as they came, or a piece of a large one.

    `bodies[i]` is of the request at `owners[i]` in the group, and the i-th for `decoded`.
    """

    owners: list[int]
    bodies: list[bytes]
    decoded: Decoded


class SliceDecoder:
    """Decodes groups of one signal's requests, of which each may have so many records and no more."""

    def __init__(self, decoder: Decoder, records_per_request_max: int) -> None:
        self._decoder = decoder
        self._records_per_request_max = records_per_request_max
        self.fields_max = records_per_request_max + _OTHER_FIELDS_MAX
        """For whoever cuts a request by `split`: one with more fields may be refused."""

    def slices(self, group: Sequence[Request], tallies: Sequence[Tally]) -> Iterator[Slice]:
        """All of the group in order; counts what each request had into its tally.

        RequestInvalid or RequestTooLarge is due to some of the requests; it does not say to which.
        """
        for owners, bodies in _packed([request.body for request in group], self.fields_max):
            decoded = self._decode(bodies, [group[owner] for owner in owners])
            for position, owner in enumerate(owners):
                self._count(decoded, position, tallies[owner])
            yield Slice(owners, bodies, decoded)

    def _count(self, decoded: Decoded, position: int, tally: Tally) -> None:
        tally.seen += int(decoded.seen[position])
        tally.rejected += int(decoded.rejected[position])
        tally.reasons += decoded.reasons.get(position, ())
        if tally.seen > (bound := self._records_per_request_max):
            raise RequestTooLarge(f"a request may have at most {bound} records", bytes_max=0)

    def _decode(self, bodies: list[bytes], owners: list[Request]) -> Decoded:
        """A defect, or a panic in Rust, is due to some request: it must not take its neighbours down."""
        try:
            return self._decoder.decode(
                bodies,
                [request.tenant for request in owners],
                [request.received_unix_nano for request in owners],
            )
        except (FrazilError, MemoryError):
            raise
        except BaseException as error:
            log.exception("defect while decoding", signal=self._decoder.signal)
            raise RequestInvalid(f"the request cannot be decoded: {type(error).__name__}") from None


def _packed(bodies: Sequence[bytes], fields_max: int) -> Iterator[tuple[list[int], list[bytes]]]:
    """Bodies packed to about SLICE_BYTES, large ones cut; with the index of the body of each piece."""
    owners: list[int] = []
    pieces: list[bytes] = []
    size = 0
    for owner, body in enumerate(bodies):
        if len(body) > SLICE_BYTES:
            for piece in split(body, SLICE_BYTES, fields_max):
                yield [owner], [piece]
            continue
        if pieces and size + len(body) > SLICE_BYTES:
            yield owners, pieces
            owners, pieces, size = [], [], 0
        owners.append(owner)
        pieces.append(body)
        size += len(body)
    if pieces:
        yield owners, pieces
