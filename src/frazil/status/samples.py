"""What a role counts, read from Prometheus' text: only what the status shows."""

from __future__ import annotations

import math
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

Labels = tuple[tuple[str, str], ...]
Samples = Mapping[str, Mapping[Labels, float]]
"""By the sample's name (`…_total`, `…_bucket`, …) and its labels, in order."""

SAMPLES_MAX = 20_000
"""Of one role. Labels are bounded by what roles declare; a stranger on the port need not be believed."""
_COUNTED = ("_total", "_count", "_sum", "_bucket")
_HISTOGRAMS = (
    "frazil_receive_ack_seconds",
    "frazil_wal_encode_seconds",
    "frazil_wal_store_seconds",
    "frazil_store_seconds",
    "frazil_land_seconds",
    "frazil_land_commit_seconds",
    "frazil_query_seconds",
    "frazil_query_planning_seconds",
)
_WANTED = frozenset(
    (
        *(f"{name}{end}" for name in _HISTOGRAMS for end in ("_bucket", "_count")),
        "frazil_build_info",
        "frazil_land_commits_total",
        "frazil_land_errors_total",
        "frazil_land_last_commit_timestamp_seconds",
        "frazil_land_pending_age_seconds",
        "frazil_land_pending_bytes",
        "frazil_land_pending_segments",
        "frazil_land_set_aside_total",
        "frazil_land_stopped",
        "frazil_landed_bytes_total",
        "frazil_landed_rows_total",
        "frazil_maintain_lag_seconds",
        "frazil_maintain_last_timestamp_seconds",
        "frazil_maintain_runs_total",
        "frazil_maintain_waiting_bytes",
        "frazil_pipeline_leader",
        "frazil_process_cpu_seconds_total",
        "frazil_process_memory_bytes",
        "frazil_queries_running",
        "frazil_queries_total",
        "frazil_queries_waiting",
        "frazil_query_cached_total",
        "frazil_query_workers_killed_total",
        "frazil_receive_bytes_total",
        "frazil_receive_in_flight_bytes",
        "frazil_receive_ready_workers",
        "frazil_receive_records_total",
        "frazil_receive_requests_total",
        "frazil_store_failures_total",
        "frazil_table_bytes",
        "frazil_table_files",
        "frazil_table_files_per_moment",
        "frazil_table_monthly_cost",
        "frazil_table_rows",
        "frazil_table_small_files",
        "frazil_table_snapshots",
        "frazil_wal_bytes_total",
        "frazil_wal_failures_total",
        "frazil_wal_rows_total",
        "frazil_wal_segments_total",
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
        "process_start_time_seconds",
    )
)


def is_counter(name: str) -> bool:
    """Whether it only grows, until its role starts anew."""
    return name.endswith(_COUNTED)


class SampleReader:
    """Remembers what stands before each number: from one look to the next only numbers change, and parsing
    the rest takes fifty times as long as reading them. Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, Labels] | None] = {}

    def read(self, text: str) -> Samples:
        """ValueError if it is not Prometheus' text."""
        found: dict[str, dict[Labels, float]] = {}
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        if len(lines) > SAMPLES_MAX:
            raise ValueError(f"more than {SAMPLES_MAX} samples")
        for line in lines:
            head, _, number = line.rpartition(" ")
            if head not in self._known:
                self._learn(head, line)
            if (known := self._known[head]) is not None and math.isfinite(value := float(number)):
                found.setdefault(known[0], {})[known[1]] = value
        return found

    def _learn(self, head: str, line: str) -> None:
        if len(self._known) >= 4 * SAMPLES_MAX:
            self._known.clear()
        if head.partition("{")[0] not in _WANTED:
            self._known[head] = None
            return
        samples = [
            sample for family in text_string_to_metric_families(line + "\n") for sample in family.samples
        ]
        if len(samples) != 1 or samples[0].timestamp is not None:
            raise ValueError(f"not a sample of ours: {line[:100]}")
        self._known[head] = (samples[0].name, tuple(sorted(samples[0].labels.items())))


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
