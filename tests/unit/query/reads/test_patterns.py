"""Templates of log lines in a time range: run in DuckDB over rows that are derived from logs."""

from __future__ import annotations

import random
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.query.reads.patterns import (
    PATTERNS_MAX,
    Patterns,
    PatternSearch,
    lines_regex,
    log_patterns,
    pattern_range,
    patterns,
)
from frazil.query.reads.time_range import MICRO, TimeRange
from frazil.tables.derived.log_patterns import MASK, OTHER, cut, templates_of
from tests.support.query.read_engine import Engine
from tests.support.query.read_telemetry import BEGIN, logs

SECOND = 10**9
MINUTE, HOUR, DAY = 60, 3600, 86_400
START = BEGIN - BEGIN % DAY + DAY
"""Midnight."""


@pytest.fixture
def engine() -> Engine:
    return Engine()


def search(begin: float, end: float, *, now: float | None = None, **more: Any) -> PatternSearch:
    """Seconds after START."""
    range = TimeRange(int((START + begin) * MICRO), int((START + end) * MICRO))
    at = range.end if now is None else int((START + now) * MICRO)
    return PatternSearch(range=range, now=at, **more)


def log(engine: Engine, body: str, *seconds: float, service: str = "cart", severity: int = 9) -> None:
    records = [
        {"nanos": int((START - BEGIN + at) * SECOND), "body": body, "severity_number": severity}
        for at in seconds
    ]
    engine.add("logs", logs(*records, service=service))


def found(engine: Engine, searched: PatternSearch) -> Patterns:
    return patterns(engine.records(log_patterns(searched)), searched)


def by_template(engine: Engine, searched: PatternSearch) -> dict[str, tuple[int, bool]]:
    return {each.template: (each.records, each.is_new) for each in found(engine, searched).found}


def test_lines_that_differ_in_values_are_one_pattern_with_its_figures(engine: Engine) -> None:
    log(engine, "order 17 took 20ms", 10, 70, service="cart")
    log(engine, "order 18 took 21ms", 130, service="pay", severity=17)
    (pattern,) = found(engine, search(0, 600)).found
    assert (pattern.template, pattern.records) == (f"order {MASK} took {MASK}", 3)
    assert (list(pattern.services), pattern.service_count, pattern.severity) == (["cart", "pay"], 2, 17)
    assert pattern.example == "order 17 took 20ms"
    assert pattern.first_time.timestamp() == START + 10
    assert pattern.last_time.timestamp() == START + 130
    assert sum(pattern.trend) == 3
    assert list(pattern.trend)[:3] == [1, 1, 1]


def test_a_pattern_is_new_if_the_day_before_the_range_did_not_have_it(engine: Engine) -> None:
    log(engine, "was there yesterday", -23 * HOUR, 30)
    log(engine, "was there two days ago", -49 * HOUR, 30)
    log(engine, "is new", 30, 31)
    log(engine, "is gone", -2 * HOUR)
    assert by_template(engine, search(0, 600)) == {
        "was there yesterday": (1, False),
        "was there two days ago": (1, True),
        "is new": (2, True),
    }


def test_a_pattern_of_a_week_is_new_if_the_week_before_did_not_have_it(engine: Engine) -> None:
    log(engine, "was there last week", -6 * DAY, 30)
    log(engine, "is new", 30)
    newest = by_template(engine, search(0, 7 * DAY))
    assert newest == {"was there last week": (1, False), "is new": (1, True)}


def test_new_patterns_are_first_then_the_most_frequent(engine: Engine) -> None:
    log(engine, "often", -HOUR, 1, 2, 3)
    log(engine, "seldom", -HOUR, 1)
    log(engine, "new", 1)
    assert [each.template for each in found(engine, search(0, 300)).found] == ["new", "often", "seldom"]


def test_filters_apply_to_counts_and_also_decide_whether_a_pattern_is_new(engine: Engine) -> None:
    log(engine, "connection refused", -HOUR, service="pay")
    log(engine, "connection refused", 5, 6, service="cart", severity=17)
    log(engine, "connection accepted", 5, service="cart")
    assert by_template(engine, search(0, 300, words=["REFUSED", "conn"])) == {
        "connection refused": (2, False)
    }
    assert by_template(engine, search(0, 300, services=["cart"], severity_min=17)) == {
        "connection refused": (2, True)
    }


