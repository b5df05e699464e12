"""Requests become values of bounded size that hold exactly their valid records."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from frazil.config import Config
from frazil.errors import FrazilError, RequestInvalid, RequestTooLarge
from frazil.tables import Signal
from frazil.wal.group import SegmentWritten
from frazil.wal.journal import decoders
from frazil.wal.kafka.messages import body_of
from frazil.wal.kafka.prepare import PreparedRequest, PreparingLane
from tests.support.integration.messages import logs, metrics, spans

MALFORMED = b"\x0a\x7f"
UNKNOWN = b"\xfa\x7f\x07unknown"
"""A field of some later OTLP."""


class Unobserved:
    def segment_written(self, segment: SegmentWritten) -> None:
        raise AssertionError("a lane that stores nothing has written a segment")

    def segment_failed(self, error: FrazilError) -> None:
        """Whoever waits is told too."""


def prepared(
    signal: Signal, bodies: Sequence[bytes], *, records_max: int = 1_000_000, **kafka: Any
) -> list[Any]:
    """What becomes of requests that wait together."""
    config = Config.model_validate(
        {
            "receive": {"limits": {"records_per_request_max": records_max}},
            "wal": {"type": "kafka", "kafka": {"brokers": ["a:1"]} | kafka},
        }
    )
    assert config.wal.kafka is not None

    async def all_together() -> list[Any]:
        lane = PreparingLane(decoders(config)[signal], config, config.wal.kafka, Unobserved())
        asked = [asyncio.create_task(lane.append(body, "shop", 7)) for body in bodies]
        await asyncio.sleep(0)  # all wait before the lane begins
        running = asyncio.create_task(lane.run())
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        await lane.close()
        await running
        return outcomes

    return asyncio.run(all_together())


def texts(values: Sequence[bytes], encoding: Any = "otlp_proto") -> list[str]:
    """The log records in these values."""
    requests = [ExportLogsServiceRequest.FromString(body_of(value, encoding, "logs")) for value in values]
    return [
        record.body.string_value
        for request in requests
        for resource in request.resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
    ]


def test_a_request_that_is_valid_and_small_stays_as_it_came() -> None:
    body = logs("shop", 3).SerializeToString() + UNKNOWN
    [outcome] = prepared("logs", [body])
    assert outcome == PreparedRequest(3, 0, "", (body,))


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 2000), st.integers(1024, 20_000), st.sampled_from(["otlp_proto", "otlp_json"]))
def test_values_are_within_the_bound_and_hold_every_record_once(
    count: int, bytes_max: int, encoding: str
) -> None:
    body = logs("shop", count).SerializeToString()
    [outcome] = prepared("logs", [body], message_bytes_max=bytes_max, encoding=encoding)
    assert max(map(len, outcome.values)) <= bytes_max
    assert texts(outcome.values, encoding) == [f"record {index}" for index in range(count)]
    assert outcome.accepted == count


@pytest.mark.parametrize("encoding", ["otlp_proto", "otlp_json"])
def test_cutting_encodes_nothing_anew(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PreparingLane, "_encoded", None)
    [outcome] = prepared(
        "logs", [logs("shop", 5000).SerializeToString()], message_bytes_max=10_000, encoding=encoding
    )
    assert len(outcome.values) > 10


def test_a_metric_of_many_points_is_cut_between_its_points() -> None:
    request = ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name="m")
    for index in range(500):
        metric.gauge.data_points.add(time_unix_nano=1 + index).as_int = index
    [outcome] = prepared("metrics", [request.SerializeToString()], message_bytes_max=1024)
    assert len(outcome.values) > 5
    assert max(map(len, outcome.values)) <= 1024
    kept = [
        point.as_int
        for value in outcome.values
        for point in ExportMetricsServiceRequest.FromString(value)
        .resource_metrics[0]
        .scope_metrics[0]
        .metrics[0]
        .gauge.data_points
    ]
    assert kept == list(range(500))


def test_records_whose_resource_is_most_of_the_bound_are_cut_too() -> None:
    body = logs("s" * 900, 40).SerializeToString()
    [outcome] = prepared("logs", [body], message_bytes_max=1200)
    assert max(map(len, outcome.values)) <= 1200
    assert texts(outcome.values) == [f"record {index}" for index in range(40)]


def test_a_record_over_the_bound_is_refused_and_harms_no_other() -> None:
    large = logs("shop", 2)
    large.resource_logs[0].scope_logs[0].log_records[1].body.string_value = "x" * 2000
    good = logs("shop", 1).SerializeToString()
    before, refused, after = prepared("logs", [good, large.SerializeToString(), good], message_bytes_max=1024)
    assert isinstance(refused, RequestTooLarge)
    assert refused.bytes_max == 1024
    assert before.values == after.values == (good,)


def test_a_malformed_request_is_refused_and_harms_no_other() -> None:
    good = logs("shop", 1).SerializeToString()
    before, refused, after = prepared("logs", [good, MALFORMED, good])
    assert isinstance(refused, RequestInvalid)
    assert before.values == after.values == (good,)


def test_too_many_records_are_refused() -> None:
    [refused] = prepared("logs", [logs("shop", 11).SerializeToString()], records_max=10)
    assert isinstance(refused, RequestTooLarge)


@pytest.mark.parametrize("body", [b"", ExportLogsServiceRequest().SerializeToString()])
def test_an_empty_request_makes_no_message(body: bytes) -> None:
    assert prepared("logs", [body]) == [PreparedRequest(0)]


def test_invalid_records_are_left_out_and_the_rest_stays_byte_for_byte() -> None:
    request = spans("shop", 3000)
    listed = request.resource_spans[0].scope_spans[0].spans
    listed[1500].trace_id = b"short"
    listed[7].MergeFromString(UNKNOWN)
    outcome: PreparedRequest
    [outcome] = prepared("spans", [request.SerializeToString()])
    assert (outcome.accepted, outcome.rejected) == (2999, 1)
    assert "1 spans rejected" in outcome.reason
    del listed[1500]
    kept = [
        span
        for value in outcome.values
        for resource in type(request).FromString(value).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    assert [span.SerializeToString() for span in kept] == [span.SerializeToString() for span in listed]
    assert b"".join(outcome.values).count(UNKNOWN) == 1


@pytest.mark.parametrize("encoding", ["otlp_proto", "otlp_json"])
def test_leaving_out_invalid_records_encodes_nothing_anew(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a hostile request, every slice has invalid records; to encode a record takes 100 µs."""
    monkeypatch.setattr(PreparingLane, "_encoded", None)
    request = logs("shop", 5000)
    records = request.resource_logs[0].scope_logs[0].log_records
    for record in records[::3]:
        record.trace_id = b"short"
    [outcome] = prepared("logs", [request.SerializeToString()], message_bytes_max=10_000, encoding=encoding)
    kept = [record.body.string_value for record in records if not record.trace_id]
    assert texts(outcome.values, encoding) == kept
    assert (outcome.accepted, outcome.rejected) == (len(kept), 5000 - len(kept))
    assert max(map(len, outcome.values)) <= 10_000


