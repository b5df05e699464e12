"""Pages of logs and spans, in a total order by time.

A page takes two statements. The first reads only the columns of the filters, and finds the time at which the
page ends; the second reads and sorts whole rows up to that time.

Records have no id. They are sorted by time, exact nanoseconds, trace, span and a hash of all columns. Records
that are equal in all of these are identical: the end of a page counts how many of them were shown.
"""

# ruff: noqa: S608 -- values are parameters
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import pyarrow as pa

from frazil.query.reads.filters import Filter, Searched
from frazil.query.reads.statement import Read, Statement
from frazil.query.reads.time_range import TimeRange
from frazil.tables import table_spec
from frazil.times import iso

Order = Literal["desc", "asc"]
Key = tuple[int, int, str, str, int]
"""Time in microseconds, nanoseconds, trace id, span id, hash."""

_KEY_COLUMNS = ("_nanos", "_trace", "_span", "_hash")
_KEY_MARKS = (
    "CAST(? AS TIMESTAMPTZ), CAST(? AS BIGINT), CAST(? AS VARCHAR), CAST(? AS VARCHAR), CAST(? AS UBIGINT)"
)
_NANOS: dict[Searched, str] = {
    "logs": "coalesce(time_unix_nano, observed_time_unix_nano, 0)",
    "spans": "coalesce(start_time_unix_nano, 0)",
}


@dataclass(frozen=True)
class PageEnd:
    """The position where a page ends and the next one begins."""

    key: Key
    seen: int
    """How many records with this key were shown."""


@dataclass(frozen=True)
class RecordSearch:
    filter: Filter
    range: TimeRange
    order: Order = "desc"
    limit: int = 100
    after: PageEnd | None = None
    """The end of the previous page."""

    @property
    def is_newest_first(self) -> bool:
        return self.order == "desc"


@dataclass(frozen=True)
class Page:
    rows: pa.Table
    """All columns of the table."""
    end: PageEnd | None
    """None on the last page."""


def page(search: RecordSearch) -> Read[Page]:
    edge = yield _edge_statement(search)
    rows = yield _rows_statement(search, _part(search, edge))
    shown = rows.slice(0, search.limit)
    end = _page_end(_keys(shown), search.after) if len(rows) > search.limit else None
    return Page(shown.drop_columns(list(_KEY_COLUMNS)), end)


def stored_log(record: Mapping[str, Any]) -> Statement:
    """Read the stored rows for a log record from the API, with the types of all values: one of them is the
    record.

    The API's JSON has bytes and large integers as text. The statement reads one microsecond of time.
    """
    sql = """SELECT body, body_type, attributes, attribute_types,
  resource_attributes, resource_attribute_types, scope_attributes, scope_attribute_types
FROM logs
WHERE time = CAST(? AS TIMESTAMPTZ) AND received_time = CAST(? AS TIMESTAMPTZ)
  AND coalesce(service_name, '') = ? AND coalesce(trace_id, '') = ? AND coalesce(span_id, '') = ?
LIMIT 100"""
    ids = (record.get(name) or "" for name in ("service_name", "trace_id", "span_id"))
    return Statement(sql, (record["time"], record["received_time"], *ids))


@cache
def record_hash(table: Searched) -> str:
    """Return SQL for a hash of all columns except promoted ones, which are copies."""
    spec = table_spec(table)
    copies = {column.column for column in spec.promoted}
    return f"hash({', '.join(column.name for column in spec.columns if column.name not in copies)})"


def _edge_statement(search: RecordSearch) -> Statement:
    """Find the time at which the page ends. Leaves out records with the time of the last page's end."""
    rest = search.range
    if search.after is not None:
        at = search.after.key[0]
        rest = replace(rest, end=at) if search.is_newest_first else replace(rest, begin=at + 1)
    where = search.filter.where(rest)
    sql = (
        f"SELECT {'min' if search.is_newest_first else 'max'}(time) AS edge, count(*) AS found FROM "
        f"(SELECT time FROM {search.filter.table} WHERE {where.sql} ORDER BY time {search.order} LIMIT ?)"
    )
    return Statement(sql, (*where.params, search.limit + 1))


def _part(search: RecordSearch, edge: pa.Table) -> TimeRange:
    """Return the part of the range that holds the page, plus one record if there is one."""
    rest, is_newest_first = search.range, search.is_newest_first
    if search.after is not None:
        at = search.after.key[0]
        rest = replace(rest, end=at + 1) if is_newest_first else replace(rest, begin=at)
    if edge["found"][0].as_py() <= search.limit:
        return rest
    at = _micros(edge["edge"])[0]
    return replace(rest, begin=at) if is_newest_first else replace(rest, end=at + 1)


def _rows_statement(search: RecordSearch, part: TimeRange) -> Statement:
    table, where = search.filter.table, search.filter.where(part)
    keyed = (
        f"SELECT *, {_NANOS[table]} AS _nanos, coalesce(trace_id, '') AS _trace, "
        f"coalesce(span_id, '') AS _span, {record_hash(table)} AS _hash FROM {table} WHERE {where.sql}"
    )
    columns = ("time", *_KEY_COLUMNS)
    params, beyond, seen = where.params, "", 0
    if search.after is not None:
        at, *rest, hashed = search.after.key
        params += [iso(at), *rest, str(hashed)]
        sign = "<=" if search.is_newest_first else ">="
        beyond, seen = f"WHERE ({', '.join(columns)}) {sign} ({_KEY_MARKS})", search.after.seen
    by = ", ".join(f"{name} {search.order}" for name in columns)
    sql = f"SELECT * FROM ({keyed}) {beyond} ORDER BY {by} LIMIT ? OFFSET ?"
    return Statement(sql, (*params, search.limit + 1, seen))


def _page_end(keys: Sequence[Key], previous: PageEnd | None) -> PageEnd:
    last = keys[-1]
    seen = 0
    for key in reversed(keys):
        if key != last:
            break
        seen += 1
    if previous is not None and seen == len(keys) and previous.key == last:
        seen += previous.seen
    return PageEnd(last, seen)


def _keys(rows: pa.Table) -> list[Key]:
    columns = (rows[name].to_pylist() for name in _KEY_COLUMNS)
    return list(zip(_micros(rows["time"]), *columns, strict=True))


def _micros(times: pa.ChunkedArray) -> list[int]:
    found: list[int] = times.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
    return found
