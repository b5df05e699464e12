"""Segments and data files as versions wrote them that filled each promoted column from one attribute."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import pyarrow as pa
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from frazil.lake import schema
from frazil.otlp.decode import Decoder
from frazil.pipeline.datafile import Layout
from frazil.tables import Promoted, TableSpec
from frazil.tables.promoted import FILL_PROPERTY
from frazil.wal.names import SegmentName
from frazil.wal.rowgroups import fill_columns
from frazil.wal.segment import SegmentWriter
from tests.support.known_lake import DAY, KnownLake

FILLED_FROM = (
    Promoted("deployment.environment.name", "resource"),
    Promoted("http.request.method"),
    Promoted("http.response.status_code", type="int"),
    Promoted("db.system.name"),
    Promoted("rpc.system"),
)
STREAM = "20261001T081823120-0000000000000002"


def as_before(table: pa.Table) -> pa.Table:
    """The same rows with promoted columns as those versions filled them."""
    items = {item.column: item for item in FILLED_FROM}
    return fill_columns(table, table.schema, items, items).select(table.column_names)


@contextlib.contextmanager
def writing_as_before() -> Iterator[None]:
    """Data files that are written meanwhile have no fingerprint, nothing is filled, and no table says how."""
    of, properties = Layout.of, schema.properties

    def layout_of(*given: Any, **facts: Any) -> Layout:
        layout = of(*given, **facts)
        return dataclasses.replace(layout, spec=dataclasses.replace(layout.spec, promoted=()))

    def properties_of(spec: TableSpec) -> dict[str, str]:
        return {key: text for key, text in properties(spec).items() if not key.startswith(FILL_PROPERTY)}

    with (
        mock.patch.object(Layout, "of", layout_of),
        mock.patch("frazil.lake.tables.properties", properties_of),
    ):
        yield


def request(records: Sequence[Mapping[str, str | int]], unix_nano: int) -> bytes:
    """A log record each, with these attributes, a microsecond apart; its number is its body."""
    whole = ExportLogsServiceRequest()
    resource = whole.resource_logs.add()
    resource.resource.attributes.add(key="service.name").value.string_value = "shop"
    resource.resource.attributes.add(key="deployment.environment").value.string_value = "staging"
    scope = resource.scope_logs.add()
    for number, attributes in enumerate(records):
        record = scope.log_records.add(time_unix_nano=unix_nano + 1000 * number)
        record.body.string_value = str(number)
        for key, value in attributes.items():
            kind = "int_value" if isinstance(value, int) else "string_value"
            record.attributes.add(key=key, value=AnyValue(**{kind: value}))
    return bytes(whole.SerializeToString())


class HttpLake(KnownLake):
    """Its logs are requests of HTTP, in attributes of older conventions, newer ones, or both."""

    def send(
        self, records: Sequence[Mapping[str, str | int]], *, days: float = 0.0, before: bool = False
    ) -> SegmentName:
        """A segment of the WAL. `before`: as the previous version wrote it."""
        sequence, rows = self._ends.get(STREAM, (0, 0))
        name = SegmentName("logs", STREAM, sequence)
        nanos = int(self.now * 1e9)
        decoder = Decoder("logs")
        body = request(records, nanos - int(days * DAY * 1e9))
        table = decoder.decode([body], ["acme"], [nanos]).table
        writer = SegmentWriter(1) if before else SegmentWriter(1, decoder.fill.fingerprint)
        writer.write(as_before(table) if before else table)
        self.store.create(name.path, writer.finish(name, stream_rows=rows, received=(nanos, nanos)))
        self._ends[STREAM] = (sequence + 1, rows + len(records))
        return name

    def land_before(self, records: Sequence[Mapping[str, str | int]], *, days: float = 0.0) -> None:
        """Sent and landed by the previous version."""
        self.send(records, days=days, before=True)
        with writing_as_before():
            self.land()
