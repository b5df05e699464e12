"""Merging of partial rows: every rule, and that it does not matter how rows are cut into parts."""

from __future__ import annotations

import datetime
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frazil.tables.columns import ATTRIBUTES, TIMESTAMP, Column, TableSpec
from frazil.tables.derived import combine as combining
from frazil.tables.derived.combine import at_resolution, combine, completed, rolled_up
from frazil.tables.derived.rules import ANY, KEY, LIST_VALUES_MAX, MAX, MIN, SUM, UNION, Derived, Merge
from frazil.tables.encoding import CODED
from tests.unit.tables.derived.reference import Row, check_same, merged, rolled

FIRST, LAST = Merge("first", by="first_at"), Merge("last", by="last_at")
PAIR = pa.struct({"a": pa.float64(), "b": pa.string()})
TYPES: dict[str, tuple[pa.DataType, Merge]] = {
    "tenant_id": (pa.string(), KEY),
    "resolution": (pa.int32(), KEY),
    "time": (TIMESTAMP, KEY),
    "name": (pa.string(), KEY),
    "flag": (pa.bool_(), KEY),
    "number": (pa.int64(), KEY),
    "text": (pa.string(), ANY),
    "map": (ATTRIBUTES, ANY),
    "int_sum": (pa.int64(), SUM),
    "short_sum": (pa.int32(), SUM),
    "double_sum": (pa.float64(), SUM),
    "int_min": (pa.int64(), MIN),
    "int_max": (pa.int64(), MAX),
    "double_min": (pa.float64(), MIN),
    "double_max": (pa.float64(), MAX),
    "time_min": (TIMESTAMP, MIN),
    "time_max": (TIMESTAMP, MAX),
    "bool_min": (pa.bool_(), MIN),
    "bool_max": (pa.bool_(), MAX),
    "first_at": (pa.int64(), MIN),
    "first_double": (pa.float64(), FIRST),
    "first_text": (pa.string(), FIRST),
    "first_list": (pa.list_(pa.float64()), FIRST),
    "last_at": (TIMESTAMP, MAX),
    "last_text": (pa.string(), LAST),
    "last_bool": (pa.bool_(), LAST),
    "last_list": (pa.list_(pa.int64()), LAST),
    "last_pairs": (pa.list_(PAIR), LAST),
    "last_struct": (PAIR, LAST),
    "last_map": (ATTRIBUTES, LAST),
    "last_time": (TIMESTAMP, LAST),
    "codes": (pa.list_(pa.int32()), Merge("counted")),
    "code_counts": (pa.list_(pa.int64()), Merge("counts", by="codes")),
    "bounds": (pa.list_(pa.float64()), Merge("counted")),
    "bound_counts": (pa.list_(pa.int64()), Merge("counts", by="bounds")),
    "words": (pa.list_(pa.string()), UNION),
}
REQUIRED = ("tenant_id", "resolution", "time")
SPEC = TableSpec(
    "every_rule",
    "One column of each rule and type.",
    tuple(
        Column(name, type_, "test", "Test", "hot", required=name in REQUIRED, merge=merge)
        for name, (type_, merge) in TYPES.items()
    ),
    sort_by=("resolution", "time", "name", "flag", "number"),
    derived=Derived("logs", (), lambda rows: rows, (60, 300, 3600)),
)
SCHEMA = pa.schema([(name, type_) for name, (type_, _) in TYPES.items()])
EPOCH = datetime.datetime(2026, 1, 1, 23, 50, tzinfo=datetime.UTC)


