"""Bloom filters of data files: a value that is in the file is never excluded, and most others are."""

from __future__ import annotations

import io
import random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from frazil.pipeline.datafile import _BLOOM_FALSE_POSITIVES
from frazil.sql.bloom import BloomFilter, hashes_of, lacks, read_filters

TEXT, NUMBER, SMALL, PLAIN = 7, 8, 9, 10
ROWS = 2000


def field(name: str, type_: pa.DataType, identity: int) -> pa.Field:
    return pa.field(name, type_, metadata={b"PARQUET:field_id": str(identity).encode()})


SCHEMA = pa.schema(
    [
        field("text", pa.string(), TEXT),
        field("number", pa.int64(), NUMBER),
        field("small", pa.int32(), SMALL),
        field("plain", pa.string(), PLAIN),
    ]
)


def table(numbers: list[int], schema: pa.Schema = SCHEMA) -> pa.Table:
    texts = [f"user {number}" for number in numbers]
    return pa.table(
        {"text": texts, "number": numbers, "small": [each % 100 for each in numbers], "plain": texts}
    ).cast(schema)


def written(*groups: pa.Table, filtered: tuple[str, ...] = ("text", "number", "small")) -> bytes:
    sink = io.BytesIO()
    options: Any = {name: {"ndv": ROWS, "fpp": 0.01} for name in filtered}
    with pq.ParquetWriter(sink, groups[0].schema, bloom_filter_options=options) as writer:
        for group in groups:
            writer.write_table(group)
    return sink.getvalue()


def filters(data: bytes, field_id: int) -> tuple[BloomFilter, ...]:
    source = io.BytesIO(data)
    return read_filters(source, pq.read_metadata(source), field_id)


@pytest.mark.parametrize("dictionary", [False, True])
def test_no_value_of_a_file_is_excluded_and_most_others_are(dictionary: bool) -> None:
    rng = random.Random(5)
    inside = rng.sample(range(-(2**40), 2**40), ROWS)
    schema = SCHEMA
    if dictionary:
        at = schema.get_field_index("text")
        schema = schema.set(at, schema.field(at).with_type(pa.dictionary(pa.int32(), pa.string())))
    halves = table(inside[:1000], schema), table(inside[1000:], schema)
    data = written(*halves)
    texts, numbers = filters(data, TEXT), filters(data, NUMBER)
    assert len(texts) == len(numbers) == 2
    for number in inside:
        assert not lacks(numbers, hashes_of([number]))
        assert not lacks(texts, hashes_of([f"user {number}"]))
    outside = [number for number in rng.sample(range(-(2**40), 2**40), ROWS) if number not in inside]
    assert sum(lacks(numbers, hashes_of([number])) for number in outside) > 0.95 * len(outside)
    assert sum(lacks(texts, hashes_of([f"user {number}"])) for number in outside) > 0.95 * len(outside)


@pytest.mark.parametrize(("distinct", "kibibytes"), [(100_000, 128), (1000, 2)])
def test_a_filter_takes_as_many_bytes_as_the_documentation_says(distinct: int, kibibytes: int) -> None:
    """The writer makes room for as many values as there are rows, and Arrow folds the filter afterwards."""
    sink, options = io.BytesIO(), {"text": {"ndv": 100_000, "fpp": _BLOOM_FALSE_POSITIVES}}
    texts = pa.table({"text": [f"user {number % distinct}" for number in range(100_000)]})
    pq.write_table(texts, sink, bloom_filter_options=options)
    length = pq.read_metadata(sink).row_group(0).column(0).bloom_filter_length
    assert kibibytes * 1024 < length < kibibytes * 1024 + 64


def test_one_of_several_values_keeps_a_file() -> None:
    found = filters(written(table([1, 2, 3])), NUMBER)
    assert lacks(found, hashes_of([40, 50]))
    assert not lacks(found, hashes_of([40, 2, 50]))


@pytest.mark.parametrize(
    "values",
    [
        None,
        frozenset(),
        frozenset(range(65)),
        frozenset({1.0}),
        frozenset({True}),
        frozenset({2**63}),
        frozenset({"x", 0.5}),
    ],
)
def test_values_without_a_hash_exclude_nothing(values: frozenset[Any] | None) -> None:
    assert hashes_of(values) == []
    assert not lacks(filters(written(table([7])), NUMBER), hashes_of(values))


def test_a_column_without_filters_excludes_nothing() -> None:
    data = written(table([1]))
    assert filters(data, PLAIN) == ()
    assert filters(data, 99) == (), "the file has no such column"
    assert filters(data, SMALL) == (), "32-bit integers are hashed in another way"
    assert not lacks((), hashes_of(["x"]))


def test_a_row_group_without_a_filter_takes_the_filters_of_the_others_away() -> None:
    """As PyArrow writes no file in this way, the offset is hidden."""
    source = io.BytesIO(written(table([1]), table([2])))
    footer = pq.read_metadata(source)
    assert len(read_filters(source, footer, TEXT)) == 2
    assert read_filters(source, Hiding(footer), TEXT) == ()  # type: ignore[arg-type]


class Hiding:
    """A footer whose second row group has no Bloom filters."""

    def __init__(self, footer: pq.FileMetaData) -> None:
        self._footer = footer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._footer, name)

    def row_group(self, number: int) -> Any:
        return self._footer.row_group(number) if number == 0 else self

    def column(self, _: int) -> Any:
        return self

    bloom_filter_offset = bloom_filter_length = None


def test_a_column_is_found_by_its_id_and_not_by_its_name() -> None:
    again = pa.schema(
        [
            field("text", pa.string(), 20),
            field("moved", pa.int64(), NUMBER),
            field("small", pa.int32(), SMALL),
            field("plain", pa.string(), PLAIN),
        ]
    )
    data = written(table([1]).rename_columns(again.names).cast(again), filtered=("text", "moved"))
    assert filters(data, TEXT) == (), "the column of that name is another one"
    assert not lacks(filters(data, NUMBER), hashes_of([1]))
    assert lacks(filters(data, NUMBER), hashes_of([2]))


def test_a_file_without_field_ids_has_no_filters() -> None:
    without = pa.schema([pa.field(each.name, each.type) for each in SCHEMA])
    assert filters(written(table([1], without)), TEXT) == ()


@pytest.mark.parametrize("header", [b"\x00" * 20, b"\x15" + b"\xff" * 19, b"\x15\x02"])
def test_a_filter_that_is_not_understood_excludes_nothing(header: bytes) -> None:
    data = bytearray(written(table([1])))
    chunk = pq.read_metadata(io.BytesIO(bytes(data))).row_group(0).column(0)
    begin = chunk.bloom_filter_offset
    data[begin : begin + len(header)] = header
    assert filters(bytes(data), TEXT) == ()
