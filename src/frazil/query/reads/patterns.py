"""Templates of log lines: how often, since when, and whether they are new; from `log_patterns`."""

# ruff: noqa: S608 -- values are parameters
from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from frazil.query.reads.rolled import POINTS_MIN, aligned, finest, pieces
from frazil.query.reads.statement import Conditions, Statement
from frazil.query.reads.time_range import MICRO, Buckets, TimeRange
from frazil.tables import table_specs
from frazil.tables.derived.log_patterns import LINE_CHARS_MAX, MASK, OTHER_ID

PATTERNS_MAX = 500
_NAME = "log_patterns"
_BUCKETS_MAX = 40
_SERVICES_MAX = 3
_BEFORE_SECONDS_MIN = 86_400
"""A template is new if it was not seen in the period of the same length before the range, or in this time."""
_HOUR = 3600


@dataclass(frozen=True, kw_only=True)
class PatternSearch:
    range: TimeRange
    now: int
    services: Sequence[str] = ()
    severity_min: int | None = None
    words: Sequence[str] = ()
    """Words that must all occur in the template, in any order and case."""


@dataclass(frozen=True)
class PatternRange:
    """What is read: whole buckets of the range, and the period before it."""

    range: TimeRange
    before: TimeRange
    buckets: Buckets
    resolutions: Sequence[int]


@dataclass(frozen=True)
class Pattern:
    id: int
    template: str
    services: Sequence[str]
    """Those with the most records."""
    service_count: int
    severity: int | None
    """The highest severity of its records."""
    records: int
    trend: Sequence[int]
    """Records by bucket."""
    first_time: dt.datetime
    """Of the first record in the range and the period before it."""
    last_time: dt.datetime
    is_new: bool
    example: str | None

    @property
    def is_other(self) -> bool:
        """The records whose templates were too many to be counted one by one."""
        return self.id == OTHER_ID


@dataclass(frozen=True)
class Patterns:
    found: Sequence[Pattern]
    """New ones first, then those with the most records; at most `PATTERNS_MAX`."""
    records: int
    """Of all matching templates, also of those that were left out."""
    count: int
    """The number of matching templates."""


def pattern_range(range: TimeRange, now: int) -> PatternRange:
    derived = table_specs()[_NAME].derived
    assert derived is not None  # noqa: S101
    kept = [each for each in derived.resolutions if each >= (finest(_NAME, range.begin, now) or _HOUR)]
    fitting = [each for each in kept if each <= _HOUR and range.seconds / each >= POINTS_MIN]
    step = fitting[-1] if fitting else kept[0]
    whole = aligned(range, step, now)
    length = max(whole.end - whole.begin, _BEFORE_SECONDS_MIN * MICRO)
    before = TimeRange(
        aligned(TimeRange(whole.begin - length, whole.begin), max(step, _HOUR), now).begin, whole.begin
    )
    at_most = _BUCKETS_MAX
    buckets = Buckets.of(whole, at_most)
    while buckets.seconds % step:
        at_most -= 1
        buckets = Buckets.of(whole, at_most)
    return PatternRange(whole, before, buckets, [each for each in (step, _HOUR, 86_400) if each >= step])


