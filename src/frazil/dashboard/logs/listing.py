"""The list of logs as far as it was read: the first page, and the older ones that were asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from frazil.dashboard.logs.rows import Keyed, Record, keyed

PAGE_ROWS = 100
_ROWS_MAX = 2_000


@dataclass
class Listing:
    question: str
    """What it is a list of: another question begins another list."""
    asked: dict[str, Any] = field(default_factory=dict)
    records: Keyed = field(default_factory=dict)
    next: str | None = None
    warning: str = ""
    pages: int = 0
    _read: list[Record] = field(default_factory=list)

    @property
    def is_frozen(self) -> bool:
        """Who reads older records keeps those that are there: newer ones wait."""
        return self.pages > 1

    @property
    def has_older(self) -> bool:
        return self.next is not None and len(self.records) < _ROWS_MAX

    @property
    def is_full(self) -> bool:
        return self.next is not None and len(self.records) >= _ROWS_MAX

    def begin(self, asked: dict[str, Any], answer: Mapping[str, Any]) -> None:
        """With the newest page, in place of what was there."""
        self.asked, self.pages, self.warning = asked, 0, ""
        self._read = []
        self.go_on(answer)

    def go_on(self, answer: Mapping[str, Any]) -> None:
        """With the page behind."""
        self._read.extend(answer["records"])
        self.records = keyed(self._read)
        self.next, self.pages = answer["next"], self.pages + 1
        self.warning = self.warning or missing_of(answer)


def missing_of(answer: Mapping[str, Any]) -> str:
    """What an answer lacks, for whoever reads it; nothing if it is whole."""
    missing = answer.get("stats", {}).get("missing") or ()
    return f"Incomplete result: {'; '.join(missing)}" if missing else ""
