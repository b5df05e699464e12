"""Traffic, errors and latency by service: the questions of the overview, and what their answers mean."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# What a service was asked to do: spans of servers and consumers, and roots that nobody asked for.
SPANS = """
SELECT service_name, time_bucket(to_seconds({width}), time, TIMESTAMPTZ '1970-01-01 00:00:00+00') AS step,
       count(*) AS requests, count(*) FILTER (status_code = 2) AS errors,
       approx_quantile(duration_nano, [0.5, 0.95, 0.99]) AS quantiles
FROM spans
WHERE time >= ? AND time < ? AND (kind IN (2, 5) OR parent_span_id IS NULL)
GROUP BY GROUPING SETS ((service_name), (service_name, step), ())
"""
LOGS = """
SELECT service_name, count(*) AS logs, count(*) FILTER (severity_number >= 17) AS errors
FROM logs WHERE time >= ? AND time < ? GROUP BY ALL
"""
UNNAMED = "(no name)"


@dataclass(frozen=True)
class Numbers:
    requests: int
    errors: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None

    @property
    def error_share(self) -> float:
        return self.errors / self.requests if self.requests else 0.0


@dataclass(frozen=True)
class Moment:
    time: dt.datetime
    numbers: Numbers
    seconds: float

    @property
    def requests_per_second(self) -> float:
        return self.numbers.requests / self.seconds


@dataclass(frozen=True)
class Golden:
    whole: Numbers
    by_service: Mapping[str, Numbers]
    by_time: Mapping[str, Mapping[dt.datetime, Numbers]]

    def over_time(
        self, service: str, start: dt.datetime, end: dt.datetime, width_seconds: int
    ) -> list[Moment]:
        """Every step within the range: one without requests is a 0, not a gap that a line is drawn across."""
        known, nothing = self.by_time.get(service, {}), Numbers(0, 0, None, None, None)
        width = dt.timedelta(seconds=width_seconds)
        return [
            # The first and the last step may lie within the range in part.
            Moment(
                time, known.get(time, nothing), (min(end, time + width) - max(start, time)).total_seconds()
            )
            for time in steps(start, end, width_seconds)
        ]


def read_spans(rows: Iterable[Mapping[str, Any]]) -> Golden:
    """The answer to SPANS. A row without a service may be the whole, or of spans without a name."""
    whole, by_service = Numbers(0, 0, None, None, None), {}
    by_time: dict[str, dict[dt.datetime, Numbers]] = defaultdict(dict)
    without: list[Numbers] = []
    for row in rows:
        numbers, service, at = _numbers(row), row["service_name"], row["step"]
        if at is not None:
            by_time[service or UNNAMED][at.replace(tzinfo=at.tzinfo or dt.UTC)] = numbers
        elif service is not None:
            by_service[service] = numbers
        else:
            without.append(numbers)
    if without:  # the whole is the larger of the two
        without.sort(key=lambda numbers: numbers.requests)
        whole = without[-1]
        if len(without) > 1:
            by_service[UNNAMED] = without[0]
    return Golden(whole, by_service, by_time)


def _numbers(row: Mapping[str, Any]) -> Numbers:
    p50, p95, p99 = (_ms(value) for value in row["quantiles"] or (None, None, None))
    return Numbers(row["requests"], row["errors"], p50, p95, p99)


def _ms(nanoseconds: float | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1e6


def steps(start: dt.datetime, end: dt.datetime, width_seconds: int) -> list[dt.datetime]:
    """The start of every bucket from `start` to before `end`."""
    first = int(start.timestamp() // width_seconds) * width_seconds
    last = end.timestamp()
    return [
        dt.datetime.fromtimestamp(moment, dt.UTC)
        for moment in range(first, int(last) + width_seconds, width_seconds)
        if moment < last
    ]
