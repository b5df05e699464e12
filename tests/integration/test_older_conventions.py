"""Python's default instrumentation, which sends the conventions from before HTTP's were declared stable.

`python_default_conventions.json` holds what opentelemetry-instrumentation-wsgi, -urllib and -sqlite3, version
0.66b0.dev, made of a request that succeeded and one that failed, without OTEL_SEMCONV_STABILITY_OPT_IN.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from frazil.tables import Fill
from frazil.tables.promoted import promoted_of
from tests.integration.test_cookbook import RECIPES
from tests.support.integration.api import Api, running_api
from tests.support.integration.documented import land_all

RECORDED = json.loads(Path(__file__).with_name("python_default_conventions.json").read_text())
REQUESTS: dict[str, Any] = {"traces": ExportTraceServiceRequest, "metrics": ExportMetricsServiceRequest}
EXPECTED = {
    """SELECT kind, http_request_method, http_response_status_code, count(*) FROM spans
       WHERE http_request_method IS NOT NULL GROUP BY ALL ORDER BY ALL""": [
        [2, "GET", 200, 1],
        [2, "GET", 500, 1],
        [3, "GET", 200, 1],
        [3, "GET", 500, 1],
    ],
    "SELECT db_system_name, count(*) FROM spans WHERE db_system_name IS NOT NULL GROUP BY ALL": [
        ["sqlite", 2]
    ],
    "SELECT name FROM spans WHERE kind = 2 AND http_response_status_code >= 500": [["GET /fail"]],
    "SELECT DISTINCT deployment_environment_name FROM spans": [["staging"]],
    """SELECT DISTINCT http_request_method, http_response_status_code, deployment_environment_name
       FROM metrics WHERE metric_name = 'http.server.duration' ORDER BY ALL""": [
        ["GET", 200, "staging"],
        ["GET", 500, "staging"],
    ],
    "SELECT count(*) FROM spans WHERE attributes['http.method'] = 'GET'": [[4]],
    "SELECT count(*) FROM spans WHERE attributes['http.request.method'] IS NOT NULL": [[0]],
}

RECIPES_FIND: dict[int, tuple[str, set[tuple[Any, ...]]]] = {
    20: ("service_name, metric_name, n, p95_seconds < 1", {("shop", "http.server.duration", 2, True)}),
    22: ("DISTINCT metric_name", {("http.server.duration",)}),
    28: (
        "attribute, n",
        {
            ("http.url", 4),
            *(
                (name, 2)
                for name in (
                    "db.statement",
                    "http.server_name",
                    "http.scheme",
                    "http.host",
                    "http.user_agent",
                    "http.flavor",
                    "net.host.name",
                    "net.host.port",
                    "net.peer.ip",
                )
            ),
        },
    ),
}
"""Of docs/cookbook.md, by number: columns, and what they hold."""

FINGERPRINT = Fill.of(promoted_of("spans")).fingerprint


def _recent(value: Any, shift: int) -> Any:
    """The recording with all times so many nanoseconds later."""
    if isinstance(value, list):
        return [_recent(item, shift) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: str(int(item) + shift) if key.endswith("UnixNano") else _recent(item, shift)
        for key, item in value.items()
    }


def _assert_answers(api: Api) -> None:
    for sql, rows in EXPECTED.items():
        assert api.rows(sql) == rows, sql
    for number, (column, values) in RECIPES_FIND.items():
        [sql] = RECIPES[number].blocks("sql")
        assert {
            tuple(row) for row in api.rows(f"SELECT {column} FROM ({sql.strip().rstrip(';')})")
        } == values, number


def test_promoted_columns_hold_what_older_conventions_call_otherwise(tmp_path: Path) -> None:
    first = RECORDED["traces"]["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["startTimeUnixNano"]
    shift = time.time_ns() - int(first) - 60 * 10**9
    with running_api(tmp_path) as (api, receiver):
        for kind, request in REQUESTS.items():
            body = ParseDict(_recent(RECORDED[kind], shift), request()).SerializeToString()
            headers = {"content-type": "application/x-protobuf"}
            answer = httpx.post(f"{receiver.http}/v1/{kind}", content=body, headers=headers)
            assert answer.status_code == 200, answer.text
        _assert_answers(api)
        assert receiver.rows("spans").num_rows == 6
        [segment] = receiver.config.wal_dir.glob("spans/*/*.parquet")
        assert pq.read_metadata(segment).metadata[b"frazil.promoted"].decode() == FINGERPRINT
        land_all(receiver.config)
        _assert_answers(api)
