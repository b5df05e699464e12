"""The Spark task of derivation: rows of a source in, durable data files of its derived tables out. Runs
in Python workers.

Each source row is read once for all tables. A table whose function fails does not stop the others.
"""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFile

from frazil.errors import FrazilError, reason_of
from frazil.lake.live_files import FilePartition, corruption_in
from frazil.pipeline.datafile import Layout, file_name, write_part
from frazil.pipeline.derive.limit import Admission, Counts, Limit
from frazil.pipeline.derive.once import unwritten
from frazil.pipeline.derive.source import SourceFile
from frazil.pipeline.derive.unmatched import Rooms, Waiting
from frazil.pipeline.inputs import opened
from frazil.pipeline.partition_sort import compact_dictionaries, partition_and_sort
from frazil.position import NewRows
from frazil.storage.metrics import StoreCall
from frazil.tables import SEGMENT, TableSpec
from frazil.tables.columns import TENANT, TIME
from frazil.tables.derived.combine import combine, completed, rolled_up
from frazil.tables.hashing import Hashes

_CHUNK_ROWS = 512 * 1024
"""Source rows that are aggregated together. More rows merge better and use more memory."""
_PARTIAL_BYTES_MAX = 128 * 2**20
"""Partial rows of one table in memory. More are written to a file."""
_BATCH_ROWS = 128 * 1024
_MAPS = ("attributes", "attribute_types", "resource_attributes", "resource_attribute_types")


@dataclass(frozen=True)
class Work:
    """The part of a job that all its tasks share."""

    source: Layout
    """With the columns that the tables need."""
    with_maps: Layout
    """Also with the attribute maps, for files that lack a promoted column."""
    tables: Mapping[str, Layout]
    """The tables to derive, by name."""
    new_rows: NewRows
    written: Mapping[str, Hashes] = field(default_factory=dict)
    """Rows that need not be written again, of tables with `once_per_seconds`."""
    limits: Mapping[str, Limit] = field(default_factory=dict)
    """Of tables with `limited_key` that the job could fill."""
    rooms: Mapping[str, Rooms] = field(default_factory=dict)
    """Of tables with pending rows that the job could fill."""


@dataclass
class Derivation:
    """The result of one task."""

    files: dict[str, list[DataFile]] = field(default_factory=dict)
    written: dict[str, Hashes] = field(default_factory=dict)
    keys: dict[str, Counts] = field(default_factory=dict)
    """Of tables in `Work.limits`."""
    given_up: dict[str, Counter[FilePartition]] = field(default_factory=dict)
    """Pending rows that were not kept, of tables in `Work.rooms`."""
    failed: dict[str, str] = field(default_factory=dict)
    """Tables whose rows could not be computed or written, with the reason."""
    vanished: list[str] = field(default_factory=list)
    """Source files that do not exist. If there are any, the result is not complete."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Corrupt source files, with the reason. Their rows, or some of them, are missing in the result."""
    rows: int = 0
    """Rows of the source."""
    partial_rows: dict[str, int] = field(default_factory=dict)
    groups: int = 0
    """Rows of the result of a view's query."""
    is_final: bool = False
    """Whether the tables in `failed` would fail again."""
    calls: list[StoreCall] = field(default_factory=list)
    """Calls of tasks that read rows for a view's query."""
    cpu_seconds: float = 0.0
    rss_bytes: int = 0


def columns_of(names: Iterable[str], source: TableSpec, *, with_maps: bool = False) -> TableSpec:
    """Returns the source's spec with only these columns, and those that every derivation needs."""
    needed = {TENANT, TIME, SEGMENT.name, *(_MAPS if with_maps else ()), *names}
    return replace(
        source,
        columns=tuple(column for column in source.columns if column.name in needed),
        sort_by=(),
        bloom_filters=(),
        views=(),
        promoted=tuple(item for item in source.promoted if item.column in needed),
    )


def derive_files(work: Work, files: Sequence[SourceFile]) -> Derivation:
    begin, result = time.process_time(), Derivation()
    writers = {
        name: TableWriter(layout, work.written.get(name), work.limits.get(name), work.rooms.get(name), files)
        for name, layout in work.tables.items()
    }
    for rows in _chunks(work, files, result):
        result.rows += rows.num_rows
        for name, writer in writers.items():
            if name not in result.failed:
                _try(result, name, writer, rows)
    for name, writer in writers.items():
        if name not in result.failed:
            _try(result, name, writer, None)
        result.files[name], result.partial_rows[name] = writer.files, writer.rows
        result.written[name] = writer.new_hashes
        if writer.admission is not None:
            result.keys[name] = writer.admission.counts
        if writer.waiting is not None:
            result.given_up[name] = writer.waiting.given_up
    result.cpu_seconds = time.process_time() - begin
    result.rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return result


