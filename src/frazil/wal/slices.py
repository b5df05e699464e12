"""Decoding a group of requests in slices of bounded size, and counting what each request had."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import structlog

from frazil.errors import FrazilError, RequestInvalid, RequestTooLarge
from frazil.otlp.decode import Decoded, Decoder, explain
from frazil.otlp.density import TooDense
from frazil.otlp.shape import RECORD_BYTES, UNBOUNDED, Malformed, ShapeLimits, elements, shape_of
from frazil.otlp.split import split
from frazil.tables import Signal

SLICE_BYTES = 2 * 2**20
"""Decoded at once. Bounds the memory beside the request itself, and how long the interpreter's lock is held.
"""
_WHOLE_ELEMENTS_MAX = 100_000
"""In what is larger than a slice and cannot be cut, such as a record with a very long body."""

_UNLIMITED = ShapeLimits(UNBOUNDED, UNBOUNDED)

log = structlog.get_logger("frazil.wal")


@dataclass(frozen=True)
class PendingRequest:
    """An OTLP request in protobuf, whose it is and when it came. `records` are as many as it was counted to
    have.
    """

    body: bytes
    tenant: str
    received_unix_nano: int
    records: int = 0

    @property
    def cost(self) -> int:
        """Its bytes, with RECORD_BYTES for each record: SLICE_BYTES of it are decoded at once."""
        return len(self.body) + RECORD_BYTES * self.records


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

    def slices(self, group: Sequence[PendingRequest], tallies: Sequence[Tally]) -> Iterator[Slice | None]:
        """All of the group in order; counts what each request had into its tally.

        None gives other jobs a turn after a step that took long by itself.
        RequestInvalid or RequestTooLarge is due to some of the requests; it does not say to which.
        """
        for owners, bodies in self._packed(group):
            if not bodies:
                yield None
                continue
            for part in self._decoded(owners, bodies, group):
                if part is not None:
                    for position, owner in enumerate(part.owners):
                        self._count(part.decoded, position, tallies[owner])
                yield part

    def _packed(self, group: Sequence[PendingRequest]) -> Iterator[tuple[list[int], list[bytes]]]:
        """Bodies packed to about SLICE_BYTES, large ones cut; with the index of the body of each piece.

        There are no bodies after a step that took long by itself.
        """
        owners: list[int] = []
        pieces: list[bytes] = []
        size = 0
        for owner, request in enumerate(group):
            if request.cost > SLICE_BYTES:
                if pieces:
                    yield owners, pieces
                    owners, pieces, size = [], [], 0
                bound = self._records_per_request_max
                for number, piece in enumerate(split(self._decoder.signal, request.body, SLICE_BYTES, bound)):
                    if number == 0 or piece is None:  # all of the body was walked for the first one
                        yield [], []
                    if piece is not None:
                        for _ in self._checking_whole(piece):
                            yield [], []
                        yield [owner], [piece]
                continue
            if pieces and size + request.cost > SLICE_BYTES:
                yield owners, pieces
                owners, pieces, size = [], [], 0
            owners.append(owner)
            pieces.append(request.body)
            size += request.cost
        if pieces:
            yield owners, pieces

    def _checking_whole(self, piece: bytes) -> Iterator[None]:
        """What could not be cut to a slice is decoded at once: it must not hold many small things. Counts in
        short steps.
        """
        if len(piece) <= 2 * SLICE_BYTES:
            return
        try:
            for counted in elements(self._decoder.signal, piece):
                if counted > _WHOLE_ELEMENTS_MAX:
                    raise RequestTooLarge(
                        f"a record, a resource or a scope is larger than {SLICE_BYTES} bytes and holds more "
                        f"than {_WHOLE_ELEMENTS_MAX} fields",
                        bytes_max=SLICE_BYTES,
                    )
                yield
        except Malformed:
            raise RequestInvalid(f"not an OTLP {self._decoder.signal} request: malformed framing") from None

    def _decoded(
        self, owners: list[int], bodies: list[bytes], group: Sequence[PendingRequest]
    ) -> Iterator[Slice | None]:
        """As one slice, or as several where these bodies hold very many small things."""
        try:
            decoded = self._decode(bodies, [group[owner] for owner in owners])
        except TooDense as dense:
            error = dense
            smaller = self._smaller(owners, bodies, error)
        else:
            yield Slice(owners, bodies, decoded)
            return
        yield None
        for some_owners, some_bodies in smaller:
            yield from self._decoded(some_owners, some_bodies, group)
        if not smaller:
            yield from self._checking_dense(bodies[0], error)
            decoded = self._decode(bodies, [group[owner] for owner in owners], bounded=False)
            yield Slice(owners, bodies, decoded)

    def _checking_dense(self, body: bytes, error: TooDense) -> Iterator[None]:
        """RequestTooLarge if a body that cannot be cut is as dense as it seems. New lines in nested text look
        like nested values to the estimate.
        """
        if not error.is_nested:
            raise RequestTooLarge(str(error), bytes_max=0)
        for counted in elements(self._decoder.signal, body):
            if counted > _WHOLE_ELEMENTS_MAX:
                raise RequestTooLarge(str(error), bytes_max=0)
            yield

    def _smaller(
        self, owners: list[int], bodies: list[bytes], error: TooDense
    ) -> list[tuple[list[int], list[bytes]]]:
        """Nothing if it is one body that cannot be cut."""
        if len(bodies) > 1:
            half = len(bodies) // 2
            return [(owners[:half], bodies[:half]), (owners[half:], bodies[half:])]
        (body,) = bodies
        shape = shape_of(body, _UNLIMITED)
        records = 0 if shape is None else shape.records
        for size in (len(body) + RECORD_BYTES * records, len(body)):
            cut = split(self._decoder.signal, body, int(size / (error.times + 1)))
            pieces = [piece for piece in cut if piece is not None]
            if len(pieces) > 1:
                return [(owners, [piece]) for piece in pieces]
        return []

    def _count(self, decoded: Decoded, position: int, tally: Tally) -> None:
        tally.seen += int(decoded.seen[position])
        tally.rejected += int(decoded.rejected[position])
        tally.reasons += decoded.reasons.get(position, ())
        if tally.seen > (bound := self._records_per_request_max):
            raise RequestTooLarge(f"a request may have at most {bound} records", bytes_max=0)

    def _decode(self, bodies: list[bytes], owners: list[PendingRequest], *, bounded: bool = True) -> Decoded:
        """A defect, or a panic in Rust, is due to some request: it must not take its neighbours down."""
        try:
            return self._decoder.decode(
                bodies,
                [request.tenant for request in owners],
                [request.received_unix_nano for request in owners],
                bounded=bounded,
            )
        except (FrazilError, MemoryError, TooDense):
            raise
        except BaseException as error:
            log.exception("defect while decoding", signal=self._decoder.signal)
            raise RequestInvalid(f"the request cannot be decoded: {type(error).__name__}") from None