def table(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def row(**values: Any) -> Row:
    return dict.fromkeys(TYPES) | {"tenant_id": "t", "resolution": 60, "time": EPOCH, "name": "n"} | values


def merged_one(*rows: Row) -> Row:
    """Merges rows of one key, in both orders."""
    (found,) = combine(table(list(rows)), SPEC).to_pylist()
    check_same(combine(table(list(reversed(rows))), SPEC), [found], SPEC)
    return found


numbers = st.integers(-3, 3)
doubles = st.sampled_from([-math.inf, -1.5, 0.0, 1.0, 2.5, math.inf, math.nan])
finite = st.sampled_from([-1.5, 0.0, 1.0, 2.5, math.inf])
words = st.sampled_from(["", "a", "b", "ä", "zz"])
times = st.integers(0, 30).map(lambda minutes: EPOCH + datetime.timedelta(seconds=20 * minutes))
pairs = st.fixed_dictionaries({"a": st.none() | doubles, "b": st.none() | words})
maps = st.lists(st.tuples(words, st.none() | words), max_size=2, unique_by=lambda item: item[0])
few = {"max_size": 3}


@st.composite
def counted(draw: st.DrawFn, values: st.SearchStrategy[Any]) -> tuple[Any, Any]:
    if draw(st.booleans()):
        return None, None
    found = draw(st.lists(values, **few))
    return found, draw(st.lists(st.integers(0, 5), min_size=len(found), max_size=len(found)))


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "time": times,
    "name": st.none() | words,
    "flag": st.none() | st.booleans(),
    "number": st.none() | st.integers(0, 1),
    "int_sum": numbers,
    "short_sum": numbers,
    "double_sum": finite,
    "int_min": numbers,
    "int_max": numbers,
    "double_min": doubles,
    "double_max": doubles,
    "time_min": times,
    "time_max": times,
    "bool_min": st.booleans(),
    "bool_max": st.booleans(),
    "first_at": numbers,
    "first_double": doubles,
    "first_text": words,
    "first_list": st.lists(st.none() | doubles, **few),
    "last_at": times,
    "last_text": words,
    "last_bool": st.booleans(),
    "last_list": st.lists(numbers, **few),
    "last_pairs": st.lists(pairs, **few),
    "last_struct": pairs,
    "last_map": maps,
    "last_time": times,
    "words": st.lists(st.none() | words, **few),
}
thorough = settings(max_examples=60)
KEYS_AND_TIMES = {"time", "name", "flag", "number"}


@st.composite
def rows(draw: st.DrawFn) -> Row:
    found = row()
    for name, values in VALUES.items():
        if name in KEYS_AND_TIMES or draw(st.booleans()):
            found[name] = draw(values)
    found["codes"], found["code_counts"] = draw(counted(st.integers(-2, 2)))
    found["bounds"], found["bound_counts"] = draw(counted(finite))
    # The same in all rows of a key, as the rule `any` demands; but not all rows know it.
    same = f"{found['name']} {found['flag']} {found['number']}"
    found["text"] = draw(st.sampled_from([None, same]))
    found["map"] = draw(st.sampled_from([None, [(same, same), ("b", None)]]))
    return found


batches = st.lists(st.lists(rows(), max_size=6), max_size=4)


def chunked(parts: list[list[Row]]) -> pa.Table:
    return pa.concat_tables([table(part) for part in parts] or [table([])])


def dictionary_encoded(rows: pa.Table) -> pa.Table:
    """Encodes text and maps as segments do, each chunk with a dictionary of its own."""
    schema = pa.schema([(field.name, _coded(field.type)) for field in rows.schema])
    return pa.concat_tables(
        [pa.Table.from_batches([batch]).cast(schema) for batch in rows.to_batches()] or [rows]
    )


