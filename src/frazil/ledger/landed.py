"""Counts the rows of a table by the segment or message that they came from."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from frazil.errors import DataLost, StoreUnavailable
from frazil.lake.catalog import catalog_errors, table_or_none
from frazil.lake.commits.commit import read_checkpoint
from frazil.lake.live_files import corruption_in
from frazil.lake.snapshots import landed_snapshot, position_text
from frazil.position import LandingPosition, landing_position
from frazil.tables import SEGMENT, SET_ASIDE

_READINGS_MAX = 5


class _Unreadable(Exception):
    """A data file exists, but is corrupt."""


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


def read_landed(catalog: Catalog, namespace: str, name: str) -> Landed:
    """Reads one dictionary-encoded column of every data file, about a byte per row. Empty if the table does
    not exist. Raises DataLost if a data file of the table is missing or corrupt.
    """
    read_before: int | None = None
    for _ in range(_READINGS_MAX):
        with catalog_errors():
            try:
                checkpoint = read_checkpoint(catalog, (*namespace.split("."), name))
            except NoSuchTableError:
                return Landed()
        landed = Landed(landing_position(checkpoint.position))
        try:
            _read_files(checkpoint.table, landed)
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


def _read_files(table: Table, landed: Landed) -> None:
    seen: set[str] = set()
    for task in table.scan(selected_fields=(SEGMENT.name,)).plan_files():
        path = task.file.file_path
        if path in seen:
            landed.duplicate_files.append(path)
        seen.add(path)
        for source, rows in _rows_by_source(table, path).items():
            stream, number = _split(source)
            landed.rows.setdefault(stream, Counter())[number] += rows


def _split(source: str) -> tuple[str, int]:
    """Splits stream and number. A source in another format counts as a stream, which is then unexplained."""
    stream, _, number = source.rpartition("/")
    return (stream, int(number)) if number.isdecimal() else (source, 0)


def _rows_by_source(table: Table, path: str) -> dict[str, int]:
    with table.io.new_input(path).open() as stream:
        try:
            column = pq.ParquetFile(stream, read_dictionary=[SEGMENT.name]).read([SEGMENT.name]).column(0)
        except Exception as error:
            if (corruption := corruption_in(error)) is None:
                raise
            raise _Unreadable(f"{path} cannot be read ({corruption})") from error
    return {item["values"].as_py(): item["counts"].as_py() for item in column.value_counts()}


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
