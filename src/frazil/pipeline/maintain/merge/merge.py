"""Merges many small data files into few large ones: the same rows, in the table's order. Partial rows of a
derived table with the same key become one row.
"""

from __future__ import annotations

import contextlib
import dataclasses
import resource
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa
from pyiceberg.manifest import DataFile

from frazil.config import CompactConfig
from frazil.errors import FrazilError, StoreUnavailable
from frazil.pipeline.datafile import DataFileWriter, Layout, file_name
from frazil.pipeline.inputs import Input, opened
from frazil.pipeline.maintain.merge.combined import CombinedMerge
from frazil.pipeline.maintain.merge.identical import Mask, find_duplicates
from frazil.pipeline.maintain.merge.settle import Settling, write_by_resolution
from frazil.pipeline.maintain.merge.sorted_runs import SortedMerge
from frazil.pipeline.maintain.merge.time_ordered import TimeOrderedMerge
from frazil.tables.columns import RESOLUTION

_Plan = SortedMerge | TimeOrderedMerge | CombinedMerge
_COPIES_MAX = 3
"""Candidates for duplicate spans that are compared at once, as a multiple of a row group's bytes."""


@dataclass(frozen=True)
class MergeSettings:
    target_bytes: int
    row_group_bytes: int
    compression_level: int
    merge_identical_spans: bool

    @classmethod
    def of(cls, config: CompactConfig) -> MergeSettings:
        return cls(
            config.target_bytes,
            config.row_group_bytes,
            config.compression_level,
            config.merge_identical_spans,
        )


@dataclass(frozen=True)
class Merge:
    """Files of one partition to merge. Tenant and day are None for a table without partitions."""

    inputs: tuple[DataFile, ...]
    tenant: str | None
    day: int | None
    by_resolution: bool = False
    """Whether each file gets rows of one resolution only."""
    settled_until: float | None = None
    """Pending rows of source rows that arrived until then are settled; seconds since 1970. None: no row is
    settled."""


@dataclass
class Merged:
    began: float = field(default_factory=time.time)
    """Seconds since 1970. All files of `added` are newer."""
    added: list[DataFile] = field(default_factory=list)
    vanished: list[str] = field(default_factory=list)
    """Missing inputs. If there are any, nothing was written."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Unreadable inputs, with the reason. If there are any, nothing was written."""
    rows: int = 0
    removed: Counter[str] = field(default_factory=Counter)
    """Duplicate spans that were removed, by `_segment`."""
    combined: int = 0
    """Partial rows that became part of another row of the same key."""
    made: int = 0
    """Rows that were made from pending rows."""
    bytes_read: int = 0
    cpu_seconds: float = 0.0
    rss_bytes: int = 0


def merge(layout: Layout, job: Merge, settings: MergeSettings) -> Merged:
    """Merges the inputs in bounded memory. The written files are durable when the function returns."""
    begin, result = time.process_time(), Merged()
    layout = dataclasses.replace(layout, compression_level=settings.compression_level)
    with opened(layout, job.inputs, result.unreadable) as (inputs, result.vanished):
        if not (result.vanished or result.unreadable):
            _merge_or_find_damage(layout, job, settings, inputs, result)
    result.cpu_seconds = time.process_time() - begin
    result.rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return result


def _merge_or_find_damage(
    layout: Layout, job: Merge, settings: MergeSettings, inputs: list[Input], result: Merged
) -> None:
    """Merges. If that fails, reads each input to find those that are damaged: a readable footer does not
    prove that the rows are readable.
    """
    try:
        _merge(layout, job, settings, inputs, result)
    except (FrazilError, MemoryError):  # not an error of the inputs, which are local files
        raise
    except Exception:
        damages = {each.file.file_path: each.damage() for each in inputs}
        result.unreadable = {path: damage for path, damage in damages.items() if damage is not None}
        if not result.unreadable:
            raise


def _merge(layout: Layout, job: Merge, settings: MergeSettings, inputs: list[Input], result: Merged) -> None:
    plan: _Plan
    non_empty = [each for each in inputs if each.rows]
    if not non_empty:
        return
    result.bytes_read = sum(file.file_size_in_bytes for file in job.inputs)
    if job.settled_until is not None:
        settling = Settling(layout, non_empty, settings.row_group_bytes, job.settled_until)
        result.added = write_by_resolution(
            layout, job.tenant, job.day, settling, lambda file: file.bytes >= settings.target_bytes
        )
        result.made, result.combined = settling.made, settling.combined
        result.rows = sum(file.record_count for file in result.added)
        return
    if layout.spec.merged_as == "time_ordered":
        kept: list[Mask] | None = None
        if settings.merge_identical_spans and layout.spec.signal == "spans":
            kept, result.removed = find_duplicates(non_empty, _COPIES_MAX * settings.row_group_bytes)
        plan = TimeOrderedMerge(layout, non_empty, settings.row_group_bytes, kept)
    else:
        plan = SortedMerge(layout, non_empty, settings.row_group_bytes)
        if layout.spec.derived is not None:
            plan = CombinedMerge(layout, plan, settings.row_group_bytes, by_resolution=job.by_resolution)
    files = max(1, round(result.bytes_read / settings.target_bytes))
    rows_per_file = -(-plan.rows // files)
    if isinstance(plan, CombinedMerge):  # the number of rows to write is not known before
        result.added = _write(layout, job, plan, lambda file: file.bytes >= settings.target_bytes)
        result.combined = plan.combined
    else:
        result.added = _write(layout, job, plan, lambda file: file.rows >= rows_per_file)
    result.rows = sum(file.record_count for file in result.added)


def _write(
    layout: Layout, job: Merge, plan: _Plan, is_full: Callable[[DataFileWriter], bool]
) -> list[DataFile]:
    """Writes the files. Deletes them all if writing fails."""
    name, written, groups = file_name(layout), list[DataFile](), plan.groups()
    try:
        group = next(groups, None)
        while group is not None:
            resolution = _resolution(job, group)
            with DataFileWriter(
                layout, job.tenant, job.day, f"{name}-{len(written):05d}", plan.rows_per_group
            ) as file:
                while group is not None and not is_full(file) and _resolution(job, group) == resolution:
                    file.write(group)
                    group = None  # free it before the next one is read
                    group = next(groups, None)
                written.append(file.finish(is_sorted=plan.is_sorted or file.row_groups == 1))
    except BaseException:
        for done in written:
            with contextlib.suppress(StoreUnavailable):  # the file becomes an orphan
                layout.io.delete(done.file_path)
        raise
    return written


def _resolution(job: Merge, group: pa.Table) -> int | None:
    """Returns the resolution of a row group, if files are split by it."""
    return int(group[RESOLUTION][0].as_py()) if job.by_resolution else None
