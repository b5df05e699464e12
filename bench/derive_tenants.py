"""What a round costs with many tenants of few rows: one data file for each tenant and table. Tasks run in
this process and not on Spark.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path

import pyarrow as pa
from tests.support.derived_lake import DerivedLake

from bench.app_traffic import AppMetrics, AppSpans
from bench.backlog import AppLogs, Source
from bench.table import Bench, Row
from frazil.tables import SIGNALS, Signal, derived_specs

TENANTS, QUICK_TENANTS = 500, 100
ROWS = 20
"""Of each signal and tenant."""
_SECONDS = 10
_ROUNDS = 3
"""The first creates the tables. The least of the others counts."""


def tenants(bench: Bench) -> None:
    pa.set_cpu_count(1)
    for signal in SIGNALS:
        count = QUICK_TENANTS if bench.quick else TENANTS
        with (
            tempfile.TemporaryDirectory(prefix="frazil-bench-derive-tenants-") as place,
            contextlib.closing(DerivedLake(Path(place))) as lake,
        ):
            landed, derived, files = _least(lake, signal, count)
        tables = ", ".join(spec.name for spec in derived_specs(signal))
        bench.add(
            Row(
                f"a round of {tables}, {count:,} tenants with {ROWS} {signal} each",
                f"{count * ROWS / derived:,.0f}",
                "",
                f"{derived:.1f} CPU-seconds for {files:,.0f} files, {derived / files * 1000:.1f} ms each; "
                f"landing of the same rows {landed:.1f}",
            )
        )


def _least(lake: DerivedLake, signal: Signal, count: int) -> tuple[float, float, float]:
    """Returns the CPU-seconds of a landing and of a round, and the files of the round."""
    source = _source(signal, int(lake.now) * 10**9)
    landed, derived, files = [], [], 0.0
    for turn in range(_ROUNDS):
        requests = [(f"tenant-{number:03}", source.body(number + turn * count)) for number in range(count)]
        began, before = time.process_time(), _files(lake, signal)
        lake.land_requests(signal, requests)
        middle = time.process_time()
        assert lake.deriver(signal).round() == "derived"
        derived.append(time.process_time() - middle)
        landed.append(middle - began)
        files = _files(lake, signal) - before
    return min(landed[1:]), min(derived[1:]), files


def _files(lake: DerivedLake, signal: Signal) -> float:
    names = [spec.name for spec in derived_specs(signal)]
    found = [lake.registry.get_sample_value("frazil_derived_files_total", {"table": name}) for name in names]
    return sum(each or 0.0 for each in found)


def _source(signal: Signal, now: int) -> Source:
    """Returns traffic of the last seconds."""
    length = _SECONDS * 10**9
    match signal:
        case "logs":
            return AppLogs(now - length, length, records_per_request=ROWS)
        case "spans":
            return AppSpans(now - length, records_per_request=ROWS)
        case "metrics":
            # All pods have the same time in a round, so that series are of one minute.
            return AppMetrics(now - length, pods=TENANTS, interval_seconds=1, records_per_request=ROWS)