def _try(result: Derivation, name: str, writer: TableWriter, rows: pa.Table | None) -> None:
    """Adds rows to the table, or finishes it. Notes a failure of the table's own function."""
    try:
        if rows is None:
            writer.flush()
        else:
            writer.add(rows)
    except (MemoryError, OSError, FrazilError):  # not because of the table
        raise
    except Exception as error:
        result.failed[name] = reason_of(error)


class TableWriter:
    """Collects the partial rows of one table, and writes them."""

    def __init__(
        self,
        layout: Layout,
        written: Hashes | None,
        limit: Limit | None,
        rooms: Rooms | None,
        files: Sequence[SourceFile],
    ) -> None:
        self._layout = layout
        self._name = file_name(layout)
        self._written = written
        self.admission = None if limit is None else Admission(limit, layout.io)
        self.waiting = Waiting(layout.spec, rooms, files) if rooms else None
        self._partial: list[pa.Table] = []
        self._bytes = 0
        self.files: list[DataFile] = []
        self.rows = 0
        self.new_hashes: Hashes = np.zeros(0, np.uint64)

    def add(self, source: pa.Table) -> None:
        spec = self._layout.spec
        assert spec.derived is not None  # noqa: S101
        self.add_partial(rolled_up(spec.derived.derive(source), spec, coded=True))

    def add_partial(self, rows: pa.Table) -> None:
        """Adds rows of the table."""
        rows = completed(rows, self._layout.spec, coded=True)
        self._partial.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= _PARTIAL_BYTES_MAX:
            self._merge()
            if self._bytes >= _PARTIAL_BYTES_MAX // 2:
                self.flush()

    def _merge(self) -> None:
        if len(self._partial) > 1:
            rows = pa.concat_tables(self._partial).unify_dictionaries()
            merged = combine(rows, self._layout.spec, within_day=True, coded=True)
            self._partial, self._bytes = [merged], merged.nbytes

    def flush(self) -> None:
        self._merge()
        if not self._partial:
            return
        (rows,) = self._partial
        self._partial, self._bytes = [], 0
        if self.waiting is not None:
            rows = self.waiting.kept(rows)
        rows, hashes = unwritten(rows, self._layout.spec, self._written, self.new_hashes)
        if self.admission is not None:
            admitted = self.admission.admitted(rows)
            rows, hashes = rows.filter(pa.array(admitted)), hashes[admitted]
        if rows.num_rows == 0:
            return
        self.new_hashes = np.union1d(self.new_hashes, hashes)
        self.rows += rows.num_rows
        # Dictionaries have text of all rows that were read, also of tenants of whom no row is written.
        for part in partition_and_sort([compact_dictionaries(rows)], self._layout.spec).parts:
            self.files.append(write_part(self._layout, part, f"{self._name}-{len(self.files):05d}"))


def _chunks(work: Work, files: Sequence[SourceFile], result: Derivation) -> Iterator[pa.Table]:
    """Yields the rows to derive from, in chunks of similar size."""
    waiting: list[pa.Table] = []
    rows = 0
    for table in source_rows(work, files, result):
        waiting.append(table)
        rows += table.num_rows
        if rows >= _CHUNK_ROWS:
            yield _joined(waiting)
            rows = 0
    if waiting:
        yield _joined(waiting)


def _joined(tables: list[pa.Table]) -> pa.Table:
    """Empties the list."""
    joined = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
    tables.clear()
    return joined


def source_rows(work: Work, files: Sequence[SourceFile], result: Derivation) -> Iterator[pa.Table]:
    """Yields the wanted rows of the files. Notes files that do not exist or cannot be read in the result."""
    for file in files:
        try:
            yield from _rows(work, file, result)
        except Exception as error:
            if isinstance(error, FrazilError) or (corruption := corruption_in(error)) is None:
                raise
            result.unreadable[file.file.file_path] = corruption


def _rows(work: Work, file: SourceFile, result: Derivation) -> Iterator[pa.Table]:
    layout = work.with_maps if work.source.is_unfilled(file.file) else work.source
    with opened(layout, [file.file]) as (inputs, vanished):
        result.vanished += vanished
        for table in (table for each in inputs for table in each.tables(_BATCH_ROWS)):
            chosen = _chosen(table.select(work.source.coded.names), file, work.new_rows)
            if chosen.num_rows:
                yield chosen


def _chosen(table: pa.Table, file: SourceFile, new_rows: NewRows) -> pa.Table:
    if file.part == "all":
        return table
    wanted = file.part == "new"
    segments = table.column(SEGMENT.name).combine_chunks()
    if not pa.types.is_dictionary(segments.type):
        segments = segments.dictionary_encode()
    if isinstance(segments, pa.ChunkedArray):
        segments = segments.unify_dictionaries().combine_chunks()
    fits = [new_rows.is_new(source) is wanted for source in segments.dictionary.to_pylist()]
    if all(fits):
        return table
    mask = pc.take(pa.array(fits, pa.bool_()), segments.indices)
    return table.filter(mask)
