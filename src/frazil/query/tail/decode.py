"""Decodes the rows of one tenant from a WAL segment, in the form that they have after landing."""

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
from frazil.tables import SEGMENT, Fill, Signal, landed_spec, table_spec
from frazil.tables.columns import TIMESTAMP, Longs, within_horizon
from frazil.tables.encoding import with_dictionary
from frazil.tables.promoted import promoted
from frazil.wal.names import SegmentName
from frazil.wal.rowgroups import coded_table, fill_columns
from frazil.wal.segment import Facts, open_segment

MICROS = 1_000_000


class Bounds(NamedTuple):
    """Inclusive bounds of `time`, in microseconds."""

    lower: int | None = None
    upper: int | None = None

    def exclude(self, first: int | None, last: int | None) -> bool:
        """Return whether no time from `first` to `last` is within the bounds."""
        return (self.lower is not None and last is not None and last < self.lower) or (
            self.upper is not None and first is not None and first > self.upper
        )


@dataclass(frozen=True)
class Summary:
    """Facts from the footer of a segment. A segment that cannot be read has a problem and no counts.

    `time_min` and `time_max` bound `time` of all rows as landing sets it, in microseconds.
    """

    received: int = 0
    """When the last rows of the segment were received, in nanoseconds."""
    rows_before: int | None = None
    rows_after: int | None = None
    """Rows of the stream before, and up to and including, this segment, of all tenants."""
    time_min: int | None = None
    time_max: int | None = None
    problem: str | None = None


class SegmentDecoder:
    """Decodes segments of one table. Rows have no dictionaries, which would hold values of other tenants."""

    def __init__(self, config: Config, signal: Signal) -> None:
        extra = promoted(config)
        self._fill = Fill.of(landed_spec(signal, extra).promoted)
        self._types = {column.name: column.type for column in landed_spec(signal, extra).columns}
        coded = table_spec(signal, extra).coded_schema
        self.dictionary = with_dictionary(coded)
        """Leaf columns to write with a dictionary. Measured on logs with nine attributes: half the bytes of
        plain text, and no slower to filter.
        """
        self._past_micros = int(config.land.horizon_past_seconds * MICROS)
        self._ahead_micros = int(config.land.horizon_ahead_seconds * MICROS)

    def schema(self, columns: Collection[str] | None) -> pa.Schema:
        """Return the schema of decoded rows: `time` and the columns, in table order. None: all columns."""
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
        """Return the tenant's rows in `schema`, a result of `schema()`. Returns no table if there are no such
        rows, or if all rows of the segment are outside the bounds.
        """
        try:
            facts, file = open_segment(name, data)
            summary, is_timed = self._summary(facts, file)
            tenants = _tenants(file.metadata)
            has_tenant = tenants is None or tenants[0] <= tenant <= tenants[1]
            if facts.rows == 0 or not has_tenant or bounds.exclude(summary.time_min, summary.time_max):
                return summary, None
            is_shared = tenants != (tenant, tenant)
            table = self._read(facts, file, schema, is_timed=is_timed, is_shared=is_shared)
        except (SegmentCorrupt, SegmentUnknown) as error:
            return Summary(problem=f"{error}: its rows are left out, and landing will set it aside"), None
        if is_shared:
            table = table.filter(pc.equal(table["tenant_id"], tenant))
        if table.num_rows == 0:
            return summary, None
        if not is_timed:
            table = self._timed(table)
        if SEGMENT.name in schema.names:
            label = pa.repeat(pa.scalar(f"{name.stream}/{name.sequence}", SEGMENT.type), table.num_rows)
            table = table.append_column(SEGMENT.name, label)
        return summary, pa.Table.from_arrays([table[name] for name in schema.names], schema=schema)

    def _summary(self, facts: Facts, file: pq.ParquetFile) -> tuple[Summary, bool]:
        """Return the summary, and whether all times are within the horizon, so that landing keeps them."""
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

    def _read(
        self, facts: Facts, file: pq.ParquetFile, schema: pa.Schema, *, is_timed: bool, is_shared: bool
    ) -> pa.Table:
        """Read the rows of all tenants. Reads again, with the maps, if columns must be filled from them."""
        names = {*schema.names} - {SEGMENT.name}
        names |= {"tenant_id"} if is_shared else set()
        names |= set() if is_timed else {"received_time"}
        table = self._columns(facts, file, names)
        unfilled = names & self._fill.unfilled(facts.fill)
        missing = unfilled | (names - set(table.column_names))
        if not missing:
            return table
        target, promoted = self._schema(names), self._fill.promoted
        names |= {source for name in missing & promoted.keys() for source in source_columns(promoted[name])}
        return fill_columns(self._columns(facts, file, names), target, promoted, unfilled)

    def _columns(self, facts: Facts, file: pq.ParquetFile, names: Collection[str]) -> pa.Table:
        """Read the columns that the file has, in the table's types."""
        try:
            table = file.read(columns=[*names], use_threads=False)
        except MemoryError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise SegmentCorrupt(facts.name.path, str(error)) from None
        if table.num_rows != facts.rows:
            raise SegmentCorrupt(facts.name.path, f"{table.num_rows} rows, but the footer says {facts.rows}")
        if all(field.type == self._types[field.name] for field in table.schema):
            return table
        return coded_table(table, self._schema(names))

    def _timed(self, table: pa.Table) -> pa.Table:
        """Set `time` as landing would."""
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
    """Return the smallest and the largest `time`; None if a row group has no statistics."""
    found = _statistics(footer, "time")
    if found is None:
        return None
    return min(int(each.min_raw) for each in found), max(int(each.max_raw) for each in found)


def _tenants(footer: pq.FileMetaData) -> tuple[str, str] | None:
    """Return the first and the last tenant; None if a row group has no statistics, as in segments of earlier
    releases.
    """
    found = _statistics(footer, "tenant_id")
    if found is None or any(each.null_count for each in found):
        return None
    return min(str(each.min) for each in found), max(str(each.max) for each in found)


def _statistics(footer: pq.FileMetaData, column: str) -> list[pq.Statistics] | None:
    """Return the statistics of a column in each row group; None if one has none, or there is no row group."""
    leaves = range(footer.num_columns if footer.num_row_groups else 0)
    at = next((leaf for leaf in leaves if footer.schema.column(leaf).path == column), None)
    if at is None:
        return None
    found = [footer.row_group(group).column(at).statistics for group in range(footer.num_row_groups)]
    return None if any(each is None or not each.has_min_max for each in found) else found


def _micros(column: pa.ChunkedArray) -> Longs:
    found: Longs = column.cast(pa.int64()).to_numpy()
    return found
