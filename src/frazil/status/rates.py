"""Metric samples by name and labels, and the rates of several roles added up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from frazil.role_status import RoleReport, Sample

Labels = tuple[tuple[str, str], ...]
Samples = Mapping[str, Mapping[Labels, float]]
"""Values by sample name (`…_total`, `…_bucket`, …) and sorted labels."""


def samples_of(reported: Iterable[Sample]) -> Samples:
    """Adds up samples of the same name and labels."""
    samples: dict[str, dict[Labels, float]] = defaultdict(lambda: defaultdict(float))
    for name, labels, number in reported:
        samples[name][tuple(sorted(labels.items()))] += number
    return samples


def value(samples: Samples, name: str, **labels: str) -> float | None:
    """Returns the sum of the samples that have these labels, or None if no sample has them."""
    found = [number for of, number in samples.get(name, {}).items() if labels.items() <= dict(of).items()]
    return sum(found) if found else None


def by_label(samples: Samples, name: str, label: str, **labels: str) -> dict[str, float]:
    """Returns the sums of the samples that have these labels, by the value of `label`."""
    sums: dict[str, float] = {}
    for of, number in samples.get(name, {}).items():
        given = dict(of)
        if label in given and labels.items() <= given.items():
            sums[given[label]] = sums.get(given[label], 0.0) + number
    return sums


@dataclass(frozen=True)
class Rates:
    """Increase of counters per second, summed over all roles."""

    is_known: bool = False  # from the second poll of a role
    grown: Samples = field(default_factory=dict)

    @classmethod
    def of(cls, reports: Iterable[RoleReport], seconds: int) -> Rates:
        """`seconds` is one of WINDOWS_SECONDS."""
        found = [report.rates[seconds] for report in reports if seconds in report.rates]
        return cls(bool(found), samples_of(sample for rates in found for sample in rates))

    def rate(self, name: str, **labels: str) -> float | None:
        """Returns 0 for a counter that was never incremented."""
        return (value(self.grown, name, **labels) or 0.0) if self.is_known else None

    def quantile(self, q: float, name: str, **labels: str) -> float | None:
        """Interpolates within the histogram's buckets, up to the last finite bound. None if it is empty."""
        buckets = {
            float(bound): number
            for bound, number in by_label(self.grown, f"{name}_bucket", "le", **labels).items()
        }
        bounds = sorted(buckets)
        if len(bounds) < 2 or not np.isinf(bounds[-1]):
            return None
        counts = np.maximum.accumulate([buckets[bound] for bound in bounds])
        if counts[-1] <= 0:
            return None
        return float(np.interp(q * counts[-1], [0.0, *counts], [0.0, *bounds[:-1], bounds[-2]]))


def largest(values: Iterable[float | None]) -> float | None:
    return max((number for number in values if number is not None), default=None)
