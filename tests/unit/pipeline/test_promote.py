"""Columns promoted after a segment was written are filled as if they had been there from the start."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue
from pyiceberg.catalog import Catalog

from frazil.config import Config
from frazil.lake.catalog import ensure_namespace, open_catalog
from frazil.lake.tables import open_table
from frazil.otlp.decode import Decoder, conform
from frazil.pipeline.datafile import Layout
from frazil.sql.promoted_fallback import from_map
from frazil.tables import SEGMENT, Promoted, landed_spec
from frazil.tables.promoted import Source, ValueType
from frazil.wal.names import SegmentName
from frazil.wal.rowgroups import read_row_groups
from frazil.wal.segment import SegmentWriter

TYPES: tuple[ValueType, ...] = ("string", "int", "double", "bool")
SOURCES: tuple[Source, ...] = ("resource", "record")
NAME = SegmentName("logs", "20261115T081823123-9f86d081884c7d65", 0)
VALUES = [
    AnyValue(string_value="text"),
    AnyValue(string_value=""),
    AnyValue(string_value="12"),
    AnyValue(string_value="true"),
    AnyValue(string_value="1e400"),
    AnyValue(int_value=0),
    AnyValue(int_value=-(2**63)),
    AnyValue(int_value=2**63 - 1),
    AnyValue(double_value=1.5),
    AnyValue(double_value=-0.0),
    AnyValue(double_value=1e300),
    AnyValue(double_value=5e-324),
    AnyValue(double_value=float("inf")),
    AnyValue(double_value=float("-inf")),
    AnyValue(double_value=float("nan")),
    AnyValue(bool_value=True),
    AnyValue(bool_value=False),
    AnyValue(bytes_value=b"\x00\xff"),
    AnyValue(array_value=ArrayValue(values=[AnyValue(int_value=1)])),
    AnyValue(),
    None,
]


def request(values: list[AnyValue | None]) -> bytes:
    """Each value in a record of its own and in a resource of its own, beside another attribute."""
    whole = ExportLogsServiceRequest()
    for number, value in enumerate(values):
        envelope = whole.resource_logs.add()
        record = envelope.scope_logs.add().log_records.add(time_unix_nano=1 + number)
        for attributes in (envelope.resource.attributes, record.attributes):
            attributes.add(key="other", value=AnyValue(int_value=number))
            if value is not None:
                attributes.add(key="cart.id", value=value)
    return bytes(whole.SerializeToString())


def decoded(extra: tuple[Promoted, ...], values: list[AnyValue | None]) -> pa.Table:
    return Decoder("logs", extra).decode([request(values)], ["acme"], [5]).table


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    config = Config.model_validate({"data_dir": tmp_path})
    with contextlib.closing(open_catalog(config)) as catalog:
        ensure_namespace(catalog, "otel")
        yield catalog


def layout_of(catalog: Catalog, extra: tuple[Promoted, ...]) -> Layout:
    table = open_table(catalog, "otel", landed_spec("logs", extra), "").table
    return Layout.of(table, landed_spec("logs", extra), 1)


def read_back(table: pa.Table, layout: Layout) -> pa.Table:
    """Through a segment, as landing reads it."""
    writer = SegmentWriter(1)
    writer.write(table.slice(0, 3))
    writer.write(table.slice(3))
    data = writer.finish(NAME, stream_rows=0, received=(1, 2))
    facts, groups = read_row_groups(NAME, data, layout.coded)
    return pa.concat_tables([layout.filled(group, facts.fill) for group in groups])


def plain(table: pa.Table, name: str) -> list[str]:
    """As text: NaN is not equal to itself."""
    return [repr(value) for value in table[name].to_pylist()]


def test_a_column_filled_from_the_map_is_what_the_receiver_would_have_written(catalog: Catalog) -> None:
    extra = tuple(
        Promoted("cart.id", source, type_, f"cart_{source}_{type_}") for source in SOURCES for type_ in TYPES
    )
    layout = layout_of(catalog, extra)
    filled = read_back(decoded((), VALUES), layout)
    wanted = decoded(extra, VALUES)
    assert set(filled.column_names) == set(layout.coded.names) - {SEGMENT.name}
    for promoted in extra:
        assert plain(filled, promoted.column) == plain(wanted, promoted.column), promoted
        assert filled.schema.field(promoted.column).type == layout.coded.field(promoted.column).type
    assert filled["cart_record_int"].to_pylist().count(None) == len(VALUES) - 3
    assert filled["cart_resource_bool"].drop_null().to_pylist() == [True, False]


def two_attributes(values: Sequence[tuple[AnyValue | None, AnyValue | None]]) -> bytes:
    """Each pair in a record of its own and in a resource of its own: `new.id` and `old.id`."""
    whole = ExportLogsServiceRequest()
    for number, pair in enumerate(values):
        envelope = whole.resource_logs.add()
        record = envelope.scope_logs.add().log_records.add(time_unix_nano=1 + number)
        for attributes in (envelope.resource.attributes, record.attributes):
            for key, value in zip(("new.id", "old.id"), pair, strict=True):
                if value is not None:
                    attributes.add(key=key, value=value)
    return bytes(whole.SerializeToString())


def test_of_a_list_segments_and_queries_take_the_value_that_the_receiver_would(catalog: Catalog) -> None:
    """All pairs of values: of each kind, empty and absent."""
    lists = tuple(
        Promoted("new.id", source, type_, f"id_{source}_{type_}", ("old.id",))
        for source in SOURCES
        for type_ in TYPES
    )
    body = [two_attributes(list(itertools.product(VALUES, VALUES)))]
    before = Decoder("logs").decode(body, ["acme"], [5]).table
    wanted = Decoder("logs", lists).decode(body, ["acme"], [5]).table
    layout = layout_of(catalog, lists)
    filled = read_back(before, layout)
    source = conform(before, Decoder("logs").spec)  # noqa: F841 (named in the query)
    with contextlib.closing(duckdb.connect()) as connection:
        for item in lists:
            queried = connection.execute(
                f"SELECT {from_map(item)} AS {item.column} FROM source"
            ).to_arrow_table()
            assert plain(filled, item.column) == plain(wanted, item.column), item
            assert plain(queried, item.column) == plain(wanted, item.column), item
    texts = wanted["id_record_string"].to_pylist()
    assert texts[:2] == ["text", "text"]
    assert texts[-2:] == [None, None], "an empty value, and none"
    assert texts[-1 - len(VALUES)] is None, "the first is empty, the second absent"


def test_a_segment_that_was_filled_from_other_attributes_is_filled_again(catalog: Catalog) -> None:
    pairs = [(AnyValue(string_value="a"), AnyValue(string_value="b")), (None, AnyValue(string_value="b"))]
    one, two = (Promoted("new.id", name="id"),), (Promoted("new.id", name="id", older=("old.id",)),)
    layout = layout_of(catalog, two)
    decoder = Decoder("logs", one)
    table = decoder.decode([two_attributes(pairs)], ["acme"], [5]).table
    assert table["id"].to_pylist() == ["a", None]
    assert layout.filled(table, decoder.fill.fingerprint)["id"].to_pylist() == ["a", "b"]
    assert layout.filled(table, "")["id"].to_pylist() == ["a", "b"]
    assert layout.filled(table, layout.fill.fingerprint)["id"].to_pylist() == ["a", None], "as it says"


def test_columns_that_a_segment_has_already_are_left_as_they_are(catalog: Catalog) -> None:
    extra = (Promoted("cart.id"),)
    layout = layout_of(catalog, extra)
    table = decoded(extra, VALUES)
    assert plain(read_back(table, layout), "cart_id") == plain(table, "cart_id")


def test_of_a_key_that_comes_twice_the_same_value_is_taken_as_at_the_receiver(catalog: Catalog) -> None:
    whole = ExportLogsServiceRequest()
    record = whole.resource_logs.add().scope_logs.add().log_records.add(time_unix_nano=1)
    for value in ("first", "second"):
        record.attributes.add(key="cart.id", value=AnyValue(string_value=value))
    extra = (Promoted("cart.id"),)
    body = [bytes(whole.SerializeToString())]
    before = Decoder("logs").decode(body, ["acme"], [5]).table
    wanted = Decoder("logs", extra).decode(body, ["acme"], [5]).table
    filled = layout_of(catalog, extra).filled(before, "")
    assert filled["cart_id"].to_pylist() == wanted["cart_id"].to_pylist()


def test_a_segment_whose_column_was_promoted_as_another_type_is_filled_from_the_map(catalog: Catalog) -> None:
    values = [AnyValue(int_value=7), AnyValue(string_value="text"), None]
    before = decoded((Promoted("cart.id"),), values)
    layout = layout_of(catalog, (Promoted("cart.id", type="int"),))
    assert read_back(before, layout)["cart_id"].to_pylist() == [7, None, None]


def test_an_empty_table_and_one_without_attributes_are_filled_with_null(catalog: Catalog) -> None:
    layout = layout_of(catalog, (Promoted("cart.id"), Promoted("n", "resource", "int")))
    assert layout.filled(decoded((), VALUES).slice(0, 0), "").num_rows == 0
    filled = layout.filled(decoded((), [None, None]), "")
    assert filled["cart_id"].to_pylist() == [None, None]
    assert filled["n"].to_pylist() == [None, None]


def test_a_slice_is_filled_with_its_own_values(catalog: Catalog) -> None:
    layout = layout_of(catalog, (Promoted("cart.id", "resource"), Promoted("cart.id", name="mine")))
    table = decoded((), [AnyValue(string_value=text) for text in "abcde"]).slice(2, 2)
    filled = layout.filled(table, "")
    assert filled["cart_id"].to_pylist() == ["c", "d"]
    assert filled["mine"].to_pylist() == ["c", "d"]
