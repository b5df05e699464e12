"""Rows of segments as codes: whatever the file's dictionaries and columns are, the rows stay the same."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from frazil.errors import SegmentCorrupt, SegmentUnknown
from frazil.otlp.decode import Decoder, conform
from frazil.tables import Promoted
from frazil.wal.names import SegmentName
from frazil.wal.rowgroups import coded_table, read_row_groups
from frazil.wal.segment import SegmentWriter, read_rows, tombstone
from tests.unit.wal.test_segment import resealed

NAME = SegmentName("logs", "20261115T081823123-9f86d081884c7d65", 3)
DECODER = Decoder("logs")


def logs(count: int, *, text: str = "value", decoder: Decoder = DECODER) -> pa.Table:
    """Each record in a resource of its own, whose attribute is as long as `text`, and distinct."""
    request = ExportLogsServiceRequest()
    for number in range(count):
        envelope = request.resource_logs.add()
        envelope.resource.attributes.add(key="k", value=AnyValue(string_value=f"{number} {text}"))
        envelope.resource.attributes.add(key="service.name", value=AnyValue(string_value="shop"))
        record = envelope.scope_logs.add().log_records.add(time_unix_nano=1 + number)
        record.body.string_value = f"body {number}"
        record.attributes.add(key="n", value=AnyValue(int_value=number))
    return decoder.decode([bytes(request.SerializeToString())], ["acme"], [5]).table


def segment(*tables: pa.Table) -> bytes:
    writer = SegmentWriter(1)
    for table in tables:
        writer.write(table)
    return writer.finish(NAME, stream_rows=0, received=(1, 2))


def read(data: bytes, schema: pa.Schema = DECODER.schema) -> list[pa.Table]:
    facts, groups = read_row_groups(NAME, data, schema)
    tables = list(groups)
    assert sum(table.num_rows for table in tables) == facts.rows
    return tables


def test_rows_come_as_codes_a_row_group_at_a_time() -> None:
    one, two = logs(10), logs(5)
    tables = read(segment(one, two))
    assert [table.num_rows for table in tables] == [10, 5]
    for table, wanted in zip(tables, (one, two), strict=True):
        assert table.schema == DECODER.schema
        assert conform(table, DECODER.spec).equals(conform(wanted, DECODER.spec))


@pytest.mark.parametrize("length", [10, 400])
def test_values_too_many_for_a_dictionary_are_read_all_the_same(length: int) -> None:
    """Parquet goes over to plain values when a column's dictionary reaches a megabyte, in mid-column."""
    wanted = logs(4_000, text="x" * length)
    data = segment(logs(3), wanted)
    encodings = {
        encoding
        for number in range(pq.read_metadata(pa.BufferReader(data)).num_columns)
        if (column := pq.read_metadata(pa.BufferReader(data)).row_group(1).column(number))
        and column.path_in_schema == "resource_attributes.key_value.value"
        for encoding in column.encodings
    }
    assert encodings >= {"PLAIN", "RLE_DICTIONARY"}
    tables = read(data)
    assert [table.schema for table in tables] == [DECODER.schema, DECODER.schema]
    assert conform(tables[1], DECODER.spec).equals(conform(wanted, DECODER.spec))
    _, plain = read_rows(NAME, data, DECODER.spec)
    assert conform(pa.concat_tables(tables), DECODER.spec).equals(plain)


def test_columns_that_a_file_does_not_have_are_left_out() -> None:
    wider = Decoder("logs", (Promoted("cart.id"), Promoted("k", "resource")))
    (table,) = read(segment(logs(3)), wider.schema)
    assert set(table.column_names) == set(DECODER.schema.names)
    assert table.schema == DECODER.schema


def test_columns_that_nobody_asked_for_are_dropped() -> None:
    wider = Decoder("logs", (Promoted("cart.id"),))
    (table,) = read(segment(logs(3, decoder=wider)))
    assert table.schema == DECODER.schema


def test_a_column_of_a_type_that_does_not_fit_counts_as_not_there() -> None:
    text = Decoder("logs", (Promoted("k", "resource"),))
    number = Decoder("logs", (Promoted("k", "resource", "int"),))
    (table,) = read(segment(logs(3, decoder=text)), number.schema)
    assert "k" not in table.column_names
    assert table.num_rows == 3


def test_a_tombstone_has_no_row_groups() -> None:
    facts, groups = read_row_groups(NAME, tombstone(NAME, 40), DECODER.schema)
    assert facts.tombstone
    assert list(groups) == []


def test_damage_is_found_before_a_row_is_given() -> None:
    data = bytearray(segment(logs(3)))
    data[len(data) // 2] ^= 1
    with pytest.raises(SegmentCorrupt):
        read_row_groups(NAME, bytes(data), DECODER.schema)


def test_a_segment_of_another_format_is_unknown() -> None:
    data = segment(logs(3))
    at = data.rindex(b"frazil.format")
    version = data.index(b"1", at + len("frazil.format"))
    with pytest.raises(SegmentUnknown):
        read_row_groups(NAME, resealed(data[:version] + b"9" + data[version + 1 :]), DECODER.schema)


def test_a_footer_that_counts_other_rows_is_corrupt() -> None:
    data = segment(logs(3), logs(4))
    at = data.rindex(b"frazil.rows")
    digit = data.index(b"7", at)
    facts, groups = read_row_groups(NAME, resealed(data[:digit] + b"8" + data[digit + 1 :]), DECODER.schema)
    assert facts.rows == 8
    with pytest.raises(SegmentCorrupt, match="7 rows, but the footer says 8"):
        list(groups)


def test_codes_keep_null_and_empty_maps() -> None:
    schema = pa.schema([("m", pa.map_(pa.dictionary(pa.int32(), pa.string()), pa.string()))])
    plain = pa.table(
        {"m": pa.array([None, [], [("a", None)], [("b", "c")]], pa.map_(pa.string(), pa.string()))}
    )
    for table in (plain, plain.slice(1), plain.slice(0, 0)):
        coded = coded_table(table, schema)
        coded.validate(full=True)
        assert coded.schema == schema
        assert coded.to_pylist() == table.to_pylist()
