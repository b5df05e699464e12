"""The versions of services that sent spans, from `service_versions`."""

# ruff: noqa: S608 -- values are parameters
from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from frazil.query.reads.rolled import aligned
from frazil.query.reads.statement import Conditions, Statement
from frazil.query.reads.time_range import MICRO, TimeRange

_HOUR, _DAY = 3600, 86_400
HISTORY_DAYS = 30
"""How long before the range a version is looked for, to tell since when it runs."""
VERSIONS_MAX = 200


@dataclass(frozen=True)
class Version:
    service: str
    version: str
    """Empty if the service does not send its version."""
    environment: str
    first_time: dt.datetime
    is_first_known: bool
    """The version was first seen within `HISTORY_DAYS`. Otherwise it may have run before `first_time`."""
    last_time: dt.datetime
    requests: int
    """In the hours of the range."""
    errors: int

    @property
    def error_share(self) -> float:
        return self.errors / self.requests if self.requests else 0.0


def service_versions(range: TimeRange, now: int, service: str | None = None) -> Statement:
    """Return the versions that sent spans in the range, the newest first: the newest one of each service, or
    all of one service.
    """
    hours = aligned(range, _HOUR, now)
    history = aligned(TimeRange(hours.begin - HISTORY_DAYS * _DAY * MICRO, hours.end), _DAY, now)
    inside, before = Conditions.within(hours), Conditions.within(history)
    for where, resolution in ((inside, _HOUR), (before, _DAY)):
        where.add("resolution = ?", resolution)
        if service is not None:
            where.add("service_name = ?", service)
    key = "service_name, service_version, deployment_environment_name"
    newest = (
        ""
        if service is not None
        else f"QUALIFY row_number() OVER (PARTITION BY service_name ORDER BY min(first_time) DESC, {key}) = 1"
    )
    sql = f"""
SELECT {key}, min(first_time) AS first_time, max(last_time) AS last_time,
       CAST(coalesce(sum(requests) FILTER (is_inside), 0) AS BIGINT) AS requests,
       CAST(coalesce(sum(request_errors) FILTER (is_inside), 0) AS BIGINT) AS request_errors,
       min(time) = CAST(? AS TIMESTAMPTZ) AS is_old
FROM (SELECT {key}, time, first_time, last_time, requests, request_errors, true AS is_inside
      FROM service_versions WHERE {inside.sql}
      UNION ALL
      SELECT {key}, time, first_time, last_time, requests, request_errors, false
      FROM service_versions WHERE {before.sql})
GROUP BY {key}
HAVING bool_or(is_inside)
{newest}
ORDER BY first_time DESC LIMIT {VERSIONS_MAX if service is not None else 1000}"""
    return Statement(sql, (history.start_time.isoformat(), *inside.params, *before.params))


def versions(rows: Iterable[Mapping[str, Any]]) -> Sequence[Version]:
    """Read the result of `service_versions`."""
    found = [
        Version(
            row["service_name"] or "",
            row["service_version"] or "",
            row["deployment_environment_name"] or "",
            row["first_time"].astimezone(dt.UTC),
            not row["is_old"],
            row["last_time"].astimezone(dt.UTC),
            row["requests"],
            row["request_errors"],
        )
        for row in rows
    ]
    return sorted(found, key=lambda each: (-each.first_time.timestamp(), each.service, each.version))
