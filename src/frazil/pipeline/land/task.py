"""What a Spark task does: segments in, durable data files out. Runs in Spark's Python workers."""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence

import pyarrow as pa

from frazil.config import Config
from frazil.errors import SegmentCorrupt, SegmentUnknown
from frazil.pipeline.arrange import Horizon
from frazil.pipeline.datafile import Layout, file_name, fill_promoted
from frazil.pipeline.land.chunks import Chunks
from frazil.pipeline.land.results import TaskResult, Unreadable
from frazil.tables import SEGMENT
from frazil.wal.names import SegmentName
from frazil.wal.rowgroups import read_row_groups
from frazil.wal.store import open_store


def land_segments(
    config: Config,
    layout: Layout,
    horizon: Horizon,
    names: Sequence[SegmentName],
    *,
    files_max: int | None,
) -> TaskResult:
    """Reads, arranges and writes. What cannot be read is named with its reason; what is gone is named too.

    Stops when the rows need more than `files_max` files.
    """
    begin, result = cpu_seconds(), TaskResult()
    store = open_store(config)
    chunks = Chunks(layout, horizon, file_name(layout), result, files_max=files_max)
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
            result.unreadable.append(Unreadable(segment_of(name), reason, len(data)))
            continue
        for table in tables:
            chunks.add(table)
    chunks.flush()
    return measured(result, begin)


def _tables(name: SegmentName, data: bytes, layout: Layout, result: TaskResult) -> list[pa.Table]:
    """All of a segment or nothing: it is read to its end before a row of it is taken."""
    facts, groups = read_row_groups(name, data, layout.coded)
    filled = (fill_promoted(table, layout, facts.fill) for table in groups)
    tables = [with_segment(table, segment_of(name), layout) for table in filled]
    result.facts.append(facts)
    if not facts.tombstone:
        result.received(facts.received_min_unix_nano)
    return tables


def with_segment(table: pa.Table, segment: str, layout: Layout) -> pa.Table:
    """The table in the layout's schema, each row saying where it was durable before."""
    value = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), table.num_rows), [segment])
    table = table.append_column(layout.coded.field(SEGMENT.name), value)
    return table.select(layout.coded.names)


def segment_of(name: SegmentName) -> str:
    return f"{name.stream}/{name.sequence}"


def cpu_seconds() -> float:
    return time.process_time()


def measured(result: TaskResult, begin: float) -> TaskResult:
    result.cpu_seconds = cpu_seconds() - begin
    result.rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return result
