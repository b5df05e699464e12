"""Every type that DuckDB has, in every format that results have."""

from __future__ import annotations

import csv
import datetime
import io
import math
from collections.abc import Sequence
from typing import Any

import duckdb
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.query.model import Format
from frazil.query.render import renderer
from frazil.query.values import plain_values, texts

VALUES: Sequence[tuple[str, Any]] = [
    ("NULL", None),
    ("true", True),
    ("1::TINYINT", 1),
    ("(-9223372036854775808)::BIGINT", -(2**63)),
    ("18446744073709551615::UBIGINT", 2**64 - 1),
    ("9223372036854775807::HUGEINT", 2**63 - 1),
    ("1.5::DOUBLE", 1.5),
    ("'NaN'::DOUBLE", None),
    ("'-inf'::FLOAT", None),
    ("[1.5, 'NaN'::DOUBLE]", [1.5, None]),
    ("''", ""),
    ("'é\U0001f600'", "é\U0001f600"),
    ("'a\"b,c'||chr(10)", 'a"b,c\n'),
    ("'\\xFF\\x00'::BLOB", "/wA="),
    ("''::BLOB", ""),
    ("'2026-11-15 08:18:23'::TIMESTAMP", "2026-11-15T08:18:23"),
    ("'2026-11-15 08:18:23.25'::TIMESTAMP", "2026-11-15T08:18:23.250000"),
    ("'2026-11-15 08:18:23.25+02'::TIMESTAMPTZ", "2026-11-15T06:18:23.250000Z"),
    ("'2026-11-15 08:18:23.123456789'::TIMESTAMP_NS", "2026-11-15T08:18:23.123456789"),
    ("'2026-11-15 08:18:23'::TIMESTAMP_S", "2026-11-15T08:18:23"),
    ("'2026-11-15 08:18:23.125'::TIMESTAMP_MS", "2026-11-15T08:18:23.125"),
    ("'infinity'::TIMESTAMP", "infinity"),
    ("'-infinity'::TIMESTAMPTZ", "-infinity"),
    ("'290000-01-02 03:04:05.5'::TIMESTAMP", "+290000-01-02T03:04:05.500000"),
    ("'0044-03-15 (BC) 00:00:00'::TIMESTAMP", "-0043-03-15T00:00:00"),
    ("'2026-11-15'::DATE", "2026-11-15"),
    ("'infinity'::DATE", "infinity"),
    ("'0044-03-15 (BC)'::DATE", "-0043-03-15"),
    ("'08:18:23.5'::TIME", "08:18:23.500000"),
    ("'24:00:00'::TIME", "24:00:00"),
    ("INTERVAL '14 months 2 days 3.5 seconds'", "1 year 2 months 2 days 00:00:03.5"),
    ("INTERVAL '-1 day'", "-1 day"),
    ("INTERVAL 0 SECOND", "00:00:00"),
    ("'7a2f0b54-0e3c-4f1c-8f55-0d7c0fd0a001'::UUID", "7a2f0b54-0e3c-4f1c-8f55-0d7c0fd0a001"),
    ("'b'::ENUM('a', 'b')", "b"),
    ("""'{"a": [1]}'::JSON""", '{"a": [1]}'),
    ("union_value(number := 1)", 1),
    ("[union_value(text := 'x')]", ["x"]),
    ("[1, NULL]", [1, None]),
    ("[]::INTEGER[]", []),
    ("[1, 2]::INTEGER[2]", [1, 2]),
    ("[['2026-11-15'::DATE], NULL, []]", [["2026-11-15"], None, []]),
    ("MAP {'a': NULL, 'b': 1}", {"a": None, "b": 1}),
    ("MAP {1: 'x'}", {"1": "x"}),
    ("MAP {'t': ['infinity'::TIMESTAMP]}", {"t": ["infinity"]}),
    ("{'a': 1, 'b': {'c': INTERVAL 1 DAY}}", {"a": 1, "b": {"c": "1 day"}}),
    ("{'a': NULL}", {"a": None}),
    ("NULL::STRUCT(a INTEGER)", None),
    ("NULL::MAP(VARCHAR, INTEGER)", None),
    ("NULL::INTEGER[2]", None),
]


