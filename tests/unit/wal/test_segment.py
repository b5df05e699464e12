"""Segments: their facts, any Parquet reader reads them, and no damage goes unnoticed."""

from __future__ import annotations

import random
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from frazil.errors import SegmentCorrupt, SegmentUnknown
from frazil.otlp.decode import Decoder, conform
from frazil.tables import SIGNALS, Promoted, Signal, table_spec
from frazil.wal import SegmentName
from frazil.wal.segment import SegmentWriter, read_facts, read_rows, tombstone

STREAM = "20261115T081823123-9f86d081884c7d65"
NAME = SegmentName("logs", STREAM, 3)
DECODER = Decoder("logs")


def table(count: int, text: str = "hello", decoder: Decoder = DECODER) -> pa.Table:
    request = ExportLogsServiceRequest()
    envelope = request.resource_logs.add()
    envelope.resource.attributes.add(key="service.name", value=AnyValue(string_value="shop"))
    scope = envelope.scope_logs.add()
    for number in range(count):
        record = scope.log_records.add(time_unix_nano=1 + number, trace_id=bytes([number % 255 + 1]) * 16)
        record.body.string_value = f"{text} {number}"
        record.attributes.add(key="n", value=AnyValue(int_value=number))
    return decoder.decode([request.SerializeToString()], ["t"], [5]).table


def segment(*tables: pa.Table, name: SegmentName = NAME, stream_rows: int = 40) -> bytes:
    writer = SegmentWriter(1)
    for one in tables or (table(10), table(5)):
        writer.write(one)
    return writer.finish(name, stream_rows=stream_rows, received=(100, 200))


DATA = segment()


def resealed(data: bytes) -> bytes:
    """With the checksum that fits: what an intruder, or another release, would write."""
    mark = data.rindex(b"xxh3:") + 5
    blank = data[:mark] + b"0" * 16 + data[mark + 16 :]
    return data[:mark] + xxhash.xxh3_64_hexdigest(blank).encode() + data[mark + 16 :]


def test_the_footer_says_what_the_segment_is() -> None:
    facts = read_facts(NAME, DATA)
    assert (facts.name, facts.rows, facts.stream_rows) == (NAME, 15, 55)
    assert (facts.received_min_unix_nano, facts.received_max_unix_nano) == (100, 200)
    assert len(facts.nonce) == 32


def test_the_footer_says_how_promoted_columns_were_filled() -> None:
    writer = SegmentWriter(1, DECODER.fill.fingerprint)
    writer.write(table(1))
    data = writer.finish(NAME, stream_rows=0, received=(1, 2))
    assert read_facts(NAME, data).fill == DECODER.fill.fingerprint
    assert read_facts(NAME, DATA).fill == "", "as those of older versions"


def test_two_segments_of_the_same_rows_differ_by_their_nonce() -> None:
    assert read_facts(NAME, segment()).nonce != read_facts(NAME, segment()).nonce


def test_rows_come_back_in_the_tables_schema() -> None:
    facts, rows = read_rows(NAME, DATA, DECODER.spec)
    assert rows.schema == DECODER.spec.arrow_schema
    expected = pa.concat_tables(conform(part, DECODER.spec) for part in (table(10), table(5)))
    assert rows.to_pylist() == expected.to_pylist()
    assert facts.rows == rows.num_rows


def test_any_parquet_reader_can_read_it() -> None:
    plain = pq.ParquetFile(pa.BufferReader(DATA))
    assert plain.metadata.num_rows == 15
    assert plain.metadata.num_row_groups == 2
    assert plain.schema_arrow.field("body").type == pa.string()
    assert plain.schema_arrow.field("attributes").type == pa.map_(pa.string(), pa.string())
    assert plain.read(["body"]).column(0).to_pylist()[0] == "hello 0"
    assert b"ARROW:schema" not in plain.metadata.metadata


def test_statistics_of_time_let_readers_skip_row_groups() -> None:
    group = pq.ParquetFile(pa.BufferReader(DATA)).metadata.row_group(0)
    columns = {group.column(n).path_in_schema: group.column(n) for n in range(group.num_columns)}
    assert columns["time"].statistics.has_min_max


def test_every_flipped_bit_is_noticed() -> None:
    rng = random.Random(7)
    footer = int.from_bytes(DATA[-8:-4], "little") + 8
    positions = {*rng.sample(range(len(DATA)), 300), *range(12), *range(len(DATA) - footer, len(DATA))}
    for position in positions:
        damaged = bytearray(DATA)
        damaged[position] ^= 1 << rng.randrange(8)
        with pytest.raises(SegmentCorrupt):
            read_facts(NAME, bytes(damaged))


