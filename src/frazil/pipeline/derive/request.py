"""The request to derive past days again. Imports no Spark, so that the command that sends it starts fast."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from frazil.errors import Refused
from frazil.times import EPOCH_DAY, day_text


@dataclass(frozen=True)
class BackfillRequest:
    """Days are UTC and inclusive: `2026-11-18`. Without `last`, all days from `first`."""

    table: str
    first: str
    last: str | None = None
    dry_run: bool = False
    yes: bool = False
    """Also derive days of which the source has lost rows: the table loses these rows too."""

    def days(self, today: int) -> range:
        """Returns the days since 1970. Raises Refused if they are not valid."""
        first = _day("--from", self.first)
        last = today if self.last is None else _day("--to", self.last)
        if first > last:
            end = day_text(last)
            raise Refused(f"--from {self.first} is after {'today' if self.last is None else '--to'}, {end}")
        return range(first, last + 1)


def _day(option: str, text: str) -> int:
    try:
        return (datetime.date.fromisoformat(text) - EPOCH_DAY).days
    except ValueError:
        raise Refused(f"{option} {text} is not a day; for example 2026-11-18") from None
