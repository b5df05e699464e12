"""What was made durable is in the tables, equal in every column, for every engine, catalog and warehouse."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from pyspark.sql import SparkSession

from frazil.otlp.encode import encode
from frazil.tables import SIGNALS, Signal, landed_spec
from frazil.wal.names import SegmentName
from tests.components.s3 import S3Server
from tests.support.otlp_canonical import canonical_logs, canonical_metrics, canonical_spans
from tests.support.otlp_requests import logs_requests, metrics_requests, trace_requests
from tests.support.spark.land_lake import (
    DECODERS,
    UNCLOSED_SOCKETS,
    Lake,
    Sent,
    Stream,
    canonical_rows,
    expected_rows,
    opened,
    with_empty_lists,
)

CANONICAL = {"logs": canonical_logs, "spans": canonical_spans, "metrics": canonical_metrics}
STRATEGIES: dict[str, st.SearchStrategy[Any]] = {
    "logs": logs_requests(),
    "spans": trace_requests(),
    "metrics": metrics_requests(),
}
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings(UNCLOSED_SOCKETS)]
TENANTS = ("default", "team-a", "Team.B_2")
RECEIVED = 1_790_000_000_123_456_789
HOUR, DAY = 3_600_000_000_000, 86_400_000_000_000
REQUESTS_A_SIGNAL = 24


def s3_section(s3: S3Server) -> dict[str, Any]:
    keys = {"access_key_id": s3.access_key, "secret_access_key": s3.secret_key}
    return {"endpoint": s3.endpoint, "allow_http": True, **keys}


@pytest.fixture(scope="module")
def requests() -> dict[str, list[Message]]:
    """Requests of every shape that the specification allows, the same in each run."""
    return {signal: drawn(strategy) for signal, strategy in STRATEGIES.items()}


def drawn(strategy: st.SearchStrategy[Any]) -> list[Message]:
    found: list[Message] = []

    @settings(
        max_examples=REQUESTS_A_SIGNAL,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(request: Message) -> None:
        found.append(request)

    collect()
    return found


def at_times() -> ExportLogsServiceRequest:
    """Records of several days, late ones, and ones whose clock is broken."""
    request = ExportLogsServiceRequest()
    scope = request.resource_logs.add().scope_logs.add()
    behind = [0, 1, HOUR, 10 * HOUR, 25 * HOUR, 3 * DAY, 29 * DAY, 30 * DAY - HOUR, 31 * DAY, RECEIVED - 1]
    for number, nanos in enumerate([*behind, -HOUR, -23 * HOUR, -25 * HOUR, -3000 * DAY]):
        scope.log_records.add(time_unix_nano=RECEIVED - nanos, body={"string_value": f"time {number}"})
    return request


def written(lake: Lake, requests: dict[str, list[Message]]) -> dict[str, dict[SegmentName, list[Sent]]]:
    """Two streams a signal, two segments each, tenants mixed in every one."""
    found: dict[str, dict[SegmentName, list[Sent]]] = {}
    for signal in SIGNALS:
        sent = [
            Sent(request, TENANTS[number % len(TENANTS)], RECEIVED + number * HOUR)
            for number, request in enumerate(requests[signal])
        ]
        if signal == "logs":
            sent.append(Sent(at_times(), TENANTS[1], RECEIVED))
        sent = [each for each in sent if _has_rows(signal, each.request)]
        streams = [Stream(lake.store, signal), Stream(lake.store, signal)]
        quarter = -(-len(sent) // 4)
        found[signal] = {
            streams[number % 2].write(part): part
            for number in range(4)
            if (part := sent[number * quarter : (number + 1) * quarter])
        }
    return found


def _has_rows(signal: Signal, request: Message) -> bool:
    return DECODERS[signal].decode([request.SerializeToString()], ["t"], [RECEIVED]).table.num_rows > 0


# Each catalog and each warehouse once; the rest of the pairs in the long run.
PAIRS = [
    pytest.param(("sqlite", "folder"), id="sqlite-folder"),
    pytest.param(("postgres", "moto"), id="postgres-moto"),
    pytest.param(("rest", "folder"), id="rest-folder"),
    pytest.param(("sqlite", "moto"), id="sqlite-moto"),
    pytest.param(("postgres", "folder"), id="postgres-folder"),
    pytest.param(("rest", "moto"), id="rest-moto"),
    pytest.param(("sqlite", "versitygw"), id="sqlite-versitygw", marks=pytest.mark.go),
    pytest.param(("postgres", "versitygw"), id="postgres-versitygw", marks=pytest.mark.go),
]


@pytest.fixture(params=PAIRS)
def lake(request: pytest.FixtureRequest, tmp_path: Path, spark: SparkSession) -> Iterator[Lake]:
    """Of a kind of catalog and a kind of warehouse; the WAL is where the warehouse is."""
    catalog_type, place = request.param
    # A name that the session does not have yet: settings of one catalog would stay in the other's.
    catalog = {"type": catalog_type, "name": f"{catalog_type}_{place}"}
    section: dict[str, Any] = {"catalog": catalog, "namespace": f"n{uuid.uuid4().hex}"}
    wal: dict[str, Any] = {"local": {"free_bytes_min": 0}}
    on_s3 = place != "folder"
    if on_s3:
        s3: S3Server = request.getfixturevalue(f"{place}_s3")
        bucket = s3.make_bucket(f"lake-{uuid.uuid4().hex}")
        section["s3"] = s3_section(s3)
        wal = {"type": "s3", "s3": {"bucket": bucket, **s3_section(s3)}}
        if catalog_type != "rest":
            section["warehouse"] = f"s3://{bucket}/warehouse"
    if catalog_type == "postgres":
        uri = request.getfixturevalue("postgres_server").make_database(f"catalog-{uuid.uuid4().hex}")
        section["catalog"]["postgres"] = {"uri": uri}
    if catalog_type == "rest":
        rest = request.getfixturevalue("rest_catalog_on_s3" if on_s3 else "rest_catalog")
        section["catalog"]["rest"] = {"uri": rest.uri}
    with opened({"data_dir": tmp_path, "lake": section, "wal": wal}) as made:
        yield made


def test_every_engine_reads_back_what_was_made_durable(
    lake: Lake, requests: dict[str, list[Message]]
) -> None:
    segments = written(lake, requests)
    lake.land()
    for signal in SIGNALS:
        expected = expected_rows(signal, segments[signal], lake.config)
        by_spark = lake.by_spark(signal)
        assert by_spark.schema.types == landed_spec(signal).arrow_schema.types
        assert canonical_rows(signal, by_spark) == expected
        by_pyiceberg = lake.by_pyiceberg(signal)
        assert canonical_rows(signal, by_pyiceberg) == with_empty_lists(expected)
        assert canonical_rows(signal, lake.by_duckdb(signal)) == expected
        assert_otlp_comes_back(signal, by_pyiceberg, segments[signal])
    assert lake.ledger().problems == []


def assert_otlp_comes_back(signal: Signal, rows: pa.Table, segments: dict[SegmentName, list[Sent]]) -> None:
    """Of each tenant just what it sent."""
    for tenant in TENANTS:
        of_tenant = rows.filter(pa.compute.equal(rows["tenant_id"], tenant)).drop_columns("_segment")
        back = CANONICAL[signal](encode(of_tenant, DECODERS[signal].spec))
        sent = [each.request for parts in segments.values() for each in parts if each.tenant == tenant]
        expected = [record for request in sent for record in CANONICAL[signal](request)]
        assert back == sorted(expected, key=repr)
