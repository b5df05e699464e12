"""Decodes OTLP requests to rows. The entry point for all signals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from frazil.errors import RequestInvalid
from frazil.otlp import logs, metrics, spans
from frazil.otlp.columns import Envelope, Rows, timestamps
from frazil.otlp.density import check_density
from frazil.otlp.values import DuplicateOneof
from frazil.otlp.wire import GROUPS_MAX, canonical, to_arrow
from frazil.tables import Fill, Promoted, Signal, table_spec
from frazil.tables.columns import TableSpec

Indices = npt.NDArray[np.int64]
_ROWS = {"logs": logs.rows, "spans": spans.rows, "metrics": metrics.rows}
_DENSE_BYTES_MIN = 64 * 1024
"""Below this total size, decoding is fast whatever the bodies contain."""
_RECORDS: dict[Signal, str] = {"logs": "log records", "spans": "spans", "metrics": "data points"}


@dataclass(frozen=True)
class Decoded:
    """The result of decoding several requests.

    `table` holds the accepted rows in the decoder's schema: the spec's schema with dictionary-encoded text.
    `request_of_row` is the index of each row's request. `seen` and `rejected` count the records per request.
    `reasons` has the reasons of each request with rejected records, and `rejected_records` the ascending
    indices of those records in the request. Records keep the order of the request; data points are ordered by
    type first, in the order of `metrics.TYPES`.
    """

    table: pa.Table
    request_of_row: npt.NDArray[np.int32]
    seen: npt.NDArray[np.int64]
    rejected: npt.NDArray[np.int64]
    reasons: dict[int, list[str]]
    rejected_records: dict[int, Indices]


class Decoder:
    """Decodes the requests of one signal into rows of one schema, with the promoted columns `extra`."""

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
        self._promoted = self.spec.promoted
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
        """Decodes all bodies together; `bodies[i]` has `tenants[i]` and `received_unix_nano[i]`.

        Raises RequestInvalid if any body cannot be decoded: the caller then retries them one by one. If
        `bounded`, raises TooDense if decoding would take too long: the caller then decodes smaller parts.
        """
        try:
            envelope, rows, columns = self._rows(bodies, received_unix_nano, bounded)
        except DuplicateOneof:
            plain = [self._canonical(body) for body in bodies]
            try:
                envelope, rows, columns = self._rows(plain, received_unix_nano, bounded)
            except DuplicateOneof:
                raise RequestInvalid("the request sets a field twice and is nested too deeply") from None
        request_of_row = envelope.request_of_row(rows.scope_of_row)
        request = pa.array(request_of_row)
        tenant = pa.array(tenants, pa.string()).dictionary_encode()
        columns["tenant_id"] = pa.DictionaryArray.from_arrays(tenant.indices.take(request), tenant.dictionary)
        columns["received_time"] = timestamps(np.asarray(received_unix_nano, dtype=np.uint64)).take(request)
        table = pa.table([columns[name] for name in self.schema.names], schema=self.schema)
        seen = np.bincount(request_of_row, minlength=len(bodies))
        rejected = np.zeros(len(bodies), np.int64)
        reasons: dict[int, list[str]] = {}
        rejected_records: dict[int, Indices] = {}
        if (bad := rows.rejects.any) is not None:
            rejected = np.bincount(request_of_row[bad], minlength=len(bodies))
            for reason, mask in rows.rejects.by_reason.items():
                for index in np.unique(request_of_row[mask]):
                    reasons.setdefault(int(index), []).append(reason)
            rejected_records = _by_request(request_of_row, bad)
            table, request_of_row = table.filter(pa.array(~bad)), request_of_row[~bad]
        return Decoded(table, request_of_row, seen, rejected, reasons, rejected_records)

    def _canonical(self, body: bytes) -> bytes:
        """Returns the body unchanged if protobuf's parser refuses it: another body may have the duplicate."""
        try:
            return canonical(self.signal, body)
        except RequestInvalid:
            return body

    def _rows(
        self, bodies: Sequence[bytes], received_unix_nano: Sequence[int], bounded: bool
    ) -> tuple[Envelope, Rows, dict[str, Any]]:
        try:
            batch = to_arrow(self.signal, bodies, self._groups_max)
            if bounded and sum(map(len, bodies)) > _DENSE_BYTES_MIN:
                check_density(self.signal, batch)
            envelope = Envelope.of(self.signal, batch, self.depth_max)
            rows = _ROWS[self.signal](envelope, np.asarray(received_unix_nano, dtype=np.uint64))
            columns = rows.columns | envelope.columns(rows.scope_of_row, rows.attributes, self._promoted)
            return envelope, rows, columns
        except pa.ArrowInvalid as error:
            raise RequestInvalid(f"not an OTLP {self.signal} request: {error}") from None


def _by_request(request_of_row: npt.NDArray[np.int32], chosen: npt.NDArray[np.bool_]) -> dict[int, Indices]:
    """Returns for each request with chosen rows their indices among the request's rows."""
    order = np.argsort(request_of_row, kind="stable")  # in metrics, each type has rows of every request
    request, picked = request_of_row[order], np.flatnonzero(chosen[order])
    requests, first = np.unique(request[picked], return_index=True)
    index = picked - np.searchsorted(request, request[picked])
    return dict(zip(requests.tolist(), np.split(index, first[1:]), strict=True))


def explain(signal: Signal, rejected: int, reasons: Iterable[str]) -> str:
    """Returns the message for `partial_success`."""
    return f"{rejected} {_RECORDS[signal]} rejected: {'; '.join(dict.fromkeys(reasons))}"


def conform(table: pa.Table, spec: TableSpec) -> pa.Table:
    """Casts the rows to the spec's types: decodes dictionaries and checks required columns."""
    return table.cast(spec.arrow_schema)
