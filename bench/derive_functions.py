"""The CPU of each derived table's function and of the combining, in this process, without files."""

from __future__ import annotations

import time
from collections.abc import Callable

import pyarrow as pa

from bench.app_traffic import AppMetrics, AppSpans
from bench.backlog import AppLogs, Source
from bench.payloads import BASE_UNIX_NANO
from bench.table import Bench, Row
from frazil.otlp.decode import Decoder
from frazil.tables import Signal, derived_specs, landed_spec
from frazil.tables.derived.combine import rolled_up
from frazil.tables.derived.metric_cardinality import with_attributes
from frazil.wal.rowgroups import coded_table

ROWS, QUICK_ROWS = 512_000, 128_000
"""About as many as a task aggregates together."""
_ROUNDS = 3


def app_source(signal: Signal, records: int) -> Source:
    """Returns traffic as applications send it: random words and ids would be keys of their own."""
    match signal:
        case "logs":
            return AppLogs.around(BASE_UNIX_NANO, 3600 * 10**9, records)
        case "spans":
            return AppSpans()
        case "metrics":
            return AppMetrics()


def functions(bench: Bench) -> None:
    pa.set_cpu_count(1)
    for signal in ("logs", "spans", "metrics"):
        rows = _rows(signal, QUICK_ROWS if bench.quick else ROWS)
        for declared in derived_specs(signal):
            spec = with_attributes(declared, ("service.name", "host.name"))
            assert spec.derived is not None
            derive = spec.derived.derive
            made = derive(rows)
            result = rolled_up(made, spec)
            own = _cpu_seconds(lambda derive=derive, rows=rows: derive(rows))
            combining = _cpu_seconds(lambda made=made, spec=spec: rolled_up(made, spec))
            costs = [seconds / rows.num_rows * 1e6 for seconds in (own, combining)]
            bench.add(
                Row(
                    f"{spec.name}, from {rows.num_rows:,} {signal}",
                    f"{rows.num_rows / (own + combining):,.0f}",
                    "",
                    f"µs per row: function {costs[0]:.2f}, combining {costs[1]:.2f}; "
                    f"{result.num_rows:,} partial rows, {result.nbytes / rows.num_rows:.1f} bytes per row",
                )
            )


def _rows(signal: Signal, count: int) -> pa.Table:
    """As a task of derivation reads them."""
    source, decoder = app_source(signal, count), Decoder(signal)
    seeds = range(count // source.records_per_request)
    bodies, times = [source.body(seed) for seed in seeds], [source.received_unix_nano(seed) for seed in seeds]
    tables = [
        decoder.decode([body], ["default"], [time]).table for body, time in zip(bodies, times, strict=True)
    ]
    rows = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
    schema = landed_spec(signal).write_schema
    return coded_table(rows, pa.schema([field for field in schema if field.name in rows.column_names]))


def _cpu_seconds(work: Callable[[], object]) -> float:
    """The least of several rounds."""
    best = float("inf")
    for _ in range(_ROUNDS):
        begin = time.process_time()
        work()
        best = min(best, time.process_time() - begin)
    return best
