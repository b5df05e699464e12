"""Decodes a group of requests in slices of bounded size, and counts each request's records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import structlog

from frazil.errors import FrazilError, RequestInvalid, RequestTooLarge
from frazil.otlp.decode import Decoded, Decoder, explain
from frazil.otlp.density import TooDense
from frazil.otlp.framing import RECORD_BYTES, UNBOUNDED, Malformed
from frazil.otlp.shape import ShapeLimits, count_elements, shape_of
from frazil.otlp.split import split
from frazil.tables import Signal

SLICE_BYTES = 2 * 2**20
"""Size of a slice. Bounds the memory for decoding, and how long the interpreter lock is held."""
_WHOLE_ELEMENTS_MAX = 100_000
"""Limit for a part larger than a slice that cannot be split, such as a record with a very long body."""

_UNLIMITED = ShapeLimits(UNBOUNDED, UNBOUNDED)

log = structlog.get_logger("frazil.wal")


@dataclass(frozen=True)
class PendingRequest:
    """An OTLP request in protobuf, with its tenant, receive time and counted number of records."""

    body: bytes
    tenant: str
    received_unix_nano: int
    records: int = 0

    @property
    def cost(self) -> int:
        """Decoding cost in bytes: the body plus RECORD_BYTES per record. A slice holds SLICE_BYTES of it."""
        return len(self.body) + RECORD_BYTES * self.records


@dataclass
class Tally:
    """Counts of one request: all records, and the invalid ones with the reasons."""

    seen: int = 0
    rejected: int = 0
    reasons: list[str] = field(default_factory=list)

    @property
    def accepted(self) -> int:
        return self.seen - self.rejected

    def reason(self, signal: Signal) -> str:
        return explain(signal, self.rejected, self.reasons) if self.rejected else ""


@dataclass(frozen=True)
class Slice:
    """Bodies that were decoded together: several small requests, or a piece of a large one.

    `bodies[i]` belongs to the request at `owners[i]` in the group, and has index i in `decoded`.
    """

    owners: list[int]
    bodies: list[bytes]
    decoded: Decoded


class SliceDecoder:
    """Decodes groups of one signal's requests."""

    def __init__(self, decoder: Decoder, records_per_request_max: int) -> None:
        self._decoder = decoder
        self._records_per_request_max = records_per_request_max

    def slices(self, group: Sequence[PendingRequest], tallies: Sequence[Tally]) -> Iterator[Slice | None]:
        """Yields the group's slices in order, and adds each request's counts to its tally.

        Yields None after a long step without a slice, so that other jobs can run. Raises RequestInvalid or
        RequestTooLarge if some request is at fault; the error does not say which.
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
        """Yields owners and bodies of about SLICE_BYTES each; splits large bodies.

        Yields empty lists after a long step without a slice.
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
                    if number == 0 or piece is None:  # finding the first piece scanned the whole body
                        yield [], []
                    if piece is not None:
                        for _ in self._check_unsplit(piece):
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

    def _check_unsplit(self, piece: bytes) -> Iterator[None]:
        """Raises RequestTooLarge if a piece that could not be split to a slice has too many fields.

        Counts in short steps.
        """
        if len(piece) <= 2 * SLICE_BYTES:
            return
        try:
            for counted in count_elements(self._decoder.signal, piece):
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
        """Yields one slice, or several if the bodies decode to too many small values."""
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
            yield from self._check_dense(bodies[0], error)
            decoded = self._decode(bodies, [group[owner] for owner in owners], bounded=False)
            yield Slice(owners, bodies, decoded)

    def _check_dense(self, body: bytes, error: TooDense) -> Iterator[None]:
        """Raises RequestTooLarge if a body that cannot be split really is too dense.

        The estimate behind TooDense counts line ends in nested text as nested values.
        """
        if not error.is_nested:
            raise RequestTooLarge(str(error), bytes_max=0)
        for counted in count_elements(self._decoder.signal, body):
            if counted > _WHOLE_ELEMENTS_MAX:
                raise RequestTooLarge(str(error), bytes_max=0)
            yield

    def _smaller(
        self, owners: list[int], bodies: list[bytes], error: TooDense
    ) -> list[tuple[list[int], list[bytes]]]:
        """Splits the bodies further. Returns an empty list for one body that cannot be split."""
        if len(bodies) > 1:
            half = len(bodies) // 2
            return [(owners[:half], bodies[:half]), (owners[half:], bodies[half:])]
        (body,) = bodies
        shape = shape_of(body, _UNLIMITED)
        records = 0 if shape is None else shape.records
        for size in (len(body) + RECORD_BYTES * records, len(body)):
            parts = split(self._decoder.signal, body, int(size / (error.times + 1)))
            pieces = [piece for piece in parts if piece is not None]
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
        """Turns a bug, or a panic in Rust, into RequestInvalid: it must not fail the other requests."""
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
            log.exception("request decoding failed unexpectedly", signal=self._decoder.signal)
            raise RequestInvalid(f"the request cannot be decoded: {type(error).__name__}") from None
