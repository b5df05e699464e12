from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from frazil.client.layout import Grid, fit_widths, truncate
from frazil.client.text_format import cell_text, one_line, terminal_safe
from frazil.query.model import ResultColumn


def lines(columns: dict[str, str], rows: list[list[Any]], width: int | None = None) -> list[str]:
    grid = Grid(
        [ResultColumn(name, type) for name, type in columns.items()],
        [[cell_text(value) for value in row] for row in rows],
        width,
    )
    return [grid.plain(line) for line in grid.lines()]


def test_numbers_are_right_aligned_and_text_left() -> None:
    assert lines({"service": "VARCHAR", "n": "BIGINT"}, [["cart", 5], ["checkout", 1200]]) == [
        "service      n",
        "────────  ────",
        "cart         5",
        "checkout  1200",
    ]


@pytest.mark.parametrize("type", ["INTEGER", "UBIGINT", "HUGEINT", "DECIMAL(18,3)", "DOUBLE", "int64"])
def test_all_number_types_are_right_aligned(type: str) -> None:
    assert lines({"number": type}, [[1]])[-1] == "     1"


@pytest.mark.parametrize("type", ["VARCHAR", "MAP(VARCHAR, INTEGER)", "INTEGER[]", "INTERVAL", "TIMESTAMP"])
def test_other_types_are_left_aligned(type: str) -> None:
    assert lines({"number": type}, [["1"]])[-1] == "1"


def test_null_is_dim_and_not_an_empty_text() -> None:
    grid = Grid([ResultColumn("a", "VARCHAR")], [[None], [""], ["NULL"]])
    assert list(grid.lines())[2:] == [[("NULL", "dim")], [("", "")], [("NULL", "")]]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": 1, "b": {"c": None}}, "{a: 1, b: {c: NULL}}"),
        ([1, "x", True], "[1, x, true]"),
        ({}, "{}"),
        (1.5, "1.5"),
        (dt.datetime(2026, 11, 15, 10, 0, 0, 5), "2026-11-15 10:00:00.000005"),
        (b"\x00\xff", "\\x00ff"),
        ("two\nlines\tand\r\n", "two↵lines and↵"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("abc\u202edef", "abc\\u202edef"),
        ("\U000e0041", "\\ue0041"),
        ("half \ud800", "half \\ud800"),
        ("naïve 日本 👩‍🚀", "naïve 日本 👩‍🚀"),
    ],
)
def test_a_cell_is_one_line_without_control_characters(value: Any, text: str) -> None:
    assert cell_text(value) == text


@given(st.text())
def test_cursor_movements_are_escaped(text: str) -> None:
    assert not any(ord(char) < 32 or 0x7F <= ord(char) < 0xA0 for char in one_line(text))
    assert not any((ord(char) < 32 and char not in "\r\n\t") for char in terminal_safe(text))
    one_line(text).encode()


def test_long_cells_are_truncated_with_an_ellipsis() -> None:
    shown = lines({"id": "BIGINT", "body": "VARCHAR"}, [[7, "x" * 500]], 40)
    assert shown[-1] == " 7  " + "x" * 35 + "…"
    assert all(cell_len(line) <= 40 for line in shown)


def test_narrow_columns_stay_whole_when_wide_ones_shrink() -> None:
    assert fit_widths([4, 100, 10, 100], 64) == [4, 22, 10, 22]


def test_rows_become_records_when_there_are_too_many_columns() -> None:
    columns = {f"column_{number}": "VARCHAR" for number in range(20)}
    shown = lines(columns, [["value" * 30] * 20, [None] * 20], 80)
    assert shown[0].startswith("─ 1 ─")
    assert shown[1].startswith("column_0   valuevalue")
    assert shown[1].endswith("…")
    assert shown[-1] == "column_19  NULL"
    assert all(cell_len(line) <= 80 for line in shown)


def test_wide_characters_take_two_cells() -> None:
    assert lines({"a": "VARCHAR", "b": "VARCHAR"}, [["日本", "x"], ["ab", "y"]]) == [
        "a     b",
        "────  ─",
        "日本  x",
        "ab    y",
    ]


@given(st.text(max_size=40), st.integers(1, 30))
def test_truncated_text_fits(text: str, width: int) -> None:
    shown = one_line(text)
    assert cell_len(truncate(shown, width)) <= max(width, 1)
    assert truncate(shown, width) == shown or truncate(shown, width).endswith("…")


@given(st.lists(st.integers(0, 300), min_size=1, max_size=30), st.integers(1, 200))
def test_widths_fit_and_are_never_more_than_needed(natural: list[int], width: int) -> None:
    widths = fit_widths(natural, width)
    if widths is not None:
        assert sum(widths) + 2 * (len(natural) - 1) <= width
        assert all(given <= wanted for given, wanted in zip(widths, natural, strict=True))
