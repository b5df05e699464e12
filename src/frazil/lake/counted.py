"""Counts rows in data files: by their source in the write-ahead log, and the source rows that rows of a
derived table count (`Derived.counts`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from frazil.lake.live_files import corruption_in
from frazil.tables import SEGMENT
from frazil.tables.columns import RESOLUTION
from frazil.tables.derived.rules import Derived


def rows_by_source(io: FileIO, path: str) -> dict[str, int]:
    """Returns the rows of a file of a landed table by `_segment`. Reads one dictionary-encoded column, about
    a byte per row.
    """
    with io.new_input(path).open() as stream:
        column = pq.ParquetFile(stream, read_dictionary=[SEGMENT.name]).read([SEGMENT.name]).column(0)
    return {item["values"].as_py(): item["counts"].as_py() for item in column.value_counts()}


def counted_by_resolution(io: FileIO, path: str, derived: Derived) -> Counter[int]:
    """Returns the source rows that a file of a derived table counts, by resolution; 0 if it has none."""
    with io.new_input(path).open() as stream:
        return _sums(pq.ParquetFile(stream).read(_columns(derived)), derived)


def counted_of(path: Path, mask: npt.NDArray[np.bool_], derived: Derived) -> int:
    """Returns the source rows that the rows in the mask count, in the resolution that is kept longest."""
    with pq.ParquetFile(path) as file:
        rows = file.read(_columns(derived))
    return _sums(rows.filter(pa.array(mask)), derived)[derived.longest_kept]


def counted_in(table: Table, files: Iterable[DataFile], derived: Derived) -> int:
    """Returns the source rows that files of a derived table count, in the resolution that is kept longest.
    Missing and corrupt files count none.
    """
    total = 0
    for file in files:
        if not _may_hold(file, table, derived.longest_kept):
            continue
        try:
            total += counted_by_resolution(table.io, file.file_path, derived)[derived.longest_kept]
        except FileNotFoundError:
            continue
        except Exception as error:
            if corruption_in(error) is None:
                raise
    return total


def _columns(derived: Derived) -> list[str]:
    return [derived.counts, *([RESOLUTION] if derived.resolutions else [])]


def _sums(rows: pa.Table, derived: Derived) -> Counter[int]:
    if not derived.resolutions:
        return Counter({0: int(pc.sum(rows.column(derived.counts)).as_py() or 0)})
    sums = rows.group_by(RESOLUTION).aggregate([(derived.counts, "sum")])
    keys, values = sums.column(RESOLUTION).to_pylist(), sums.column(f"{derived.counts}_sum").to_pylist()
    return Counter({key: value or 0 for key, value in zip(keys, values, strict=True)})


def _may_hold(file: DataFile, table: Table, resolution: int) -> bool:
    """Returns whether the file can have rows of the resolution, by its bounds."""
    field = next((each for each in table.schema().fields if each.name == RESOLUTION), None)
    if field is None:
        return True
    lower, upper = ((bounds or {}).get(field.field_id) for bounds in (file.lower_bounds, file.upper_bounds))
    if lower is None or upper is None:
        return True
    first, last = (int.from_bytes(each, "little", signed=True) for each in (lower, upper))
    return first <= resolution <= last