def test_no_more_patterns_than_the_maximum_are_read_but_all_are_counted(engine: Engine) -> None:
    for first in range(0, PATTERNS_MAX + 20, 100):
        words = [
            " ".join(chr(97 + int(digit)) for digit in str(number)) for number in range(first, first + 100)
        ]
        records = [{"nanos": (START - BEGIN + 5) * SECOND, "body": f"word {word}"} for word in words]
        engine.add("logs", logs(*records))
    shown = found(engine, search(0, 300))
    assert len(shown.found) == PATTERNS_MAX
    assert shown.count == shown.records == 600


def test_records_beyond_the_bound_are_never_new(engine: Engine) -> None:
    words = [" ".join(chr(97 + int(digit)) for digit in str(number)) for number in range(1001)]
    engine.add("logs", logs(*({"nanos": (START - BEGIN) * SECOND, "body": word} for word in words)))
    shown = found(engine, search(0, 300))
    (other,) = [each for each in shown.found if each.template == OTHER]
    assert (other.is_other, other.is_new, other.records, other.example) == (True, False, 1, None)


def test_nothing_is_found_where_nothing_is(engine: Engine) -> None:
    assert found(engine, search(0, 300)) == Patterns([], 0, 0)


@pytest.mark.parametrize("length", [90, 20 * MINUTE, 5 * HOUR, 3 * DAY, 20 * DAY])
def test_every_record_of_the_range_counts_once_at_every_resolution(engine: Engine, length: int) -> None:
    rng = random.Random(length)
    times = [rng.uniform(-2 * length, 2 * length) for _ in range(400)]
    for at in times:
        log(engine, rng.choice(["one", "two", "three"]), round(at, 3))
    searched = search(-length / 3, length / 2, now=2 * length)
    read = pattern_range(searched.range, searched.now)
    whole = [(at - START * MICRO) / MICRO for at in (read.range.begin, read.range.end)]
    expected = sum(whole[0] <= round(at, 3) < whole[1] for at in times)
    shown = found(engine, searched)
    assert sum(each.records for each in shown.found) == shown.records == expected
    assert sum(sum(each.trend) for each in shown.found) == expected
    assert read.range.begin <= searched.range.begin
    assert read.buckets.count <= 40


def test_buckets_are_read_that_retention_has_left(engine: Engine) -> None:
    """Rows of a minute stay for 14 days, those of 5 minutes for 60."""
    log(engine, "long ago", 30)
    read = pattern_range(search(0, 600, now=20 * DAY).range, int((START + 20 * DAY) * MICRO))
    assert read.resolutions[0] == 300
    assert by_template(engine, search(0, 600, now=20 * DAY)) == {"long ago": (1, True)}


LINES = st.one_of(
    st.text(max_size=60),
    st.text(alphabet="ab01 .:-'\"{}=/\t\\<>*…", max_size=700),
    st.builds("user {} said '{}' at {}".format, st.integers(), st.text(max_size=20), st.datetimes()),
)


@given(st.lists(LINES, min_size=1, max_size=5))
def test_the_expression_of_a_template_matches_each_of_its_lines(lines: list[str]) -> None:
    lines = [line.encode("utf-8", "replace").decode() for line in lines]
    for line in lines:
        _, marked = cut(pa.chunked_array([[line]], pa.string()))
        (template,) = templates_of(marked).to_pylist()
        matches = duckdb.execute("SELECT regexp_matches(?, ?)", [line, lines_regex(template)]).fetchone()
        assert matches == (True,), (line, template, lines_regex(template))


def test_the_expression_of_a_template_does_not_match_other_lines() -> None:
    expression = lines_regex(f"order {MASK} took {MASK} (cart.v)")
    rows = {
        "order 17 took 20 ms (cart.v)": True,
        "order 17 took 20 ms (cartXv)": False,
        "an order 17 took 20 ms (cart.v)": False,
        "order 17 took 20 ms (cart.v) again": False,
    }
    for line, expected in rows.items():
        assert duckdb.execute("SELECT regexp_matches(?, ?)", [line, expression]).fetchone() == (expected,)
