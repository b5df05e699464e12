from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal

import pyarrow as pa

from frazil.dashboard.sql import result_table
from frazil.dashboard.sql.result_table import TRACE_LINK_TEXT, as_cells, full_text, shown, trace_columns


def test_what_a_browser_cannot_show_becomes_text() -> None:
    table = pa.table(
        {
            "map": pa.array([[("a", "1")], None], pa.map_(pa.string(), pa.string())),
            "list": pa.array([[1, 2**60], []], pa.list_(pa.int64())),
            "struct": pa.array(
                [{"x": None, "y": b"\x01"}, None], pa.struct([("x", pa.int32()), ("y", pa.binary())])
            ),
            "bytes": pa.array([b"\xff\x00", None]),
            "interval": pa.array([dt.timedelta(seconds=90), None]),
        }
    )
    assert shown(table).to_pylist() == [
        {
            "map": '{"a":"1"}',
            "list": '[1,"1152921504606846976"]',
            "struct": '{"x":null,"y":"01"}',
            "bytes": "ff00",
            "interval": "0:01:30",
        },
        {"map": None, "list": "[]", "struct": None, "bytes": None, "interval": None},
    ]


def test_an_empty_map_is_no_list() -> None:
    kind = pa.map_(pa.string(), pa.string())
    event = pa.struct([("tags", kind), ("ids", pa.list_(pa.int64()))])
    events = [[{"tags": [], "ids": []}, {"tags": [("a", "1")], "ids": [2**60]}, None], None]
    table = pa.table({"map": pa.array([[], None], kind), "events": pa.array(events, pa.list_(event))})
    assert shown(table).to_pylist() == [
        {
            "map": "{}",
            "events": '[{"tags":{},"ids":[]},{"tags":{"a":"1"},"ids":["1152921504606846976"]},null]',
        },
        {"map": None, "events": None},
    ]
    assert full_text(table, 0, "map") == "{}"


def test_numbers_stay_numbers_unless_a_browser_would_round_them() -> None:
    table = pa.table(
        {
            "small": [1, 2],
            "id": [1, -(2**53) - 2],
            "lowest": [0, -(2**63)],
            "sum": pa.array([Decimal(12), None], pa.decimal128(38, 0)),
            "huge": pa.array([Decimal(10**30), None], pa.decimal128(38, 0)),
            "time": [dt.datetime(2026, 11, 15, tzinfo=dt.UTC)] * 2,
        }
    )
    answer = shown(table)
    assert answer.column("small").to_pylist() == [1, 2]
    assert answer.column("id").to_pylist() == ["1", "-9007199254740994"]
    assert answer.column("lowest").to_pylist() == ["0", "-9223372036854775808"]
    assert answer.column("sum").to_pylist() == [12.0, None]
    assert answer.column("huge").to_pylist() == [str(10**30), None]
    assert pa.types.is_timestamp(answer.schema.field("time").type)


def test_columns_of_one_name_are_told_apart() -> None:
    table = pa.Table.from_arrays([pa.array([n]) for n in range(4)], names=["n", "n", "n (2)", "n"])
    assert shown(table).column_names == ["n", "n (2)", "n (2) (2)", "n (3)"]


def test_no_more_is_shown_than_fits(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    assert shown(pa.table({"n": range(10_001)})).num_rows == 10_000
    monkeypatch.setattr(result_table, "_BYTES_SHOWN_MAX", 8_000)
    assert shown(pa.table({"n": pa.array(range(10_000), pa.int64())})).num_rows == 1_000


def test_a_long_cell_is_cut() -> None:
    (cell,) = shown(pa.table({"body": ["x" * 5_000]})).column("body").to_pylist()
    assert cell == "x" * 4_000 + "…"


def test_an_answer_without_rows_keeps_its_columns() -> None:
    answer = shown(pa.table({"a": pa.array([], pa.int64()), "b": pa.array([], pa.list_(pa.string()))}))
    assert answer.column_names == ["a", "b"]
    assert answer.num_rows == 0


def test_times_in_cells_have_all_their_digits_and_no_more() -> None:
    whole = dt.datetime(2026, 11, 15, 10, 0, 1, tzinfo=dt.UTC)
    nanos = whole.timestamp() * 10**9
    table = pa.table(
        {
            "seconds": pa.array([whole, None], pa.timestamp("us", "UTC")),
            "millis": pa.array([whole, whole.replace(microsecond=250_000)], pa.timestamp("us", "UTC")),
            "micros": pa.array([whole, whole.replace(microsecond=7)], pa.timestamp("us", "UTC")),
            "nanos": pa.array([int(nanos), int(nanos) + 7], pa.timestamp("ns")),
            "elsewhere": pa.array([whole, None], pa.timestamp("us", "America/New_York")),
        }
    )
    cells = as_cells(shown(table), [])
    assert cells.column("seconds").to_pylist() == ["2026-11-15 10:00:01", None]
    assert cells.column("millis").to_pylist() == ["2026-11-15 10:00:01.000", "2026-11-15 10:00:01.250"]
    assert cells.column("micros").to_pylist()[1] == "2026-11-15 10:00:01.000007"
    assert cells.column("nanos").to_pylist()[1] == "2026-11-15 10:00:01.000000007"
    assert cells.column("elsewhere").to_pylist()[0] == "2026-11-15 10:00:01"


def test_trace_ids_become_links_if_the_whole_column_has_trace_ids() -> None:
    id = "0af7651916cd43dd8448eb211c80319c"
    table = pa.Table.from_arrays(
        [pa.array([id, None]), pa.array([id, "none"]), pa.array([id, id]), pa.array([id, id])],
        names=["trace_id", "other", "trace_id", "id"],
    )
    given = shown(table)
    assert trace_columns(given, table.column_names) == ["trace_id", "trace_id (2)"]
    cells = as_cells(given, ["trace_id"])
    assert cells.column("trace_id").to_pylist() == [f"/traces?trace={id}", None]
    assert re.search(TRACE_LINK_TEXT, f"/traces?trace={id}")[1] == id  # type: ignore[index]
    for wrong in (["none"], [1], [id.upper()]):
        odd = pa.table({"trace_id": wrong})
        assert trace_columns(shown(odd), odd.column_names) == []


def test_the_full_text_of_a_cell_is_not_cut() -> None:
    table = pa.table({"text": ["x" * 10_000, None], "map": [{"a": 1}, None]})
    assert len(shown(table)["text"][0].as_py()) < 10_000
    assert full_text(table, 0, "text") == "x" * 10_000
    assert full_text(table, 0, "map") == '{"a":1}'
    assert full_text(table, 1, "text") == ""