def test_a_message_that_is_decoded_in_pieces_keeps_the_valid_records_of_each() -> None:
    request = logs("shop", 300)
    records = request.resource_logs[0].scope_logs[0].log_records
    for index, record in enumerate(records):
        record.body.string_value = f"{index} " + "x" * 20_000
    for index in (0, 150, 299):
        records[index].span_id = b"short"
    [outcome] = prepared("logs", [request.SerializeToString()], message_bytes_max=8 << 20)
    kept = [record.body.string_value for record in records if not record.span_id]
    assert len(outcome.values) == 1
    assert texts(outcome.values) == kept


def test_requests_that_wait_together_lose_their_own_invalid_records_alone() -> None:
    bodies, expected = [], []
    for number in range(10):
        request = logs("shop", 3)
        records = request.resource_logs[0].scope_logs[0].log_records
        if number % 2:
            records[number % 3].trace_id = b"short"
        bodies.append(request.SerializeToString())
        expected.append([record.body.string_value for record in records if not record.trace_id])
    outcomes = prepared("logs", bodies)
    assert [texts(outcome.values) for outcome in outcomes] == expected
    assert [outcome.rejected for outcome in outcomes] == [0, 1] * 5


def test_a_request_of_invalid_records_alone_makes_no_message() -> None:
    request = spans("shop", 2)
    for span in request.resource_spans[0].scope_spans[0].spans:
        span.span_id = b""
    [outcome] = prepared("spans", [request.SerializeToString()])
    assert (outcome.accepted, outcome.rejected, outcome.values) == (0, 2, ())


def test_each_request_has_values_of_its_own() -> None:
    bodies = [metrics(f"service-{index}").SerializeToString() for index in range(20)]
    assert [outcome.values for outcome in prepared("metrics", bodies)] == [(body,) for body in bodies]
