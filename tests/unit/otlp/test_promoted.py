"""A promoted column is the first of its attributes that the map has with a value of the column's type."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from frazil.otlp.decode import Decoder
from frazil.tables import SIGNALS, Promoted, Signal
from frazil.tables.promoted import Source, ValueType

NAMES = ("newest", "newer", "old")
FITTING: dict[ValueType, tuple[str, ...]] = {
    "string": ("string", "int", "double", "bool"),
    "int": ("int",),
    "double": ("int", "double"),
    "bool": ("bool",),
}
VALUES = st.one_of(
    st.builds(lambda text: AnyValue(string_value=text), st.text(max_size=3)),
    st.builds(lambda number: AnyValue(int_value=number), st.integers(-(2**63), 2**63 - 1)),
    st.builds(lambda number: AnyValue(double_value=number), st.floats(allow_nan=False)),
    st.builds(lambda flag: AnyValue(bool_value=flag), st.booleans()),
    st.just(AnyValue()),
)
RECORDS = st.lists(st.dictionaries(st.sampled_from((*NAMES, "other")), VALUES), min_size=1, max_size=6)
LISTS = st.permutations(NAMES).flatmap(lambda names: st.integers(1, 3).map(lambda count: names[:count]))


def request(signal: Signal, records: list[dict[str, AnyValue]], source: Source) -> bytes:
    """A resource and a record for each."""
    whole: Any = {
        "logs": ExportLogsServiceRequest,
        "spans": ExportTraceServiceRequest,
        "metrics": ExportMetricsServiceRequest,
    }[signal]()
    for attributes in records:
        if signal == "logs":
            envelope = whole.resource_logs.add()
            record = envelope.scope_logs.add().log_records.add(time_unix_nano=1)
        elif signal == "spans":
            envelope = whole.resource_spans.add()
            record = envelope.scope_spans.add().spans.add(trace_id=b"1" * 16, span_id=b"2" * 8)
        else:
            envelope = whole.resource_metrics.add()
            metric = envelope.scope_metrics.add().metrics.add(name="m")
            record = metric.gauge.data_points.add(time_unix_nano=1, as_int=1)
        owner = envelope.resource if source == "resource" else record
        for key, value in attributes.items():
            owner.attributes.add(key=key, value=value)
    return bytes(whole.SerializeToString())


def first_present(row: dict[str, Any], item: Promoted) -> Any:
    """From the maps of a row, one value at a time."""
    prefix = "resource_" if item.source == "resource" else ""
    texts = dict(row[f"{prefix}attributes"])
    kinds = json.loads(row[f"{prefix}attribute_types"] or "{}")
    for name in item.attributes:
        if texts.get(name) is not None and kinds.get(name, "string") in FITTING[item.type]:
            return pa.scalar(texts[name]).cast(item.arrow_type).as_py()
    return None


@pytest.mark.parametrize("signal", SIGNALS)
@settings(deadline=None)
@given(RECORDS, LISTS, st.sampled_from(["record", "resource"]))
def test_it_is_the_first_that_is_present(
    signal: Signal, records: list[dict[str, AnyValue]], names: list[str], source: Source
) -> None:
    items = [
        Promoted(names[0], source, type_, f"the_{type_}", tuple(names[1:]))
        for type_ in ("string", "int", "double", "bool")
    ]
    table = Decoder(signal, items).decode([request(signal, records, source)], ["t"], [1]).table
    rows = table.to_pylist()
    for item in items:
        assert table[item.column].to_pylist() == [first_present(row, item) for row in rows], item


def test_the_map_stays_as_it_was_sent() -> None:
    sent = {"http.method": AnyValue(string_value="GET"), "http.status_code": AnyValue(int_value=200)}
    [row] = Decoder("spans").decode([request("spans", [sent], "record")], ["t"], [1]).table.to_pylist()
    assert dict(row["attributes"]) == {"http.method": "GET", "http.status_code": "200"}
    assert (row["http_request_method"], row["http_response_status_code"]) == ("GET", 200)
