"""The log records that are shown: a paged listing, or the live tail."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from frazil.dashboard.logs.rows import Record, RecordsByKey, by_key

PAGE_ROWS = 100
_ROWS_MAX = 2_000


@dataclass
class Listing:
    """The pages of records that were read for one search."""

    search_key: str
    """Identifies the search: another search starts another listing."""
    parameters: dict[str, Any] = field(default_factory=dict)
    records: RecordsByKey = field(default_factory=dict)
    next: str | None = None
    warning: str = ""
    pages: int = 0
    _read: list[Record] = field(default_factory=list)

    @property
    def is_frozen(self) -> bool:
        """Whether older pages were loaded: then newer records are not added."""
        return self.pages > 1

    @property
    def has_older(self) -> bool:
        return self.next is not None and len(self.records) < _ROWS_MAX

    @property
    def is_full(self) -> bool:
        return self.next is not None and len(self.records) >= _ROWS_MAX

    def restart(self, parameters: dict[str, Any], response: Mapping[str, Any]) -> None:
        """Replaces all records with the newest page."""
        self.parameters, self.pages, self.warning = parameters, 0, ""
        self._read = []
        self.append(response)

    def append(self, response: Mapping[str, Any]) -> None:
        """Adds the next older page."""
        self._read.extend(response["records"])
        self.records = by_key(self._read)
        self.next, self.pages = response["next"], self.pages + 1
        self.warning = self.warning or missing_of(response)


def missing_of(response: Mapping[str, Any]) -> str:
    """Returns a warning if the response is incomplete, else an empty string."""
    missing = response.get("stats", {}).get("missing") or ()
    return f"Incomplete result: {'; '.join(missing)}" if missing else ""


_TAIL_ROWS_MAX = 500
_TAIL_PAGE_ROWS = 200
_OVERLAP = dt.timedelta(seconds=5)
"""Requests overlap by this much, because records may be acked in another order than they arrive."""
_LATE = dt.timedelta(seconds=60)
"""The highest age of a record when it arrives: senders batch for some seconds. A lower value reads less data.
"""
_EARLY = dt.timedelta(hours=1)
"""How far ahead a sender's clock may be."""


class Tail:
    """The newest records, ordered by their own time. Each request reads only what arrived since the last one,
    so that an idle tail is cheap. Duplicates are shown once.
    """

    def __init__(self, records: Iterable[Record], now: dt.datetime) -> None:
        self.records: RecordsByKey = {}
        self.is_skipping = False
        """More records arrived than one request returns: some are not shown."""
        self._requested, self._arrived = now, now - _LATE
        self._add(by_key(records))

    def parameters(self, now: dt.datetime) -> dict[str, Any]:
        return {
            "from": (self._requested - _LATE).isoformat(),
            "to": (now + _EARLY).isoformat(),
            "received_from": (self._arrived - _OVERLAP).isoformat(),
            "limit": _TAIL_PAGE_ROWS,
        }

    def add(self, records: Iterable[Record], now: dt.datetime, *, is_more: bool) -> int:
        """Adds the response to the request made at `now`. Returns the number of new records."""
        self._requested = now
        found = by_key(records)
        known = len(found.keys() & self.records.keys())
        self.is_skipping = is_more and known == 0
        self._add(found)
        return len(found) - known

    def _add(self, found: RecordsByKey) -> None:
        if not found:
            return
        arrivals = (record["received_time"] for record in found.values() if "received_time" in record)
        newest = max(arrivals, default=None)
        if newest is not None:
            self._arrived = max(self._arrived, dt.datetime.fromisoformat(newest))
        merged = sorted((self.records | found).items(), key=_by_time, reverse=True)
        self.records = dict(merged[:_TAIL_ROWS_MAX])


def _by_time(item: tuple[str, Record]) -> tuple[str, int]:
    _, record = item
    return record["time"], int(record.get("time_unix_nano", 0))
