"""Merging: rows with any values, from any writer, come out unchanged, and what manifests
say of a file is true of its rows.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record
from pyiceberg.types import NestedField, PrimitiveType, StringType, TimestamptzType

from frazil.pipeline.datafile import DataFileWriter, Layout, file_name, write_part
from frazil.pipeline.maintain.merge.merge import MergeSettings
from frazil.pipeline.partition_sort import partition_and_sort
from frazil.tables import SIGNALS, Signal
from frazil.tables.columns import TIMESTAMP
from frazil.wal.rowgroups import coded_table
from tests.unit.pipeline.maintain.test_merge import (
    DAY,
    NOON,
    WIDE,
    keys,
    layout_of,
    merged,
    multiset,
    read,
    sorted_by_service,
)

pytestmark = pytest.mark.slow

TEXTS = [
    "",
    "a",
    "A",
    "\x00",
    "a\x00b",
    "\ud7ff",
    "\ue000" * 33,
    "\uffff",
    "\U00010000",
    "\U0010ffff" * 33,
    "z" * 31 + "\ud7ff\ud7ff",
    "e\u0301",
    "\u00e9",
    "x" * 32,
    "x" * 33,
    "y" * 4097,
    "~" * 6000,
]
DOUBLES = [math.nan, -math.nan, 0.0, -0.0, math.inf, -math.inf, 1.5, -1.5, 5e-324, 1.7976931348623157e308]
INTEGERS = [0, 1, -1, 2**31 - 1, -(2**31)]
LONGS = [*INTEGERS, 2**63 - 1, -(2**63)]
MANY_GROUPS = MergeSettings(2**30, 6_000, 1, False)
ONE_GROUP = MergeSettings(2**30, 2**27, 1, False)


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> dict[Signal, Layout]:
    root = tmp_path_factory.mktemp("lake")
    return {signal: layout_of(root, signal) for signal in SIGNALS}


def value(rng: random.Random, type_: pa.DataType, *, required: bool = False) -> Any:
    """One at the edges of its type."""
    if not required and rng.random() < 0.3:
        return None
    if pa.types.is_string(type_):
        return rng.choice(TEXTS)
    if pa.types.is_float64(type_):
        return rng.choice(DOUBLES)
    if pa.types.is_int32(type_):
        return rng.choice(INTEGERS)
    if pa.types.is_int64(type_):
        return rng.choice(LONGS)
    if pa.types.is_boolean(type_):
        return rng.random() < 0.5
    if pa.types.is_timestamp(type_):
        return NOON + rng.randrange(1000)
    if pa.types.is_map(type_):  # with keys that occur twice
        return [
            (rng.choice(TEXTS[:8]), value(rng, type_.item_type)) for _ in range(rng.choice((0, 0, 1, 3, 9)))
        ]
    if pa.types.is_list(type_):
        return [value(rng, type_.value_type) for _ in range(rng.choice((0, 0, 1, 2)))]
    assert pa.types.is_struct(type_), type_
    return {field.name: value(rng, field.type) for field in type_}


def edge_rows(layout: Layout, seed: int, rows: int) -> pa.Table:
    rng = random.Random(seed)
    made = []
    for _ in range(rows):
        row = {
            field.name: value(rng, field.type, required=not field.nullable)
            for field in layout.spec.arrow_schema
        }
        made.append(row | {"tenant_id": "acme", "_segment": f"s/{seed}"})
    return pa.Table.from_pylist(made, schema=layout.spec.arrow_schema)


def ours(layout: Layout, rows: pa.Table, row_groups: int = 1) -> DataFile:
    """In order over all of its row groups."""
    (part,) = partition_and_sort([coded_table(rows, layout.coded)], layout.spec, WIDE).parts
    if row_groups == 1:
        return write_part(layout, part, file_name(layout))
    each = -(-part.rows.num_rows // row_groups)
    with DataFileWriter(layout, "acme", DAY, file_name(layout), each) as file:
        for first in range(0, part.rows.num_rows, each):
            file.write(part.rows.slice(first, each))
        return file.finish()


def foreign(layout: Layout, rows: pa.Table, **options: Any) -> DataFile:
    """As another engine may write it: unsorted, columns in another order, no ids, no statistics."""
    path = layout.path("acme", DAY, file_name(layout)).removeprefix("file://")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows.select(rows.column_names[::-1]), path, **options)
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record("acme", DAY),
        record_count=rows.num_rows,
        file_size_in_bytes=Path(path).stat().st_size,
    )


FOREIGN: list[dict[str, Any]] = [
    {"use_dictionary": False, "compression": "snappy", "store_schema": False},
    {"use_dictionary": True, "compression": "gzip", "store_schema": False, "row_group_size": 7},
    {"data_page_version": "2.0", "use_dictionary": False, "column_encoding": {"time": "DELTA_BINARY_PACKED"}},
    {
        "use_dictionary": True,
        "dictionary_pagesize_limit": 64,
        "write_statistics": False,
        "data_page_size": 64,
    },
]


@pytest.mark.parametrize("settings", [ONE_GROUP, MANY_GROUPS], ids=["one group", "many groups"])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("signal", SIGNALS)
def test_values_at_the_edges_of_their_types_come_out_as_they_were(
    layouts: dict[Signal, Layout], signal: Signal, seed: int, settings: MergeSettings
) -> None:
    layout = layouts[signal]
    tables = [edge_rows(layout, 100 * seed + number, rows) for number, rows in enumerate((60, 1, 25, 40))]
    files = [
        ours(layout, tables[0], row_groups=4),
        ours(layout, tables[1]),
        ours(layout, tables[2], row_groups=25),
        ours(layout, tables[3]),
    ]
    result = merged(layout, files, settings)
    assert multiset(read(result.added, layout.coded)) == multiset(pa.concat_tables(tables))
    check_facts(layout, result.added)


@pytest.mark.parametrize(
    "options", FOREIGN, ids=["plain", "short groups", "version 2", "dictionaries that end"]
)
@pytest.mark.parametrize("signal", SIGNALS)
def test_files_that_another_engine_wrote_are_merged_with_ours(
    layouts: dict[Signal, Layout], signal: Signal, options: dict[str, Any]
) -> None:
    layout = layouts[signal]
    tables = [edge_rows(layout, 500 + number, 40) for number in range(3)]
    files = [
        ours(layout, tables[0]),
        foreign(layout, tables[1], **options),
        foreign(layout, tables[2], **options),
    ]
    for settings in (ONE_GROUP, MergeSettings(2**30, 3_000_000, 1, False)):
        result = merged(layout, files, settings)
        got = read(result.added, layout.coded)
        assert multiset(got) == multiset(pa.concat_tables(tables))
        if layout.spec.merged_as == "sorted":
            assert keys(got, layout) == sorted(keys(got, layout))
        check_facts(layout, result.added)


@pytest.mark.parametrize("signal", SIGNALS)
def test_files_without_rows_are_merged_away(layouts: dict[Signal, Layout], signal: Signal) -> None:
    layout = layouts[signal]
    rows = edge_rows(layout, 7, 30)
    empty = [foreign(layout, rows.slice(0, 0)), foreign(layout, rows.slice(0, 0), store_schema=False)]
    assert pq.read_metadata(empty[0].file_path).num_row_groups <= 1
    with pq.ParquetWriter(empty[1].file_path, rows.schema):
        pass
    assert pq.read_metadata(empty[1].file_path).num_row_groups == 0
    for settings in (ONE_GROUP, MANY_GROUPS):
        result = merged(layout, [empty[0], ours(layout, rows), empty[1]], settings)
        assert multiset(read(result.added, layout.coded)) == multiset(rows)
        assert merged(layout, empty, settings).added == []


@pytest.mark.parametrize("signal", SIGNALS)
def test_a_text_too_long_for_statistics_in_one_row_group_leaves_no_bounds_that_exclude_it(
    layouts: dict[Signal, Layout], signal: Signal
) -> None:
    """Parquet gives no bounds of a row group then, and those of the others are not those of the file."""
    layout = layouts[signal]
    for text in ("A" * 5000, "z" * 5000):
        tables = []
        for number, name in enumerate(("m", text, "n")):
            rows = edge_rows(layout, number, 10)
            at = rows.schema.get_field_index("service_name")
            rows = rows.set_column(at, rows.schema.field(at), pa.array([name] * 10))
            if signal == "metrics":
                at = rows.schema.get_field_index("metric_name")
                rows = rows.set_column(at, rows.schema.field(at), pa.array([name] * 10))
            tables.append(rows)
        result = merged(layout, [ours(layout, rows) for rows in tables], MergeSettings(2**30, 1, 1, False))
        assert all(len(file.split_offsets or ()) > 1 for file in result.added)
        check_facts(layout, result.added)


def check_facts(layout: Layout, files: Sequence[DataFile]) -> None:
    """What manifests say, against a full read."""
    for file in files:
        table = pq.read_table(file.file_path, partitioning=None)
        footer = pq.read_metadata(file.file_path)
        assert file.record_count == table.num_rows
        assert file.file_size_in_bytes == Path(file.file_path).stat().st_size
        assert file.split_offsets == [
            footer.row_group(number).column(0).dictionary_page_offset
            or footer.row_group(number).column(0).data_page_offset
            for number in range(footer.num_row_groups)
        ]
        bounded = set(layout.columns_with_statistics)
        for field in layout.schema.fields:
            if field.name not in bounded:
                assert field.field_id not in {**file.lower_bounds, **file.upper_bounds}
                continue
            values: list[Any] = (
                table[field.name].to_pylist() if not is_time(field) else micros(table[field.name])
            )
            assert file.value_counts[field.field_id] == table.num_rows
            assert file.null_value_counts[field.field_id] == values.count(None), field.name
            check_bounds(field, file, [value for value in values if value is not None])


def is_time(field: NestedField) -> bool:
    return isinstance(field.field_type, TimestamptzType)


def micros(column: pa.ChunkedArray) -> list[int]:
    found: list[int] = column.cast(TIMESTAMP).cast(pa.int64()).to_pylist()
    return found


def check_bounds(field: NestedField, file: DataFile, values: Sequence[Any]) -> None:
    type_ = field.field_type
    assert isinstance(type_, PrimitiveType)
    lower, upper = (bounds.get(field.field_id) for bounds in (file.lower_bounds, file.upper_bounds))
    known = [value for value in values if not (isinstance(value, float) and math.isnan(value))]
    if not known:
        assert (lower, upper) == (None, None), field.name
        return
    if isinstance(type_, StringType):
        texts = sorted(value.encode() for value in known)
        assert lower is None or lower <= texts[0], field.name
        assert upper is None or upper >= texts[-1], field.name
        if max(len(text) for text in texts) < 32:
            assert (lower, upper) == (texts[0], texts[-1]), field.name
        return
    assert lower is not None, field.name
    assert upper is not None, field.name
    assert from_bytes(type_, lower) == min(known), field.name
    assert from_bytes(type_, upper) == max(known), field.name


def test_many_services_of_one_row_each(layouts: dict[Signal, Layout]) -> None:
    layout = sorted_by_service(layouts["logs"])
    one = edge_rows(layout, 3, 1)
    names = [f"service-{number:05d}" for number in random.Random(1).sample(range(1500), 1500)]
    tables = []
    for first in range(0, 1500, 500):
        rows = pa.concat_tables([one] * 500)
        at = rows.schema.get_field_index("service_name")
        tables.append(
            rows.set_column(at, rows.schema.field(at), pa.array(names[first : first + 500])).combine_chunks()
        )
    result = merged(layout, [ours(layout, rows) for rows in tables], MergeSettings(2**30, 50_000, 1, False))
    got = read(result.added, layout.coded)
    assert got["service_name"].to_pylist() == sorted(names)
    check_facts(layout, result.added)


def test_bodies_of_eight_mebibytes_beside_short_ones(layouts: dict[Signal, Layout]) -> None:
    layout = layouts["logs"]

    def bodies(seed: int) -> Iterator[str]:
        for number in itertools.count():
            yield f"{seed} {number}" + "b" * (2**23 if number % 20 == 7 else number)

    tables = []
    for seed in range(2):
        rows = edge_rows(layout, seed, 40)
        at = rows.schema.get_field_index("body")
        tables.append(
            rows.set_column(at, rows.schema.field(at), pa.array(list(itertools.islice(bodies(seed), 40))))
        )
    for settings in (ONE_GROUP, MergeSettings(2**30, 2**20, 1, False)):
        result = merged(layout, [ours(layout, rows) for rows in tables], settings)
        assert multiset(read(result.added, layout.coded)) == multiset(pa.concat_tables(tables))
