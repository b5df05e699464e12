"""Pruning: whatever is asked, no file is left out that holds a row for it."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry, ManifestEntryStatus
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DoubleType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

from frazil.errors import QueryInvalid
from frazil.sql.constraint import Constraint, Constraints
from frazil.sql.index import Files, Index, decode
from frazil.tables import Fill

DAY = 86_400_000_000
TRUNCATED = {"write.metadata.metrics.default": "truncate(32)"}
SCHEMA = Schema(
    NestedField(1, "tenant_id", StringType(), required=True),
    NestedField(2, "time", TimestamptzType(), required=True),
    NestedField(3, "service", StringType()),
    NestedField(4, "level", IntegerType()),
    NestedField(5, "value", DoubleType()),
    NestedField(6, "flag", BooleanType()),
    NestedField(7, "count", LongType()),
    NestedField(8, "payload", BinaryType()),
)
SPEC = PartitionSpec(
    PartitionField(1, 1000, IdentityTransform(), "tenant_id"),
    PartitionField(2, 1001, DayTransform(), "time_day"),
)
Row = dict[str, Any]


def described(rows: Sequence[Row], path: str = "f", tenant: str | None = "acme", **changed: Any) -> DataFile:
    """With the statistics that the file would land with. Nothing is written."""
    day = rows[0]["time"] // DAY if rows else 0
    table = pa.Table.from_pylist(
        [{"tenant_id": tenant or "", **row} for row in rows], schema=schema_to_pyarrow(SCHEMA)
    )
    writer = pq.ParquetWriter(io.BytesIO(), table.schema)
    writer.write_table(table)
    writer.close()
    statistics = data_file_statistics_from_parquet_metadata(
        writer.writer.metadata, compute_statistics_plan(SCHEMA, TRUNCATED), parquet_path_to_id_mapping(SCHEMA)
    )
    facts = {
        "content": DataFileContent.DATA,
        "file_path": path,
        "file_format": FileFormat.PARQUET,
        "partition": Record(tenant, day),
        "file_size_in_bytes": 100,
        **statistics.to_serialized_dict(),
        **changed,
    }
    return DataFile.from_args(**facts)


def entries(files: Sequence[DataFile]) -> list[ManifestEntry]:
    return [ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, data_file=file) for file in files]


def index_of(*files: DataFile, spec: PartitionSpec = SPEC) -> Index:
    return Index([decode(entries([file]), spec, SCHEMA, "otel.logs", Fill({})) for file in files])


def selected(index: Index, constraints: Constraints, tenant: str = "acme") -> list[str]:
    return [file.path for file in index.select(tenant, constraints, SCHEMA).files]


def holds(constraint: Constraint, value: Any) -> bool:
    """As DuckDB compares: NaN is greater than all numbers, and equal to itself."""
    if value is None:
        return False

    def rank(each: Any) -> Any:
        return (1, 0) if isinstance(each, float) and math.isnan(each) else (0, each)

    return (
        (constraint.lower is None or rank(value) >= rank(constraint.lower))
        and (constraint.upper is None or rank(value) <= rank(constraint.upper))
        and (constraint.values is None or rank(value) in {rank(each) for each in constraint.values})
    )


# PyIceberg cannot make an upper bound of a text that it cuts after U+D7FF.
CHARACTERS = st.characters(codec="utf-8", exclude_characters="\ud7ff")
TEXTS = st.builds(
    lambda prefix, rest: prefix + rest,
    st.sampled_from(["", "a", "service-", "x" * 31, "x" * 33, "é" * 32, "\U0010ffff" * 33]),
    st.text(CHARACTERS, max_size=3),
)
LONGS = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3) | st.sampled_from([2**53, 2**53 + 1])
DOUBLES = st.floats() | st.sampled_from([-0.0, 0.0, 1.0, math.inf, math.nan])
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "service": TEXTS,
    "level": st.integers(-(2**31), 2**31 - 1) | st.integers(-3, 3),
    "value": DOUBLES,
    "flag": st.booleans(),
    "count": LONGS,
}
# Within a day: rows of a file are of one.
TIMES = st.integers(0, DAY - 1)
ROWS = st.fixed_dictionaries({"time": TIMES, **{name: st.none() | values for name, values in VALUES.items()}})


@st.composite
def data_files(draw: st.DrawFn) -> list[list[Row]]:
    files = []
    for rows in draw(st.lists(st.lists(ROWS, min_size=1, max_size=4), min_size=1, max_size=4)):
        day = draw(st.integers(-2, 3))
        files.append([{**row, "time": row["time"] + day * DAY} for row in rows])
    return files


def constraint_of(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Constraint]:
    return st.builds(
        Constraint,
        lower=st.none() | values,
        upper=st.none() | values,
        values=st.none() | st.frozensets(values, max_size=4),
    )


CONSTRAINTS = st.fixed_dictionaries(
    {},
    optional={
        "time": constraint_of(st.integers(-2 * DAY, 4 * DAY)),
        **{name: constraint_of(values) for name, values in VALUES.items()},
    },
)


@settings(deadline=None)
@given(data_files(), CONSTRAINTS, st.data())
@example([[{"time": 0, "value": math.nan}]], {"value": Constraint(lower=1.0)}, None)
@example(
    [[{"time": 0, "value": 1.0}, {"time": 0, "value": math.nan}]], {"value": Constraint(lower=2.0)}, None
)
@example([[{"time": 0, "service": "\U0010ffff" * 33}]], {"service": Constraint(lower="b")}, None)
@example([[{"time": -1}]], {"time": Constraint(upper=-1)}, None)
def test_every_file_with_a_row_that_matches_is_kept(
    files: list[list[Row]], constraints: Constraints, data: st.DataObject | None
) -> None:
    if data is not None and constraints and data.draw(st.booleans()):  # chance alone seldom hits a row
        row = data.draw(st.sampled_from([row for rows in files for row in rows]))
        constraints = {
            name: Constraint(values=frozenset({row[name]})) for name in constraints if row[name] is not None
        }
    index = index_of(*(described(rows, str(number)) for number, rows in enumerate(files)))
    kept = selected(index, constraints)
    for number, rows in enumerate(files):
        if any(all(holds(c, row.get(name)) for name, c in constraints.items()) for row in rows):
            assert str(number) in kept


@settings(deadline=None)
@given(data_files(), constraint_of(st.integers(-2 * DAY, 4 * DAY)))
def test_files_without_statistics_are_kept_unless_their_day_is_another(
    files: list[list[Row]], time: Constraint
) -> None:
    nothing = dict.fromkeys(
        ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")
    )
    index = index_of(*(described(rows, str(number), **nothing) for number, rows in enumerate(files)))
    kept = selected(index, {"time": time, "level": Constraint(lower=5)})
    for number, rows in enumerate(files):
        begin = rows[0]["time"] // DAY * DAY
        if any(holds(time, row["time"]) for row in rows):
            assert str(number) in kept
        if time.lower is not None and int(time.lower) >= begin + DAY:
            assert str(number) not in kept


@pytest.fixture
def index() -> Index:
    return index_of(
        *(
            described(
                [
                    {"time": n * DAY, "service": f"s{n}", "level": n, "value": float(n), "flag": n > 2},
                    {"time": n * DAY + 5, "service": f"s{n}z", "level": n, "value": n + 0.5, "count": n},
                ],
                str(n),
            )
            for n in range(5)
        )
    )


@pytest.mark.parametrize(
    ("constraints", "kept"),
    [
        ({}, "01234"),
        ({"time": Constraint(lower=DAY + 6, upper=3 * DAY - 1)}, "2"),
        ({"time": Constraint(lower=DAY, upper=3 * DAY)}, "123"),
        ({"time": Constraint(lower=10**30)}, ""),
        ({"time": Constraint(lower=-(10**30))}, "01234"),
        ({"service": Constraint(values=frozenset({"s1", "s3a", "s9"}))}, "13"),
        ({"service": Constraint(lower="s3", upper="s3zz")}, "3"),
        ({"service": Constraint(values=frozenset())}, ""),
        ({"service": Constraint(values=frozenset(f"s2{n:03}" for n in range(1000)))}, "2"),
        ({"level": Constraint(values=frozenset({2, 4, 17}))}, "24"),
        ({"level": Constraint(lower=2.5)}, "234"),
        ({"level": Constraint(values=frozenset({10**30}))}, ""),
        ({"value": Constraint(lower=1, upper=2)}, "12"),
        ({"value": Constraint(values=frozenset({3.25}))}, "3"),
        ({"flag": Constraint(values=frozenset({True}))}, "34"),
        ({"service": Constraint(values=frozenset({"s1"})), "time": Constraint(lower=2 * DAY)}, ""),
        ({"service": Constraint(lower="s3"), "level": Constraint(upper=3)}, "3"),
    ],
)
def test_files_that_cannot_match_are_left_out(index: Index, constraints: Constraints, kept: str) -> None:
    assert selected(index, constraints) == list(kept)


@pytest.mark.parametrize(
    "constraints",
    [
        {"nobody": Constraint(lower=1)},
        {"payload": Constraint(lower="a")},
        {"service": Constraint(lower=17, values=frozenset({"s1", 3}))},
        {"service": Constraint(lower="\ud800")},
        {"level": Constraint(lower="17")},
        {"level": Constraint(lower=True)},
        {"level": Constraint(lower=math.inf)},
        {"value": Constraint(lower=10**400)},
        {"value": Constraint(lower=100.0)},  # a NaN may be there, and is greater
    ],
)
def test_what_cannot_be_compared_leaves_no_file_out(constraints: Constraints) -> None:
    file = described([{"time": 0, "service": "a", "level": 1, "value": 1.0, "flag": True, "payload": b"x"}])
    assert selected(index_of(file), constraints) == ["f"]


def test_a_file_that_is_known_to_have_no_nan_is_left_out_above_its_largest_number() -> None:
    file = described([{"time": 0, "value": 1.0}], nan_value_counts={5: 0})
    assert selected(index_of(file), {"value": Constraint(lower=100.0)}) == []


def test_a_column_of_nulls_alone_matches_nothing() -> None:
    file = described([{"time": 0, "level": 1}])
    assert selected(index_of(file), {"service": Constraint()}) == []
    assert selected(index_of(file), {"level": Constraint()}) == ["f"]


def test_bounds_from_before_a_type_was_widened_are_understood() -> None:
    wide = described([{"time": 0, "count": 9}], "wide")
    bounds = {7: (-3).to_bytes(4, "little", signed=True)}
    narrow = described(
        [{"time": 0}],
        "narrow",
        value_counts={7: 1},
        null_value_counts={7: 0},
        lower_bounds=bounds,
        upper_bounds=bounds,
    )
    assert selected(index_of(narrow, wide), {"count": Constraint(upper=0)}) == ["narrow"]
    assert selected(index_of(narrow, wide), {"count": Constraint(lower=0)}) == ["wide"]


def test_tenants_get_the_files_of_exactly_their_own_partition() -> None:
    rows = [{"time": 5}]
    index = index_of(
        described(rows, "1", "acme"),
        described(rows, "2", "acme2"),
        described(rows, "3", None),
        described(rows, "4", "acme"),
        described(rows, "5", ""),
    )
    assert selected(index, {}) == ["1", "4"]
    assert selected(index, {}, "acme2") == ["2"]
    for nobody in ("ACME", "acm", "None", "%", "acme "):
        assert index.select(nobody, {}, SCHEMA) == Files((), 0, 0, 0, None, None)


def test_rows_without_a_tenant_are_in_no_tenants_files_and_only_given_when_asked_for() -> None:
    nullable = Schema(NestedField(1, "tenant_id", StringType()), *SCHEMA.fields[1:])
    by_tenant = [described([{"time": 5}], "1", "acme"), described([{"time": 7}], "2", None)]
    before = described([{"time": 9}], "3", None, partition=Record())
    older = DataFile.from_args(
        **{
            name: getattr(before, name)
            for name in ("content", "file_path", "file_format", "partition", "record_count")
        },
        file_size_in_bytes=100,
        column_sizes={2: 8},
    )
    index = Index(
        [
            decode(entries(by_tenant), SPEC, nullable, "otel.set_aside", Fill({})),
            decode(entries([older, before]), PartitionSpec(), nullable, "otel.set_aside", Fill({})),
        ]
    )
    assert [file.path for file in index.select("acme", {}, nullable).files] == ["1"]
    found = index.select("acme", {}, nullable, unowned=True)
    assert [file.path for file in found.files] == ["1", "2", "3"], "the last has the column, and no partition"
    assert (found.total, found.total_rows) == (3, 3)
    late = index.select("acme", {"time": Constraint(lower=6)}, nullable, unowned=True)
    assert [file.path for file in late.files] == ["2", "3"]
    assert index.select("nobody", {}, nullable).total == 0


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [PartitionField(2, 1000, DayTransform(), "time_day")],
        [PartitionField(1, 1000, BucketTransform(4), "tenant_id")],
        [PartitionField(3, 1000, IdentityTransform(), "tenant_id")],
    ],
)
def test_files_that_are_not_apart_by_tenant_are_nobodys(fields: list[PartitionField]) -> None:
    by_day = any(isinstance(field.transform, DayTransform) for field in fields)
    file = described([{"time": 0}], partition=Record(0 if by_day else "acme"))
    index = index_of(file, spec=PartitionSpec(*fields))
    assert selected(index, {}) == []
    assert len(index) == 0


def test_the_totals_are_of_all_files_of_the_tenant() -> None:
    index = index_of(
        described([{"time": 7}, {"time": 9}], "1"),
        described([{"time": 2 * DAY + 1}], "2", lower_bounds=None, upper_bounds=None),
        described([{"time": 9 * DAY}], "3", "other"),
    )
    assert index.select("acme", {"time": Constraint(upper=-1)}, SCHEMA) == Files(
        [], 2, 200, 3, 7, 3 * DAY - 1
    )


def test_delete_files_are_refused() -> None:
    with pytest.raises(QueryInvalid, match=r"otel\.logs has delete files.*rewrite_data_files"):
        index_of(described([{"time": 0}], content=DataFileContent.POSITION_DELETES))


def test_files_in_another_format_are_refused() -> None:
    with pytest.raises(QueryInvalid, match=r"otel\.logs has data files in .*Parquet"):
        index_of(described([{"time": 0}], file_format=FileFormat.ORC))


def test_an_empty_snapshot_has_no_files() -> None:
    assert selected(Index([]), {"time": Constraint(lower=1)}) == []
