"""One WAL segment as the rows of one tenant, in the form that they have once they have landed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from frazil.config import Config
from frazil.errors import SegmentCorrupt, SegmentUnknown
from frazil.sql.promoted_fallback import source_columns
from frazil.tables import DEFAULT_PROMOTED, SEGMENT, Fill, Signal, landed_spec, table_spec
from frazil.tables.columns import TIMESTAMP, Longs, within_horizon
from frazil.tables.encoding import with_dictionary
from frazil.tables.promoted import promoted
from frazil.wal.names import SegmentName
from frazil.wal.promote import fill_columns
from frazil.wal.rowgroups import coded_table
from frazil.wal.segment import Facts, open_segment

MICROS = 1_000_000


class Bounds(NamedTuple):
    """Of `time`, in microseconds, both included."""

    lower: int | None = None
    upper: int | None = None

    def exclude(self, first: int | None, last: int | None) -> bool:
        """Whether no time from `first` to `last` is within the bounds."""
        return (self.lower is not None and last is not None and last < self.lower) or (
            self.upper is not None and first is not None and first > self.upper
        )


@dataclass(frozen=True)
class Summary:
    """What the footer of a segment says. One that cannot be read has a problem and no counts.

    `time_min` and `time_max` bound `time` of all rows as landing sets it, in microseconds.
    """

    received: int = 0
    """When its last rows came, in nanoseconds."""
    rows_before: int | None = None
    rows_after: int | None = None
    """Of the stream, all tenants."""
    time_min: int | None = None
    time_max: int | None = None
    problem: str | None = None


class SegmentDecoder:
    """Of one table. Rows are without dictionaries: one would hold values of other tenants, too."""

    def __init__(self, config: Config, signal: Signal) -> None:
        extra = promoted(config)
        self._fill = Fill.of((*DEFAULT_PROMOTED, *extra))
        self._types = {column.name: column.type for column in landed_spec(signal, extra).columns}
        coded = table_spec(signal, extra).coded_schema
        self.dictionary = with_dictionary(coded)
        """Leaf columns that are worth a dictionary in a file. Measured on logs with nine attributes: half the
        bytes of plain text, and no slower to filter.
        """
        self._past_micros = int(config.land.horizon_past_seconds * MICROS)
        self._ahead_micros = int(config.land.horizon_ahead_seconds * MICROS)

    def schema(self, columns: Collection[str] | None) -> pa.Schema:
        """That of decoded rows: `time` and the columns, in the order of the table. None: all columns."""
        return self._schema(self._types if columns is None else {*columns, "time"})

    def _schema(self, names: Collection[str]) -> pa.Schema:
        return pa.schema([(name, type_) for name, type_ in self._types.items() if name in names])

    def decode(
        self,
        name: SegmentName,
        data: bytes,
        tenant: str,
        schema: pa.Schema,
        bounds: Bounds = Bounds(),  # noqa: B008
    ) -> tuple[Summary, pa.Table | None]:
        """The tenant's rows in `schema`, which `schema()` has made. No table if there are none, or if all
        rows of the segment are outside the bounds.
        """
        try:
            facts, file = open_segment(name, data)
            summary, is_timed = self._summary(facts, file)
            if facts.rows == 0 or bounds.exclude(summary.time_min, summary.time_max):
                return summary, None
            table = self._read(facts, file, schema, is_timed=is_timed)
        except (SegmentCorrupt, SegmentUnknown) as error:
            return Summary(problem=f"{error}; landing will set it aside"), None
        mine = pc.equal(table["tenant_id"], tenant)
        if not pc.all(mine).as_py():
            table = table.filter(mine)
        if table.num_rows == 0:
            return summary, None
        if not is_timed:
            table = self._timed(table)
        if SEGMENT.name in schema.names:
            label = pa.repeat(pa.scalar(f"{name.stream}/{name.sequence}", SEGMENT.type), table.num_rows)
            table = table.append_column(SEGMENT.name, label)
        return summary, pa.Table.from_arrays([table[name] for name in schema.names], schema=schema)

    def _summary(self, facts: Facts, file: pq.ParquetFile) -> tuple[Summary, bool]:
        """And whether `time` of all rows is within the horizon: landing leaves it as it is."""
        received = (facts.received_min_unix_nano // 1000, facts.received_max_unix_nano // 1000)
        counts = (facts.received_max_unix_nano, facts.stream_rows - facts.rows, facts.stream_rows)
        found = _time_bounds(file.metadata)
        if found is None:
            return Summary(*counts), facts.rows == 0
        first, last = found
        is_timed = first >= received[1] - self._past_micros and last <= received[0] + self._ahead_micros
        if not is_timed:
            first, last = min(first, received[0]), max(last, received[1])
        return Summary(*counts, first, last), is_timed

    def _read(self, facts: Facts, file: pq.ParquetFile, schema: pa.Schema, *, is_timed: bool) -> pa.Table:
        """All tenants' rows. Read once more where columns are to be filled from the maps."""
        names = {*schema.names, "tenant_id", *(() if is_timed else ("received_time",))} - {SEGMENT.name}
        table = self._columns(facts, file, names)
        unfilled = names & self._fill.unfilled(facts.fill)
        missing = unfilled | (names - set(table.column_names))
        if not missing:
            return table
        wanted = self._schema(names)
        names |= {each for name in missing & self._fill.promoted.keys() for each in self._sources(name)}
        return fill_columns(self._columns(facts, file, names), wanted, self._fill.promoted, unfilled)

    def _sources(self, column: str) -> tuple[str, str]:
        return source_columns(self._fill.promoted[column])

    def _columns(self, facts: Facts, file: pq.ParquetFile, names: Collection[str]) -> pa.Table:
        """Those that the file has, in the table's types."""
        try:
            table = file.read(columns=[*names], use_threads=False)
        except MemoryError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise SegmentCorrupt(facts.name.path, str(error)) from None
        if table.num_rows != facts.rows:
            raise SegmentCorrupt(facts.name.path, f"{table.num_rows} rows where its footer says {facts.rows}")
        if all(field.type == self._types[field.name] for field in table.schema):
            return table
        return coded_table(table, self._schema(names))

    def _timed(self, table: pa.Table) -> pa.Table:
        """With `time` as landing sets it."""
        time, outside = within_horizon(
            _micros(table["time"]),
            _micros(table["received_time"]),
            past_micros=self._past_micros,
            ahead_micros=self._ahead_micros,
        )
        if not outside.any():
            return table
        at = table.column_names.index("time")
        return table.set_column(
            at, table.schema.field(at), pa.array(time).cast(pa.timestamp("us")).cast(TIMESTAMP)
        )


def _time_bounds(footer: pq.FileMetaData) -> tuple[int, int] | None:
    """None if some row group does not say."""
    names = range(footer.num_columns if footer.num_row_groups else 0)
    at = next((n for n in names if footer.row_group(0).column(n).path_in_schema == "time"), None)
    if at is None:
        return None
    found = [footer.row_group(n).column(at).statistics for n in range(footer.num_row_groups)]
    if any(each is None or not each.has_min_max for each in found):
        return None
    return min(int(each.min_raw) for each in found), max(int(each.max_raw) for each in found)


def _micros(column: pa.ChunkedArray) -> Longs:
    found: Longs = column.cast(pa.int64()).to_numpy()
    return found