@pytest.fixture(scope="module")
def duck() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(":memory:")
    connection.execute("SET TimeZone='UTC'")
    return connection


def rendered(duck: duckdb.DuckDBPyConnection, sql: str, format_: Format, rows: int = 2048) -> bytes:
    reader = duck.execute(sql).to_arrow_reader(rows)
    made = renderer(format_, reader.schema, ["?"] * len(reader.schema.names))
    body = b"".join([made.begin(), *(made.batch(batch) for batch in reader), made.end()])
    return body + b"}" if format_ == "json" else body


def json_rows(body: bytes) -> list[list[Any]]:
    rows: list[list[Any]] = orjson.loads(body)["rows"]
    return rows


@pytest.mark.parametrize(("sql", "value"), VALUES)
def test_json_says_each_type_as_its_readers_expect(
    duck: duckdb.DuckDBPyConnection, sql: str, value: Any
) -> None:
    found = json_rows(rendered(duck, f"SELECT {sql} AS value", "json"))[0][0]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(("sql", "value"), VALUES)
def test_csv_says_the_same_as_text(duck: duckdb.DuckDBPyConnection, sql: str, value: Any) -> None:
    body = rendered(duck, f"SELECT {sql} AS value, 1 AS one", "csv").decode()
    header, row = csv.reader(io.StringIO(body, newline=""))
    assert (header, row[1]) == (["value", "one"], "1")
    if "DOUBLE" in sql or "FLOAT" in sql:
        return  # nan and inf have names in CSV
    if value is None or isinstance(value, str):
        assert row[0] == (value or "")
    else:
        assert orjson.loads(row[0]) == value


@pytest.mark.parametrize(("sql", "value"), VALUES)
def test_arrow_and_parquet_are_read_back_by_their_readers(
    duck: duckdb.DuckDBPyConnection, sql: str, value: Any
) -> None:
    query = f"SELECT {sql} AS value FROM range(3)"
    stream = pa.ipc.open_stream(rendered(duck, query, "arrow")).read_all()
    table = pq.read_table(io.BytesIO(rendered(duck, query, "parquet")))
    for found in (stream, table):
        assert found.column_names == ["value"]
        assert found.num_rows == 3
    assert [plain_or_none(v) for v in plain_values(stream["value"].chunk(0))] == [value] * 3


def plain_or_none(value: Any) -> Any:
    return orjson.loads(orjson.dumps(value))


def test_parquet_has_as_text_what_it_has_no_type_for(duck: duckdb.DuckDBPyConnection) -> None:
    sql = "SELECT INTERVAL 1 DAY AS i, [union_value(n := 1)] AS u, 1 AS n"
    table = pq.read_table(io.BytesIO(rendered(duck, sql, "parquet")))
    assert table.to_pylist() == [{"i": "1 day", "u": "[1]", "n": 1}]


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("170141183460469231731687303715884105727::HUGEINT", b"170141183460469231731687303715884105727"),
        ("12345678901234567.89::DECIMAL(19,2)", b"12345678901234567.89"),
        ("0.10::DECIMAL(3,2)", b"0.10"),
        ("sum(i) FROM (VALUES (9223372036854775807), (1)) t(i)", b"9223372036854775808"),
    ],
)
def test_numbers_lose_no_digits_in_json(duck: duckdb.DuckDBPyConnection, sql: str, text: bytes) -> None:
    assert b'"rows":[[' + text + b"]]" in rendered(duck, f"SELECT {sql}", "json")


@pytest.mark.parametrize("format_", ["json", "csv", "arrow", "parquet"])
def test_no_rows_are_an_answer_too(duck: duckdb.DuckDBPyConnection, format_: Format) -> None:
    body = rendered(duck, "SELECT 1 AS a, [now()] AS b WHERE false", format_)
    if format_ == "json":
        assert json_rows(body) == []
    elif format_ == "csv":
        assert body == b'"a","b"\n'
    elif format_ == "arrow":
        assert pa.ipc.open_stream(body).read_all().num_rows == 0
    else:
        assert pq.read_table(io.BytesIO(body)).num_rows == 0