def _coded(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_string(type_):
        return CODED
    return pa.map_(CODED, CODED) if type_ == ATTRIBUTES else type_


@thorough
@given(batches)
def test_combining_agrees_with_merging_row_by_row(parts: list[list[Row]]) -> None:
    found = combine(chunked(parts), SPEC)
    assert found.schema == SCHEMA
    check_same(found, merged([each for part in parts for each in part], SPEC), SPEC)


@thorough
@given(batches)
def test_combining_parts_first_changes_nothing(parts: list[list[Row]]) -> None:
    combined = [combine(table(part), SPEC) for part in parts]
    found = combine(pa.concat_tables([*combined, table([])]), SPEC)
    check_same(found, combine(chunked(parts), SPEC), SPEC)
    check_same(combine(found, SPEC), found, SPEC)


def at_source_time(rows: pa.Table) -> pa.Table:
    """Returns rows as a derived table's function does: without the resolution that rolling up adds."""
    return rows.drop_columns(["resolution"])


@thorough
@given(batches)
def test_rows_that_have_a_resolution_keep_it_and_their_time(parts: list[list[Row]]) -> None:
    rows = chunked(parts)
    check_same(rolled_up(rows, SPEC), combine(rows, SPEC), SPEC)


@thorough
@given(batches)
def test_rolling_up_parts_first_changes_nothing(parts: list[list[Row]]) -> None:
    expected = rolled([each for part in parts for each in part], SPEC)
    whole = rolled_up(at_source_time(chunked(parts)), SPEC)
    assert whole.schema == SCHEMA
    check_same(whole, expected, SPEC)
    cut = pa.concat_tables([table([]), *(rolled_up(at_source_time(table(part)), SPEC) for part in parts)])
    check_same(combine(cut, SPEC), expected, SPEC)


@thorough
@given(batches)
def test_dictionary_encoded_rows_merge_as_plain_rows(parts: list[list[Row]]) -> None:
    rows = chunked(parts)
    for function in (combine, rolled_up):
        found = function(dictionary_encoded(rows), SPEC)
        assert found.schema == SCHEMA
        check_same(found, function(rows, SPEC), SPEC)


@thorough
@given(batches, st.randoms())
def test_the_order_of_rows_does_not_matter(parts: list[list[Row]], random: Any) -> None:
    rows = [each for part in parts for each in part]
    shuffled = random.sample(rows, len(rows))
    check_same(combine(table(shuffled), SPEC), combine(table(rows), SPEC), SPEC)


def test_no_rows_merge_to_no_rows_with_all_columns() -> None:
    for empty in (table([]), table([]).select(["tenant_id", "time"]), SCHEMA.empty_table()):
        for function in (combine, rolled_up):
            found = function(empty, SPEC)
            assert (found.num_rows, found.schema) == (0, SCHEMA)


def test_missing_columns_are_null() -> None:
    rows = table([row(int_sum=1, last_text="x"), row(int_sum=2), row(int_sum=4, name="other")])
    partial = rows.select(["time", "name", "tenant_id", "int_sum", "last_text"])
    found = combine(partial, SPEC)
    assert found.schema == SCHEMA
    assert sorted(found.column("int_sum").to_pylist()) == [3, 4]
    assert found.column("resolution").null_count == found.column("words").null_count == 2
    assert found.column("last_text").null_count == 2, "without the column `by` no row is the last"
    assert completed(partial, SPEC).schema == SCHEMA


def test_a_column_that_the_spec_does_not_declare_is_dropped() -> None:
    rows = table([row()]).append_column("other", pa.array([1]))
    assert combine(rows, SPEC).schema == SCHEMA


def test_null_is_a_key_of_its_own() -> None:
    found = combine(
        table([row(name=None, int_sum=1), row(name="", int_sum=2), row(name=None, int_sum=4)]), SPEC
    )
    assert sorted(
        zip(found.column("name").to_pylist(), found.column("int_sum").to_pylist(), strict=True), key=str
    ) == [
        ("", 2),
        (None, 5),
    ]


def test_equal_keys_merge_also_if_a_dictionary_has_a_value_twice() -> None:
    names = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, None], pa.int32()), pa.array(["x", "x", None]))
    rows = table([row(int_sum=1)] * 4).set_column(SCHEMA.get_field_index("name"), "name", names)
    found = combine(rows, SPEC)
    totals = zip(found.column("name").to_pylist(), found.column("int_sum").to_pylist(), strict=True)
    assert sorted(totals, key=str) == [("x", 2), (None, 2)]


