from __future__ import annotations

from frazil.dashboard.sql.text import browser_offset, can_be_shared, excerpt, title


def test_the_line_that_is_wrong_is_shown_with_a_mark_below_the_place() -> None:
    sql = "SELECT 1\nFROM logz\nWHERE true"
    assert excerpt(sql, sql.index("logz")) == "2 | FROM logz\n         ^"


def test_the_end_of_the_question_can_be_marked_too() -> None:
    assert excerpt("SELECT", 6) == "1 | SELECT\n          ^"
    assert excerpt("SELECT", 99) == "1 | SELECT\n          ^"
    assert excerpt("", 0) == "1 | \n    ^"


def test_of_a_long_line_the_part_around_the_place_is_shown() -> None:
    sql = "x" * 300 + "!" + "y" * 300
    line, mark = excerpt(sql, 300).split("\n")
    assert line[mark.index("^")] == "!"
    assert line.startswith("1 | …")
    assert line.endswith("…")
    assert len(line) < 110


def test_a_browser_counts_what_lies_beyond_the_basic_plane_twice() -> None:
    assert browser_offset("SELECT '🧊é' x", 11) == 12
    assert browser_offset("SELECT x", 7) == 7


def test_a_title_is_one_line_without_comments() -> None:
    assert title("-- what is it\nSELECT  1,\n\t2 -- two\n") == "SELECT 1, 2"
    assert title("SELECT " + "a" * 100, 20) == "SELECT aaaaaaaaaaaa…"


def test_a_question_that_no_address_has_room_for_cannot_be_shared() -> None:
    assert can_be_shared("x" * 6_000)
    assert not can_be_shared("x" * 6_001)
