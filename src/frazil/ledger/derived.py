"""Compares derived tables with their source: each row that landed until a table's position is counted once.

Three comparisons, of the resolution whose rows are kept longest:
- The table's files count as many rows as its position says, which each commit advances by the rows that it
  read.
- Of each tenant and day, the table counts at least the rows that the source still holds.
- It counts more only as far as rows were removed from the source: retention and the merging of identical
  spans leave derived rows as they are.

The finer resolutions must agree with it on the days that retention does not touch.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from frazil.config import Config
from frazil.errors import DataLost, StoreUnavailable
from frazil.lake.catalog import catalog_errors, table_or_none
from frazil.lake.commits.commit import read_checkpoint
from frazil.lake.counted import counted_by_resolution
from frazil.lake.derived_days import days_left
from frazil.lake.live_files import FilePartition, corruption_in, live_files, partition_of
from frazil.lake.snapshots import commit_times
from frazil.ledger.landed import Known
from frazil.position import SourcePosition, source_position
from frazil.tables import Signal, TableSpec, derived_specs
from frazil.tables.derived.rules import Derived
from frazil.times import day_text

_NAMED_MAX = 20
_READINGS_MAX = 5
_DAY_SECONDS = 86_400
_MARGIN_DAYS = 2
"""A day this much younger than what retention removes is complete."""


@dataclass
class DerivedLine:
    """One derived table that counts the rows of its source."""

    table: str
    source: str
    complete_until: float | None = None
    """All rows that had landed at this time are in the table; seconds since 1970. None if the source's
    snapshot of that time has expired.
    """
    landed: int = 0
    """Rows that had landed in the source at the table's position."""
    counted: int = 0
    """Rows that the table counts."""
    in_source: int = 0
    """Rows up to the position that the source still holds."""
    days_left: int = 0
    """Past days that still have to be derived. Their rows may not be counted yet."""
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class DerivedState:
    """A derived table at one of its snapshots."""

    spec: TableSpec
    derived: Derived
    position: SourcePosition
    complete_until: float | None
    days_left: frozenset[int]
    counts: Mapping[FilePartition, Counter[int]]
    """Counted rows by tenant and day, and by resolution."""
    problems: Sequence[str] = ()

    @property
    def counted(self) -> int:
        return sum(each[self.derived.longest_kept] for each in self.counts.values())


def read_derived(catalog: Catalog, config: Config, source: Signal) -> tuple[list[DerivedState], list[str]]:
    """Reads two columns of all data files of the derived tables that count rows of a source. Returns the
    tables that exist, and the problems of those that cannot be read. Call it before the source is read: then
    the source holds all rows up to the tables' positions, except for removed ones.
    """
    found, problems = [], []
    for spec in derived_specs(source):
        if spec.derived is None or not spec.derived.counts:
            continue
        try:
            state = _read(catalog, config, spec, spec.derived)
        except DataLost as error:
            problems.append(str(error))
        else:
            found += [] if state is None else [state]
    return found, problems


def _read(catalog: Catalog, config: Config, spec: TableSpec, derived: Derived) -> DerivedState | None:
    namespace, before = config.lake.namespace, None
    for _ in range(_READINGS_MAX):
        with catalog_errors():
            try:
                checkpoint = read_checkpoint(catalog, (*namespace.split("."), spec.name))
            except NoSuchTableError:
                return None
            source = table_or_none(catalog, namespace, derived.source)
        table = checkpoint.table
        try:
            position = source_position(checkpoint.position)
        except ValueError as error:
            reason = f"the table's position cannot be read: {error}; upgrade frazil"
            raise DataLost(f"{namespace}.{spec.name}", reason) from None
        counts, unreadable, problems = _counts(table, spec, derived)
        if unreadable and table.metadata.current_snapshot_id != before:
            before = (
                table.metadata.current_snapshot_id
            )  # files may have been merged, and their snapshot expired
            continue
        left = frozenset(days_left(table.metadata))
        until = None if source is None else _snapshot_seconds(source, position)
        return DerivedState(spec, derived, position, until, left, counts, [*unreadable, *problems])
    raise StoreUnavailable(
        f"files of {namespace}.{spec.name} were merged and deleted during {_READINGS_MAX} attempts to read "
        "them; try again"
    )


def _counts(
    table: Table, spec: TableSpec, derived: Derived
) -> tuple[dict[FilePartition, Counter[int]], list[str], list[str]]:
    """Returns the counted rows, the files that cannot be read, and those that are in the table twice."""
    counts: dict[FilePartition, Counter[int]] = {}
    unreadable, twice, seen = [], [], set()
    for each in live_files(table):
        path = each.file.file_path
        if path in seen:
            twice.append(f"{spec.name}: data file {path} is in the table twice")
        seen.add(path)
        try:
            found = counted_by_resolution(table.io, path, derived)
        except FileNotFoundError:
            unreadable.append(f"{spec.name}: data file {path} is missing")
        except Exception as error:
            if (corruption := corruption_in(error)) is None:
                raise
            unreadable.append(f"{spec.name}: data file {path} cannot be read ({corruption})")
        else:
            counts.setdefault(partition_of(each.file), Counter()).update(found)
    return counts, unreadable, twice


