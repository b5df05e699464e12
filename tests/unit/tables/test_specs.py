"""The declared tables: every field of OTLP has a place, and the reference page says so."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, EntityRef, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from frazil.otlp.decode import Decoder
from frazil.otlp.encode import encode
from frazil.otlp.values import KINDS
from frazil.otlp.wire import REQUESTS
from frazil.tables import (
    DEFAULT_PROMOTED,
    SIGNALS,
    Promoted,
    Signal,
    TableSpec,
    column_name,
    landed_spec,
    markdown,
    table_spec,
    table_specs,
)

PAGE = Path(__file__).parents[3] / "docs" / "tables.md"
each_signal = pytest.mark.parametrize("signal", SIGNALS)

# Messages that a column holds whole; each has a test of its own below.
WHOLE = {"AnyValue", "KeyValue", "EntityRef"}
# Envelopes: the fields lead to records, and what is in them is asked for instead.
LEADS_ON = re.compile(
    r"resource_(logs|spans|metrics)|scope_(logs|spans|metrics)|log_records|spans|metrics|data_points"
)
# Names of struct fields that differ from OTLP's.
RENAMED = {"as_double": "value_double", "as_int": "value_int"}


def sources(spec: TableSpec) -> set[str]:
    """What the columns say they come from, as `Message.field` or `Message.field.inner`."""
    own = [column.source for column in spec.columns if not column.source.startswith("attribute ")]
    return {name for source in own for name in re.findall(r"[A-Za-z]+(?:\.[a-z_]+)+|[a-z_]{8,}", source)}


def struct_fields(spec: TableSpec, column: str) -> set[str]:
    type_ = spec.column(column).type
    return {field.name for field in type_.value_type} if pa.types.is_list(type_) else set()


def unaccounted(message: Descriptor, spec: TableSpec, known: set[str]) -> Iterator[str]:
    """Fields of `message` and of what is in it that no column's source names."""
    for field in message.fields:
        inner = field.message_type
        if LEADS_ON.fullmatch(field.name) and inner is not None:
            yield from unaccounted(inner, spec, known)
        elif inner is None or inner.name in WHOLE:
            if not named(message.name, field, known):
                yield f"{message.name}.{field.name}"
        elif named(message.name, field, known) and field.is_repeated:
            held = struct_fields(spec, field.name)
            yield from (
                f"{inner.name}.{part.name}"
                for part in inner.fields
                if RENAMED.get(part.name, part.name) not in held
            )
        elif field.containing_oneof is not None and field.containing_oneof.name == "data":
            yield from unaccounted(inner, spec, known)
        else:  # a single message, spread over columns: Span.status.code, ResourceLogs.resource.attributes
            yield from (
                f"{message.name}.{field.name}.{part.name}"
                for part in inner.fields
                if f"{message.name}.{field.name}.{part.name}" not in known
            )


def named(message: str, field: FieldDescriptor, known: set[str]) -> bool:
    alike = {f"{message}.{field.name}"}
    if message.endswith("DataPoint"):
        alike.add(f"DataPoint.{field.name}")
    if field.name == "aggregation_temporality":
        alike.add(field.name)
    return bool(alike & known)


@each_signal
def test_every_field_of_otlp_has_a_place(signal: Signal) -> None:
    """A new field in opentelemetry-proto fails here until a column's `source` names it."""
    spec = table_spec(signal)
    assert list(unaccounted(REQUESTS[signal].DESCRIPTOR, spec, sources(spec))) == []


@each_signal
def test_a_field_without_a_place_would_be_noticed(signal: Signal) -> None:
    """For every source that names a field: without it, that field is missing."""
    spec = table_spec(signal)
    for source in sorted(name for name in sources(spec) if "." in name):
        if source == "Metric.data":
            continue  # the oneof itself
        missing = list(unaccounted(REQUESTS[signal].DESCRIPTOR, spec, sources(spec) - {source}))
        assert missing, source


def test_a_new_part_of_an_event_link_exemplar_or_quantile_would_be_noticed() -> None:
    for signal, column, message in (
        ("spans", "events", "Event"),
        ("spans", "links", "Link"),
        ("metrics", "exemplars", "Exemplar"),
        ("metrics", "quantile_values", "ValueAtQuantile"),
    ):
        spec = table_spec(signal)  # type: ignore[arg-type]
        inner = spec.column(column).type.value_type
        less = pa.list_(pa.struct([field for field in inner if field.name != inner[0].name]))
        poorer = dataclasses.replace(
            spec,
            columns=tuple(
                dataclasses.replace(item, type=less) if item.name == column else item for item in spec.columns
            ),
        )
        (first, *_) = unaccounted(REQUESTS[spec.name].DESCRIPTOR, poorer, sources(poorer))
        assert first.startswith(f"{message}.")


