"""Data files searched for rows that are to go, and written anew without them. Runs in Spark's workers."""

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
from frazil.lake.live_files import partition_of
from frazil.lake.state.corruption import damage_of
from frazil.pipeline.datafile import GrowingFile, Layout, file_name
from frazil.pipeline.maintain.merge.inputs import opened
from frazil.pipeline.maintain.predicates.match import Matcher
from frazil.pipeline.partition_sort import compact
from frazil.pipeline.runner import Runner, gathered
from frazil.tables import SEGMENT, TableSpec

Mask = npt.NDArray[np.bool_]
_TASK_BYTES = 256 * 2**20
"""Of files that one task searches: starting one costs as much as reading a few small files."""


@dataclass(frozen=True)
class Wanted:
    """A file, and the names of the matchers of which any is to match. Without names, all of its rows are
    meant. `file` is needed where it is to be written anew.
    """

    path: str
    bytes: int
    names: tuple[str, ...] = ()
    file: DataFile | None = None

    @classmethod
    def of(cls, file: DataFile, names: Sequence[str] = ()) -> Wanted:
        return cls(file.file_path, file.file_size_in_bytes, tuple(names), file)


@dataclass(frozen=True)
class Searched:
    """What was found in a file: `rows` are all that it has, `removed` those that are meant, by `_segment`
    if the table has it.
    """

    path: str
    rows: int = 0
    removed: Counter[str] = field(default_factory=Counter)
    added: DataFile | None = None
    """What stands for the file from now on, where only some of its rows are meant."""
    is_gone: bool = False
    unreadable: str | None = None
    """Why nobody can say what is in it."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Matchers that have no answer for some row of it, and why. What the others found is told."""
    cpu_seconds: float = 0.0

    @property
    def matches(self) -> int:
        return self.removed.total()


def search_all(
    runner: Runner,
    layout: Layout,
    matchers: Mapping[str, Matcher],
    wanted: Sequence[Wanted],
    *,
    rewrite: bool,
) -> Iterator[Searched]:
    """In any order. With `rewrite`, what remains of files with matching rows is durable when it is told."""
    work = partial(search_files, layout, matchers, rewrite)
    for found in runner.results(work, in_tasks(wanted)):
        yield from found


def in_tasks(wanted: Sequence[Wanted]) -> list[tuple[Wanted, ...]]:
    return [tuple(task) for task in gathered(wanted, lambda each: each.bytes, _TASK_BYTES)]


def search_files(
    layout: Layout, matchers: Mapping[str, Matcher], rewrite: bool, files: Sequence[Wanted]
) -> list[Searched]:
    return [_search(layout, {name: matchers[name] for name in each.names}, rewrite, each) for each in files]


def _search(layout: Layout, matchers: Mapping[str, Matcher], rewrite: bool, wanted: Wanted) -> Searched:
    """One file that is gone, or not as it was written, must not keep all others from being searched."""
    try:
        try:
            return _found(layout, matchers, rewrite, wanted)
        except (FrazilError, pa.ArrowException, OSError):
            with layout.io.local(wanted.path) as path:
                damage = damage_of(path)
            if damage is None:
                raise
            return Searched(wanted.path, unreadable=damage)
    except FileNotFoundError:
        return Searched(wanted.path, is_gone=True)


def _found(layout: Layout, matchers: Mapping[str, Matcher], rewrite: bool, wanted: Wanted) -> Searched:
    begin = time.process_time()
    if (excluded := _excluded(layout, matchers, wanted)) is not None:
        return replace(excluded, cpu_seconds=time.process_time() - begin)
    with layout.io.local(wanted.path) as path:
        rows = pq.read_metadata(path).num_rows
        if wanted.file is not None and rows != wanted.file.record_count:
            reason = f"it has {rows:,} rows, and the table says {wanted.file.record_count:,}"
            return Searched(wanted.path, unreadable=reason)
        mask, failed = _mask(path, wanted.path, rows, matchers)
        removed = _sources(path, mask, layout.spec)
    added = None
    if rewrite and wanted.file is not None and 0 < removed.total() < rows:
        added = _without(layout, wanted.file, mask)
    seconds = time.process_time() - begin
    return Searched(wanted.path, rows, removed, added, failed=failed, cpu_seconds=seconds)


def _excluded(layout: Layout, matchers: Mapping[str, Matcher], wanted: Wanted) -> Searched | None:
    """Returns the result of a file in which no row can match, from its footer and Bloom filters alone. None
    if all of the file must be read: also if the footer cannot be, or differs from what the table says.
    """
    if not matchers or not all(matcher.hashes for matcher in matchers.values()):
        return None
    try:
        with layout.io.new_input(wanted.path).open() as source:
            footer = pq.read_metadata(source)
            if not all(each.is_excluded(source, footer, wanted.path) for each in matchers.values()):
                return None
    except (FrazilError, pa.ArrowException, OSError):
        return None
    if wanted.file is not None and wanted.file.record_count != footer.num_rows:
        return None
    return Searched(wanted.path, footer.num_rows)


def _mask(
    path: Path, original: str, rows: int, matchers: Mapping[str, Matcher]
) -> tuple[Mask, dict[str, str]]:
    """The rows that any finds, and those that have failed."""
    if not matchers:
        return np.ones(rows, np.bool_), {}
    mask, failed = np.zeros(rows, np.bool_), {}
    for name, matcher in matchers.items():
        try:
            mask |= matcher.matching(str(path), original)
        except (QueryInvalid, LimitReached) as error:
            if damage_of(path) is not None:
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
    """The file's other rows, in their order, row group by row group. What only the rows that go had is in no
    dictionary either.
    """
    tenant, day = partition_of(file)
    with opened(layout, [file]) as (inputs, vanished):
        if vanished:
            raise FileNotFoundError(file.file_path)
        (source,) = inputs
        rows_per_group = max(group.rows for group in source.row_groups)
        with GrowingFile(layout, tenant, day, file_name(layout), rows_per_group) as output:
            first = 0
            for group in source.row_groups:
                kept = pa.array(~mask[first : first + group.rows])
                first += group.rows
                table = pa.concat_tables(source.read(row_groups=[group.number])).filter(kept)
                if table.num_rows:
                    output.write(compact(table.unify_dictionaries().combine_chunks()))
            return output.finish(is_sorted=file.sort_order_id == layout.sort_order_id)