def _snapshot_seconds(source: Table, position: SourcePosition) -> float | None:
    times = commit_times(source.metadata, int(time.time() * 1000))
    found = times.get(position.snapshot_id)
    return None if found is None else found / 1000


def compare(
    config: Config, state: DerivedState, known: Mapping[FilePartition, Known], removed: int
) -> DerivedLine:
    """Compares one table with its source. `known` are the source's rows up to the table's position. `removed`
    of the source's rows were removed on purpose, counted after the source was read.
    """
    position = state.position
    line = DerivedLine(
        state.spec.name,
        state.derived.source,
        state.complete_until,
        landed=position.landing.rows,
        counted=state.counted,
        in_source=sum(each.rows for each in known.values()),
        days_left=len(state.days_left),
        problems=list(state.problems),
    )
    days = list(_days(state, known))
    missing = [each for each in days if each.missing > 0 and each.day not in state.days_left]
    line.problems += _named(each.text(line, "missing", each.missing) for each in _largest(missing, "missing"))
    beyond = sum(each.excess for each in days if each.excess > 0) - removed
    if position.counted is not None:
        left = sum(each.known.rows + each.known.uncertain for each in days if each.day in state.days_left)
        difference = line.counted - position.counted
        if difference > 0 or difference < -left:
            line.problems.append(
                f"{line.table}: the rows of the table count {line.counted:,} rows of {line.source}, but its "
                f"position says {position.counted:,}"
            )
        beyond = max(beyond, difference, position.counted - line.landed)
    if beyond > 0:
        line.problems.append(f"{line.table}: {beyond:,} rows of {line.source} are counted twice")
        larger = [each for each in days if each.excess > 0 and each.known.rows]
        line.problems += _named(
            each.text(line, "counted twice", min(each.excess, beyond)) for each in _largest(larger, "excess")
        )
    line.problems += _named(_unequal(config, state))
    return line


@dataclass(frozen=True)
class _Day:
    place: FilePartition
    counted: int
    known: Known

    @property
    def day(self) -> int:
        return self.place.day or 0

    @property
    def missing(self) -> int:
        return self.known.rows - self.counted

    @property
    def excess(self) -> int:
        return self.counted - self.known.rows - self.known.uncertain

    def text(self, line: DerivedLine, what: str, rows: int) -> str:
        date = day_text(self.day)
        options = f"--from {date} --to {date}{' --yes' if self.excess > 0 else ''}"
        return (
            f"{line.table}: {self.place.tenant}, {date}: {rows:,} rows of {line.source} are {what}: "
            f"{self.counted:,} counted, {self.known.rows:,} in {line.source}; `frazil backfill {line.table} "
            f"{options}` derives the day again"
        )


def _days(state: DerivedState, known: Mapping[FilePartition, Known]) -> Iterator[_Day]:
    for place in {*state.counts, *known}:
        counted = state.counts.get(place, Counter[int]())[state.derived.longest_kept]
        yield _Day(place, counted, known.get(place, Known()))


def _largest(days: Sequence[_Day], by: str) -> list[_Day]:
    return sorted(days, key=lambda each: (-getattr(each, by), each.place.tenant or "", -each.day))


def _named(problems: Iterator[str]) -> list[str]:
    found = list(problems)
    more = len(found) - _NAMED_MAX
    return found[:_NAMED_MAX] + ([f"… and {more:,} more of this kind"] if more > 0 else [])


def _unequal(config: Config, state: DerivedState) -> Iterator[str]:
    """Yields the days on which two resolutions count different numbers of rows."""
    longest = state.derived.longest_kept
    for resolution in sorted({*state.derived.resolutions} - {longest}):
        first = _first_complete_day(config, state, resolution)
        for place in sorted(state.counts, key=lambda each: (-(each.day or 0), each.tenant or "")):
            counts = state.counts[place]
            if (place.day or 0) >= first and counts[resolution] != counts[longest]:
                yield (
                    f"{state.spec.name}: {place.tenant}, {day_text(place.day or 0)}: rows of resolution "
                    f"{resolution} count {counts[resolution]:,} rows of {state.derived.source}, those of "
                    f"resolution {longest} count {counts[longest]:,}"
                )


def _first_complete_day(config: Config, state: DerivedState, resolution: int) -> float:
    """Returns the first day from which retention has removed no rows of the resolution."""
    rules = [each for each in config.maintain.retention.rules if each.table == state.spec.name]
    kept = [each.after_seconds / _DAY_SECONDS for each in rules]
    if (days := state.derived.kept_days_of(resolution)) is not None:
        kept.append(days)
    return time.time() / _DAY_SECONDS - min(kept) + _MARGIN_DAYS if kept else -math.inf
