from __future__ import annotations

import datetime as dt

import pyarrow as pa

from frazil.dashboard.sql.quick_chart import (
    BARS_MAX,
    SERIES_MAX,
    Choice,
    apply_choices,
    choose,
    columns,
    rows_to_draw,
)

TIMES = [dt.datetime(2026, 11, 15, 10, minute, tzinfo=dt.UTC) for minute in range(4)]


def test_a_time_and_a_number_make_a_line_for_each_of_few_words() -> None:
    table = pa.table({"service": ["a", "b", "a", "b"], "minute": TIMES, "n": [1, 2, 3, 4]})
    assert choose(table) == Choice("line", "minute", "n", "service")


def test_words_that_are_all_alike_or_all_different_have_no_colours() -> None:
    times = [TIMES[0] + dt.timedelta(minutes=n) for n in range(20)]
    table = pa.table({"t": times, "n": range(20), "many": [f"w{n}" for n in range(20)], "one": ["x"] * 20})
    assert choose(table) == Choice("line", "t", "n", None)


def test_a_word_and_a_number_make_bars_by_the_word_that_tells_most_apart() -> None:
    table = pa.table({"kind": list("xxyy"), "name": list("abcd"), "n": [1.5, 2.5, 3.5, 4.5], "m": range(4)})
    assert choose(table) == Choice("bar", "name", "n", "kind")


def test_a_time_that_does_not_move_is_nothing_to_go_along() -> None:
    table = pa.table({"t": TIMES[:1] * 2, "name": ["a", "b"], "n": [1, 2]})
    assert choose(table) == Choice("bar", "name", "n", None)


def test_two_numbers_make_points() -> None:
    assert choose(pa.table({"a": [1, 2], "b": [3.0, 4.0]})) == Choice("points", "a", "b")


def test_without_a_number_or_with_one_row_there_is_nothing_to_draw() -> None:
    assert choose(pa.table({"a": ["x", "y"]})) is None
    assert choose(pa.table({"a": [1, 2]})) is None
    assert choose(pa.table({"a": ["x"], "n": [1]})) is None


def test_only_the_largest_bars_are_drawn_and_that_is_said() -> None:
    count = BARS_MAX + 10
    table = pa.table({"name": [f"b{n:03}" for n in range(count)], "n": range(count)})
    rows, note = rows_to_draw(table, Choice("bar", "name", "n"))
    assert rows.column("name").to_pylist() == [f"b{n:03}" for n in range(10, count)]
    assert note == f"Shows the {BARS_MAX} largest of {count} values of name."


def test_only_the_largest_lines_are_drawn_and_that_is_said() -> None:
    names = [f"s{n:02}" for n in range(SERIES_MAX + 3)]
    table = pa.table(
        {"t": TIMES[:1] * len(names) + TIMES[1:2] * len(names), "s": names * 2, "n": [*range(15)] * 2}
    )
    choice = choose(table)
    assert choice == Choice("line", "t", "n", "s")
    rows, note = rows_to_draw(table, choice)
    assert set(rows.column("s").to_pylist()) == set(names[3:])
    assert note == f"Shows the {SERIES_MAX} largest of {len(names)} values of s."


def test_rows_without_a_value_are_not_drawn() -> None:
    rows, note = rows_to_draw(pa.table({"t": TIMES[:3], "n": [1, None, 3]}), Choice("line", "t", "n"))
    assert (rows.num_rows, note) == (2, "")


def test_what_was_chosen_for_another_answer_is_forgotten() -> None:
    found = columns(pa.table({"t": TIMES, "n": [1, 2, 3, 4], "m": [1, 2, 3, 4]}))
    first = Choice("line", "t", "n")
    assert apply_choices(first, {"kind": "bar", "x": "gone", "y": "m", "series": "gone"}, found) == Choice(
        "bar", "t", "m"
    )
    assert apply_choices(first, {}, found) == first
