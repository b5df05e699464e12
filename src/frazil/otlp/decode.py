"""OTLP requests to rows: the one entrance, for any signal and any number of requests at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from frazil.errors import RequestInvalid
from frazil.otlp import logs, metrics, spans
from frazil.otlp.columns import Rejects, timestamps
from frazil.otlp.density import check_density
from frazil.otlp.values import OneofTwice
from frazil.otlp.wire import GROUPS_MAX, nested, normalised
from frazil.tables import DEFAULT_PROMOTED, Fill, Promoted, Signal, table_spec
from frazil.tables.columns import TableSpec

Indices = npt.NDArray[np.int64]
Rows = Callable[..., tuple[dict[str, Any], Rejects, npt.NDArray[np.int32]]]
_ROWS: dict[Signal, Rows] = {"logs": logs.rows, "spans": spans.rows, "metrics": metrics.rows}
_DENSE_BYTES_MIN = 64 * 1024
"""Bodies that are smaller together are decoded in time, whatever is in them."""
_RECORDS: dict[Signal, str] = {"logs": "log records", "spans": "spans", "metrics": "data points"}


@dataclass(frozen=True)
class Decoded:
    """`table` holds the accepted rows in the decoder's schema, which is the spec's with repeated text as
    codes.

    `request_of_row` says which request a row came in. `seen` and `rejected` count the records of each
    request, and `reasons` says why records of a request were rejected, for requests that have such.
    `rejected_records` says for the same requests which: the indices among the request's records, ascending.
    Records are in the order of the request; data points are so among those of their type, and the types are
    in the order of `metrics.TYPES`.
    """

    table: pa.Table
    request_of_row: npt.NDArray[np.int32]
    seen: npt.NDArray[np.int64]
    rejected: npt.NDArray[np.int64]
    reasons: dict[int, list[str]]
    rejected_records: dict[int, Indices]


class Decoder:
    """Decodes the requests of one signal into the rows of one table.

    The promoted columns are fixed when it is made, so that every row it returns has the same schema.
    """

    def __init__(
        self,
        signal: Signal,
        extra: Sequence[Promoted] = (),
        *,
        depth_max: int = 32,
        groups_max: int = GROUPS_MAX,
    ) -> None:
        self.signal = signal
        self.spec: TableSpec = table_spec(signal, extra)
        self.depth_max = depth_max
        self._groups_max = groups_max
        self._promoted = (*DEFAULT_PROMOTED, *extra)
        self.fill = Fill.of(self._promoted)
        self.schema = self.spec.coded_schema

    def decode(
        self,
        bodies: Sequence[bytes],
        tenants: Sequence[str],
        received_unix_nano: Sequence[int],
        *,
        bounded: bool = False,
    ) -> Decoded:
        """Rows of all bodies together; body i belongs to tenant i and came at time i.

        Raises RequestInvalid if any body cannot be decoded: the caller then tries them one by one. Raises
        TooDense, if `bounded`, where it would take too long: the caller then decodes smaller parts of the
        bodies.
        """
        try:
            columns, rejects, request_of_row = self._rows(bodies, received_unix_nano, bounded)
        except OneofTwice:
            plain = [self._plainest(body) for body in bodies]
            try:
                columns, rejects, request_of_row = self._rows(plain, received_unix_nano, bounded)
            except OneofTwice:
                raise RequestInvalid("a value is set twice, in a request that is nested too deeply") from None
        request = pa.array(request_of_row)
        tenant = pa.array(tenants, pa.string()).dictionary_encode()
        columns["tenant_id"] = pa.DictionaryArray.from_arrays(tenant.indices.take(request), tenant.dictionary)
        columns["received_time"] = timestamps(np.asarray(received_unix_nano, dtype=np.uint64)).take(request)
        table = pa.table([columns[name] for name in self.schema.names], schema=self.schema)
        seen = np.bincount(request_of_row, minlength=len(bodies))
        rejected = np.zeros(len(bodies), np.int64)
        reasons: dict[int, list[str]] = {}
        rejected_records: dict[int, Indices] = {}
        if (bad := rejects.any) is not None:
            rejected = np.bincount(request_of_row[bad], minlength=len(bodies))
            for reason, mask in rejects.by_reason.items():
                for index in np.unique(request_of_row[mask]):
                    reasons.setdefault(int(index), []).append(reason)
            rejected_records = _by_request(request_of_row, bad)
            table, request_of_row = table.filter(pa.array(~bad)), request_of_row[~bad]
        return Decoded(table, request_of_row, seen, rejected, reasons, rejected_records)

    def _plainest(self, body: bytes) -> bytes:
        """As it is if the stock parser, which stops at a lesser depth, refuses it: it may be a neighbour."""
        try:
            return normalised(self.signal, body)
        except RequestInvalid:
            return body

    def _rows(self, bodies: Sequence[bytes], received_unix_nano: Sequence[int], bounded: bool) -> Any:
        try:
            batch = nested(self.signal, bodies, self._groups_max)
            if bounded and sum(map(len, bodies)) > _DENSE_BYTES_MIN:
                check_density(self.signal, batch)
            return _ROWS[self.signal](
                batch,
                self._promoted,
                np.asarray(received_unix_nano, dtype=np.uint64),
                self.depth_max,
            )
        except pa.ArrowInvalid as error:
            raise RequestInvalid(f"not an OTLP {self.signal} request: {error}") from None


def _by_request(request_of_row: npt.NDArray[np.int32], chosen: npt.NDArray[np.bool_]) -> dict[int, Indices]:
    """For each request with chosen rows, their indices among its rows."""
    order = np.argsort(request_of_row, kind="stable")  # in metrics, each type has rows of every request
    request, picked = request_of_row[order], np.flatnonzero(chosen[order])
    requests, first = np.unique(request[picked], return_index=True)
    index = picked - np.searchsorted(request, request[picked])
    return dict(zip(requests.tolist(), np.split(index, first[1:]), strict=True))


def explain(signal: Signal, rejected: int, reasons: Iterable[str]) -> str:
    """What a client reads in `partial_success`."""
    return f"{rejected} {_RECORDS[signal]} rejected: {'; '.join(dict.fromkeys(reasons))}"


def conform(table: pa.Table, spec: TableSpec) -> pa.Table:
    """The same rows in exactly the spec's types: dictionaries decoded, required columns checked."""
    return table.cast(spec.arrow_schema)
