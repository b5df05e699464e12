"""Lakes of random logs and spans, in files of several row groups, to try conditions on."""

from __future__ import annotations

import datetime
import random
from collections.abc import Sequence
from contextlib import closing

import pyarrow.parquet as pq
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from pyiceberg.table import Table

from frazil.config import Config
from frazil.lake.catalog import ensure_namespace, open_catalog
from frazil.lake.commits.commit import Committer, checkpoint_of
from frazil.lake.tables import open_table
from frazil.otlp.decode import Decoder
from frazil.pipeline.datafile import Layout, write_part
from frazil.pipeline.land.task import with_segment
from frazil.pipeline.partition_sort import Horizon, partition_and_sort
from frazil.position import LandingPosition
from frazil.tables import Signal, landed_spec
from frazil.tables.promoted import promoted
from frazil.wal.rowgroups import coded_table

FIRST_DAY = datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC)
USERS = ("u1", "u2", "u42", "ü", "")
WORDS = ("connection refused", "user u42 logged in", "", '{"user": {"id": "u42"}}', "100%_done", "NULL")
_ANY_TIME = Horizon(10**16, 10**16)


def fill_randomly(config: Config, rng: random.Random, tenants: Sequence[str], files: int, rows: int) -> None:
    """`files` commits of each table, each with rows of all tenants on one day. Nothing is left to land."""
    with closing(open_catalog(config)) as catalog:
        ensure_namespace(catalog, config.lake.namespace)
        for signal in ("logs", "spans"):
            extra = promoted(config)
            spec = landed_spec(signal, extra)
            checkpoint = open_table(catalog, config.lake.namespace, spec, LandingPosition().to_text())
            layout = Layout.of(checkpoint.table, spec, config.land.compression_level)
            for number in range(files):
                at = int((FIRST_DAY + datetime.timedelta(days=number % 3)).timestamp()) * 10**9
                bodies = [_request(signal, rng, rows, at) for _ in tenants]
                table = Decoder(signal, extra).decode(bodies, list(tenants), [at] * len(bodies)).table
                coded = coded_table(table.unify_dictionaries().combine_chunks(), layout.coded)
                parts = partition_and_sort(
                    [with_segment(coded, f"made/{number}", layout)], layout.spec, _ANY_TIME
                ).parts
                written = [
                    write_part(layout, part, f"{layout.batch}-{number}-{at}") for at, part in enumerate(parts)
                ]
                Committer(catalog, deadline_seconds=60).append(
                    checkpoint, written, LandingPosition().to_text()
                )
                checkpoint = checkpoint_of(catalog.load_table(checkpoint.table.name()))


def table_of(config: Config, signal: Signal) -> Table:
    with closing(open_catalog(config)) as catalog:
        return catalog.load_table((config.lake.namespace, signal))


def in_row_groups(path: str, rows: int) -> None:
    """The same file with row groups of so many rows."""
    table = pq.read_table(path)
    pq.write_table(table, path, row_group_size=rows, write_page_index=True)


def _request(signal: Signal, rng: random.Random, rows: int, at: int) -> bytes:
    return _logs(rng, rows, at) if signal == "logs" else _spans(rng, rows, at)


def _logs(rng: random.Random, rows: int, at: int) -> bytes:
    request = ExportLogsServiceRequest()
    resource = request.resource_logs.add()
    resource.resource.attributes.add(key="service.name").value.string_value = rng.choice(("shop", "pay"))
    scope = resource.scope_logs.add()
    for _ in range(rows):
        record = scope.log_records.add(time_unix_nano=_time(rng, at), severity_number=rng.randrange(25))
        if rng.random() < 0.9:
            record.body.string_value = rng.choice(WORDS)
        _attributes(rng, record.attributes)
        if rng.random() < 0.3:
            record.trace_id = bytes([rng.randrange(4)] * 16)
    return bytes(request.SerializeToString())


def _spans(rng: random.Random, rows: int, at: int) -> bytes:
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.add(key="service.name").value.string_value = rng.choice(("shop", "pay"))
    scope = resource.scope_spans.add()
    for _ in range(rows):
        start = _time(rng, at)
        span = scope.spans.add(name=rng.choice(WORDS), start_time_unix_nano=start)
        span.end_time_unix_nano = start + rng.randrange(10**9)
        span.trace_id, span.span_id = bytes([1 + rng.randrange(4)] * 16), rng.randbytes(8)
        _attributes(rng, span.attributes)
        for _ in range(rng.choice((0, 0, 1, 2))):
            event = span.events.add(name=rng.choice(("exception", "login")), time_unix_nano=start)
            _attributes(rng, event.attributes)
    return bytes(request.SerializeToString())


def _time(rng: random.Random, at: int) -> int:
    return at + rng.randrange(24) * 3600 * 10**9


def _attributes(rng: random.Random, into: object) -> None:
    add = into.add  # type: ignore[attr-defined]
    if rng.random() < 0.7:
        add(key="user.id").value.string_value = rng.choice(USERS)
    match rng.randrange(4):
        case 0:
            add(key="retries").value.int_value = rng.randrange(-2, 6)
        case 1:
            add(key="retries").value.string_value = rng.choice(("many", "3"))
    if rng.random() < 0.3:
        add(key="http.response.status_code").value.int_value = rng.choice((200, 404, 500))
