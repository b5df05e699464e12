"""The filters of logs and spans. Lists, counts and trace searches share them, so their results agree."""

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
"""Each severity has four numbers, starting at 1."""
SPAN_KINDS = ("unspecified", "internal", "server", "client", "producer", "consumer")
STATUSES = ("unset", "ok", "error")
STATUS_ERROR = STATUSES.index("error")

_SPAN_TEXT = "concat_ws(' ', name, status_message)"
# Texts of events, such as exceptions: names and attribute values. Evaluated only for spans that have events.
_EVENT_TEXTS = "flatten(list_transform(events, lambda e: list_prepend(e.name, map_values(e.attributes))))"
_WORDS: dict[Searched, str] = {
    "logs": "search(body, ?)",
    "spans": f"(search({_SPAN_TEXT}, ?) OR (len(events) > 0 AND "
    f"search(concat_ws(' ', {_SPAN_TEXT}, array_to_string({_EVENT_TEXTS}, ' ')), ?)))",
}
_REGEX: dict[Searched, str] = {
    "logs": "regexp_matches(body, ?)",
    # Each text is matched separately, so that `^` and `$` match its own beginning and end.
    "spans": f"(regexp_matches({_SPAN_TEXT}, ?) OR (len(events) > 0 AND "
    f"len(list_filter({_EVENT_TEXTS}, lambda t: regexp_matches(t, ?))) > 0))",
}
_ATTRIBUTE: dict[Searched, str] = {
    "logs": "(attributes[?] = ? OR resource_attributes[?] = ?)",
    "spans": "(attributes[?] = ? OR resource_attributes[?] = ? OR (len(events) > 0 AND "
    "len(list_filter(events, lambda e: e.attributes[?] = ?)) > 0))",
}
"""SQL with a key and a value parameter for each attribute map."""


@dataclass(frozen=True, kw_only=True)
class Filter(ABC):
    """Conditions on the rows of a table. A row must meet all of them."""

    table: ClassVar[Searched]
    services: Sequence[str] = ()
    """Names of which one must match."""
    trace_id: str | None = None
    words: str | None = None
    """Words that must all occur, in any order and case."""
    regex: str | None = None
    """An RE2 expression that must match anywhere in the text."""
    attributes: Sequence[tuple[str, str]] = ()
    """Keys and values of attributes of the record, of its resource, or of a span's event."""

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
        """Add conditions that only this table has."""


@dataclass(frozen=True, kw_only=True)
class LogFilter(Filter):
    table: ClassVar[Searched] = "logs"
    severity_min: int | None = None
    received_from: int | None = None
    """The earliest time of arrival, in microseconds since 1970, independent of the record's own time."""

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
