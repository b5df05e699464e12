"""Numbers of roles by name and labels, and the rates of several roles added up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from frazil.role_status import RoleReport, Sample

Labels = tuple[tuple[str, str], ...]
Samples = Mapping[str, Mapping[Labels, float]]
"""By the sample's name (`…_total`, `…_bucket`, …) and its labels, in order."""


def samples_of(found: Iterable[Sample]) -> Samples:
    """Returns the samples; those of the same name and labels are added up."""
    samples: dict[str, dict[Labels, float]] = {}
    for name, labels, number in found:
        key, numbers = tuple(sorted(labels.items())), samples.setdefault(name, {})
        numbers[key] = numbers.get(key, 0.0) + number
    return samples


def value(samples: Samples, name: str, **labels: str) -> float | None:
    """The sum of a metric's samples that have these labels; None if there is none."""
    found = [number for of, number in samples.get(name, {}).items() if labels.items() <= dict(of).items()]
    return sum(found) if found else None


def by_label(samples: Samples, name: str, label: str, **labels: str) -> dict[str, float]:
    """The sums of a metric's samples, by what `label` is."""
    found: dict[str, float] = {}
    for of, number in samples.get(name, {}).items():
        given = dict(of)
        if label in given and labels.items() <= given.items():
            found[given[label]] = found.get(given[label], 0.0) + number
    return found


@dataclass(frozen=True)
class Rates:
    """The growth of counters per second, of all roles together."""

    is_known: bool = False
    """False as long as no role has been asked twice."""
    grown: Samples = field(default_factory=dict)

    @classmethod
    def of(cls, reports: Iterable[RoleReport], seconds: int) -> Rates:
        """`seconds` is one of WINDOWS_SECONDS."""
        found = [report.rates[seconds] for report in reports if seconds in report.rates]
        return cls(bool(found), samples_of(sample for rates in found for sample in rates))

    def rate(self, name: str, **labels: str) -> float | None:
        """0 if nothing of the kind was ever counted."""
        return (value(self.grown, name, **labels) or 0.0) if self.is_known else None

    def rates(self, name: str, label: str, **labels: str) -> dict[str, float]:
        return by_label(self.grown, name, label, **labels)

    def quantile(self, q: float, name: str, **labels: str) -> float | None:
        """Of the histogram `name`, interpolated within its buckets; None if nothing was observed. A value
        over the last finite bound is reported as that bound.
        """
        buckets = by_label(self.grown, f"{name}_bucket", "le", **labels)
        bounds = sorted(float(bound) for bound in buckets)
        if len(bounds) < 2 or not np.isinf(bounds[-1]):
            return None
        numbers = {float(bound): number for bound, number in buckets.items()}
        counts = np.maximum.accumulate([numbers[bound] for bound in bounds])
        if counts[-1] <= 0:
            return None
        return float(np.interp(q * counts[-1], [0.0, *counts], [0.0, *bounds[:-1], bounds[-2]]))
