"""Tables to query: landed files over several days, written by landing's own writer, without Spark."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.payloads import logs_request
from frazil.config import Config
from frazil.lake.catalog import ensure_namespace, open_catalog
from frazil.lake.commits.commit import Committer, checkpoint_of
from frazil.lake.tables import open_table
from frazil.otlp.decode import Decoder
from frazil.pipeline.datafile import Layout, write_part
from frazil.pipeline.land.task import with_segment
from frazil.pipeline.partition_sort import Horizon, partition_and_sort
from frazil.position import LandingPosition
from frazil.tables import Signal, landed_spec
from frazil.wal.rowgroups import coded_table

RECORDS_PER_REQUEST = 1000
_DISTINCT_FILES = 8
_HORIZON = Horizon(10**15, 10**15)
TIMES = {"time": 1, "received_time": 1, "time_unix_nano": 1000, "observed_time_unix_nano": 1000}
"""Columns of time, and their units in a microsecond."""
_TIMES_OF_SPANS = {"time": 1, "received_time": 1, "start_time_unix_nano": 1000}
_TIMES_OF_METRICS = {"time": 1, "received_time": 1, "time_unix_nano": 1000}
_FILES_A_COMMIT = 5
_SPANS_A_TRACE = 10


@dataclass(frozen=True)
class _Kind:
    """What a table is filled with. `make` gives requests, from a seed and a number of records."""

    signal: Signal
    make: Callable[[int, int], bytes]
    layout: Layout


def make_lake(
    config: Config,
    files: int,
    records_per_file: int,
    first_micros: int,
    last_micros: int,
    signal: Signal = "logs",
    make: Callable[[int, int], bytes] = logs_request,
) -> None:
    """`files` data files that follow each other in time. Of their records only ids and times are all
    distinct: making a record costs more than landing it.
    """
    with closing(open_catalog(config)) as catalog:
        ensure_namespace(catalog, config.lake.namespace)
        spec = landed_spec(signal)
        checkpoint = open_table(catalog, config.lake.namespace, spec, LandingPosition().to_text())
        kind = _Kind(signal, make, Layout.of(checkpoint.table, spec, config.land.compression_level))
        step = (last_micros - first_micros) // files
        jobs = [(number, first_micros + number * step, step, records_per_file) for number in range(files)]
        writers = min(os.cpu_count() or 1, files)
        committer = Committer(catalog, deadline_seconds=60)
        with ProcessPoolExecutor(writers, mp_context=multiprocessing.get_context("spawn")) as pool:
            written = list(pool.map(_write, [kind] * writers, [jobs[n::writers] for n in range(writers)]))
        found = sorted((entry for part in written for entry in part), key=lambda entry: entry[0])
        for first in range(0, len(found), _FILES_A_COMMIT):
            batch = [file for _, file in found[first : first + _FILES_A_COMMIT]]
            committer.append(checkpoint, batch, LandingPosition().to_text())
            checkpoint = checkpoint_of(catalog.load_table(checkpoint.table.name()))


def _write(kind: _Kind, jobs: Sequence[tuple[int, int, int, int]]) -> list[tuple[int, object]]:
    pa.set_cpu_count(1)
    rng = np.random.default_rng(jobs[0][0])
    records = jobs[0][3]
    base = [_rows(number, records, kind) for number in range(min(_DISTINCT_FILES, len(jobs)))]
    written: list[tuple[int, object]] = []
    for number, first, length, _ in jobs:
        table = _spread(base[number % len(base)], kind.signal, first, length, rng)
        parts = partition_and_sort([table], kind.layout.spec, _HORIZON).parts
        for index, part in enumerate(parts):
            written.append((number, write_part(kind.layout, part, f"bench-{number:06}-{index}")))
    return written


def _rows(seed: int, records: int, kind: _Kind) -> pa.Table:
    """As a landing task has them before it arranges them."""
    decoder, tables = Decoder(kind.signal), []
    for part in range(records // RECORDS_PER_REQUEST):
        body = kind.make(seed * 10_000 + part, RECORDS_PER_REQUEST)
        tables.append(decoder.decode([body], ["default"], [0]).table)
    table = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
    return with_segment(coded_table(table, kind.layout.coded), "bench/0", kind.layout)


def _spread(table: pa.Table, signal: Signal, first: int, length: int, rng: np.random.Generator) -> pa.Table:
    """The same rows at other times, with other ids."""
    micros = rng.integers(first, first + length, table.num_rows)
    if signal == "metrics":
        started = np.full(table.num_rows, first * 1000)
        return _with(_at(table, micros, _TIMES_OF_METRICS), "start_time_unix_nano", pa.array(started))
    micros = np.sort(micros)
    if signal == "logs":
        return with_new_ids(_at(table, micros, TIMES), rng)
    ends = pc.add(pa.array(micros * 1000), table["duration_nano"])
    return _with_new_traces(_with(_at(table, micros, _TIMES_OF_SPANS), "end_time_unix_nano", ends), rng)


def _at(table: pa.Table, micros: np.ndarray, times: Mapping[str, int]) -> pa.Table:
    for name, units in times.items():
        table = _with(table, name, pa.array(micros * units))
    return table


def _with(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    at = table.schema.get_field_index(name)
    field = table.schema.field(at)
    if pa.types.is_timestamp(field.type):
        values = values.cast(pa.timestamp("us"))
    return table.set_column(at, field, values.cast(field.type))


def _with_new_traces(table: pa.Table, rng: np.random.Generator) -> pa.Table:
    """Each span is below the one before it, as `spans_request` has them."""
    table = with_new_ids(table, rng)
    place = np.arange(table.num_rows)
    traces, spans = (table[name].combine_chunks() for name in ("trace_id", "span_id"))
    is_root = pa.array(place % _SPANS_A_TRACE == 0)
    parents = pc.if_else(is_root, None, spans.take(pa.array(np.maximum(place - 1, 0))))
    table = _with(table, "trace_id", traces.take(pa.array(place - place % _SPANS_A_TRACE)))
    return _with(table, "parent_span_id", parents)


def with_new_ids(table: pa.Table, rng: np.random.Generator) -> pa.Table:
    for name, size in (("trace_id", 16), ("span_id", 8)):
        digits = rng.bytes(size * table.num_rows).hex()
        ids = pa.array([digits[n : n + 2 * size] for n in range(0, len(digits), 2 * size)])
        at = table.schema.get_field_index(name)
        table = table.set_column(at, table.schema.field(at), ids)
    return table
