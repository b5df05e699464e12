"""Pages of records by the usual filters, newest first.

A page is found with two questions. The first looks at the columns of the filters only, and finds the time at
which the page ends; the second reads whole rows, and sorts them into their total order, within that time
alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import orjson
import pyarrow as pa

from frazil.errors import RequestInvalid
from frazil.query.model import Answer, Question, Stats
from frazil.serve import parameters
from frazil.serve.auth import Caller
from frazil.serve.cursor import Cursor, Key, page_end
from frazil.serve.records import as_json
from frazil.serve.streams import collected
from frazil.tables import DEFAULT_PROMOTED, table_spec
from frazil.times import iso

if TYPE_CHECKING:
    from frazil.query.service import Queries

Order = Literal["desc", "asc"]
Searched = Literal["logs", "spans"]

_PAGE_BYTES_MAX = 64 << 20
_KEY_COLUMNS = ("_nanos", "_trace", "_span", "_hash")
_NANOS: dict[Searched, str] = {
    "logs": "coalesce(time_unix_nano, observed_time_unix_nano, 0)",
    "spans": "coalesce(start_time_unix_nano, 0)",
}
_SPAN_TEXT = "concat_ws(' ', name, status_message)"
# What events say, such as exceptions: their names and the values of their attributes. Most spans have none:
# only the others are looked at more closely.
_EVENT_TEXTS = "flatten(list_transform(events, lambda e: list_prepend(e.name, map_values(e.attributes))))"
_WORDS: dict[Searched, str] = {
    "logs": "search(body, ?)",
    "spans": f"(search({_SPAN_TEXT}, ?) OR (len(events) > 0 AND "
    f"search(concat_ws(' ', {_SPAN_TEXT}, array_to_string({_EVENT_TEXTS}, ' ')), ?)))",
}
_REGEX: dict[Searched, str] = {
    "logs": "regexp_matches(body, ?)",
    # Each text by itself: `^` and `$` are its own beginning and end.
    "spans": f"(regexp_matches({_SPAN_TEXT}, ?) OR (len(events) > 0 AND "
    f"len(list_filter({_EVENT_TEXTS}, lambda t: regexp_matches(t, ?))) > 0))",
}
_ATTRIBUTE: dict[Searched, str] = {
    "logs": "(attributes[?] = ? OR resource_attributes[?] = ?)",
    "spans": "(attributes[?] = ? OR resource_attributes[?] = ? OR (len(events) > 0 AND "
    "len(list_filter(events, lambda e: e.attributes[?] = ?)) > 0))",
}
"""SQL with the key and the value for each place that is looked at."""


@cache
def record_hash(signal: Searched) -> str:
    """SQL: a hash of all that was sent, and of when it arrived. Promoted columns are copies."""
    copies = {column.column for column in DEFAULT_PROMOTED}
    return f"hash({', '.join(c.name for c in table_spec(signal).columns if c.name not in copies)})"


@dataclass
class Filter:
    """Conditions of SQL, and the values for their `?`. Nothing that a client sent is in the SQL itself."""

    conditions: list[str] = field(default_factory=list)
    params: list[Any] = field(default_factory=list)

    def add(self, condition: str, *params: Any) -> None:
        self.conditions.append(condition)
        self.params.extend(params)

    def services(self, names: Sequence[str]) -> None:
        if names:
            marks = ", ".join("?" for _ in names)
            self.add("service_name = ?" if len(names) == 1 else f"service_name IN ({marks})", *names)

    def text(self, signal: Searched, words: str | None, regex: str | None) -> None:
        if words and words.strip():
            self.add(_WORDS[signal], *[words] * _WORDS[signal].count("?"))
        if regex:
            self.add(_REGEX[signal], *[regex] * _REGEX[signal].count("?"))

    def attributes(self, signal: Searched, pairs: Sequence[str]) -> None:
        """Of the record, of its resource, or of an event of a span."""
        condition = _ATTRIBUTE[signal]
        for pair in pairs:
            self.add(condition, *parameters.attribute(pair) * (condition.count("?") // 2))


@dataclass(frozen=True)
class Search:
    signal: Searched
    filter: Filter
    begin: str
    end: str
    order: Order
    limit: int
    cursor: str | None

    @property
    def digest(self) -> str:
        """Of everything but the size of a page."""
        parts = [self.signal, self.order, self.begin, self.end, self.filter.conditions, self.filter.params]
        return hashlib.sha256(orjson.dumps(parts)).hexdigest()[:16]


@dataclass(frozen=True)
class Range:
    """`time >= begin AND time < end`, in microseconds."""

    begin: int
    end: int

    def where(self, filter: Filter) -> tuple[str, list[Any]]:
        bounds = ["time >= CAST(? AS TIMESTAMPTZ)", "time < CAST(? AS TIMESTAMPTZ)"]
        values = [iso(self.begin), iso(self.end), *filter.params]
        return " AND ".join([*bounds, *filter.conditions]), values


async def find(queries: Queries, caller: Caller, search: Search) -> bytes:
    """The page as JSON: records, where the next begins, and what it cost."""
    started = time.perf_counter()
    cursor = None if search.cursor is None else Cursor.parse(search.cursor, search.digest)
    whole = time_range(search.begin, search.end) if cursor is None else Range(cursor.begin, cursor.end)
    edge, first = await _edge(queries, caller, search, whole, cursor)
    rows, second = await _rows(queries, caller, search, edge, cursor)
    stats = replace(together(first, second), seconds=round(time.perf_counter() - started, 6))
    return await asyncio.to_thread(_page, search, whole, cursor, rows, stats)


def time_range(begin: str, end: str) -> Range:
    """`from` and `to` as a client wrote them, seen from one and the same now."""
    now = time.time()
    found = Range(parameters.moment("from", begin, now), parameters.moment("to", end, now))
    if found.begin >= found.end:
        raise RequestInvalid("`from` must be before `to`")
    return found


async def _edge(
    queries: Queries, caller: Caller, search: Search, whole: Range, cursor: Cursor | None
) -> tuple[Range, Stats]:
    """The part of the range that holds the page, and one record more if there is one.

    Of the records with the cursor's own time some are on the page before: all of them are looked at again.
    """
    newest_first = search.order == "desc"
    rest = whole
    if cursor is not None:
        at = cursor.key[0]
        rest = replace(whole, end=at) if newest_first else replace(whole, begin=at + 1)
    where, params = rest.where(search.filter)
    sql = (
        f"SELECT {'min' if newest_first else 'max'}(time) AS edge, count(*) AS found FROM "  # noqa: S608
        f"(SELECT time FROM {search.signal} WHERE {where} ORDER BY time {search.order} LIMIT ?)"
    )
    table, stats = await ask(queries, caller, sql, [*params, search.limit + 1])
    rest = Range(
        rest.begin if newest_first or cursor is None else cursor.key[0],
        rest.end if not newest_first or cursor is None else cursor.key[0] + 1,
    )
    row = table.select(["edge", "found"])
    if row["found"][0].as_py() <= search.limit:
        return rest, stats
    at = row["edge"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())[0].as_py()
    return (replace(rest, begin=at) if newest_first else replace(rest, end=at + 1)), stats


async def _rows(
    queries: Queries, caller: Caller, search: Search, part: Range, cursor: Cursor | None
) -> tuple[pa.Table, Stats]:
    where, params = part.where(search.filter)
    nanos, hashed = _NANOS[search.signal], record_hash(search.signal)
    keyed = (
        f"SELECT *, {nanos} AS _nanos, coalesce(trace_id, '') AS _trace, "  # noqa: S608
        f"coalesce(span_id, '') AS _span, {hashed} AS _hash FROM {search.signal} WHERE {where}"
    )
    beyond = ""
    if cursor is not None:
        beyond = "WHERE " + _not_before(search.order)
        params += _not_before_params(cursor.key)
    by = ", ".join(f"{name} {search.order}" for name in ("time", *_KEY_COLUMNS))
    sql = f"SELECT * FROM ({keyed}) {beyond} ORDER BY {by} LIMIT ? OFFSET ?"  # noqa: S608
    seen = 0 if cursor is None else cursor.seen
    return await ask(queries, caller, sql, [*params, search.limit + 1, seen])


def _not_before(order: Order) -> str:
    """The cursor's key or one behind it. Nothing here is NULL."""
    sign = "<" if order == "desc" else ">"
    time_, nanos, trace, span, hashed = (
        "CAST(? AS TIMESTAMPTZ)",
        "CAST(? AS BIGINT)",
        "CAST(? AS VARCHAR)",
        "CAST(? AS VARCHAR)",
        "CAST(? AS UBIGINT)",
    )
    return (
        f"(time {sign} {time_} OR (time = {time_} AND (_nanos {sign} {nanos} OR (_nanos = {nanos} AND "
        f"(_trace {sign} {trace} OR (_trace = {trace} AND (_span {sign} {span} OR (_span = {span} AND "
        f"_hash {sign}= {hashed}))))))))"
    )


