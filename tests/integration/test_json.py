"""OTLP/JSON through HTTP into rows, where it differs from the JSON of protobuf and where it does not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.integration.clients import JSON, post, rows_of, status_of
from tests.support.integration.messages import UNIX_NANO, new_service
from tests.support.receiver import Receiver

TRACE, SPAN, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "00f067aa0ba902b7"


def _resource(service: str) -> dict[str, Any]:
    return {"attributes": [{"key": "service.name", "value": {"stringValue": service}}]}


def _logs(service: str, *records: dict[str, Any]) -> bytes:
    scope = {"scope": {"name": "s"}, "logRecords": records}
    document = {"resourceLogs": [{"resource": _resource(service), "scopeLogs": [scope]}]}
    return json.dumps(document).encode()


def _spans(service: str, *records: dict[str, Any]) -> bytes:
    resource = {"resource": _resource(service), "scopeSpans": [{"spans": records}]}
    return json.dumps({"resourceSpans": [resource]}).encode()


def _sent(receiver: Receiver, record: dict[str, Any]) -> dict[str, Any]:
    service = new_service()
    response = post(receiver, "logs", _logs(service, record), JSON)
    assert (response.status_code, response.content) == (200, b"{}")
    (row,) = rows_of(receiver, "logs", service)
    return row


@pytest.mark.parametrize("case", [str.lower, str.upper, str.title])
def test_ids_are_hex_in_any_case(receiver: Receiver, case: Any) -> None:
    service = new_service()
    span = {
        "traceId": case(TRACE),
        "spanId": case(SPAN),
        "parentSpanId": case(PARENT),
        "name": "n",
        "kind": 2,
    }
    span["links"] = [{"traceId": case(TRACE), "spanId": case(PARENT)}]
    response = post(receiver, "spans", _spans(service, span), JSON)
    assert (response.status_code, response.content) == (200, b"{}")
    (row,) = rows_of(receiver, "spans", service)
    assert (row["trace_id"], row["span_id"], row["parent_span_id"]) == (TRACE, SPAN, PARENT)
    assert (row["links"][0]["trace_id"], row["links"][0]["span_id"]) == (TRACE, PARENT)
    assert row["kind"] == 2


@pytest.mark.parametrize("bad", ["0", "xyz", "qqqqqqqqqqqqqqqq"])
def test_an_id_that_is_not_hex_is_refused(receiver: Receiver, bad: str) -> None:
    response = post(receiver, "spans", _spans("s", {"traceId": bad, "spanId": SPAN}), JSON)
    assert response.status_code == 400
    assert "traceId" in status_of(response).message


def test_64_bit_integers_are_strings_or_numbers(receiver: Receiver) -> None:
    assert _sent(receiver, {"timeUnixNano": str(UNIX_NANO)})["time_unix_nano"] == UNIX_NANO
    assert _sent(receiver, {"timeUnixNano": UNIX_NANO})["time_unix_nano"] == UNIX_NANO
    row = _sent(receiver, {"body": {"intValue": str(-(2**63))}})
    assert (row["body"], row["body_type"]) == (str(-(2**63)), "int")
    row = _sent(receiver, {"body": {"intValue": 2**53 + 1}})
    assert (row["body"], row["body_type"]) == (str(2**53 + 1), "int")


def test_enums_are_integers_and_their_names_are_refused(receiver: Receiver) -> None:
    assert _sent(receiver, {"severityNumber": 17})["severity_number"] == 17
    response = post(receiver, "logs", _logs("s", {"severityNumber": "SEVERITY_NUMBER_ERROR"}), JSON)
    assert response.status_code == 400
    assert "17" in status_of(response).message


def test_unknown_fields_are_ignored_everywhere(receiver: Receiver) -> None:
    record = {
        "body": {"stringValue": "b", "new": 1},
        "new": {"a": [1]},
        "attributes": [{"key": "k", "new": None}],
    }
    row = _sent(receiver, record)
    assert (row["body"], row["attributes"]) == ("b", {"k": None})


def test_snake_case_is_an_unknown_field(receiver: Receiver) -> None:
    row = _sent(receiver, {"severity_text": "lost", "severityText": "kept"})
    assert row["severity_text"] == "kept"


@pytest.mark.parametrize(
    ("value", "text", "kind"),
    [
        ({"stringValue": "é\u0000\U0001f600"}, "é\u0000\U0001f600", None),
        ({"bytesValue": "AAH/"}, "AAH/", "bytes"),
        ({"bytesValue": "_-8"}, "/+8=", "bytes"),
        ({"boolValue": True}, "true", "bool"),
        ({"doubleValue": 1.5}, "1.5", "double"),
        ({"doubleValue": "NaN"}, "nan", "double"),
        ({"doubleValue": "-Infinity"}, "-inf", "double"),
        ({}, None, None),
        (
            {"arrayValue": {"values": [{"intValue": "1"}, {"stringValue": "a"}, {}]}},
            {"arrayValue": {"values": [{"intValue": "1"}, {"stringValue": "a"}, {}]}},
            "array",
        ),
        (
            {"kvlistValue": {"values": [{"key": "k", "value": {"bytesValue": "AA=="}}]}},
            {"kvlistValue": {"values": [{"key": "k", "value": {"bytesValue": "AA=="}}]}},
            "kvlist",
        ),
    ],
)
def test_values_of_every_kind_become_text_with_their_kind(
    receiver: Receiver, value: dict[str, Any], text: Any, kind: str | None
) -> None:
    row = _sent(receiver, {"body": value, "attributes": [{"key": "a", "value": value}]})
    found, attribute = row["body"], row["attributes"]["a"]
    if isinstance(text, dict):
        found, attribute = json.loads(found), json.loads(attribute)
    assert (found, row["body_type"]) == (text, kind)
    assert attribute == text
    types = json.loads(row["attribute_types"] or "{}")
    assert types.get("a") == kind


def test_metrics_of_every_type(receiver: Receiver) -> None:
    service = new_service()
    times = {"startTimeUnixNano": str(UNIX_NANO - 10), "timeUnixNano": str(UNIX_NANO)}
    exemplar = {"timeUnixNano": str(UNIX_NANO), "asInt": "7", "traceId": TRACE, "spanId": SPAN}
    bounds = {"count": "3", "sum": 4.5, "bucketCounts": ["1", 2], "explicitBounds": [2.0], "min": 0, "max": 4}
    exponential = {
        "count": "3",
        "scale": -1,
        "zeroCount": "1",
        "positive": {"offset": -2, "bucketCounts": ["2"]},
    }
    quantiles = {"count": "2", "sum": 3, "quantileValues": [{"quantile": 0.5, "value": 1.5}]}
    metrics: list[dict[str, Any]] = [
        {"name": "gauge", "gauge": {"dataPoints": [{**times, "asDouble": 1.5, "exemplars": [exemplar]}]}},
        {
            "name": "sum",
            "sum": {
                "dataPoints": [{**times, "asInt": "-3"}],
                "aggregationTemporality": 2,
                "isMonotonic": True,
            },
        },
        {
            "name": "histogram",
            "histogram": {"dataPoints": [{**times, **bounds}], "aggregationTemporality": 1},
        },
        {"name": "exponential", "exponentialHistogram": {"dataPoints": [{**times, **exponential}]}},
        {"name": "summary", "summary": {"dataPoints": [{**times, **quantiles}]}},
    ]
    resource = {"resource": _resource(service), "scopeMetrics": [{"metrics": metrics}]}
    response = post(receiver, "metrics", json.dumps({"resourceMetrics": [resource]}).encode(), JSON)
    assert (response.status_code, response.content) == (200, b"{}")
    rows = {row["metric_name"]: row for row in rows_of(receiver, "metrics", service)}
    assert {name: row["metric_type"] for name, row in rows.items()} == {
        "gauge": "gauge",
        "sum": "sum",
        "histogram": "histogram",
        "exponential": "exponential_histogram",
        "summary": "summary",
    }
    assert (rows["gauge"]["value_double"], rows["gauge"]["value_int"]) == (1.5, None)
    kept = rows["gauge"]["exemplars"][0]
    assert (kept["value_int"], kept["trace_id"], kept["span_id"]) == (7, TRACE, SPAN)
    assert (rows["sum"]["value_int"], rows["sum"]["is_monotonic"]) == (-3, True)
    assert rows["sum"]["aggregation_temporality"] == 2
    histogram = rows["histogram"]
    assert (histogram["bucket_counts"], histogram["explicit_bounds"], histogram["min"]) == (
        [1, 2],
        [2.0],
        0.0,
    )
    assert (rows["exponential"]["scale"], rows["exponential"]["positive_offset"]) == (-1, -2)
    assert rows["exponential"]["positive_bucket_counts"] == [2]
    assert rows["summary"]["quantile_values"] == [{"quantile": 0.5, "value": 1.5}]
    assert all(row["start_time_unix_nano"] == UNIX_NANO - 10 for row in rows.values())


def test_200_000_levels_of_nesting_are_refused(receiver: Receiver) -> None:
    deep = b'{"arrayValue":{"values":[' * 200_000
    body = b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":' + deep
    response = post(receiver, "logs", body, JSON)
    assert response.status_code == 400
    assert receiver.is_ready()
