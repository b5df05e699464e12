"""What arrives: shape of traces, logs that belong to them, all types of metrics."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from frazil.demo import DemoTotals
from tests.support.demo_receivers import Received, plain, value_of
from tests.unit.demo.conftest import BEGIN

Spans = dict[bytes, dict[bytes, tuple[str, Any]]]


def by_trace(received: Received) -> Spans:
    traces: Spans = defaultdict(dict)
    for resource, _, span in received.spans:
        assert span.span_id not in traces[span.trace_id]
        traces[span.trace_id][span.span_id] = (resource["service.name"], span)
    return traces


def test_totals_are_what_the_receiver_got(shop_run: tuple[Received, DemoTotals]) -> None:
    received, totals = shop_run
    assert totals.spans == len(received.spans)
    assert totals.logs == len(received.logs)
    assert totals.points == len(received.points)
    assert totals.failed == 0
    assert totals.last_error is None
    assert totals.traces == len(by_trace(received))
    assert 300 < totals.traces < 500
    assert 8 < totals.spans / totals.traces < 25


def test_at_least_ten_services_with_full_resources(shop: Received) -> None:
    resources = {r["service.instance.id"]: r for r, _, _ in shop.spans}.values()
    services = Counter(resource["service.name"] for resource in resources)
    assert len(services) >= 10
    assert max(services.values()) >= 2
    for resource in resources:
        for key in (
            "service.namespace",
            "service.version",
            "deployment.environment.name",
            "host.name",
            "k8s.cluster.name",
            "k8s.namespace.name",
            "k8s.pod.name",
            "k8s.container.name",
            "cloud.region",
            "telemetry.sdk.name",
            "telemetry.sdk.language",
            "telemetry.sdk.version",
        ):
            assert resource[key]


def test_every_scope_has_a_version(shop: Received) -> None:
    assert all(scope.name and scope.version for _, scope, _ in shop.spans)
    assert all(scope.name and scope.version for _, scope, _ in shop.logs)


def test_a_request_carries_several_resources(shop: Received) -> None:
    assert max(len(request.resource_spans) for request in shop.of("traces")) >= 10
    assert max(len(request.resource_metrics) for request in shop.of("metrics")) >= 10


def test_every_parent_exists_and_every_trace_has_one_root(shop: Received) -> None:
    for spans in by_trace(shop).values():
        roots = [span for _, span in spans.values() if not span.parent_span_id]
        assert len(roots) == 1
        assert all(span.parent_span_id in spans for _, span in spans.values() if span.parent_span_id)


def test_children_are_within_their_parents_except_consumers(shop: Received) -> None:
    for spans in by_trace(shop).values():
        for _, span in spans.values():
            assert span.start_time_unix_nano < span.end_time_unix_nano
            if not span.parent_span_id:
                continue
            _, parent = spans[span.parent_span_id]
            assert parent.start_time_unix_nano <= span.start_time_unix_nano
            if span.kind == Span.SPAN_KIND_CONSUMER:
                assert span.start_time_unix_nano >= parent.end_time_unix_nano
            else:
                assert span.end_time_unix_nano <= parent.end_time_unix_nano


def test_traces_cross_services_from_client_to_server(shop: Received) -> None:
    crossings = 0
    for spans in by_trace(shop).values():
        for service, span in spans.values():
            if span.kind == Span.SPAN_KIND_SERVER and span.parent_span_id:
                caller, parent = spans[span.parent_span_id]
                assert parent.kind == Span.SPAN_KIND_CLIENT
                assert caller != service
                assert span.flags & 0x300 == 0x300  # the parent is remote, and known to be
                crossings += 1
    assert crossings > 1000


def test_consumers_link_to_their_producers_and_cron_jobs_to_orders(shop: Received) -> None:
    traces = by_trace(shop)
    everything = {span_id: span for spans in traces.values() for span_id, (_, span) in spans.items()}
    consumers = cron_links = 0
    for _, span in (pair for spans in traces.values() for pair in spans.values()):
        if span.kind == Span.SPAN_KIND_CONSUMER:
            assert [link.span_id for link in span.links] == [span.parent_span_id]
            assert everything[span.parent_span_id].kind == Span.SPAN_KIND_PRODUCER
            consumers += 1
        elif span.name.startswith("cron "):
            cron_links += len(span.links)
            assert all(link.span_id in everything and link.trace_id != span.trace_id for link in span.links)
    assert consumers > 20
    assert cron_links > 0


def test_spans_follow_the_semantic_conventions(shop: Received) -> None:
    keys = {key for _, _, span in shop.spans for key in plain(span.attributes)}
    assert keys >= {
        "http.request.method",
        "http.route",
        "http.response.status_code",
        "url.path",
        "url.full",
        "server.address",
        "server.port",
        "db.system.name",
        "db.query.text",
        "db.operation.name",
        "rpc.system",
        "rpc.service",
        "rpc.method",
        "rpc.grpc.status_code",
        "messaging.system",
        "messaging.destination.name",
        "error.type",
        "user_agent.original",
    }
    for _, _, span in shop.spans:
        attributes = plain(span.attributes)
        failed = span.status.code == Status.STATUS_CODE_ERROR
        assert failed == ("error.type" in attributes)
        if span.kind == Span.SPAN_KIND_SERVER and "http.route" in attributes:
            assert failed == (attributes["http.response.status_code"] >= 500)


def test_some_spans_fail_with_an_exception_event_and_some_traces_have_a_state(shop: Received) -> None:
    exceptions = [event for _, _, span in shop.spans for event in span.events if event.name == "exception"]
    assert 0 < len(exceptions) < len(shop.spans) / 50
    assert all(
        plain(event.attributes).keys() >= {"exception.type", "exception.message", "exception.stacktrace"}
        for event in exceptions
    )
    assert 0 < sum(1 for _, _, span in shop.spans if span.trace_state) < len(shop.spans) / 2


def test_times_end_about_now(shop: Received) -> None:
    ends = [span.end_time_unix_nano for _, _, span in shop.spans]
    assert min(ends) >= BEGIN - 30 * 10**9
    assert max(ends) <= BEGIN + 60 * 10**9


def test_logs_refer_to_existing_spans_of_the_same_instance(shop: Received) -> None:
    spans = {(s.trace_id, s.span_id): (r, s) for r, _, s in shop.spans}
    tied = [(resource, record) for resource, _, record in shop.logs if record.trace_id]
    loose = [record for _, _, record in shop.logs if not record.trace_id]
    assert len(tied) > 500
    assert len(loose) > 20
    for resource, record in tied:
        owner, span = spans[record.trace_id, record.span_id]
        assert owner == resource
        assert span.start_time_unix_nano <= record.time_unix_nano <= span.end_time_unix_nano
        assert record.observed_time_unix_nano >= record.time_unix_nano


def test_logs_vary_in_severity_text_types_and_structure(shop: Received) -> None:
    records = [record for _, _, record in shop.logs]
    assert {r.severity_text for r in records} >= {"TRACE", "DEBUG", "INFO", "WARN", "ERROR"}
    bodies = [value_of(r.body) for r in records]
    assert len({str(body) for body in bodies}) > len(bodies) / 4
    assert any(isinstance(body, dict) for body in bodies)
    assert any(r.event_name for r in records)
    types = {type(value) for r in records for value in plain(r.attributes).values()}
    assert types >= {str, int, float, bool, list, dict}


def test_all_five_types_of_metrics_arrive_with_exemplars(shop: Received) -> None:
    spans = {(span.trace_id, span.span_id) for _, _, span in shop.spans}
    with_exemplars: Counter[str] = Counter()
    for kind, _, point in shop.points:
        for exemplar in () if kind == "summary" else point.exemplars:
            assert (exemplar.trace_id, exemplar.span_id) in spans
            with_exemplars[kind] += 1
    assert {kind for kind, _, _ in shop.points} == set(with_exemplars) | {"summary"}
    assert set(with_exemplars) == {"gauge", "sum", "histogram", "exponential_histogram"}


def test_metrics_vary_in_temporality_monotonicity_and_number_type(shop: Received) -> None:
    sums = [metric.sum for _, metric in shop.metrics if metric.WhichOneof("data") == "sum"]
    assert {total.is_monotonic for total in sums} == {True, False}
    assert {total.aggregation_temporality for total in sums} == {1, 2}  # delta and cumulative
    assert {point.WhichOneof("value") for total in sums for point in total.data_points} == {
        "as_int",
        "as_double",
    }


def test_histograms_count_the_spans_they_measure(shop: Received) -> None:
    last = {
        (resource["service.instance.id"], str(plain(point.attributes))): point.count
        for resource, metric in shop.metrics
        if metric.name == "http.server.request.duration"
        for point in metric.histogram.data_points
    }
    served = [s for _, _, s in shop.spans if s.kind == Span.SPAN_KIND_SERVER and " /" in s.name]
    assert sum(last.values()) == len(served)


def test_filtered_attributes_come_with_exemplars(shop: Received) -> None:
    points = [p for _, metric, p in shop.points if metric.name == "shop.order.value"]
    assert all(plain(point.attributes).keys() == {"shop.currency"} for point in points)
    filtered = [plain(e.filtered_attributes) for point in points for e in point.exemplars]
    assert filtered
    assert all(one.keys() == {"shop.order_id", "shop.user_id"} for one in filtered)


def test_the_summary_grows_and_its_quantiles_are_in_order(shop: Received) -> None:
    counts: dict[str, list[int]] = defaultdict(list)
    for kind, _, point in shop.points:
        if kind == "summary":
            values = [quantile.value for quantile in point.quantile_values]
            assert values == sorted(values)
            counts[plain(point.attributes)["operation"]].append(point.count)
    assert all(series == sorted(series) and len(series) == 6 for series in counts.values())
