"""Many small data files become one large one: the same rows, in the table's order."""

from __future__ import annotations

import contextlib
import dataclasses
import resource
import time
from collections import Counter
from dataclasses import dataclass, field

from pyiceberg.manifest import DataFile

from frazil.config import CompactConfig
from frazil.errors import FrazilError, StoreUnavailable
from frazil.pipeline.datafile import DataFileWriter, Layout, file_name
from frazil.pipeline.maintain.merge.identical import Mask, copies
from frazil.pipeline.maintain.merge.inputs import Input, opened
from frazil.pipeline.maintain.merge.sorted_runs import Runs
from frazil.pipeline.maintain.merge.time_ordered import Stretches

_COPIES_MAX = 3
"""Spans that may be copies and are compared at once, as a multiple of a row group's bytes."""


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
    """Files of one partition. A table without partitions has neither tenant nor day."""

    inputs: tuple[DataFile, ...]
    tenant: str | None
    day: int | None


@dataclass
class Merged:
    began: float = field(default_factory=time.time)
    """Seconds since 1970. No file of it is older."""
    added: list[DataFile] = field(default_factory=list)
    vanished: list[str] = field(default_factory=list)
    """Inputs that are gone. Nothing was written then."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Inputs whose rows cannot be read, with the reason. Nothing was written then."""
    rows: int = 0
    removed: Counter[str] = field(default_factory=Counter)
    """Copies of spans that were left out, by `_segment`."""
    bytes_read: int = 0
    cpu_seconds: float = 0.0
    rss_bytes: int = 0


def merge(layout: Layout, job: Merge, settings: MergeSettings) -> Merged:
    """Reads the inputs in bounded memory and writes their rows anew. Files are durable when it returns."""
    begin, result = time.process_time(), Merged()
    layout = dataclasses.replace(layout, compression_level=settings.compression_level)
    with opened(layout, job.inputs, result.unreadable) as (inputs, result.vanished):
        if not (result.vanished or result.unreadable):
            _merge_or_blame(layout, job, settings, inputs, result)
    result.cpu_seconds = time.process_time() - begin
    result.rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return result


def _merge_or_blame(
    layout: Layout, job: Merge, settings: MergeSettings, inputs: list[Input], result: Merged
) -> None:
    """Footers may be whole where rows are not."""
    try:
        _merge(layout, job, settings, inputs, result)
    except (FrazilError, MemoryError):  # not of an input: those are on a disk here
        raise
    except Exception:
        damages = {each.file.file_path: each.damage() for each in inputs}
        result.unreadable = {path: damage for path, damage in damages.items() if damage is not None}
        if not result.unreadable:
            raise


def _merge(layout: Layout, job: Merge, settings: MergeSettings, inputs: list[Input], result: Merged) -> None:
    plan: Runs | Stretches
    full = [each for each in inputs if each.rows]
    if not full:
        return
    if layout.spec.merged_as == "stretches":
        kept: list[Mask] | None = None
        if settings.merge_identical_spans and layout.spec.signal == "spans":
            kept, result.removed = copies(full, _COPIES_MAX * settings.row_group_bytes)
        plan = Stretches(layout, full, settings.row_group_bytes, kept)
    else:
        plan = Runs(layout, full, settings.row_group_bytes)
    result.bytes_read = sum(file.file_size_in_bytes for file in job.inputs)
    files = max(1, round(result.bytes_read / settings.target_bytes))
    result.added = _write(layout, job, plan, -(-plan.rows // files))
    result.rows = sum(file.record_count for file in result.added)


def _write(layout: Layout, job: Merge, plan: Runs | Stretches, rows_per_file: int) -> list[DataFile]:
    """All files, or none."""
    name, written, groups = file_name(layout), list[DataFile](), plan.groups()
    try:
        group = next(groups, None)
        while group is not None:
            with DataFileWriter(
                layout, job.tenant, job.day, f"{name}-{len(written):05d}", plan.rows_per_group
            ) as file:
                while group is not None and file.rows < rows_per_file:
                    file.write(group)
                    group = None  # not to be held beside the next
                    group = next(groups, None)
                written.append(file.finish(is_sorted=plan.is_sorted or file.row_groups == 1))
    except BaseException:
        for done in written:
            with contextlib.suppress(StoreUnavailable):  # which leaves an orphan
                layout.io.delete(done.file_path)
        raise
    return written
