from __future__ import annotations

import pytest

from frazil.client.layout import Grid
from frazil.client.screen import error_lines, stats_line, warning_lines
from frazil.client.text_format import bytes_text, seconds_text
from frazil.errors import FrazilError, LimitReached, QueryInvalid, QueryRefused
from frazil.query.model import Stats


def shown(error: FrazilError, sql: str | None = None) -> list[str]:
    return [Grid.plain(line) for line in error_lines(error, sql)]


def test_the_statistics_line() -> None:
    stats = Stats(rows=12, files=3, files_total=540, bytes=4_200_000, tail_rows=1204)
    line = "12 rows · 3 of 540 files · 4.2 MB · 1,204 rows not yet landed · 48 ms"
    assert stats_line(stats, 0.048) == line
    assert stats_line(Stats(rows=1), 2) == "1 row · 2.0 s"
    assert stats_line(Stats(cached=True, queued_seconds=1.25), 75.3) == "queued 1.2 s · cached · 1 min 15 s"


def test_warnings_about_stale_and_missing_data() -> None:
    assert warning_lines(Stats()) == []
    stats = Stats(stale="the catalog does not respond since 10:00", missing=["s3://b/a.parquet"])
    assert warning_lines(stats) == [
        "result may be stale: the catalog does not respond since 10:00",
        "missing from the result: s3://b/a.parquet",
    ]
    assert warning_lines(Stats(rows=1200, cut=True)) == [
        "missing from the result: rows after the row limit of 1,200"
    ]


def test_an_error_is_marked_at_its_position_in_the_sql() -> None:
    sql = "SELECT time,\n\tservce_name\nFROM logs"
    error = QueryInvalid("there is no column servce_name", position=sql.index("servce"))
    error.add_note("did you mean service_name?")
    assert shown(error, sql) == [
        "error: there is no column servce_name",
        "  line 2:  servce_name",
        "           ^",
        "did you mean service_name?",
    ]


def test_the_caret_is_aligned_below_wide_characters() -> None:
    sql = "SELECT '日本', x"
    quoted, mark = shown(QueryRefused("no", position=sql.index("x")), sql)[1:]
    assert quoted == "  line 1: SELECT '日本', x"
    assert len(mark) - 1 == len("  line 1: SELECT '日本', ") + 2


def test_a_long_line_is_truncated_around_the_position() -> None:
    sql = "SELECT " + "a, " * 200 + "wrong" + ", b" * 200
    quoted, mark = shown(QueryInvalid("no", position=sql.index("wrong")), sql)[1:]
    assert quoted[mark.index("^") :].startswith("wrong")
    assert len(quoted) <= 120


@pytest.mark.parametrize("position", [None, -1, 1000])
def test_an_error_without_a_position_shows_no_sql(position: int | None) -> None:
    assert shown(QueryInvalid("no", position=position), "SELECT 1") == ["error: no"]
    assert shown(LimitReached("took too long", limit="query.seconds_max"), "x") == ["error: took too long"]


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (4.2e6, "4.2 MB"), (123e9, "123 GB")]
)
def test_sizes_are_short(size: int, text: str) -> None:
    assert bytes_text(size) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.0482, "48 ms"), (0.9999, "1.0 s"), (59.5, "59.5 s")])
def test_times_are_short(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text