def test_text_of_a_dictionary_with_null_is_chosen_by_value() -> None:
    texts = pa.DictionaryArray.from_arrays(pa.array([1, 0], pa.int32()), pa.array(["x", None]))
    rows = table([row()] * 2).set_column(SCHEMA.get_field_index("text"), "text", texts)
    assert combine(rows, SPEC).column("text").to_pylist() == ["x"]


def test_many_key_columns_with_many_values_do_not_overflow() -> None:
    size = 300
    rows = [
        row(name=f"n{i}", number=2**62 - i, time=EPOCH + datetime.timedelta(minutes=i)) for i in range(size)
    ]
    spec = TableSpec(
        "wide",
        "Many keys.",
        tuple(
            Column(name, type_, "test", "Test", required=name in ("tenant_id", "time"), merge=KEY)
            for name, type_ in [
                ("tenant_id", pa.string()),
                ("time", TIMESTAMP),
                *((f"k{i}", pa.int64()) for i in range(12)),
            ]
        ),
        sort_by=("time", *(f"k{i}" for i in range(12))),
        derived=Derived("logs", (), lambda each: each),
    )
    times = [each["time"] for each in rows]
    columns = {"tenant_id": pa.array(["t"] * size), "time": pa.array(times, TIMESTAMP)}
    columns |= {f"k{i}": pa.array(range(i, size + i)) for i in range(12)}
    once = pa.table(columns)
    found = combine(pa.concat_tables([once, once]), spec)
    assert sorted(found.to_pylist(), key=lambda each: each["time"]) == once.to_pylist()


def test_more_groups_than_a_digit_of_the_sorting_merge() -> None:
    size = 70_000
    ids = np.tile(np.arange(size), 2)
    rows = table([]).schema.empty_table()
    columns = {"tenant_id": pa.array(["t"] * 2 * size), "time": pa.array([EPOCH] * 2 * size, TIMESTAMP)}
    rows = pa.table(columns | {"number": pa.array(ids), "int_sum": pa.array(ids), "int_max": pa.array(ids)})
    found = combine(rows, SPEC)
    assert found.num_rows == size
    number = found.column("number").to_numpy()
    assert (found.column("int_sum").to_numpy() == 2 * number).all()
    assert (found.column("int_max").to_numpy() == number).all()


def test_infinities_add_up_to_nan_without_a_warning() -> None:
    assert math.isnan(merged_one(row(double_sum=math.inf), row(double_sum=-math.inf))["double_sum"])
    assert merged_one(row(double_sum=math.inf), row(double_sum=1.0))["double_sum"] == math.inf


def test_the_least_number_is_found_beside_nan_and_null() -> None:
    nan = math.nan
    assert merged_one(row(double_min=nan), row(double_min=None), row(double_min=2.0))["double_min"] == 2.0
    assert math.isnan(merged_one(row(double_max=nan), row(double_max=None))["double_max"])
    assert merged_one(row(int_min=None), row(int_min=None))["int_min"] is None
    largest = 2**63 - 1
    assert merged_one(row(int_min=largest), row(int_min=None))["int_min"] == largest


def test_the_last_row_decides_also_with_null() -> None:
    """Else the kept time would not be that of the kept value, and a third row between both would be lost."""
    early = row(last_at=EPOCH, last_text="early")
    between = row(last_at=EPOCH + datetime.timedelta(seconds=1), last_text="between")
    late = row(last_at=EPOCH + datetime.timedelta(seconds=2), last_text=None)
    assert merged_one(early, between, late)["last_text"] is None
    assert merged_one(merged_one(early, late), between)["last_text"] is None
    assert merged_one(early, between)["last_text"] == "between"


def test_a_value_without_its_time_is_never_chosen() -> None:
    assert merged_one(row(last_text="x"))["last_text"] is None
    assert merged_one(row(last_text="x"), row(last_text="y"))["last_text"] is None
    assert merged_one(row(last_text="x"), row(last_text="a", last_at=EPOCH))["last_text"] == "a"


