"""A trace comes back as it was sent."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from hypothesis import HealthCheck, assume, given, settings
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from frazil.config import Config
from frazil.otlp.json import request_from_json
from frazil.query.reads import traces
from frazil.serve.app import create_app
from tests.support.otlp_canonical import canonical_spans
from tests.support.otlp_requests import trace_requests
from tests.support.query.read_telemetry import logs, spans
from tests.support.serve.requests import Client
from tests.support.serve.stand_in import StandIn

TRACE = b"\1" * 16


def fresh(folder: Path) -> tuple[Client, StandIn]:
    queries = StandIn()
    config = Config.model_validate({"data_dir": str(folder)})
    return Client(create_app(config, queries)), queries  # type: ignore[arg-type]


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(trace_requests())
def test_otlp_in_equals_otlp_out(
    tmp_path_factory: pytest.TempPathFactory, request: ExportTraceServiceRequest
) -> None:
    client, queries = fresh(tmp_path_factory.getbasetemp())
    sent = [span for r in request.resource_spans for s in r.scope_spans for span in s.spans]
    assume(sent)
    for span in sent:
        span.trace_id = TRACE
    queries.add("spans", request)
    answer = client.get(f"/api/v1/traces/{TRACE.hex()}")
    assert answer.status_code == 200, answer.text
    back = request_from_json("spans", answer.content, depth_max=32)
    expected = canonical_spans(request)
    assert canonical_spans(ExportTraceServiceRequest.FromString(back)) == expected


def test_it_is_otlp_json_with_hex_ids_and_integers_as_text(client: Client, queries: StandIn) -> None:
    queries.add("spans", spans({"kind": 2, "attributes": {"n": 5}}))
    trace = client.get(f"/api/v1/traces/{TRACE.hex().upper()}").json()
    (span,) = trace["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert span["traceId"] == "01" * 16
    assert span["spanId"] == "0000000000000001"
    assert span["kind"] == 2
    assert span["startTimeUnixNano"] == "1790000000000000000"
    assert span["attributes"] == [{"key": "n", "value": {"intValue": "5"}}]
    assert "resourceLogs" not in trace


def test_logs_of_the_trace_come_when_asked_for(client: Client, queries: StandIn) -> None:
    queries.add("spans", spans({}))
    queries.add("logs", logs({"body": "of it", "trace_id": TRACE}, {"body": "of another"}))
    trace = client.get(f"/api/v1/traces/{TRACE.hex()}?logs=true").json()
    (record,) = trace["resourceLogs"][0]["scopeLogs"][0]["logRecords"]
    assert record["body"] == {"stringValue": "of it"}
    assert len(trace["resourceSpans"]) == 1


def test_a_trace_of_which_only_logs_are_here_is_still_one(client: Client, queries: StandIn) -> None:
    queries.add("logs", logs({"trace_id": TRACE}))
    assert client.get(f"/api/v1/traces/{TRACE.hex()}").status_code == 404
    assert client.get(f"/api/v1/traces/{TRACE.hex()}?logs=true").json()["resourceSpans"] == []


def test_no_such_trace_is_a_404_and_no_such_id_a_400(client: Client) -> None:
    missing = client.get(f"/api/v1/traces/{'ab' * 16}")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    for wrong in ("xyz", "ab" * 15, "ab" * 17, "%00" * 32):
        assert client.get(f"/api/v1/traces/{wrong}").status_code == 400


def test_a_trace_that_is_too_large_says_so(
    client: Client, queries: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "_ROWS_MAX", 3)
    queries.add("spans", spans({}, {}, {}))
    assert client.get(f"/api/v1/traces/{TRACE.hex()}").status_code == 200
    queries.add("spans", spans({}))
    answer = client.get(f"/api/v1/traces/{TRACE.hex()}")
    assert answer.status_code == 422
    assert orjson.loads(answer.content)["error"]["code"] == "limit_reached"