def log_patterns(search: PatternSearch) -> Statement:
    """Return the templates of the range, each with its figures."""
    read = pattern_range(search.range, search.now)
    columns = (
        "pattern_id, template, service_name, severity_number, time, records, first_time, last_time, example"
    )
    parts, params = [], []
    for is_inside, range, resolutions in (
        (True, read.range, read.resolutions[:1]),
        (False, read.before, sorted(set(read.resolutions))),
    ):
        for resolution, piece in pieces(range, resolutions):
            where = _where(search, piece, resolution)
            parts.append(
                f"SELECT {columns}, {str(is_inside).lower()} AS is_inside FROM {_NAME} WHERE {where.sql}"
            )
            params += where.params
    sql = f"""
WITH every AS ({" UNION ALL ".join(parts)}),
inside AS (SELECT *, {Buckets.SQL} AS bucket FROM every WHERE is_inside),
top AS (
  SELECT pattern_id, any_value(template) AS template, max(severity_number) AS severity,
         CAST(sum(records) AS BIGINT) AS records,
         min(first_time) AS first_inside, max(last_time) AS last_time,
         count(DISTINCT coalesce(service_name, '')) AS service_count, min_by(example, first_time) AS example,
         CAST(sum(sum(records)) OVER () AS BIGINT) AS all_records, count(*) OVER () AS all_patterns
  FROM inside GROUP BY pattern_id),
earlier AS (
  SELECT pattern_id, min(first_time) AS first_before FROM every WHERE NOT is_inside GROUP BY pattern_id),
shown AS (
  SELECT top.*, first_before FROM top LEFT JOIN earlier USING (pattern_id)
  ORDER BY first_before IS NULL DESC, records DESC, pattern_id LIMIT {PATTERNS_MAX}),
by_bucket AS (
  SELECT pattern_id, list({{'bucket': bucket, 'records': records}}) AS trend
  FROM (SELECT pattern_id, bucket, CAST(sum(records) AS BIGINT) AS records
        FROM inside SEMI JOIN shown USING (pattern_id) GROUP BY ALL) GROUP BY pattern_id),
by_service AS (
  SELECT pattern_id, list(service ORDER BY records DESC, service)[1:{_SERVICES_MAX}] AS services
  FROM (SELECT pattern_id, coalesce(service_name, '') AS service, sum(records) AS records
        FROM inside SEMI JOIN shown USING (pattern_id) GROUP BY ALL) GROUP BY pattern_id)
SELECT shown.*, trend, services
FROM shown LEFT JOIN by_bucket USING (pattern_id) LEFT JOIN by_service USING (pattern_id)"""
    return Statement(sql, (*params, read.buckets.first, read.buckets.width))


def _where(search: PatternSearch, range: TimeRange, resolution: int) -> Conditions:
    where = Conditions.within(range)
    where.add("resolution = ?", resolution)
    if search.services:
        where.add_in("service_name", search.services)
    if search.severity_min is not None:
        where.add("severity_number >= ?", search.severity_min)
    if search.words:
        where.add("search(template, ?)", " ".join(search.words))
    return where


def patterns(rows: Iterable[Mapping[str, Any]], search: PatternSearch) -> Patterns:
    """Read the result of `log_patterns`."""
    read = pattern_range(search.range, search.now)
    found, records, count = [], 0, 0
    for row in rows:
        records, count = row["all_records"], row["all_patterns"]
        trend = [0] * read.buckets.count
        for each in row["trend"]:
            trend[each["bucket"]] += each["records"]
        before = row["first_before"]
        found.append(
            Pattern(
                row["pattern_id"],
                row["template"],
                row["services"],
                row["service_count"],
                row["severity"],
                row["records"],
                trend,
                (before or row["first_inside"]).astimezone(dt.UTC),
                row["last_time"].astimezone(dt.UTC),
                is_new=before is None and row["pattern_id"] != OTHER_ID,
                example=row["example"],
            )
        )
    found.sort(key=lambda each: (not each.is_new, -each.records, each.id))
    return Patterns(found, records, count)


_SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$/-]")
_ENDS = re.compile(r"(?:<|<\*)?\Z")


def lines_regex(template: str) -> str:
    """Return a regular expression (RE2) that matches every line of a template. It may match other lines too:
    a mask stands for any text.

    White space was collapsed, single quotes may have become double ones, and the end of a long line was cut.
    """
    is_cut = template.endswith("…") or len(template) >= LINE_CHARS_MAX
    text = template.rstrip("…").rstrip() if template.endswith("…") else template
    if is_cut:
        text = _ENDS.sub("", text)
    pattern = ".+".join(_literal(part) for part in text.split(MASK))
    return f"(?s)^[\\s\\v]*{pattern}" + ("" if is_cut else "[\\s\\v]*$")


def _literal(text: str) -> str:
    escaped = _SPECIAL.sub(r"\\\g<0>", text)
    return escaped.replace('"', "[\"']").replace(" ", "\\s+")
