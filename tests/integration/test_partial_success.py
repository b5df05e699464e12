"""Records that are invalid on their own are rejected alone, counted and explained; the rest is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from frazil.otlp.json import request_to_json
from frazil.tables import Signal
from tests.support.integration.clients import JSON, RESPONSES, channel, export, post, rows_of
from tests.support.integration.messages import UNIX_NANO, logs, metrics, new_service, request, spans
from tests.support.receiver import Receiver

REJECTED = {"logs": "rejected_log_records", "spans": "rejected_spans", "metrics": "rejected_data_points"}
TOO_LARGE = 2**63
Spoil = Callable[[Any], None]


def _records(signal: Signal, message: Any) -> Any:
    if signal == "logs":
        return message.resource_logs[0].scope_logs[0].log_records
    if signal == "spans":
        return message.resource_spans[0].scope_spans[0].spans
    return message.resource_metrics[0].scope_metrics[0].metrics


def _set(**fields: Any) -> Spoil:
    def spoil(record: Any) -> None:
        for name, value in fields.items():
            setattr(record, name, value)

    return spoil


def _histogram(**fields: Any) -> Spoil:
    def spoil(metric: Any) -> None:
        point = metric.histogram.data_points.add(time_unix_nano=UNIX_NANO, count=1)
        for name, value in fields.items():
            if isinstance(value, list):
                getattr(point, name).extend(value)
            else:
                setattr(point, name, value)

    return spoil


def _exponential(metric: Any) -> None:
    point = metric.exponential_histogram.data_points.add(time_unix_nano=UNIX_NANO)
    point.positive.bucket_counts.append(TOO_LARGE)


def _summary(metric: Any) -> None:
    metric.summary.data_points.add(time_unix_nano=UNIX_NANO, count=TOO_LARGE)


def _gauge_time(metric: Any) -> None:
    metric.gauge.data_points[0].time_unix_nano = TOO_LARGE


def _exemplar(metric: Any) -> None:
    metric.gauge.data_points[0].exemplars.add(trace_id=b"short", as_int=1)


def _link(span: Any) -> None:
    span.links.add(trace_id=b"\1" * 15, span_id=b"\1" * 8)


def _event(span: Any) -> None:
    span.events.add(time_unix_nano=TOO_LARGE)


CASES: list[tuple[Signal, str, Spoil, str]] = [
    ("spans", "missing trace id", _set(trace_id=b""), "trace_id is missing"),
    ("spans", "missing span id", _set(span_id=b""), "span_id is missing"),
    ("spans", "zero trace id", _set(trace_id=bytes(16)), "trace_id is all zeros"),
    ("spans", "zero span id", _set(span_id=bytes(8)), "span_id is all zeros"),
    ("spans", "short trace id", _set(trace_id=b"\1" * 15), "trace_id is not 16 bytes long"),
    ("spans", "long span id", _set(span_id=b"\1" * 16), "span_id is not 8 bytes long"),
    ("spans", "short parent", _set(parent_span_id=b"\1" * 7), "parent_span_id is not 8 bytes long"),
    ("spans", "start", _set(start_time_unix_nano=TOO_LARGE), "start_time_unix_nano is beyond signed 64 bits"),
    ("spans", "end", _set(end_time_unix_nano=2**64 - 1), "end_time_unix_nano is beyond signed 64 bits"),
    ("spans", "link", _link, "a link's trace_id is not 16 bytes long"),
    ("spans", "event", _event, "an event's time_unix_nano is beyond signed 64 bits"),
    ("logs", "short trace id", _set(trace_id=b"\1" * 8), "trace_id is not 16 bytes long"),
    ("logs", "long span id", _set(span_id=b"\1" * 9), "span_id is not 8 bytes long"),
    ("logs", "time", _set(time_unix_nano=TOO_LARGE), "time_unix_nano is beyond signed 64 bits"),
    ("logs", "observed", _set(observed_time_unix_nano=TOO_LARGE), "observed_time_unix_nano is beyond"),
    ("metrics", "time", _gauge_time, "time_unix_nano is beyond signed 64 bits"),
    ("metrics", "count", _histogram(count=TOO_LARGE), "count is beyond signed 64 bits"),
    ("metrics", "bucket", _histogram(bucket_counts=[0, TOO_LARGE]), "bucket_counts is beyond signed 64 bits"),
    ("metrics", "exponential", _exponential, "positive bucket_counts is beyond signed 64 bits"),
    ("metrics", "summary", _summary, "count is beyond signed 64 bits"),
    ("metrics", "exemplar", _exemplar, "an exemplar's trace_id is not 16 bytes long"),
]


@pytest.mark.parametrize(
    ("signal", "spoil", "reason"), [pytest.param(s, f, r, id=f"{s}-{n}") for s, n, f, r in CASES]
)
def test_a_bad_record_is_rejected_alone(
    receiver: Receiver, signal: Signal, spoil: Spoil, reason: str
) -> None:
    message = request(signal, service := new_service(), 3)
    spoil(_records(signal, message)[1])
    response = post(receiver, signal, message.SerializeToString())
    assert response.status_code == 200
    partial = RESPONSES[signal].FromString(response.content).partial_success
    assert getattr(partial, REJECTED[signal]) == 1
    assert partial.error_message.startswith("1 ")
    assert reason in partial.error_message
    column = {"logs": "body", "spans": "name", "metrics": "metric_name"}[signal]
    kept = [row[column] for row in rows_of(receiver, signal, service)]
    assert sorted(kept) == ["record 0", "record 2"]


@pytest.mark.parametrize(
    ("signal", "name"),
    [("logs", "rejectedLogRecords"), ("spans", "rejectedSpans"), ("metrics", "rejectedDataPoints")],
)
def test_json_counts_are_strings_in_camel_case(receiver: Receiver, signal: Signal, name: str) -> None:
    message = request(signal, new_service(), 2)
    for record in _records(signal, message):
        (_gauge_time if signal == "metrics" else _set(**_beyond(signal)))(record)
    response = post(receiver, signal, request_to_json(message), JSON)
    assert response.status_code == 200
    partial = response.json()["partialSuccess"]
    assert partial[name] == "2"
    assert "beyond signed 64 bits" in partial["errorMessage"]


def _beyond(signal: Signal) -> dict[str, int]:
    return {"time_unix_nano" if signal == "logs" else "start_time_unix_nano": TOO_LARGE}


@pytest.mark.parametrize("signal", ["logs", "spans", "metrics"])
def test_grpc_says_the_same(receiver: Receiver, signal: Signal) -> None:
    message = request(signal, service := new_service(), 5)
    for record in list(_records(signal, message))[:2]:
        (_gauge_time if signal == "metrics" else _set(**_beyond(signal)))(record)
    with channel(receiver) as opened:
        answer = RESPONSES[signal].FromString(export(opened, signal, message.SerializeToString()))
    assert getattr(answer.partial_success, REJECTED[signal]) == 2
    assert answer.partial_success.error_message.startswith("2 ")
    assert len(rows_of(receiver, signal, service)) == 3


def test_several_reasons_are_named_and_each_record_counts_once(receiver: Receiver) -> None:
    message = spans(service := new_service(), 4)
    first, second, third, _ = message.resource_spans[0].scope_spans[0].spans
    first.trace_id, first.span_id, first.start_time_unix_nano = b"", b"", TOO_LARGE
    second.trace_id = bytes(16)
    third.trace_id = b""
    response = post(receiver, "spans", message.SerializeToString())
    partial = RESPONSES["spans"].FromString(response.content).partial_success
    assert partial.rejected_spans == 3
    for reason in ("trace_id is missing", "span_id is missing", "trace_id is all zeros", "beyond signed"):
        assert partial.error_message.count(reason) == 1
    assert [row["name"] for row in rows_of(receiver, "spans", service)] == ["record 3"]


def test_ids_may_be_absent_or_zero_where_none_is_required(receiver: Receiver) -> None:
    message = logs(service := new_service(), 2)
    message.resource_logs[0].scope_logs[0].log_records[0].trace_id = bytes(16)
    message.resource_logs[0].scope_logs[0].log_records[0].span_id = bytes(8)
    response = post(receiver, "logs", message.SerializeToString())
    assert (response.status_code, response.content) == (200, b"")
    assert [(row["trace_id"], row["span_id"]) for row in rows_of(receiver, "logs", service)] == [
        (None, None)
    ] * 2


def test_the_largest_signed_values_are_kept(receiver: Receiver) -> None:
    message = metrics(service := new_service())
    point = message.resource_metrics[0].scope_metrics[0].metrics.add(name="h").histogram.data_points.add()
    point.time_unix_nano = point.count = 2**63 - 1
    point.bucket_counts.append(2**63 - 1)
    response = post(receiver, "metrics", message.SerializeToString())
    assert (response.status_code, response.content) == (200, b"")
    (row,) = [row for row in rows_of(receiver, "metrics", service) if row["metric_name"] == "h"]
    assert (row["count"], row["bucket_counts"], row["time_unix_nano"]) == (2**63 - 1, [2**63 - 1], 2**63 - 1)


def test_metrics_count_rejected_records_and_partial_requests(receiver: Receiver) -> None:
    def counts() -> tuple[float, float]:
        return (
            receiver.metric("frazil_receive_records_total", signal="logs", outcome="rejected"),
            receiver.metric("frazil_receive_requests_total", signal="logs", outcome="partial"),
        )

    before = counts()
    message = logs(new_service(), 3)
    for record in message.resource_logs[0].scope_logs[0].log_records:
        record.time_unix_nano = TOO_LARGE
    assert post(receiver, "logs", message.SerializeToString()).status_code == httpx.codes.OK
    assert counts() == (before[0] + 3, before[1] + 1)
