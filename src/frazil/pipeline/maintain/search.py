"""Searches data files for rows to remove, and rewrites the files without them. Runs in Spark's workers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile

from frazil.errors import FrazilError, LimitReached, QueryInvalid
from frazil.lake.counted import counted_of
from frazil.lake.live_files import find_corruption, partition_of
from frazil.pipeline.datafile import DataFileWriter, Layout, file_name
from frazil.pipeline.inputs import opened
from frazil.pipeline.maintain.predicates.match import Matcher
from frazil.pipeline.partition_sort import compact_dictionaries
from frazil.pipeline.runner import Runner, batched
from frazil.tables import SEGMENT, TableSpec

Mask = npt.NDArray[np.bool_]
_TASK_BYTES = 256 * 2**20
"""Bytes of files that one task searches: starting a task costs as much as reading a few small files."""


@dataclass(frozen=True)
class SearchTarget:
    """A file, and the names of the matchers to search it with. A row matches if any matcher matches; without
    names, all rows match. `file` is required to rewrite the file.
    """

    path: str
    bytes: int
    names: tuple[str, ...] = ()
    file: DataFile | None = None

    @classmethod
    def of(cls, file: DataFile, names: Sequence[str] = ()) -> SearchTarget:
        return cls(file.file_path, file.file_size_in_bytes, tuple(names), file)


@dataclass(frozen=True)
class SearchResult:
    """The result of searching a file: `rows` is the number of its rows, `removed` the number of matching
    rows, by `_segment` if the table has that column.
    """

    path: str
    rows: int = 0
    removed: Counter[str] = field(default_factory=Counter)
    added: DataFile | None = None
    """The rewritten file, if some but not all rows match."""
    is_gone: bool = False
    unreadable: str | None = None
    """Why the file cannot be read."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Matchers that failed on some row, with the reason. `removed` has the matches of the others."""
    cpu_seconds: float = 0.0
    counted: int = 0
    """Source rows that the matching rows of a derived table count."""

    @property
    def matches(self) -> int:
        return self.removed.total()


def search_all(
    runner: Runner,
    layout: Layout,
    matchers: Mapping[str, Matcher],
    targets: Sequence[SearchTarget],
    *,
    rewrite: bool,
) -> Iterator[SearchResult]:
    """Searches the files on Spark. Yields results in any order. With `rewrite`, also rewrites files with
    matching rows; the rewritten files are durable.
    """
    work = partial(search_files, layout, matchers, rewrite)
    for found in runner.results(work, batched(targets, lambda each: each.bytes, _TASK_BYTES)):
        yield from found


def search_files(
    layout: Layout, matchers: Mapping[str, Matcher], rewrite: bool, files: Sequence[SearchTarget]
) -> list[SearchResult]:
    return [_search(layout, {name: matchers[name] for name in each.names}, rewrite, each) for each in files]


def _search(
    layout: Layout, matchers: Mapping[str, Matcher], rewrite: bool, target: SearchTarget
) -> SearchResult:
    """Returns a result also for a missing or damaged file, so that the other files are searched."""
    try:
        try:
            return _found(layout, matchers, rewrite, target)
        except (FrazilError, pa.ArrowException, OSError):
            with layout.io.local(target.path) as path:
                damage = find_corruption(path)
            if damage is None:
                raise
            return SearchResult(target.path, unreadable=damage)
    except FileNotFoundError:
        return SearchResult(target.path, is_gone=True)


def _found(
    layout: Layout, matchers: Mapping[str, Matcher], rewrite: bool, target: SearchTarget
) -> SearchResult:
    begin = time.process_time()
    if (excluded := _excluded(layout, matchers, target)) is not None:
        return replace(excluded, cpu_seconds=time.process_time() - begin)
    with layout.io.local(target.path) as path:
        rows = pq.read_metadata(path).num_rows
        if target.file is not None and rows != target.file.record_count:
            reason = f"it has {rows:,} rows, but the table's metadata says {target.file.record_count:,}"
            return SearchResult(target.path, unreadable=reason)
        mask, failed = _mask(path, target.path, rows, matchers)
        removed = _sources(path, mask, layout.spec)
        derived = layout.spec.derived
        counted = counted_of(path, mask, derived) if derived and derived.counts and removed else 0
    added = None
    if rewrite and target.file is not None and 0 < removed.total() < rows:
        added = _without(layout, target.file, mask)
    seconds = time.process_time() - begin
    return SearchResult(
        target.path, rows, removed, added, failed=failed, cpu_seconds=seconds, counted=counted
    )


def _excluded(layout: Layout, matchers: Mapping[str, Matcher], target: SearchTarget) -> SearchResult | None:
    """Returns the result of a file in which no row can match, from its footer and Bloom filters alone. None
    if all of the file must be read: also if the footer cannot be, or differs from what the table says.
    """
    if not matchers or not all(matcher.hashes for matcher in matchers.values()):
        return None
    try:
        with layout.io.new_input(target.path).open() as source:
            footer = pq.read_metadata(source)
            if not all(each.is_excluded(source, footer, target.path) for each in matchers.values()):
                return None
    except (FrazilError, pa.ArrowException, OSError):
        return None
    if target.file is not None and target.file.record_count != footer.num_rows:
        return None
    return SearchResult(target.path, footer.num_rows)


def _mask(
    path: Path, original: str, rows: int, matchers: Mapping[str, Matcher]
) -> tuple[Mask, dict[str, str]]:
    """Returns the rows that any matcher matches, and the matchers that failed."""
    if not matchers:
        return np.ones(rows, np.bool_), {}
    mask, failed = np.zeros(rows, np.bool_), {}
    for name, matcher in matchers.items():
        try:
            mask |= matcher.matching(str(path), original)
        except (QueryInvalid, LimitReached) as error:
            if find_corruption(path) is not None:
                raise
            failed[name] = str(error)
    return mask, failed


def _sources(path: Path, mask: Mask, spec: TableSpec) -> Counter[str]:
    if not mask.any():
        return Counter()
    if not spec.has(SEGMENT.name):
        return Counter({"": int(mask.sum())})
    with pq.ParquetFile(path, read_dictionary=[SEGMENT.name]) as file:
        column = file.read([SEGMENT.name]).column(0)
    if not mask.all():
        column = column.filter(pa.array(mask))
    return Counter({item["values"].as_py(): item["counts"].as_py() for item in column.value_counts()})


def _without(layout: Layout, file: DataFile, mask: Mask) -> DataFile:
    """Writes the file's other rows, in the same order and row groups. Its dictionaries have no values of
    removed rows.
    """
    tenant, day = partition_of(file)
    with opened(layout, [file]) as (inputs, vanished):
        if vanished:
            raise FileNotFoundError(file.file_path)
        (source,) = inputs
        rows_per_group = max(group.rows for group in source.row_groups)
        with DataFileWriter(layout, tenant, day, file_name(layout), rows_per_group) as output:
            first = 0
            for group in source.row_groups:
                kept = pa.array(~mask[first : first + group.rows])
                first += group.rows
                table = pa.concat_tables(source.read(row_groups=[group.number])).filter(kept)
                if table.num_rows:
                    output.write(compact_dictionaries(table.unify_dictionaries().combine_chunks()))
            return output.finish(is_sorted=file.sort_order_id == layout.sort_order_id)
