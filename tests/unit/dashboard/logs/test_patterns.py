"""Patterns on the Logs page: what the list is given, and the search for the records of one."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from frazil.dashboard.logs.patterns import ignored_filters, lines_search, summary
from frazil.dashboard.logs.search import LogSearch
from frazil.dashboard.parts.patterns import pattern_rows
from frazil.query.reads.patterns import PATTERNS_MAX, Pattern, Patterns, PatternSearch
from frazil.query.reads.time_range import MICRO, TimeRange
from frazil.tables.derived.log_patterns import LINE_CHARS_MAX, OTHER, OTHER_ID, cut, templates_of

AT = dt.datetime(2026, 11, 15, 10, tzinfo=dt.UTC)
NOW = int(AT.timestamp()) * MICRO


def pattern(template: str = "user <*> signed in", **given: Any) -> Pattern:
    facts: dict[str, Any] = {
        "id": 2**62 + 1,
        "services": ["cart", "shop"],
        "service_count": 5,
        "severity": 17,
        "records": 40,
        "trend": [0, 40],
        "first_time": AT,
        "last_time": AT,
        "is_new": True,
        "example": "user 7 signed in",
    }
    return Pattern(template=template, **facts | given)


def asked(hours: float = 1) -> PatternSearch:
    return PatternSearch(range=TimeRange(NOW - int(hours * 3600) * MICRO, NOW), now=NOW)


def test_a_row_has_the_parts_between_masks_its_share_and_whether_it_is_new() -> None:
    found = Patterns([pattern(), pattern(id=5, records=10, services=[""], service_count=1)], 100, 2)
    first, second = pattern_rows(found, {2**62 + 1}, {"cart": "#111", "shop": "#222"})
    assert first["id"] == str(2**62 + 1)
    assert first["template"] == ["user ", " signed in"]
    assert (first["records"], first["share"], first["part"]) == ("40", "40.0%", 1.0)
    assert (first["level"], first["trend"], first["is_new"]) == ("error", [0, 40], True)
    assert (first["services"], first["more"]) == ([["cart", "#111"], ["shop", "#222"]], 3)
    assert first["title"].endswith("\nExample: user 7 signed in")
    assert (second["part"], second["is_new"], second["more"]) == (0.25, False, 0)
    assert second["services"][0][0] == "(no service)"


def test_records_beyond_the_bound_of_templates_cannot_be_searched_for() -> None:
    (row,) = pattern_rows(Patterns([pattern(OTHER, id=OTHER_ID, example=None)], 40, 1), set(), {})
    assert not row["can_open"]
    assert len(row["template"]) == 1


@pytest.mark.parametrize(
    "line",
    ["user 7 signed in", "GET /api/cart took 7 ms", "a" + " very" * 300 + " long line", "[./*+?^$()|" * 100],
)
def test_the_search_of_a_pattern_finds_its_lines(line: str) -> None:
    _, marked = cut(pa.chunked_array([[line]]))
    template = templates_of(pa.array(marked)).to_pylist()[0]
    assert len(template) <= LINE_CHARS_MAX
    regex = LogSearch(lines_search(pattern(template))).regex
    assert regex is not None
    assert len(regex) <= 1000, "longer than the API accepts"
    assert pc.match_substring_regex(pa.array([line, "other"]), regex).to_pylist() == [True, False]


@pytest.mark.parametrize(
    ("search", "said"),
    [
        (LogSearch("words", ("cart",), "error"), ""),
        (LogSearch("/a.b/"), "Not applied: the regular expression. "),
        (LogSearch("", chips=("a=b",)), "Not applied: attributes. "),
        (LogSearch("/a.b/", chips=("a=b",)), "Not applied: the regular expression and attributes. "),
    ],
)
def test_filters_that_patterns_do_not_have_are_named(search: LogSearch, said: str) -> None:
    assert ignored_filters(search).startswith(said)
    assert bool(ignored_filters(search)) == bool(said)


@pytest.mark.parametrize(
    ("hours", "count", "new", "said"),
    [
        (1, 1, 1, "1 pattern of 100 records · 1 new: not seen in the 24 hours before · "),
        (24 * 7, 2, 0, "2 patterns of 100 records · 0 new: not seen in the 7 days before · "),
        (1, PATTERNS_MAX + 1, 2, f"{PATTERNS_MAX + 1} patterns of 100 records, {PATTERNS_MAX} shown · "),
        (1, 2, None, "2 patterns of 100 records · there are no earlier records"),
    ],
)
def test_a_line_says_how_many_there_are_and_what_new_means(
    hours: float, count: int, new: int | None, said: str
) -> None:
    assert re.match(re.escape(said), summary(Patterns([pattern()], 100, count), asked(hours), new))