@pytest.mark.parametrize("format_", ["json", "csv", "arrow", "parquet"])
@pytest.mark.parametrize("rows", [0, 1, 2047, 2048, 2049, 130_000])
def test_batches_join_without_a_seam(duck: duckdb.DuckDBPyConnection, format_: Format, rows: int) -> None:
    body = rendered(duck, f"SELECT i, i::VARCHAR AS s FROM range({rows}) t(i)", format_)
    if format_ == "json":
        numbers = [row[0] for row in json_rows(body)]
    elif format_ == "csv":
        numbers = [int(row[0]) for row in list(csv.reader(io.StringIO(body.decode())))[1:]]
    elif format_ == "arrow":
        numbers = pa.ipc.open_stream(body).read_all()["i"].to_pylist()
    else:
        numbers = pq.read_table(io.BytesIO(body))["i"].to_pylist()
    assert sorted(numbers) == list(range(rows))


def test_csv_tells_an_empty_text_from_none_at_all(duck: duckdb.DuckDBPyConnection) -> None:
    assert rendered(duck, "SELECT '' AS a, NULL::VARCHAR AS b", "csv") == b'"a","b"\n"",\n'


@pytest.mark.parametrize("first", range(4))
def test_slices_have_their_own_values(duck: duckdb.DuckDBPyConnection, first: int) -> None:
    sql = (
        "SELECT [i, NULL] AS l, MAP {i::VARCHAR: i} AS m, {'a': [i]} AS s, [i, i]::BIGINT[2] AS f, "
        "CASE WHEN i % 2 = 0 THEN union_value(a := i) END AS u, CASE WHEN i <> 2 THEN [i] END AS n "
        "FROM (SELECT unnest([0, 1, 2, 3]) AS i)"
    )
    batch = next(iter(duck.execute(sql).to_arrow_reader(100)))
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        assert plain_values(column.slice(first, 2)) == plain_values(column)[first : first + 2], name
        assert texts(column.slice(first, 2)).to_pylist() == texts(column).to_pylist()[first : first + 2]


@given(st.lists(st.datetimes(timezones=st.just(datetime.UTC)) | st.none(), max_size=20))
def test_times_are_as_python_writes_them(times: list[datetime.datetime | None]) -> None:
    wanted = [None if time is None else time.isoformat().replace("+00:00", "Z") for time in times]
    array = pa.array(times, pa.timestamp("us", "UTC"))
    assert plain_values(array) == wanted
    # Among them one that Python has no word for, which makes all take the other way.
    beyond = pa.concat_arrays([array, pa.array([2**63 - 1], pa.int64()).view(array.type)])
    assert plain_values(beyond) == [*wanted, "infinity"]


@given(st.lists(st.dates() | st.none(), max_size=20))
def test_dates_are_as_python_writes_them(dates: list[datetime.date | None]) -> None:
    wanted = [None if date is None else date.isoformat() for date in dates]
    array = pa.array(dates, pa.date32())
    assert plain_values(array) == wanted
    beyond = pa.concat_arrays([array, pa.array([1 - 2**31], pa.int32()).view(array.type)])
    assert plain_values(beyond) == [*wanted, "-infinity"]


@given(
    st.lists(
        st.recursive(
            st.none() | st.integers(-(2**63), 2**63 - 1),
            lambda inner: st.none() | st.lists(inner, max_size=3),
            max_leaves=1,
        ),
        max_size=3,
    ),
    st.lists(
        st.none() | st.dictionaries(st.text(max_size=3), st.none() | st.floats(allow_nan=False), max_size=3)
    ),
)
def test_lists_and_maps_are_as_arrow_reads_them(numbers: list[Any], maps: list[Any]) -> None:
    lists = [each if each is None or isinstance(each, list) else [each] for each in numbers]
    flat = [None if each is None else [v for v in each if not isinstance(v, list)] for each in lists]
    assert plain_values(pa.array(flat, pa.list_(pa.int64()))) == flat
    array = pa.array(
        [None if m is None else list(m.items()) for m in maps], pa.map_(pa.string(), pa.float64())
    )
    found = plain_values(array)
    assert found == maps
    assert not any(math.isnan(v) for m in found if m for v in m.values() if v is not None)