PROFILES_ONLY = {"string_value_strindex", "key_strindex"}
"""Indices into the string table of profiles; without one they mean nothing."""


def test_every_kind_of_value_has_a_name() -> None:
    fields = {field.name for field in AnyValue.DESCRIPTOR.fields} - PROFILES_ONLY
    assert fields == {f"{kind}_value" for kind in KINDS}


def test_a_key_value_is_a_key_and_a_value() -> None:
    assert {field.name for field in KeyValue.DESCRIPTOR.fields} - PROFILES_ONLY == {"key", "value"}


def test_an_entity_reference_comes_back_with_every_field() -> None:
    ref = EntityRef()
    for field in EntityRef.DESCRIPTOR.fields:
        if field.is_repeated:
            getattr(ref, field.name).extend([f"{field.name} 1", f"{field.name} 2"])
        else:
            setattr(ref, field.name, field.name)
    request = REQUESTS["logs"]()
    envelope = request.resource_logs.add(resource=Resource(entity_refs=[ref, EntityRef()]))  # type: ignore[attr-defined]
    envelope.scope_logs.add().log_records.add()
    decoder = Decoder("logs")
    table = decoder.decode([request.SerializeToString()], ["t"], [1]).table
    back = encode(table, decoder.spec).resource_logs[0].resource.entity_refs  # type: ignore[attr-defined]
    assert list(back) == [ref, EntityRef()]


def test_the_page_lists_every_column_as_it_is_declared() -> None:
    expected = markdown(table_specs().values())
    assert PAGE.exists(), f"{PAGE} is missing: run `make docs`"
    assert PAGE.read_text().strip() == expected.strip(), f"{PAGE} is out of date: run `make docs`"


@each_signal
def test_the_page_is_a_table_that_markdown_can_show(signal: Signal) -> None:
    lines = markdown([table_spec(signal)]).splitlines()
    rows = [line for line in lines if line.startswith("| `")]
    assert len(rows) == len(table_spec(signal).columns)
    for row in rows:
        assert len(re.findall(r"(?<!\\)\|", row)) == 5, row
        assert "\n" not in row


@each_signal
def test_every_column_says_what_it_holds_and_where_it_comes_from(signal: Signal) -> None:
    for column in table_spec(signal).columns:
        assert column.doc.strip(), column.name
        assert column.source.strip(), column.name
        assert re.fullmatch(r"[a-z][a-z0-9_]*", column.name), column.name


@each_signal
def test_columns_are_unique_in_tier_order_and_named_by_the_layout(signal: Signal) -> None:
    spec = table_spec(signal)
    names = [column.name for column in spec.columns]
    assert len(set(names)) == len(names)
    tiers = [("hot", "warm", "cold").index(column.tier) for column in spec.columns]
    assert tiers == sorted(tiers)
    assert set(spec.sort_by) | set(spec.bloom_filters) <= set(names)
    assert {"tenant_id", "time"} <= {column.name for column in spec.columns if column.required}


@each_signal
def test_the_decoders_rows_have_the_declared_columns(signal: Signal) -> None:
    decoder = Decoder(signal)
    assert decoder.schema.names == decoder.spec.arrow_schema.names == [c.name for c in decoder.spec.columns]


def test_a_column_declared_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="body twice"):
        table_spec("logs", [Promoted("body")])
    with pytest.raises(ValueError, match="http_route twice"):
        table_spec("logs", [Promoted("http.route")])
    with pytest.raises(KeyError):
        table_spec("logs").column("nothing")


def test_promoted_columns_are_named_after_their_attributes() -> None:
    assert column_name("http.response.status_code") == "http_response_status_code"
    assert column_name("K8s/Pod-Name") == "k8s_pod_name"
    assert Promoted("a.b", name="other").column == "other"
    names = [item.column for item in DEFAULT_PROMOTED]
    assert len(set(names)) == len(names)


def test_a_promoted_column_with_a_bloom_filter_has_it_in_every_table_of_a_signal() -> None:
    extra = (Promoted("user.id", bloom=True), Promoted("other"))
    for signal, built_in in (("logs", ("trace_id",)), ("spans", ("trace_id",)), ("metrics", ())):
        assert landed_spec(signal, extra).bloom_filters == (*built_in, "user_id")
        assert landed_spec(signal).bloom_filters == built_in


def test_a_configured_promoted_column_is_in_the_schema_with_its_type() -> None:
    spec = table_spec("spans", [Promoted("queue.depth", "resource", "int")])
    assert spec.arrow_schema.field("queue_depth").type == pa.int64()
    assert spec.column("queue_depth").source == "attribute `queue.depth` of the resource"
