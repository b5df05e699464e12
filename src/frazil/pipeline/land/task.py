"""The Spark task that lands WAL segments: segments in, durable data files out. Runs in Python workers."""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence

import pyarrow as pa

from frazil.config import Config
from frazil.errors import SegmentCorrupt, SegmentUnknown
from frazil.pipeline.datafile import Layout, file_name, write_part
from frazil.pipeline.land.source import TaskResult, UnreadableSegment
from frazil.pipeline.partition_sort import Horizon, partition_and_sort
from frazil.tables import SEGMENT
from frazil.wal.names import SegmentName
from frazil.wal.rowgroups import read_row_groups
from frazil.wal.store import open_store

CHUNK_BYTES_MAX = 128 * 2**20
"""Rows in memory that are sorted together. Sorting needs about three times as much memory."""


def land_segments(
    config: Config,
    layout: Layout,
    horizon: Horizon,
    names: Sequence[SegmentName],
    *,
    files_max: int | None,
) -> TaskResult:
    """Reads the segments, and sorts and writes their rows. The result names unreadable and missing segments.

    Stops if the rows need more than `files_max` files.
    """
    begin, result = time.process_time(), TaskResult()
    store = open_store(config)
    chunks = ChunkWriter(layout, horizon, file_name(layout), result, files_max=files_max)
    for name in names:
        if result.too_many_files:
            break
        try:
            data = store.read(name.path)
        except FileNotFoundError:
            result.vanished.append(name)
            continue
        try:
            tables = _tables(name, data, layout, result)
        except (SegmentCorrupt, SegmentUnknown) as error:
            reason = error.reason if isinstance(error, SegmentCorrupt) else str(error)
            result.unreadable.append(UnreadableSegment(segment_of(name), reason, len(data)))
            continue
        for table in tables:
            chunks.add(table)
    chunks.flush()
    return measured(result, begin)


def _tables(name: SegmentName, data: bytes, layout: Layout, result: TaskResult) -> list[pa.Table]:
    """Returns all rows of a segment. Raises before any row is used if the segment is not readable to
    its end.
    """
    facts, groups = read_row_groups(name, data, layout.coded)
    filled = (layout.filled(table, facts.fill) for table in groups)
    tables = [with_segment(table, segment_of(name), layout) for table in filled]
    result.facts.append(facts)
    if not facts.tombstone:
        result.received(facts.received_min_unix_nano)
    return tables


def with_segment(table: pa.Table, segment: str, layout: Layout) -> pa.Table:
    """Returns the table in the layout's schema, with the column `_segment`."""
    value = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), table.num_rows), [segment])
    table = table.append_column(layout.coded.field(SEGMENT.name), value)
    return table.select(layout.coded.names)


def segment_of(name: SegmentName) -> str:
    return f"{name.stream}/{name.sequence}"


def measured(result: TaskResult, begin: float) -> TaskResult:
    result.cpu_seconds = time.process_time() - begin
    result.rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return result


class ChunkWriter:
    """Collects rows and writes them as files, whenever a chunk is full and at the end."""

    def __init__(
        self, layout: Layout, horizon: Horizon, name: str, result: TaskResult, *, files_max: int | None
    ) -> None:
        """`files_max` is the number of files that the task may write; None is no limit."""
        self._layout = layout
        self._horizon = horizon
        self._name = name
        self._result = result
        self._files_max = files_max
        self._tables: list[pa.Table] = []
        self._bytes = 0
        self._written = 0

    def add(self, table: pa.Table) -> None:
        """Adds rows in the layout's schema. Does nothing after the task needed too many files."""
        if self._result.too_many_files:
            return
        rows_max = max(1, CHUNK_BYTES_MAX * table.num_rows // max(table.nbytes, 1))
        for start in range(0, table.num_rows, rows_max):
            piece = table.slice(start, rows_max)
            self._tables.append(piece)
            self._bytes += piece.nbytes
            if self._bytes >= CHUNK_BYTES_MAX:
                self.flush()

    def flush(self) -> None:
        if not self._tables:
            return
        tables, self._tables, self._bytes = self._tables, [], 0
        rows = sum(table.num_rows for table in tables)
        partitioned = partition_and_sort(tables, self._layout.spec, self._horizon)
        self._result.files_needed += len(partitioned.parts)
        if self._files_max is not None and self._result.files_needed > self._files_max:
            self._result.too_many_files = True
            return
        for part in partitioned.parts:
            self._result.files.append(write_part(self._layout, part, f"{self._name}-{self._written:05d}"))
            self._written += 1
        self._result.rows += rows
        self._result.clamped += partitioned.clamped
