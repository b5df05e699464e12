"""Files that a table names and that could not be read. They are left out for some hours, longer each time, as
one of them would keep all files from being merged that it is chosen with.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

_PAUSE_SECONDS = 2 * 3600.0
_PAUSE_SECONDS_MAX = 24 * 3600.0


@dataclass(frozen=True)
class _Bad:
    reason: str
    until: float
    pause_seconds: float


class BadFiles:
    """Those of all tables. Nothing of it is stored: who begins anew finds them again."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[str, _Bad]] = {}

    def note(self, table: str, path: str, reason: str, now_seconds: float) -> bool:
        """Whether that is news."""
        known = self._tables.setdefault(table, {})
        before = known.get(path)
        pause = _PAUSE_SECONDS if before is None else min(2 * before.pause_seconds, _PAUSE_SECONDS_MAX)
        known[path] = _Bad(reason, now_seconds + pause, pause)
        return before is None or before.reason != reason

    def left_out(self, table: str, live: Collection[str], now_seconds: float) -> set[str]:
        """Those of the table's files that are not to be tried now. What is no longer live is forgotten."""
        known = self._tables.get(table, {})
        for path in [path for path in known if path not in live]:
            del known[path]
        # What is out for longer than ever was noted by a wrong clock.
        longest = now_seconds + _PAUSE_SECONDS_MAX
        return {path for path, bad in known.items() if now_seconds < bad.until <= longest}