def test_all_last_values_of_a_tie_come_from_one_row() -> None:
    short = row(last_at=EPOCH, last_text="same", last_list=[9], last_pairs=[{"a": 1.0, "b": None}])
    long = row(last_at=EPOCH, last_text="same", last_list=[8, 7], last_pairs=[{"a": 2.0, "b": "b"}] * 2)
    found = merged_one(short, long)
    assert (found["last_list"], found["last_pairs"]) == (short["last_list"], short["last_pairs"])
    assert merged_one(short, long | {"last_text": "text"})["last_list"] == [8, 7]


def test_counts_of_equal_values_are_added_also_within_a_row() -> None:
    found = merged_one(row(bounds=[2.0, 1.0, 2.0], bound_counts=[1, 2, 3]))
    assert (found["bounds"], found["bound_counts"]) == ([1.0, 2.0], [2, 4])
    found = merged_one(row(codes=[], code_counts=[]), row())
    assert (found["codes"], found["code_counts"]) == ([], [])


def test_lists_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="different lengths"):
        combine(table([row(codes=[1], code_counts=[1, 2]), row()]), SPEC)


def test_the_smallest_values_of_a_long_list_are_added_up() -> None:
    size = LIST_VALUES_MAX + 10
    long = row(codes=list(range(size)), code_counts=[1] * size)
    found = merged_one(long)
    assert found["codes"] == list(range(10, size))
    assert found["code_counts"] == [11] + [1] * (LIST_VALUES_MAX - 1)
    other = row(codes=[-5, 3, size], code_counts=[2, 2, 2])
    check_same([merged_one(found, other)], [merged_one(long, other)], SPEC)


def test_the_smallest_values_of_each_of_several_long_lists_stay_in_their_row() -> None:
    size = LIST_VALUES_MAX + 2
    long = [
        row(name=name, codes=list(range(size)), code_counts=[count] * size)
        for name, count in (("a", 1), ("b", 5))
    ]
    found = {
        each["name"]: each["code_counts"] for each in combine(table([row(name="c"), *long]), SPEC).to_pylist()
    }
    assert found == {name: [3 * n] + [n] * (LIST_VALUES_MAX - 1) for name, n in (("a", 1), ("b", 5))} | {
        "c": None
    }


def test_a_union_keeps_the_first_values_in_order() -> None:
    many = [f"{i:05}" for i in range(LIST_VALUES_MAX)]
    found = merged_one(row(words=many[1::2]), row(words=["x", *many[::2]]), row())
    assert found["words"] == many
    assert merged_one(row(words=[]), row())["words"] == []


def test_buckets_of_time_start_at_their_floor_also_before_1970() -> None:
    times = [
        datetime.datetime(1969, 12, 31, 23, 59, 59, tzinfo=datetime.UTC),
        EPOCH + datetime.timedelta(seconds=61),
    ]
    rows = at_resolution(pa.table({"time": pa.array(times, TIMESTAMP)}), 60)
    assert rows.column("time").to_pylist() == [
        datetime.datetime(1969, 12, 31, 23, 59, tzinfo=datetime.UTC),
        EPOCH + datetime.timedelta(seconds=60),
    ]
    assert rows.column("resolution").to_pylist() == [60, 60]


def test_rows_with_ascending_lists_and_different_keys_are_not_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most series have one row per bucket, and sorting their lists again would be the greatest cost."""

    def fail(*_: Any) -> None:
        raise AssertionError("merged lists again")

    monkeypatch.setattr(combining, "_merged_counts", fail)
    columns = tuple(column for column in SPEC.columns if column.merge != UNION)
    spec = TableSpec("lists", "Without a union.", columns, sort_by=SPEC.sort_by, derived=SPEC.derived)
    rows = [row(name=str(i), codes=[1, 2], code_counts=[1, 1], bounds=[]) for i in range(3)]
    assert combine(table(rows), spec).column("codes").to_pylist() == [[1, 2]] * 3
    with pytest.raises(AssertionError, match="merged lists again"):
        combine(table([*rows, row(codes=[2, 1], code_counts=[1, 1])]), spec)
