"""The filters of logs and spans. Lists, counts and traces compile them here alone: they never disagree."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from frazil.query.reads.statement import Conditions
from frazil.query.reads.time_range import TimeRange
from frazil.times import iso

Searched = Literal["logs", "spans"]

SEVERITIES = ("trace", "debug", "info", "warn", "error", "fatal")
"""Each has four numbers, from 1 on."""
SPAN_KINDS = ("unspecified", "internal", "server", "client", "producer", "consumer")
STATUSES = ("unset", "ok", "error")
STATUS_ERROR = STATUSES.index("error")

_SPAN_TEXT = "concat_ws(' ', name, status_message)"
# Texts of events, such as exceptions: their names and the values of their attributes. Most spans have no
# events: only the others are looked at more closely.
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


@dataclass(frozen=True, kw_only=True)
class Filter(ABC):
    """Conditions on the rows of a table. All that are given must hold."""

    table: ClassVar[Searched]
    services: Sequence[str] = ()
    """One of these."""
    trace_id: str | None = None
    words: str | None = None
    """All of them occur, in any order and case."""
    regex: str | None = None
    """RE2; matches somewhere in the text."""
    attributes: Sequence[tuple[str, str]] = ()
    """Key and value: of the record, of its resource, or of an event of a span."""

    def where(self, range: TimeRange) -> Conditions:
        where = Conditions.within(range)
        if self.services:
            where.add_in("service_name", self.services)
        self._add_own(where)
        if self.trace_id is not None:
            where.add("trace_id = ?", self.trace_id)
        if self.words and self.words.strip():
            where.add(_WORDS[self.table], *[self.words] * _WORDS[self.table].count("?"))
        if self.regex:
            where.add(_REGEX[self.table], *[self.regex] * _REGEX[self.table].count("?"))
        condition = _ATTRIBUTE[self.table]
        for pair in self.attributes:
            where.add(condition, *pair * (condition.count("?") // 2))
        return where

    @abstractmethod
    def _add_own(self, where: Conditions) -> None:
        """Adds conditions that only this table has."""


@dataclass(frozen=True, kw_only=True)
class LogFilter(Filter):
    table: ClassVar[Searched] = "logs"
    severity_min: int | None = None
    received_from: int | None = None
    """Microseconds since 1970: received then or later, at whatever time the record itself claims."""

    def _add_own(self, where: Conditions) -> None:
        if self.severity_min is not None:
            where.add("severity_number >= ?", self.severity_min)
        if self.received_from is not None:
            where.add("received_time >= CAST(? AS TIMESTAMPTZ)", iso(self.received_from))


@dataclass(frozen=True, kw_only=True)
class SpanFilter(Filter):
    table: ClassVar[Searched] = "spans"
    name: str | None = None
    kind: int | None = None
    status: int | None = None
    duration_nano_min: int | None = None
    duration_nano_max: int | None = None

    def _add_own(self, where: Conditions) -> None:
        for condition, value in (
            ("name = ?", self.name),
            ("kind = ?", self.kind),
            ("coalesce(status_code, 0) = ?", self.status),
            ("duration_nano >= ?", self.duration_nano_min),
            ("duration_nano <= ?", self.duration_nano_max),
        ):
            if value is not None:
                where.add(condition, value)
