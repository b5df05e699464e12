"""Counts the rows of a table by the segment or message that they came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from frazil.errors import DataLost, StoreUnavailable
from frazil.lake.catalog import catalog_errors, table_or_none
from frazil.lake.commits.commit import read_checkpoint
from frazil.lake.counted import rows_by_source
from frazil.lake.live_files import FilePartition, corruption_in, partition_of
from frazil.lake.snapshots import landed_snapshot, position_text
from frazil.position import LandingPosition, NewRows, landing_position
from frazil.tables import SEGMENT, SET_ASIDE

_READINGS_MAX = 5


class _Unreadable(Exception):
    """A data file exists, but is corrupt."""


@dataclass
class Known:
    """The rows of a tenant and day that landed until a position. Of `uncertain` more it is not known whether
    they did.
    """

    rows: int = 0
    uncertain: int = 0


@dataclass
class Landed:
    """Row counts and reasons by stream and sequence, or by topic/partition and offset."""

    position: LandingPosition = field(default_factory=LandingPosition)
    rows: dict[str, Counter[int]] = field(default_factory=dict)
    set_aside: dict[str, dict[int, str]] = field(default_factory=dict)
    set_aside_removed: int = 0
    """Rows removed from the table `set_aside`, of all tables together."""
    duplicate_files: list[str] = field(default_factory=list)
    """Data files that the table references more than once."""
    known: list[dict[FilePartition, Known]] = field(default_factory=list)
    """For each of the given positions, rows by tenant and day."""


def read_landed(
    catalog: Catalog, namespace: str, name: str, positions: Sequence[LandingPosition] = ()
) -> Landed:
    """Reads one dictionary-encoded column of every data file, about a byte per row. Empty if the table does
    not exist. Raises DataLost if a data file of the table is missing or corrupt.

    Also counts the rows that landed until each of `positions`, which are earlier positions of the table.
    """
    read_before: int | None = None
    for _ in range(_READINGS_MAX):
        with catalog_errors():
            try:
                checkpoint = read_checkpoint(catalog, (*namespace.split("."), name))
            except NoSuchTableError:
                return Landed(known=[{} for _ in positions])
        landed = Landed(landing_position(checkpoint.position), known=[{} for _ in positions])
        try:
            _read_files(checkpoint.table, landed, [NewRows(each, landed.position) for each in positions])
        except (FileNotFoundError, _Unreadable) as error:
            now = checkpoint.table.metadata.current_snapshot_id
            if now == read_before:
                what = str(error) if isinstance(error, _Unreadable) else f"{error.filename} is missing"
                reason = f"{what}, but the table references it; restore it from a backup"
                raise DataLost(f"{namespace}.{name}", reason) from error
            read_before = now  # the file may have been merged, and its snapshot expired
            continue
        _read_set_aside(catalog, namespace, name, landed)
        return landed
    raise StoreUnavailable(
        f"files of {namespace}.{name} were merged and deleted during {_READINGS_MAX} attempts to read them; "
        "try again"
    )


def _read_files(table: Table, landed: Landed, since: Sequence[NewRows]) -> None:
    seen: set[str] = set()
    for task in table.scan(selected_fields=(SEGMENT.name,)).plan_files():
        path = task.file.file_path
        if path in seen:
            landed.duplicate_files.append(path)
        seen.add(path)
        rows_of = _rows_by_source(table, path)
        for new_rows, known in zip(since, landed.known, strict=True):
            _count_known(known.setdefault(partition_of(task.file), Known()), rows_of, new_rows)
        for source, rows in rows_of.items():
            stream, number = _split(source)
            landed.rows.setdefault(stream, Counter())[number] += rows


def _count_known(known: Known, rows_of: dict[str, int], new_rows: NewRows) -> None:
    for source, rows in rows_of.items():
        if new_rows.is_uncertain(source):
            known.uncertain += rows
        elif not new_rows.is_new(source):
            known.rows += rows


def _split(source: str) -> tuple[str, int]:
    """Splits stream and number. A source in another format counts as a stream, which is then unexplained."""
    stream, _, number = source.rpartition("/")
    return (stream, int(number)) if number.isdecimal() else (source, 0)


def _rows_by_source(table: Table, path: str) -> dict[str, int]:
    try:
        return rows_by_source(table.io, path)
    except Exception as error:
        if (corruption := corruption_in(error)) is None:
            raise
        raise _Unreadable(f"{path} cannot be read ({corruption})") from error


def _read_set_aside(catalog: Catalog, namespace: str, name: str, landed: Landed) -> None:
    with catalog_errors():
        table = table_or_none(catalog, namespace, SET_ASIDE.name)
    if table is None:
        return
    newest = landed_snapshot(table.metadata)
    text = None if newest is None else position_text(newest)
    landed.set_aside_removed = 0 if text is None else landing_position(text).removed
    rows = table.scan(row_filter=f"table_name == '{name}'", selected_fields=("source", "reason")).to_arrow()
    for source, reason in zip(rows["source"].to_pylist(), rows["reason"].to_pylist(), strict=True):
        stream, number = _split(source)
        landed.set_aside.setdefault(stream, {})[number] = reason
