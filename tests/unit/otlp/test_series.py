"""The identity of a time series: the same for the same series in any order and company, else different."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from frazil.otlp.decode import Decoder
from tests.support.otlp_canonical import canonical
from tests.support.otlp_requests import attribute_lists, texts

DECODER = Decoder("metrics")
TYPES = ("gauge", "sum", "histogram", "exponential_histogram", "summary")
patient = settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])


class Series:
    """What identifies a series, and what does not."""

    def __init__(self, **parts: Any) -> None:
        self.name, self.unit, self.type = "name", "unit", "gauge"
        self.scope_name, self.scope_version = "scope", "1"
        self.resource: list[KeyValue] = []
        self.scope: list[KeyValue] = []
        self.attributes: list[KeyValue] = []
        self.__dict__.update(parts)

    def identity(self) -> tuple[Any, ...]:
        lists = (self.resource, self.scope, self.attributes)
        maps = tuple(tuple(sorted((canonical(pair) for pair in pairs), key=repr)) for pairs in lists)
        return (self.name, self.unit, self.type, self.scope_name, self.scope_version, maps)

    def changed(self, **parts: Any) -> Series:
        return Series(**(self.__dict__ | parts))

    def request(self) -> ExportMetricsServiceRequest:
        request = ExportMetricsServiceRequest()
        resource = request.resource_metrics.add(resource=Resource(attributes=self.resource))
        scope = InstrumentationScope(name=self.scope_name, version=self.scope_version, attributes=self.scope)
        metric = Metric(name=self.name, unit=self.unit)
        getattr(metric, self.type).data_points.add(attributes=self.attributes)
        resource.scope_metrics.add(scope=scope, metrics=[metric])
        return request


def ids(*requests: ExportMetricsServiceRequest) -> list[int]:
    bodies = [request.SerializeToString() for request in requests]
    table = DECODER.decode(bodies, ["t"] * len(bodies), [1] * len(bodies)).table
    return table.column("series_id").to_pylist()


def series_id(series: Series) -> int:
    (found,) = ids(series.request())
    return found


some_series = st.builds(
    Series,
    name=texts,
    unit=texts,
    type=st.sampled_from(TYPES),
    scope_name=texts,
    scope_version=texts,
    resource=attribute_lists(2),
    scope=attribute_lists(2),
    attributes=attribute_lists(2),
)


@patient
@given(some_series, st.randoms(use_true_random=False))
def test_the_order_of_attributes_does_not_matter(series: Series, random: Any) -> None:
    shuffled = deepcopy(series)
    for pairs in (shuffled.resource, shuffled.scope, shuffled.attributes):
        random.shuffle(pairs)
    assert series_id(shuffled) == series_id(series)


@patient
@given(st.lists(some_series, min_size=2, max_size=5))
def test_series_are_equal_if_and_only_if_their_identities_are(several: list[Series]) -> None:
    alone = [series_id(series) for series in several]
    by_identity: dict[Any, int] = {}
    for series, found in zip(several, alone, strict=True):
        assert by_identity.setdefault(series.identity(), found) == found
    assert len(set(by_identity.values())) == len(by_identity)
    together = ids(*(series.request() for series in several))
    assert sorted(together) == sorted(alone)  # company changes nothing; the order is by type


CHANGES: dict[str, Any] = {
    "name": "other",
    "unit": "other",
    "type": "sum",
    "scope_name": "other",
    "scope_version": "2",
}


@patient
@given(some_series, st.sampled_from(sorted(CHANGES)))
def test_one_changed_part_is_another_series(series: Series, part: str) -> None:
    assume(getattr(series, part) != CHANGES[part])
    assert series_id(series.changed(**{part: CHANGES[part]})) != series_id(series)


@patient
@given(some_series, st.sampled_from(["resource", "scope", "attributes"]), st.text(max_size=3))
def test_an_attribute_more_is_another_series(series: Series, place: str, key: str) -> None:
    pairs = getattr(series, place)
    assume(key not in [pair.key for pair in pairs])
    more = [*pairs, KeyValue(key=key, value=AnyValue(string_value=""))]
    assert series_id(series.changed(**{place: more})) != series_id(series)


def with_value(value: AnyValue | None) -> Series:
    return Series(attributes=[KeyValue(key="k", value=value)])


def test_values_that_read_the_same_but_are_of_another_kind_are_another_series() -> None:
    values = [
        AnyValue(string_value="1"),
        AnyValue(int_value=1),
        AnyValue(double_value=1.0),
        AnyValue(string_value="true"),
        AnyValue(bool_value=True),
        AnyValue(string_value="MQ=="),
        AnyValue(bytes_value=b"1"),
        AnyValue(string_value=""),
        None,
    ]
    assert len({series_id(with_value(value)) for value in values}) == len(values)


def test_the_same_attribute_means_something_else_in_another_place() -> None:
    pair = [KeyValue(key="k", value=AnyValue(string_value="v"))]
    places = [Series(resource=pair), Series(scope=pair), Series(attributes=pair)]
    assert len({series_id(series) for series in places}) == 3


def test_keys_and_values_do_not_change_places() -> None:
    def pairs(**values: str) -> Series:
        return Series(attributes=[KeyValue(key=k, value=AnyValue(string_value=v)) for k, v in values.items()])

    several = [pairs(a="b", c="d"), pairs(a="d", c="b"), pairs(b="a", d="c"), pairs(a="b"), pairs(b="a")]
    assert len({series_id(series) for series in several}) == len(several)


def test_time_value_description_and_dropped_counts_are_not_identity() -> None:
    plain, other = Series().request(), Series().request()
    resource = other.resource_metrics[0]
    resource.schema_url = resource.scope_metrics[0].schema_url = "x"
    resource.resource.dropped_attributes_count = 3
    metric = resource.scope_metrics[0].metrics[0]
    metric.description = "words"
    point = metric.gauge.data_points[0]
    point.time_unix_nano, point.as_int, point.flags = 5, 6, 1
    assert ids(plain) == ids(other)


STRING = [KeyValue(key="host.name", value=AnyValue(string_value="a"))]
TYPED = [
    KeyValue(key="n", value=AnyValue(int_value=-1)),
    KeyValue(key="d", value=AnyValue(double_value=0.5)),
    KeyValue(key="b", value=AnyValue(bool_value=True)),
    KeyValue(key="x", value=AnyValue(bytes_value=b"\x00\xff")),
    KeyValue(key="e"),
]
PINNED = [
    (Series(name="", unit="", scope_name="", scope_version=""), 3361731904701760807),
    (Series(), -2090054839958576161),
    (Series(type="exponential_histogram", resource=STRING), 5531006370542190287),
    (Series(type="summary", scope=STRING, attributes=TYPED), 7732701265280426251),
    (
        Series(name="héllo", unit="{request}", type="histogram", resource=TYPED, attributes=STRING),
        7282870831994660175,
    ),
]


@pytest.mark.parametrize(("series", "expected"), PINNED)
def test_ids_are_the_same_in_every_process_and_release(series: Series, expected: int) -> None:
    """A change here means that every stored series gets a new id: it needs a decision and a migration."""
    assert series_id(series) == expected
