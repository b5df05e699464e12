"""`GET /api/v1/logs/counts` and `/api/v1/spans/counts`: how many records match, over time.

One question that groups, over the columns of the filters, the time and what is grouped by. The filters are
those of the lists, so that the bars above a list add up to it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import pyarrow as pa
from fastapi import APIRouter, Depends, Query, Request, Response

from frazil.serve import parameters
from frazil.serve.auth import Caller, Reader
from frazil.serve.describe import ERRORS
from frazil.serve.find import From, LogFilter, SpanFilter, To
from frazil.serve.search import Filter, Range, Searched, ask, time_range
from frazil.serve.state import Asked
from frazil.serve.streams import json_unless_gone
from frazil.times import iso

if TYPE_CHECKING:
    from frazil.query.service import Queries

router = APIRouter(prefix="/api/v1", tags=["Search"], dependencies=[Depends(parameters.only_known)])

_MICRO = 1_000_000
_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400
_WIDTHS_SECONDS = (
    *(1, 2, 5, 10, 15, 30),
    *(minutes * _MINUTE for minutes in (1, 2, 5, 10, 15, 30)),
    *(hours * _HOUR for hours in (1, 2, 3, 6, 12)),
    *(days * _DAY for days in (1, 2, 7)),
)
_ORIGIN = -62_135_596_800 * _MICRO
"""The first of January of the year 1, a Monday: weeks begin on Mondays, and no time lies before it."""
_SERIES_MAX = 20

_LEVELS = ("unset", "trace", "debug", "info", "warn", "error", "fatal")
_STATUSES = ("unset", "ok", "error")
_LOGS_BY = ("severity", "service", "none")
_SPANS_BY = ("status", "service", "none")
_GROUPS: dict[str, tuple[str, Sequence[str]]] = {
    "severity": (
        "CASE WHEN severity_number BETWEEN 1 AND 24 THEN (severity_number + 3) // 4 ELSE 0 END",
        _LEVELS,
    ),
    "status": ("CASE WHEN status_code IN (1, 2) THEN status_code ELSE 0 END", _STATUSES),
    "none": ("0", ("all",)),
}
"""What a record counts as: SQL for a number, and the names of the numbers."""

Buckets = Annotated[
    int, Query(description="The most buckets; their width is a round number.", ge=1, le=400, examples=[60])
]

_COUNTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "`counts` has a number for each bucket: the first begins at `first_bucket`, each "
        "takes `bucket_seconds`. Series in which nothing is counted are left out.",
        "content": {
            "application/json": {
                "example": {
                    "from": "2026-11-15T10:00:20.000000Z",
                    "to": "2026-11-15T10:02:50.000000Z",
                    "first_bucket": "2026-11-15T10:00:00.000000Z",
                    "bucket_seconds": 60,
                    "series": [
                        {"name": "info", "counts": [412, 630, 501]},
                        {"name": "error", "counts": [0, 3, 1]},
                    ],
                    "total": 1547,
                    "stats": {"rows": 5, "files": 2, "files_total": 500, "tail_rows": 120},
                }
            }
        },
    }
}


@dataclass(frozen=True)
class Grid:
    """Buckets that cover a range, in microseconds. The first and the last may reach beyond it."""

    first: int
    width: int
    count: int

    @classmethod
    def of(cls, whole: Range, buckets_max: int) -> Grid:
        """The narrowest that has no more buckets; they begin where everyone else's of this width do."""
        for width_seconds in _WIDTHS_SECONDS:
            grid = cls._of_width(whole, width_seconds * _MICRO)
            if grid.count <= buckets_max:
                return grid
        while grid.count > buckets_max:
            grid = cls._of_width(whole, grid.width * 2)
        return grid

    @classmethod
    def _of_width(cls, whole: Range, width: int) -> Grid:
        first = whole.begin - (whole.begin - _ORIGIN) % width
        return cls(first, width, (whole.end - 1 - first) // width + 1)


@dataclass(frozen=True)
class Counting:
    signal: Searched
    filter: Filter
    begin: str
    end: str
    by: str
    buckets_max: int


@router.get(
    "/logs/counts",
    summary="Count logs over time",
    description="How many log records match, in buckets of time, by severity or service. The filters are "
    "those of `/api/v1/logs`.",
    response_class=Response,
    responses=_COUNTS | ERRORS,
)
async def log_counts(
    request: Request,
    caller: Reader,
    queries: Asked,
    filter: LogFilter,
    begin: From = "-1h",
    to: To = "now",
    buckets: Buckets = 60,
    by: Annotated[
        str, Query(description="severity, service or none.", json_schema_extra={"enum": list(_LOGS_BY)})
    ] = "severity",
) -> Response:
    counting = Counting("logs", filter, begin, to, parameters.choice("by", by, _LOGS_BY), buckets)
    return await json_unless_gone(request, count(queries, caller, counting))


@router.get(
    "/spans/counts",
    summary="Count spans over time",
    description="How many spans match, in buckets of time (their start), by status or service. The filters "
    "are those of `/api/v1/spans`.",
    response_class=Response,
    responses=_COUNTS | ERRORS,
)
async def span_counts(
    request: Request,
    caller: Reader,
    queries: Asked,
    filter: SpanFilter,
    begin: From = "-1h",
    to: To = "now",
    buckets: Buckets = 60,
    by: Annotated[
        str, Query(description="status, service or none.", json_schema_extra={"enum": list(_SPANS_BY)})
    ] = "status",
) -> Response:
    counting = Counting("spans", filter, begin, to, parameters.choice("by", by, _SPANS_BY), buckets)
    return await json_unless_gone(request, count(queries, caller, counting))


async def count(queries: Queries, caller: Caller, counting: Counting) -> bytes:
    """The series as JSON."""
    started = time.perf_counter()
    whole = time_range(counting.begin, counting.end)
    grid = Grid.of(whole, counting.buckets_max)
    where, params = whole.where(counting.filter)
    is_of_services = counting.by == "service"
    sql = _by_service(counting.signal, where) if is_of_services else _by_number(counting, where)
    table, stats = await ask(queries, caller, sql, [grid.first, grid.width, *params], "the counts")
    series = _services(table, grid) if is_of_services else _numbered(table, grid, _GROUPS[counting.by][1])
    answer = {
        "from": iso(whole.begin),
        "to": iso(whole.end),
        "first_bucket": iso(grid.first),
        "bucket_seconds": grid.width // _MICRO,
        "series": series,
        "total": sum(table["counted"].to_pylist()),
        "stats": asdict(
            replace(stats, rows=len(table), seconds=round(time.perf_counter() - started, 6)),
        ),
    }
    return orjson.dumps(answer)


def _by_number(counting: Counting, where: str) -> str:
    return _grouped(counting.signal, _GROUPS[counting.by][0], where)


def _by_service(signal: Searched, where: str) -> str:
    """Services in the order of their size. However many there are, few rows come out: the small ones are
    added up before.
    """
    counted = _grouped(signal, "coalesce(service_name, '')", where)
    summed = (
        "SELECT bucket, series, counted, sum(counted) OVER (PARTITION BY series) AS total "  # noqa: S608
        f"FROM ({counted})"
    )
    ranked = (
        "SELECT bucket, series, counted, dense_rank() OVER (ORDER BY total DESC, series) AS place "  # noqa: S608
        f"FROM ({summed})"
    )
    return (
        f"SELECT bucket, least(place, {_SERIES_MAX + 1}) AS place, min(series) AS series, "  # noqa: S608
        f"max(place) AS place_max, CAST(sum(counted) AS BIGINT) AS counted FROM ({ranked}) GROUP BY 1, 2"
    )


def _grouped(signal: Searched, series: str, where: str) -> str:
    bucket = "(epoch_us(time) - CAST(? AS BIGINT)) // CAST(? AS BIGINT)"
    return (
        f"SELECT {bucket} AS bucket, {series} AS series, count(*) AS counted "  # noqa: S608
        f"FROM {signal} WHERE {where} GROUP BY 1, 2"
    )


def _numbered(table: pa.Table, grid: Grid, names: Sequence[str]) -> list[dict[str, Any]]:
    counts = _filled(table, "series", grid)
    return [{"name": names[number], "counts": counts[number]} for number in sorted(counts)]


def _services(table: pa.Table, grid: Grid) -> list[dict[str, Any]]:
    """The largest first; behind them what the others come to, and how many they are."""
    counts = _filled(table, "place", grid)
    names = dict(zip(table["place"].to_pylist(), table["series"].to_pylist(), strict=True))
    series: list[dict[str, Any]] = [
        {"name": names[place], "counts": counts[place]} for place in sorted(counts) if place <= _SERIES_MAX
    ]
    if (rest := counts.get(_SERIES_MAX + 1)) is not None:
        services = max(table["place_max"].to_pylist()) - _SERIES_MAX
        series.append({"name": "other", "counts": rest, "services": services})
    return series


def _filled(table: pa.Table, key: str, grid: Grid) -> dict[int, list[int]]:
    """By the key: a count for each bucket, those in which there is nothing too."""
    counts: dict[int, list[int]] = {}
    columns = (table[name].to_pylist() for name in (key, "bucket", "counted"))
    for series, bucket, counted in zip(*columns, strict=True):
        counts.setdefault(series, [0] * grid.count)[bucket] = counted
    return counts