def test_every_truncation_and_extension_is_noticed() -> None:
    for length in [*range(40), *range(40, len(DATA), 97), len(DATA) - 1]:
        with pytest.raises(SegmentCorrupt):
            read_facts(NAME, DATA[:length])
    for more in (b"\0", b"PAR1", DATA):
        with pytest.raises(SegmentCorrupt):
            read_facts(NAME, DATA + more)
    with pytest.raises(SegmentCorrupt):
        read_facts(NAME, DATA[: len(DATA) // 2] + bytes(512) + DATA[len(DATA) // 2 + 512 :])


def test_another_segments_bytes_are_noticed() -> None:
    for name in (
        SegmentName("logs", STREAM, 4),
        SegmentName("spans", STREAM, 3),
        SegmentName("logs", STREAM.replace("9f86", "9f87"), 3),
    ):
        with pytest.raises(SegmentCorrupt, match="the footer names logs/"):
            read_facts(name, DATA)


def test_an_unknown_version_is_told_from_damage() -> None:
    newer = resealed(DATA.replace(b"frazil.format\x18\x011", b"frazil.format\x18\x012"))
    assert newer != DATA
    with pytest.raises(SegmentUnknown) as caught:
        read_facts(NAME, newer)
    assert caught.value.version == "2"


@pytest.mark.parametrize("key", [b"frazil.rows", b"frazil.nonce", b"frazil.signal", b"frazil.sequence"])
def test_a_sealed_footer_that_lacks_a_fact_is_corrupt(key: bytes) -> None:
    changed = resealed(DATA.replace(key, key[:-1] + b"X"))
    with pytest.raises(SegmentCorrupt):
        read_facts(NAME, changed)


def test_a_sealed_footer_that_is_no_text_is_corrupt() -> None:
    with pytest.raises(SegmentCorrupt):
        read_facts(NAME, resealed(DATA.replace(b"frazil.nonce", b"frazil.nonc\xff")))


def test_a_parquet_file_of_somebody_else_is_corrupt() -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": [1]}), sink)
    with pytest.raises(SegmentCorrupt, match="no checksum"):
        read_facts(NAME, sink.getvalue().to_pybytes())
    for data in (b"", b"PAR1", b"PAR1" * 3, b"PAR1" + bytes(100) + b"PAR1"):
        with pytest.raises(SegmentCorrupt):
            read_facts(NAME, data)


def test_rows_that_say_what_a_checksum_looks_like_do_not_confuse_it() -> None:
    hostile = segment(table(3, "frazil.checksum xxh3:0000000000000000 PAR1"))
    assert read_facts(NAME, hostile).rows == 3
    assert read_rows(NAME, hostile, DECODER.spec)[1].num_rows == 3


def test_columns_that_the_table_has_gained_since_are_null() -> None:
    newer = table_spec("logs", [Promoted("n", type="int", name="n_promoted")])
    _, rows = read_rows(NAME, DATA, newer)
    assert rows.column("n_promoted").null_count == 15


def test_columns_that_the_table_no_longer_has_are_left_out() -> None:
    older = Decoder("logs", [Promoted("n", type="int", name="n_promoted")])
    data = segment(table(4, decoder=older))
    _, rows = read_rows(NAME, data, DECODER.spec)
    assert "n_promoted" not in rows.column_names
    assert rows.num_rows == 4


def test_tables_without_rows_are_no_row_groups_and_no_segment() -> None:
    writer = SegmentWriter(1)
    writer.write(table(0))
    assert writer.rows == 0
    with pytest.raises(ValueError, match="at least one row"):
        writer.finish(NAME, stream_rows=0, received=(1, 1))
    assert read_facts(NAME, segment(table(0), table(2), table(0))).rows == 2


def test_slices_with_different_dictionaries_share_a_segment() -> None:
    many = [table(2, text) for text in ("a", "b", "c")]
    _, rows = read_rows(NAME, segment(*many), DECODER.spec)
    assert rows.column("body").to_pylist() == ["a 0", "a 1", "b 0", "b 1", "c 0", "c 1"]


def test_a_tombstone_says_that_its_stream_ends() -> None:
    data = tombstone(NAME, 55)
    facts = read_facts(NAME, data)
    assert facts.tombstone
    assert (facts.name, facts.rows, facts.stream_rows) == (NAME, 0, 55)
    assert not read_facts(NAME, DATA).tombstone
    assert tombstone(NAME, 55) != data  # each has a nonce
    assert read_rows(NAME, data, DECODER.spec)[1] == DECODER.spec.arrow_schema.empty_table()


def test_a_damaged_tombstone_is_noticed() -> None:
    data = tombstone(NAME, 55)
    for position in range(len(data)):
        with pytest.raises(SegmentCorrupt):
            read_facts(NAME, data[:position] + bytes([data[position] ^ 16]) + data[position + 1 :])


@pytest.mark.parametrize("signal", SIGNALS)
def test_a_tombstone_has_the_columns_that_segments_have(signal: Signal) -> None:
    decoder = Decoder(signal, [Promoted("n", type="int", name="n_promoted")])
    name = SegmentName(signal, STREAM, 1)
    schema = pq.read_schema(pa.BufferReader(tombstone(name, 1, decoder.spec)))
    assert schema.names == [column.name for column in decoder.spec.columns]
    assert schema.types == decoder.spec.arrow_schema.types


@pytest.mark.parametrize("first", ["0.parquet", "2.parquet"])
def test_a_query_over_a_folder_takes_a_tombstone_like_any_other_file(first: str, tmp_path: Path) -> None:
    (tmp_path / "1.parquet").write_bytes(DATA)
    (tmp_path / first).write_bytes(tombstone(NAME.next, 55))
    query = f"SELECT count(*), count(DISTINCT attributes['n']) FROM '{tmp_path}/*.parquet' WHERE body <> ''"
    assert duckdb.sql(query).fetchall() == [(15, 10)]
