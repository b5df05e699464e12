"""How much a query has to read, before and after merging. The data is generated, so results are exact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bench.payloads import MAKERS
from pyiceberg.manifest import DataFile

from frazil.pipeline.datafile import Layout
from frazil.pipeline.maintain.merge.merge import MergeSettings
from frazil.tables import Signal
from frazil.tables.columns import TIMESTAMP
from tests.unit.pipeline.maintain.test_merge import NOON, landed, layout_of, merged, rows_of

FILES, TRACES, SERVICES, ROW_GROUPS = 24, 60, 20, 8
SPANS_PER_TRACE = 5
MINUTE = 60_000_000
FILE_MICROS = 5 * MINUTE
WINDOW = 15 * MINUTE


@dataclass(frozen=True)
class Group:
    rows: int
    services: tuple[str, str]
    times: tuple[int, int]
    traces: frozenset[str]


def files_of(layout: Layout) -> list[DataFile]:
    """Two hours in files of five minutes. Each trace goes through five services within a second."""
    rng = np.random.default_rng(11)
    template = rows_of(layout, MAKERS[layout.spec.name](1, TRACES * SPANS_PER_TRACE), "s/0", [NOON])
    files = []
    for number in range(FILES):
        begin = NOON + number * FILE_MICROS + rng.integers(0, FILE_MICROS - 1_000_000, TRACES)
        time = np.repeat(begin, SPANS_PER_TRACE) + rng.integers(0, 1_000_000, TRACES * SPANS_PER_TRACE)
        service = rng.integers(0, SERVICES, TRACES * SPANS_PER_TRACE)
        trace = np.repeat(np.arange(TRACES) + number * TRACES, SPANS_PER_TRACE)
        columns = {
            "time": pa.array(time).cast(TIMESTAMP),
            "service_name": pa.array([f"service-{each:02}" for each in service]).dictionary_encode(),
            "trace_id": pa.array([f"{each:032x}" for each in trace]),
        }
        rows = template
        for name, column in columns.items():
            rows = rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), column)
        files.append(landed(layout, rows))
    return files


def groups_of(files: Sequence[DataFile]) -> list[Group]:
    found = []
    for file in files:
        with pq.ParquetFile(file.file_path) as parquet:
            names = [
                parquet.metadata.schema.column(number).path for number in range(parquet.metadata.num_columns)
            ]
            for number in range(parquet.num_row_groups):
                group = parquet.metadata.row_group(number)
                service, time = (
                    group.column(names.index(name)).statistics for name in ("service_name", "time")
                )
                micros = [
                    pa.scalar(each, TIMESTAMP).cast(pa.int64()).as_py() for each in (time.min, time.max)
                ]
                traces = parquet.read_row_group(number, ["trace_id"])["trace_id"].to_pylist()
                found.append(
                    Group(group.num_rows, (service.min, service.max), tuple(micros), frozenset(traces))
                )
    return found


def read_of_a_window(groups: Sequence[Group]) -> tuple[float, float]:
    """Of a service's quarter of an hour: row groups that statistics do not rule out, and the share of all
    rows that is in them. Means over services and quarters.
    """
    touched, rows = [], []
    for service in range(SERVICES):
        name = f"service-{service:02}"
        for begin in range(NOON, NOON + FILES * FILE_MICROS, WINDOW):
            needed = [
                group
                for group in groups
                if group.services[0] <= name <= group.services[1]
                and group.times[0] < begin + WINDOW
                and group.times[1] >= begin
            ]
            touched.append(len(needed))
            rows.append(sum(group.rows for group in needed))
    return float(np.mean(touched)), float(np.mean(rows)) / sum(group.rows for group in groups)


def groups_of_a_trace(groups: Sequence[Group]) -> tuple[float, int]:
    """Row groups with rows of it, which are those that Bloom filters leave: the mean, and the most."""
    counts = [
        sum(f"{trace:032x}" in group.traces for group in groups) for trace in range(0, FILES * TRACES, 7)
    ]
    return float(np.mean(counts)), max(counts)


def before_and_after(tmp_path: Path, signal: Signal) -> tuple[list[Group], list[Group]]:
    layout = layout_of(tmp_path, signal)
    files = files_of(layout)
    size = sum(pq.read_metadata(file.file_path).row_group(0).total_byte_size for file in files)
    result = merged(layout, files[::-1], MergeSettings(2**30, size // ROW_GROUPS, 3, False))
    assert len(result.added) == 1
    before, after = groups_of(files), groups_of(result.added)
    assert len(before) == FILES
    assert ROW_GROUPS - 1 <= len(after) <= ROW_GROUPS + 1
    return before, after


def test_a_services_quarter_of_an_hour_of_logs_is_in_one_or_two_row_groups(tmp_path: Path) -> None:
    before, after = before_and_after(tmp_path, "logs")
    touched_before, share_before = read_of_a_window(before)
    touched, share = read_of_a_window(after)
    assert touched_before == pytest.approx(3, abs=0.1)
    assert share_before == pytest.approx(1 / 8, abs=0.01)
    assert touched < 1.6, "of 8, where there were 3 files to open"
    assert share < 0.2


def test_a_trace_is_in_one_row_group_of_spans_and_a_services_quarter_in_few(tmp_path: Path) -> None:
    before, after = before_and_after(tmp_path, "spans")
    assert groups_of_a_trace(before) == (1, 1)
    mean, most = groups_of_a_trace(after)
    assert mean < 1.05
    assert most <= 2
    touched, share = read_of_a_window(after)
    assert touched < 1.5
    assert share < 0.2
