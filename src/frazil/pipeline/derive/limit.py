"""Bounds how many keys one tenant adds to a table on one day, such as series (`Derived.limited_key`).

A client that puts a request's id into an attribute makes a new series with every point. Beyond the bound,
rows of keys that the table does not hold yet are left out; rows of the others are still written.

Nothing is remembered: the table's own files tell which keys it holds, so the bound holds after a restart
and for past days. Files are read only if a partition could reach the bound, as their numbers of rows tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from frazil.lake.live_files import FilePartition, corruption_in, live_files, partition_of
from frazil.pipeline.derive.source import Cut
from frazil.tables import TableSpec
from frazil.tables.columns import TENANT, TIME

_DAY_MICROS = 86_400_000_000
_MEASURED_TENANTS = 3
_WAITING_ROWS = 2_000_000

Keys = npt.NDArray[np.int64]
"""Sorted, each once."""


@dataclass(frozen=True)
class Held:
    """The files of one tenant and day, and their number of rows: at least that of their keys."""

    paths: tuple[str, ...] = ()
    rows: int = 0


@dataclass(frozen=True)
class Limit:
    """The bound of one table in one job. `partitions` are those that the job could fill."""

    column: str
    keys_max: int
    partitions: Mapping[FilePartition, Held]

    @classmethod
    def of(cls, spec: TableSpec, table: Table, cut: Cut, keys_max: int, *, replacing: bool) -> Limit | None:
        """Returns None if the table has no bound, or the job cannot reach it. `replacing`: the rows that the
        table holds of these days will be removed.
        """
        if spec.derived is None or not spec.derived.limited_key:
            return None
        rows: Counter[FilePartition] = Counter()
        for each in cut.files:
            rows[each.partition] += each.file.record_count
        held = {} if replacing else _held(table, rows)
        reachable = {
            partition: found
            for partition, number in rows.items()
            if number + (found := held.get(partition, Held())).rows > keys_max
        }
        return cls(spec.derived.limited_key, keys_max, reachable) if reachable else None


def _held(table: Table, partitions: Iterable[FilePartition]) -> dict[FilePartition, Held]:
    wanted = {*partitions}
    found: dict[FilePartition, list[DataFile]] = {}
    for each in live_files(table, days={partition.day for partition in wanted}):
        if (partition := partition_of(each.file)) in wanted:
            found.setdefault(partition, []).append(each.file)
    return {
        partition: Held(
            tuple(file.file_path for file in files), sum(int(file.record_count) for file in files)
        )
        for partition, files in found.items()
    }


@dataclass
class Counts:
    """Keys that one task wrote and refused, by partition. Keys that the table held may count as written if
    the task did not have to look.
    """

    written: Counter[FilePartition] = field(default_factory=Counter)
    refused: Counter[FilePartition] = field(default_factory=Counter)


class Admission:
    """Decides in one task which rows of a table with a bound are written."""

    def __init__(self, limit: Limit, io: FileIO) -> None:
        self._limit = limit
        self._io = io
        self._held: dict[FilePartition, Keys] = {}
        self._written: dict[FilePartition, Keys] = {}
        self.counts = Counts()

    def admitted(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """Returns which rows are of keys that the table holds, or for which there is room. Of new keys, those
        with the least values are preferred: tasks that see the same keys choose the same.
        """
        found = np.ones(rows.num_rows, np.bool_)
        keys = rows.column(self._limit.column).cast(pa.int64()).to_numpy()
        days = rows.column(TIME).cast(pa.int64()).to_numpy() // _DAY_MICROS
        tenants = rows.column(TENANT).cast(pa.string())
        for partition in self._limit.partitions:
            is_here = days == partition.day
            if is_here.any():
                is_here &= pc.fill_null(pc.equal(tenants, partition.tenant), False).to_numpy(
                    zero_copy_only=False
                )
            if is_here.any():
                found[is_here] = self._of_partition(partition, keys[is_here])
        return found

    def _of_partition(self, partition: FilePartition, keys: Keys) -> npt.NDArray[np.bool_]:
        written = self._written.get(partition, _NO_KEYS)
        new = _distinct(keys[~_is_in(keys, written)])
        rows = self._limit.partitions[partition].rows
        refused = _NO_KEYS
        if rows + len(written) + len(new) > self._limit.keys_max:
            held = self._keys_held(partition)
            written = written[~_is_in(written, held)]
            new = new[~_is_in(new, held)]
            room = max(0, self._limit.keys_max - len(held) - len(written))
            new, refused = new[:room], new[room:]
        self._written[partition] = np.sort(np.concatenate((written, new)))
        self.counts.written[partition] = len(self._written[partition])
        self.counts.refused[partition] += len(refused)
        return ~_is_in(keys, refused)

    def _keys_held(self, partition: FilePartition) -> Keys:
        if partition not in self._held:
            paths = self._limit.partitions[partition].paths
            self._held[partition] = keys_of(self._io, paths, self._limit.column)
        return self._held[partition]


_NO_KEYS: Keys = np.zeros(0, np.int64)


def keys_of(io: FileIO, paths: Iterable[str], column: str) -> Keys:
    """Returns the distinct values of a column in data files. Missing and corrupt files have none: the bound
    may then be exceeded by their keys.
    """
    found, waiting, rows = _NO_KEYS, [_NO_KEYS], 0
    for path in paths:
        try:
            with io.new_input(path).open() as stream:
                values = pq.ParquetFile(stream).read([column], use_threads=False).column(0)
        except FileNotFoundError:  # merged just now
            continue
        except Exception as error:
            if corruption_in(error) is None:
                raise
            continue
        waiting.append(values.to_numpy())
        rows += len(values)
        if rows >= _WAITING_ROWS:
            found, waiting, rows = _distinct(np.concatenate((found, *waiting))), [_NO_KEYS], 0
    return _distinct(np.concatenate((found, *waiting)))


def _distinct(values: npt.NDArray[np.int64]) -> Keys:
    """Returns what `np.unique` does, several times as fast for many values that are mostly different."""
    ordered = np.sort(values)
    is_first = np.ones(len(ordered), np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_first]


def _is_in(values: npt.NDArray[np.int64], keys: Keys) -> npt.NDArray[np.bool_]:
    if len(keys) == 0:
        return np.zeros(len(values), np.bool_)
    places = np.minimum(np.searchsorted(keys, values), len(keys) - 1)
    found: npt.NDArray[np.bool_] = keys[places] == values
    return found


def beyond(
    limit: Limit, io: FileIO, tasks: Sequence[tuple[Counts, Sequence[DataFile]]]
) -> tuple[set[str], Counter[FilePartition]]:
    """Returns the files that together with those of other tasks exceed the bound, and how many keys are only
    in them: every task alone keeps to the bound, but knows nothing of the others. Files of the first tasks
    are kept.
    """
    found: set[str] = set()
    refused: Counter[FilePartition] = Counter()
    for partition, held in limit.partitions.items():
        writing = [(counts.written[partition], files) for counts, files in tasks if counts.written[partition]]
        if len(writing) < 2 or held.rows + sum(number for number, _ in writing) <= limit.keys_max:
            continue
        keys = keys_of(io, held.paths, limit.column)
        for _, files in writing:
            paths = [file.file_path for file in files if partition_of(file) == partition]
            union = _distinct(np.concatenate((keys, keys_of(io, paths, limit.column))))
            if len(union) > max(limit.keys_max, len(keys)):
                found |= {*paths}
                refused[partition] += len(union) - len(keys)
            else:
                keys = union
    return found, refused


def largest(table: Table, column: str, day: int) -> int:
    """Returns the most keys that one tenant has on a day. Counts the keys of the few tenants with the most
    rows, since a key may have several rows until files are merged.
    """
    files: dict[FilePartition, list[DataFile]] = {}
    for each in live_files(table, days={day}):
        if (partition := partition_of(each.file)).day == day:
            files.setdefault(partition, []).append(each.file)
    rows = {partition: sum(int(file.record_count) for file in found) for partition, found in files.items()}
    most = 0
    for partition in sorted(rows, key=lambda each: -rows[each])[:_MEASURED_TENANTS]:
        if rows[partition] > most:
            paths = [file.file_path for file in files[partition]]
            most = max(most, len(keys_of(table.io, paths, column)))
    return most
