"""The ranges of constant expressions, held against DuckDB's own values."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

import duckdb
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from frazil.sql.constants import DAY, SECOND, Constants, Kind, Range
from tests.support.query.needed_rows import connect, micros, tree

HOUR = 3600 * SECOND


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with connect() as opened:
        opened.execute("CREATE TABLE one (time TIMESTAMPTZ)")
        yield opened


def evaluated(
    connection: duckdb.DuckDBPyConnection, expression: str, kind: Kind, now: int = 0, *params: Any
) -> Range | None:
    (item,) = tree(connection, f"SELECT {expression}")["statements"][0]["node"]["select_list"]
    return Constants.of(now, params).value(item, kind)


def in_duckdb(connection: duckdb.DuckDBPyConnection, expression: str) -> tuple[int, int] | None:
    """The time that a TIMESTAMPTZ is compared with, and the start of the transaction, in microseconds."""
    connection.execute("BEGIN")
    try:
        # A bare text is cast as a comparison would.
        sql = f"SELECT epoch_us(CAST({expression} AS TIMESTAMPTZ)), epoch_us(now())"
        found = connection.execute(sql).fetchone()
    except duckdb.Error:
        return None
    finally:
        connection.execute("ROLLBACK")
    return None if found is None or found[0] is None else (found[0], found[1])


two = st.integers(0, 59).map(lambda number: f"{number:02}")
dates = st.dates(datetime.date(1800, 1, 1), datetime.date(2200, 1, 1)).flatmap(
    lambda day: st.sampled_from(
        [day.isoformat(), f"{day.year:04}-{day.month}-{day.day}", day.strftime("%Y/%m/%d")]
    )
)
clocks = st.builds(
    lambda hour, minute, second, fraction, separator: f"{separator}{hour:02}:{minute}{second}{fraction}",
    st.integers(0, 24),
    two,
    st.one_of(st.just(""), two.map(lambda text: f":{text}")),
    st.one_of(st.just(""), st.integers(0, 999_999_999).map(lambda number: f".{number}")),
    st.sampled_from([" ", "T", "  "]),
)
zones = st.sampled_from(
    [
        "",
        "",
        "",
        "Z",
        "+00",
        "-05",
        "+05:30",
        "+0530",
        " UTC",
        " +02",
        "+14",
        "-12:30",
        " Europe/Berlin",
        "+01:00:30",
    ]
)
texts = st.one_of(
    st.builds(lambda day, clock, zone: f"{day}{clock}{zone}", dates, clocks, zones),
    st.builds(lambda day, zone: f"{day}{zone}", dates, zones),
    st.sampled_from(
        ["infinity", "epoch", "now", "today", "2026-02-30", "12:00", "", "2026", "20260101", "1-1-2026"]
    ),
)
types = st.sampled_from(
    ["TIMESTAMP", "TIMESTAMPTZ", "DATE", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "VARCHAR"]
)
units = st.sampled_from(
    [
        "MICROSECOND",
        "MILLISECOND",
        "SECOND",
        "MINUTE",
        "HOUR",
        "DAY",
        "WEEK",
        "MONTH",
        "QUARTER",
        "YEAR",
        "DECADE",
    ]
)
amounts = st.one_of(
    st.integers(-200, 200).map(str),
    st.decimals(-50, 50, places=3).map(str),
    st.integers(0, 50).map(lambda n: f"'{n}'"),
)
parts = st.builds(
    lambda count, fraction, space, unit, plural: f"{count}{fraction}{space}{unit.lower()}{plural}",
    st.integers(-3, 400),
    st.sampled_from(["", "", ".5", ".25", ".333333"]),
    st.sampled_from([" ", "", "  "]),
    units,
    st.sampled_from(["", "s"]),
)
intervals = st.one_of(
    st.builds(lambda amount, unit: f"INTERVAL ({amount}) {unit}", amounts, units),
    st.lists(parts, min_size=1, max_size=3).map(lambda each: f"INTERVAL '{' '.join(each)}'"),
    st.builds(lambda unit, amount: f"to_{unit.lower()}s({amount})", units, amounts),
    st.builds(lambda unit, amount: f"to_{unit.lower()}s(CAST({amount} AS INTEGER))", units, amounts),
    st.sampled_from(
        [
            "INTERVAL '1:30:00'",
            "INTERVAL '1 year 2 mons'",
            "INTERVAL '5 m'",
            "to_centuries(1)",
            "INTERVAL '1' HOUR",
            "INTERVAL '1.7' DAY",
        ]
    ),
)


def grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds(lambda child, type_: f"CAST({child} AS {type_})", inner, types),
        st.builds(lambda child, type_: f"TRY_CAST({child} AS {type_})", inner, types),
        st.builds(
            lambda child, sign, interval: f"({child} {sign} {interval})",
            inner,
            st.sampled_from("+-"),
            intervals,
        ),
        st.builds(lambda child, interval: f"({interval} + {child})", inner, intervals),
        st.builds(lambda unit, child: f"date_trunc('{unit}', {child})", units, inner),
    )


leaves = st.one_of(
    texts.map(lambda text: f"'{text}'"),
    st.builds(lambda type_, text: f"CAST('{text}' AS {type_})", types, texts),
    st.sampled_from(
        ["now()", "current_timestamp", "current_date", "today()", "get_current_timestamp()", "NULL", "5"]
    ),
    st.one_of(st.integers(-(10**10), 10**10), st.floats(-1e12, 1e12)).map(
        lambda number: f"to_timestamp({number!r})"
    ),
    st.integers(-(10**14), 10**14).map(lambda number: f"epoch_ms({number})"),
    st.integers(-(10**16), 10**16).map(lambda number: f"make_timestamp({number})"),
    st.integers(-(10**16), 10**16).map(lambda number: f"make_timestamptz({number})"),
    st.just("epoch_ms(CAST(1.7 AS BIGINT))"),
)
expressions = st.recursive(leaves, grown, max_leaves=3)


@settings(max_examples=400, deadline=None)
@given(expression=expressions)
def test_the_range_of_a_time_holds_what_duckdb_makes_of_it(
    connection: duckdb.DuckDBPyConnection, expression: str
) -> None:
    found = in_duckdb(connection, expression)
    assume(found is not None)
    assert found is not None
    value, now = found
    for planned in (now, now - HOUR):  # a question may wait for a while
        known = evaluated(connection, expression, "time", planned)
        assert known is None or int(known.low) <= value <= int(known.high), (expression, known, value)


@settings(max_examples=100, deadline=None)
@given(text=texts)
def test_the_range_of_a_date_holds_what_duckdb_makes_of_it(
    connection: duckdb.DuckDBPyConnection, text: str
) -> None:
    found = in_duckdb(connection, f"CAST('{text}' AS DATE)")
    assume(found is not None)
    assert found is not None
    (item,) = tree(connection, f"SELECT '{text}'")["statements"][0]["node"]["select_list"]
    known = Constants.of(0, []).date(item)
    assert known is None or int(known.low) <= found[0] <= int(known.high)


NOW = micros(datetime.datetime(2026, 11, 15, 10, 30, tzinfo=datetime.UTC))
JAN = micros(datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC))


@pytest.mark.parametrize(
    ("expression", "low", "high"),
    [
        ("'2026-01-01'", JAN, JAN),
        ("'2026-01-01T01:00:00Z'", JAN + HOUR, JAN + HOUR),
        ("'2026-01-01 00:00:00+01:00'", JAN - HOUR, JAN - HOUR),
        ("TIMESTAMP '2026-01-01 00:00:00+01:00'", JAN, JAN),
        ("DATE '2026-01-01 23:00:00-05'", JAN, JAN),
        ("'2026-01-01 00:00:00.123456789'", JAN + 123_456, JAN + 123_457),
        ("TIMESTAMP_S '2026-01-01 00:00:00.7'", JAN - 300_000, JAN + 1_700_000),
        ("now()", NOW, NOW + HOUR),
        ("now() - INTERVAL 1 HOUR", NOW - HOUR, NOW),
        ("date_trunc('day', now())", NOW // DAY * DAY, NOW // DAY * DAY),
        ("date_trunc('week', TIMESTAMP '2026-01-01')", JAN - 3 * DAY, JAN - 3 * DAY),
        ("to_timestamp(1)", SECOND - 1, SECOND + 1),
    ],
)
def test_a_time_is_known_as_closely_as_it_can_be(
    connection: duckdb.DuckDBPyConnection, expression: str, low: int, high: int
) -> None:
    assert evaluated(connection, expression, "time", NOW) == Range(low, high)


@pytest.mark.parametrize(
    "expression",
    [
        "time", "now", "x.current_date", "random()", "'soon'", "5", "NULL", "now() - INTERVAL '-1 hour'",
        "TIME '12:00'", "strptime('2026', '%Y')", "'2026-01-01 00:00 Europe/Berlin'", "now() + now()",
        "to_timestamp(1e300)", "now() + INTERVAL (1e18) YEAR",
    ],
)  # fmt: skip
def test_what_is_not_understood_is_not_known(connection: duckdb.DuckDBPyConnection, expression: str) -> None:
    assert evaluated(connection, expression, "time", NOW) is None


@pytest.mark.parametrize(
    ("expression", "kind", "value"),
    [
        ("'a'", "text", "a"),
        ("'a'::VARCHAR", "text", "a"),
        ("5", "integer", 5),
        ("5::BIGINT", "integer", 5),
        ("true", "flag", True),
        ("5", "text", None),
        ("'5'", "integer", None),
        ("true", "integer", None),
        ("1", "flag", None),
        ("NULL", "text", None),
        ("$1", "text", "p"),
        ("$1", "integer", None),
        ("$2", "integer", 7),
        ("$3", "text", None),
        ("$name", "text", None),
        ("$4", "text", None),
    ],
)
def test_a_constant_counts_only_for_columns_of_its_kind(
    connection: duckdb.DuckDBPyConnection, expression: str, kind: Kind, value: Any
) -> None:
    found = evaluated(connection, expression, kind, NOW, "p", 7, None, "\ud800")
    assert found == (None if value is None else Range(value, value))


@settings(max_examples=100, deadline=None)
@given(
    number=st.one_of(st.floats(-1e18, 1e18), st.integers(-(2**63), 2**63 - 1)),
    kind=st.sampled_from(["integer", "real"]),
)
def test_numbers_that_duckdb_finds_equal_are_in_the_range(
    connection: duckdb.DuckDBPyConnection, number: float, kind: Kind
) -> None:
    known = evaluated(connection, f"({number!r})::DOUBLE", kind)
    assume(known is not None)  # decimals of many digits are not read
    assert known is not None
    assert known.low <= float(number) <= known.high  # type: ignore[operator]
    near = int(float(number)) + 1
    same = connection.execute(f"SELECT {near}::HUGEINT = ({number!r})::DOUBLE").fetchone()
    if same == (True,):
        assert known.low <= near <= known.high  # type: ignore[operator]
