"""A derived table with every rule of merging, and random partial rows of it."""

from __future__ import annotations

import datetime
import math
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from frazil.tables.columns import ATTRIBUTES, TIMESTAMP, Column, TableSpec
from frazil.tables.derived.rules import ANY, KEY, MAX, MIN, SUM, UNION, Derived, Merge

_EPOCH = datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC)


def derive_nothing(rows: pa.Table) -> pa.Table:
    return rows


def _column(name: str, type_: pa.DataType, merge: Merge, *, required: bool = False) -> Column:
    return Column(name, type_, "the test", "For the test", "hot", required=required, merge=merge)


EVERY_RULE = TableSpec(
    "every_rule",
    "A column for each rule and type.",
    (
        _column("tenant_id", pa.string(), KEY, required=True),
        _column("time", TIMESTAMP, KEY, required=True),
        _column("service", pa.string(), KEY),
        _column("kind", pa.int32(), KEY),
        _column("calls", pa.int64(), SUM),
        _column("few", pa.int32(), SUM),
        _column("seconds", pa.float64(), SUM),
        _column("least", pa.float64(), MIN),
        _column("most", pa.float64(), MAX),
        _column("shortest", pa.int64(), MIN),
        _column("longest", pa.int32(), MAX),
        _column("began", TIMESTAMP, MIN),
        _column("ended", TIMESTAMP, MAX),
        _column("unit", pa.string(), ANY),
        _column("labels", ATTRIBUTES, ANY),
        _column("first_text", pa.string(), Merge("first", by="began")),
        _column("last_text", pa.string(), Merge("last", by="ended")),
        _column("first_number", pa.float64(), Merge("first", by="began")),
        _column("last_number", pa.float64(), Merge("last", by="ended")),
        _column("last_list", pa.list_(pa.string()), Merge("last", by="ended")),
        _column("first_map", ATTRIBUTES, Merge("first", by="began")),
        _column("codes", pa.list_(pa.int32()), Merge("counted")),
        _column("counts", pa.list_(pa.int64()), Merge("counts", by="codes")),
        _column("bounds", pa.list_(pa.float64()), Merge("counted")),
        _column("buckets", pa.list_(pa.int64()), Merge("counts", by="bounds")),
        _column("names", pa.list_(pa.string()), UNION),
    ),
    sort_by=("service", "kind", "time"),
    erased="no",
    derived=Derived("spans", (), derive_nothing),
)

_times = st.integers(0, 3).map(lambda minutes: _EPOCH + datetime.timedelta(minutes=minutes))
_texts = st.sampled_from(["a", "b", "ä", "Z", ""])
_longs = st.integers(-(2**40), 2**40)
_doubles = st.sampled_from([0.5, -1.25, 1e300, 7.0, math.inf, math.nan])


@st.composite
def _lists(draw: st.DrawFn, values: st.SearchStrategy[Any]) -> tuple[list[Any], list[int]]:
    found = draw(st.lists(values, max_size=5))
    return found, draw(st.lists(st.integers(0, 100), min_size=len(found), max_size=len(found)))


@st.composite
def partial_rows(draw: st.DrawFn) -> dict[str, Any]:
    service, began, ended = (draw(st.none() | each) for each in (_texts, _times, _times))
    codes, counts = draw(st.just((None, None)) | _lists(st.integers(-50_000, 50_000)))
    bounds, buckets = draw(st.just((None, None)) | _lists(st.sampled_from([0.5, 1.0, math.inf])))
    return {
        "tenant_id": draw(st.sampled_from(["acme", "globex"])),
        "time": draw(_times),
        "service": service,
        "kind": draw(st.none() | st.integers(1, 2)),
        "calls": draw(st.none() | _longs),
        "few": draw(st.none() | st.integers(0, 1000)),
        "seconds": draw(st.none() | st.sampled_from([0.5, 2.25, -3.0])),
        "least": draw(st.none() | _doubles),
        "most": draw(st.none() | _doubles),
        "shortest": draw(st.none() | _longs),
        "longest": draw(st.none() | st.integers(-5, 5)),
        "began": began,
        "ended": ended,
        "unit": draw(st.none() | st.just("s")),
        "labels": draw(st.none() | st.just([("a", "b")])),
        "first_text": draw(st.none() | _texts),
        "last_text": draw(st.none() | _texts),
        "first_number": draw(st.none() | _doubles),
        "last_number": draw(st.none() | _doubles),
        "last_list": draw(st.none() | st.lists(_texts, max_size=2)),
        "first_map": draw(st.none() | st.lists(st.tuples(st.just("at"), _texts), max_size=1)),
        "codes": codes,
        "counts": counts,
        "bounds": bounds,
        "buckets": buckets,
        "names": draw(st.none() | st.lists(_texts, max_size=4)),
    }


def table_of(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=EVERY_RULE.arrow_schema)
