"""Numbers and times as people read them."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.dashboard import format
from frazil.query.reads.metrics import Metric


@pytest.mark.parametrize(
    ("milliseconds", "said"),
    [
        (None, "–"),
        (0, "0 µs"),
        (0.25, "250 µs"),
        (0.9996, "1.0 ms"),
        (99.97, "100 ms"),
        (999.7, "1.00 s"),
        (59_996, "1 min 00 s"),
        (3.14159, "3.1 ms"),
        (250, "250 ms"),
        (1500, "1.50 s"),
        (90_000, "1 min 30 s"),
    ],
)
def test_durations(milliseconds: float | None, said: str) -> None:
    assert format.format_duration(milliseconds) == said


@pytest.mark.parametrize(
    ("per_second", "said"),
    [
        (0, "0/s"),
        (1.25, "1.2/s"),
        (0.997, "1/s"),
        (0.5, "30/min"),
        (1 / 60, "1/min"),
        (0.01, "36/h"),
        (1 / 86_400, "1/d"),
        (1 / 864_000, "0.1/d"),
        (12_345, "12.3 k/s"),
    ],
)
def test_a_low_rate_is_given_by_the_minute_hour_or_day(per_second: float, said: str) -> None:
    assert format.format_rate(per_second) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(-5, "now"), (59, "now"), (60, "1 min ago"), (7300, "2 h ago"), (200_000, "2 d ago")],
)
def test_an_age_is_given_in_its_largest_unit(seconds: float, said: str) -> None:
    assert format.format_ago(seconds) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, "–"),
        (0.05, "50 ms"),
        (2.5, "2.5 s"),
        (0.9999, "1.0 s"),
        (59.7, "1 min 00 s"),
        (119.7, "2 min 00 s"),
        (3599.9, "1 h 00 min"),
        (59, "59 s"),
        (61, "1 min 01 s"),
        (3700, "1 h 01 min"),
        (90_000, "1 d 1 h"),
    ],
)
def test_lengths_of_time(seconds: float | None, said: str) -> None:
    assert format.format_elapsed(seconds) == said


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (None, "–"),
        (0, "0"),
        (0.25, "0.25"),
        (0.000_02, "<0.0001"),
        (99.4, "99"),
        (99.5, "100"),
        (99.7, "100"),
        (-99.7, "-100"),
        (1234, "1,234"),
        (12_345, "12.3 k"),
        (999_600, "1 M"),
        (5e15, "5,000 T"),
        (1_500_000, "1.5 M"),
        (2e9, "2 G"),
    ],
)
def test_counts(number: float | None, said: str) -> None:
    assert format.format_count(number) == said


@pytest.mark.parametrize(
    ("count_bytes", "said"),
    [
        (None, "–"),
        (0, "0 B"),
        (999, "999 B"),
        (1500, "1.5 kB"),
        (5e9, "5 GB"),
        (999_600, "1 MB"),
        (5e15, "5,000 TB"),
    ],
)
def test_sizes(count_bytes: float | None, said: str) -> None:
    assert format.format_size(count_bytes) == said


POSITIVE = st.floats(0, 1e12) | st.floats(0, 1000)
NEXT = dict.fromkeys(("µs", "ms", "B", "kB", "MB", "GB", "k", "M", "G"), 1000) | {"s": 60, "min": 60, "h": 24}
"""How much of each unit is one of the next."""


@given(
    st.sampled_from([format.format_duration, format.format_elapsed, format.format_count, format.format_size]),
    POSITIVE,
)
def test_no_number_has_an_exponent_or_is_as_much_as_one_of_the_next_unit(
    say: Callable[[float], str], number: float
) -> None:
    said = say(number)
    parts = said.split()
    assert all(re.fullmatch(r"<?[\d,]+(\.\d+)?", part) for part in parts[::2]), said
    for value, unit in zip(parts[::2], parts[1::2], strict=False):
        assert float(value.replace(",", "")) < NEXT.get(unit, math.inf), said


def test_clocks_are_in_utc() -> None:
    there = dt.timezone(dt.timedelta(hours=2))
    assert format.format_clock(dt.datetime(2026, 11, 15, 1, 2, 3, 456789, there)) == "23:02:03.456"


@given(st.text())
def test_text_from_elsewhere_has_no_sign_that_means_something_in_markdown(text: str) -> None:
    said = format.escape_markdown(text)
    assert said.replace("\\\\", "").count("`") == said.replace("\\\\", "").count("\\`")
    assert "\n" not in said


def test_plain_text_stays_readable() -> None:
    assert format.escape_markdown("a *b* [c](d) <e>") == r"a \*b\* \[c\]\(d\) \<e\>"


@pytest.mark.parametrize(
    ("type", "unit", "aggregation", "expected"),
    [
        ("sum", "{order}", "rate", "order/s"),
        ("sum", "{order}", "increase", "order per 5 min"),
        ("sum", "By", "total", "bytes"),
        ("gauge", "1", "average", ""),
        ("sum", "", "rate", "per second"),
        ("sum", "", "increase", "per 5 min"),
        ("histogram", "ms", "p95", "ms"),
        ("histogram", "ms", "rate", "measurements/s"),
    ],
)
def test_the_axis_says_the_unit(type: str, unit: str, aggregation: Any, expected: str) -> None:
    metric = Metric("m", type, unit, "", (), True, True, 1)
    assert format.axis_unit(metric, aggregation, 300) == expected


def test_a_message_is_a_sentence_and_has_its_commands_as_code() -> None:
    message = "the key *is* not <valid>: run `frazil keys new`"
    assert format.message_markdown(message) == "The key \\*is\\* not \\<valid\\>\\: run `frazil keys new`."
    assert format.message_html(message) == "The key *is* not &lt;valid&gt;: run <code>frazil keys new</code>."
    assert format.message_markdown("did you mean `x`?") == "Did you mean `x`?"
    assert format.message_markdown("one ` alone") == "One \\` alone."