def _not_before_params(key: Key) -> list[Any]:
    at, nanos, trace, span, hashed = key
    twice = [iso(at), nanos, trace, span]
    return [value for part in twice for value in (part, part)] + [str(hashed)]


async def ask(
    queries: Queries, caller: Caller, sql: str, params: Sequence[Any], what: str = "the page"
) -> tuple[pa.Table, Stats]:
    question = Question(sql, caller.tenant, params=tuple(params), format="arrow", who=caller.name)
    answer = await queries.ask(question)
    return await arrow(answer, what), answer.stats


async def arrow(answer: Answer, what: str) -> pa.Table:
    body = await collected(answer, _PAGE_BYTES_MAX, what)
    return pa.ipc.open_stream(body).read_all()


def together(first: Stats, second: Stats) -> Stats:
    """The first question looks at the most; what either lacked, the page lacks."""
    return replace(
        first,
        id=second.id,
        queued_seconds=first.queued_seconds + second.queued_seconds,
        stale=second.stale or first.stale,
        missing=tuple(dict.fromkeys([*first.missing, *second.missing])),
        snapshots=second.snapshots,
    )


def _page(search: Search, whole: Range, cursor: Cursor | None, rows: pa.Table, stats: Stats) -> bytes:
    shown = rows.slice(0, search.limit)
    after = None
    if len(rows) > search.limit:
        after = page_end(whole.begin, whole.end, search.digest, _keys(shown), cursor).text()
    records = as_json(shown.drop_columns(list(_KEY_COLUMNS)))
    page = {"records": records, "next": after, "stats": asdict(replace(stats, rows=len(records)))}
    return orjson.dumps(page)


def _keys(rows: pa.Table) -> list[Key]:
    times = rows["time"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
    return list(zip(times, *(rows[name].to_pylist() for name in _KEY_COLUMNS), strict=True))
