"""Counters of all roles together, as if none had ever started anew; and how they moved in a span of time."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from frazil.status.quantile import quantile
from frazil.status.samples import Labels, Samples, by_label, is_counter, value

_CLOCKS_DIFFER_SECONDS = 5.0


@dataclass(frozen=True)
class _Seen:
    at: float
    samples: Samples
    up_seconds: float | None


@dataclass(frozen=True)
class Span:
    """By how much counters grew in `seconds`. Without a beginning to compare with, 0 seconds and no rates."""

    seconds: float = 0.0
    grown: Samples = field(default_factory=dict)

    def rate(self, name: str, **labels: str) -> float | None:
        """A second; 0 if nothing of the kind was ever counted."""
        return (value(self.grown, name, **labels) or 0.0) / self.seconds if self.seconds > 0 else None

    def rates(self, name: str, label: str, **labels: str) -> dict[str, float]:
        if self.seconds <= 0:
            return {}
        found = by_label(self.grown, name, label, **labels)
        return {key: number / self.seconds for key, number in found.items()}

    def quantile(self, q: float, name: str, **labels: str) -> float | None:
        """Of the histogram `name`."""
        counts = by_label(self.grown, f"{name}_bucket", "le", **labels)
        return quantile(q, {float(bound): number for bound, number in counts.items()})


def _who(before: _Seen, now: _Seen) -> Literal["same", "restarted", "another", "unknown"]:
    """Whether the process that answers now is the one that did before. Another that is no younger than the
    last look is one that was there all the time: several answer at one address, and nothing can be compared.
    """
    if before.up_seconds is None or now.up_seconds is None:
        return "unknown"
    gap = now.at - before.at
    if abs(before.up_seconds + gap - now.up_seconds) <= _CLOCKS_DIFFER_SECONDS:
        return "same"
    return "restarted" if now.up_seconds <= gap + _CLOCKS_DIFFER_SECONDS else "another"


class Totals:
    """What each role counts may begin at 0 again at any time, when it is restarted."""

    def __init__(self, kept_seconds: float) -> None:
        self._kept_seconds = kept_seconds
        self._seen: dict[str, _Seen] = {}
        self._sums: dict[str, dict[Labels, float]] = {}
        self._kept: deque[tuple[float, dict[str, dict[Labels, float]]]] = deque()
        self._looked_at: float | None = None

    def take(self, at: float, heard: Mapping[str, tuple[Samples, float | None]]) -> None:
        """`heard` has the samples of each role that has answered, by its address, and for how long it has
        been running, if it says so.
        """
        since_look = math.inf if self._looked_at is None else at - self._looked_at
        for url, (samples, up_seconds) in heard.items():
            now, before = _Seen(at, samples, up_seconds), self._seen.get(url)
            if before is not None and at > before.at:
                # What grew while a role did not answer came all the while, not in this moment.
                self._add(before, now, share=min(1.0, since_look / (at - before.at)))
            self._seen[url] = now
        self._looked_at = at

    def _add(self, before: _Seen, now: _Seen, share: float) -> None:
        who = _who(before, now)
        if who == "another":
            return
        for name, numbers in now.samples.items():
            if not is_counter(name):
                continue
            was = {} if who == "restarted" else before.samples.get(name, {})
            sums = self._sums.setdefault(name, {})
            for labels, number in numbers.items():
                grown = number - was.get(labels, 0.0)
                if grown < 0:
                    # Begun anew, it has counted this since; but not if it is known to be the same process.
                    grown = number if who == "unknown" else 0.0
                sums[labels] = sums.get(labels, 0.0) + grown * share

    def keep(self, at: float) -> None:
        """Remembers where the counters stand now, to compare with later."""
        self._kept.append((at, {name: dict(numbers) for name, numbers in self._sums.items()}))
        while len(self._kept) > 1 and self._kept[1][0] <= at - self._kept_seconds:
            self._kept.popleft()

    def span(self, at: float, seconds: float) -> Span:
        """How they moved in about the last `seconds`: since the youngest memory that is at least as old, else
        since the oldest.
        """
        begin: tuple[float, dict[str, dict[Labels, float]]] | None = None
        for kept in self._kept:
            if kept[0] >= at:
                break
            if begin is None or kept[0] <= at - seconds:
                begin = kept
        if begin is None:
            return Span()
        grown = {
            name: {
                labels: number - begin[1].get(name, {}).get(labels, 0.0) for labels, number in numbers.items()
            }
            for name, numbers in self._sums.items()
        }
        return Span(at - begin[0], grown)
