"""Following the logs: what to ask for next, and what of the answer is new."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any

from frazil.dashboard.logs.rows import Keyed, Record, keyed

_ROWS_MAX = 500
_PAGE_ROWS = 200
_OVERLAP = dt.timedelta(seconds=5)
"""What arrived first may be acked last: so far before the newest arrival the next question begins."""
_LATE = dt.timedelta(seconds=60)
"""How old by its own time a record may be when it arrives: senders collect for some seconds. Less is read the
shorter it is."""
_EARLY = dt.timedelta(hours=1)
"""How far ahead a sender's clock may be."""


class Tail:
    """The newest records, by their own time. Each question is about what has arrived since the last one, so
    that nothing new costs nearly nothing; what comes twice is shown once.
    """

    def __init__(self, records: Iterable[Record], now: dt.datetime) -> None:
        self.records: Keyed = {}
        self.is_skipping = False
        """More came at once than was asked for: between the last two answers some are not shown."""
        self._asked, self._arrived = now, now - _LATE
        self._add(keyed(records))

    def parameters(self, now: dt.datetime) -> dict[str, Any]:
        return {
            "from": (self._asked - _LATE).isoformat(),
            "to": (now + _EARLY).isoformat(),
            "received_from": (self._arrived - _OVERLAP).isoformat(),
            "limit": _PAGE_ROWS,
        }

    def take(self, records: Iterable[Record], now: dt.datetime, *, is_more: bool) -> int:
        """The answer to what was asked at `now`. How many of them are new."""
        self._asked = now
        found = keyed(records)
        known = len(found.keys() & self.records.keys())
        self.is_skipping = is_more and known == 0
        self._add(found)
        return len(found) - known

    def _add(self, found: Keyed) -> None:
        if not found:
            return
        arrivals = (record["received_time"] for record in found.values() if "received_time" in record)
        newest = max(arrivals, default=None)
        if newest is not None:
            self._arrived = max(self._arrived, dt.datetime.fromisoformat(newest))
        merged = sorted((self.records | found).items(), key=_by_time, reverse=True)
        self.records = dict(merged[:_ROWS_MAX])


def _by_time(item: tuple[str, Record]) -> tuple[str, int]:
    _, record = item
    return record["time"], int(record.get("time_unix_nano", 0))
