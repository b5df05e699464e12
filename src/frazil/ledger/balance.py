"""Compares the write-ahead log with the tables: each durable row must have landed once, or wait."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass, field

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError

from frazil.config import Config
from frazil.errors import DataLost, SegmentCorrupt, SegmentUnknown, StoreUnavailable
from frazil.lake.catalog import catalog_errors, open_catalog
from frazil.lake.commits.commit import checkpoint_of
from frazil.lake.views import load_views
from frazil.ledger.derived import DerivedLine, compare, read_derived
from frazil.ledger.landed import Landed, read_landed
from frazil.position import LandingPosition, StreamPosition, WalPosition, landing_position
from frazil.tables import SIGNALS, Signal
from frazil.wal.kafka.topics import Topics, TopicState
from frazil.wal.names import SegmentName
from frazil.wal.reader import Segment, WalReader
from frazil.wal.segment import Facts
from frazil.wal.store import open_store

_NAMED_MAX = 20
"""Maximum number of listed problems of one kind."""


@dataclass
class LedgerLine:
    """One stream, or one partition of a topic. Numbers count rows, unless noted."""

    table: str
    stream: str
    durable: int = 0
    landed: int = 0
    removed: int = 0
    """Landed rows later removed by retention, erasure or the merging of identical spans."""
    waiting: int = 0
    """With Kafka: messages, because their rows have not been counted yet."""
    set_aside: int = 0
    """Segments or messages that could not be read."""
    segments: int = 0
    bytes: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass
class Ledger:
    lines: list[LedgerLine] = field(default_factory=list)
    table_problems: list[str] = field(default_factory=list)
    """Problems of whole tables. Problems of streams and of derived tables are in their lines."""
    derived: list[DerivedLine] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        of_streams = [problem for line in self.lines for problem in line.problems]
        of_derived = [problem for line in self.derived for problem in line.problems]
        return [*self.table_problems, *of_streams, *of_derived]


def balance(config: Config) -> Ledger:
    """Reads the whole write-ahead log, one column of every landed data file, and two of every derived one.

    Reads the tables first. A segment that lands during the count is then still in the log, or was already
    counted, or is before the position that is read last.
    """
    ledger, set_aside = Ledger(), _SetAsideCheck()
    with contextlib.ExitStack() as stack:
        catalog = None
        # Not read-only: a read-only SQLite connection cannot recover from a crash during a commit.
        if config.lake.catalog.type != "sqlite" or config.catalog_file.exists():
            catalog = stack.enter_context(contextlib.closing(open_catalog(config)))
            load_views(catalog, config.lake.namespace)
        for signal in SIGNALS:
            derived, problems = ([], []) if catalog is None else read_derived(catalog, config, signal)
            ledger.table_problems += problems
            try:
                landed = Landed()
                if catalog is not None:
                    positions = [each.position.landing for each in derived]
                    landed = read_landed(catalog, config.lake.namespace, signal, positions)
            except DataLost as error:
                ledger.table_problems.append(str(error))
                continue
            removed = _current_position(catalog, config, signal, landed).removed
            if config.wal.type != "kafka":
                store = open_store(config)
                listed = list(WalReader(store).segments(signal))
                now = _current_position(catalog, config, signal, landed)
                ledger.lines += _streams(WalReader(store), signal, listed, landed, now.wal)
            ledger.lines += _partitions(signal, landed, _topic_state(config, signal), set_aside)
            ledger.table_problems += [
                f"{signal}: data file {path} is in the table twice" for path in landed.duplicate_files
            ]
            ledger.table_problems += _unexplained(signal, landed)
            ledger.derived += [
                compare(config, state, known, removed)
                for state, known in zip(derived, landed.known, strict=False)
            ]
    set_aside.check()
    return ledger


@dataclass
class _SetAsideCheck:
    """Compares messages that were set aside with the rows of the table `set_aside`, which retention removes.
    The table's position counts the removed rows of all streams together, so only the total can be checked.
    """

    missing: int = 0
    removed: int = 0
    problems: list[tuple[LedgerLine, str]] = field(default_factory=list)

    def add(self, line: LedgerLine, counted: int, kept: int, removed: int) -> None:
        problem = f"{line.stream}: {counted} messages were set aside, but the table set_aside has {kept}"
        self.removed = max(self.removed, removed)
        if kept > counted:
            line.problems.append(problem)
        elif kept < counted:
            self.missing += counted - kept
            self.problems.append((line, problem))

    def check(self) -> None:
        if self.missing > self.removed:
            for line, problem in self.problems:
                line.problems.append(problem)


def _current_position(
    catalog: Catalog | None, config: Config, signal: Signal, landed: Landed
) -> LandingPosition:
    """Returns the table's position now. While the table was read, more segments may have landed and been
    deleted from the log.
    """
    if catalog is None:
        return landed.position
    with catalog_errors():
        try:
            table = catalog.load_table((*config.lake.namespace.split("."), signal))
            return landing_position(checkpoint_of(table).position)
        except (NoSuchTableError, DataLost):  # since the table was read
            return landed.position


def _streams(
    reader: WalReader, signal: Signal, listed: list[Segment], landed: Landed, now: WalPosition
) -> list[LedgerLine]:
    present: dict[str, list[SegmentName]] = {}
    sizes: Counter[str] = Counter()
    for segment in listed:
        present.setdefault(segment.name.stream, []).append(segment.name)
        sizes[segment.name.stream] += segment.size
    lines = []
    for stream in sorted({*present, *landed.position.wal.streams}):
        names = present.get(stream, [])
        line = LedgerLine(signal, stream, segments=len(names), bytes=sizes[stream])
        _check_stream(reader, line, names, landed, now.streams.get(stream, StreamPosition()))
        lines.append(line)
    return lines


def _check_stream(
    reader: WalReader, line: LedgerLine, names: list[SegmentName], landed: Landed, now: StreamPosition
) -> None:
    at = landed.position.wal.streams.get(line.stream, StreamPosition())
    rows = landed.rows.get(line.stream, Counter[int]())
    set_aside = landed.set_aside.get(line.stream, {})
    line.landed, line.durable, line.removed = at.rows, at.durable_rows, at.removed
    line.set_aside = len(set_aside)
    # Removed rows may belong to any segment of the stream.
    may_be_missing = at.removed

    def was_set_aside(sequence: int) -> bool:
        """Returns whether the segment was set aside. Its row in `set_aside` may have been removed."""
        return sequence in set_aside or (landed.set_aside_removed > 0 and not rows[sequence])

    # The row count of a segment that was set aside is unknown, so the next count cannot be checked.
    expected, rows_before = at.sequence, -1 if was_set_aside(at.sequence - 1) else at.durable_rows
    for name in names:
        has_landed = name.sequence < at.sequence
        known = name.sequence in set_aside or (has_landed and was_set_aside(name.sequence))
        facts = _facts(reader, line, name, known=known)
        if has_landed:
            found = rows[name.sequence]
            if facts is not None and found != facts.rows and name.sequence not in set_aside:
                may_be_missing -= max(facts.rows - found, 0)
                if found > facts.rows or may_be_missing < 0:
                    _missing_or_duplicated(line, name, found, facts.rows)
            continue
        if at.closed:
            line.problems.append(f"{name.path} is after its stream's end: it was never acked, or is lost")
            continue
        if name.sequence != expected:
            if name.sequence > now.sequence:
                line.problems.append(f"{name.path}: sequence {expected} is missing before it")
            rows_before = -1
        expected = name.sequence + 1
        if facts is None:
            rows_before = -1
            continue
        if rows_before >= 0 and facts.stream_rows != rows_before + facts.rows:
            line.problems.append(
                f"{name.path}: the stream's row count does not continue from {rows_before:,}"
            )
        line.waiting += facts.rows
        line.durable = rows_before = facts.stream_rows
    ahead = sorted(sequence for sequence in rows if sequence >= at.sequence)
    line.problems += [
        f"{line.stream}/{sequence}: {rows[sequence]:,} rows are in {line.table} before it has landed"
        for sequence in ahead[:_NAMED_MAX]
    ]
    _check_sum(line, rows)


def _check_sum(line: LedgerLine, rows: Counter[int]) -> None:
    found, expected = rows.total(), line.landed - line.removed
    if found != expected:
        what = "missing" if found < expected else "duplicated"
        counted = f"{line.landed:,} landed" + (f" and {line.removed:,} removed" if line.removed else "")
        line.problems.append(
            f"{line.table}, {line.stream}: {abs(expected - found):,} rows are {what}: the position counts "
            f"{counted}, the table holds {found:,}"
        )


def _facts(reader: WalReader, line: LedgerLine, name: SegmentName, *, known: bool) -> Facts | None:
    """Returns None if the segment cannot be read. This is a problem, unless the segment was set aside or has
    just been cleaned up.
    """
    try:
        return reader.facts(name)
    except FileNotFoundError:
        return None
    except (SegmentCorrupt, SegmentUnknown, StoreUnavailable) as error:
        if not known:
            line.problems.append(str(error))
        return None


def _missing_or_duplicated(line: LedgerLine, name: SegmentName, found: int, expected: int) -> None:
    if len(line.problems) < _NAMED_MAX:
        what = "are missing" if found < expected else "are duplicated"
        line.problems.append(
            f"{name.path}: {abs(found - expected):,} of {expected:,} rows {what} in {line.table}"
        )


def _topic_state(config: Config, signal: Signal) -> TopicState | None:
    if config.wal.kafka is None or config.wal.type != "kafka":
        return None
    return Topics(config.wal.kafka).state(signal)


def _partitions(
    signal: Signal, landed: Landed, state: TopicState | None, set_aside: _SetAsideCheck
) -> list[LedgerLine]:
    lines = []
    for topic, at in landed.position.kafka.topics.items():
        for number, part in at.partitions.items():
            line = LedgerLine(
                signal, f"{topic}/{number}", part.rows, part.rows, part.removed, set_aside=part.set_aside
            )
            if state is not None and state.id == at.id and number in state.partitions:
                line.waiting = max(state.partitions[number][1] - part.offset, 0)
            rows = landed.rows.get(line.stream, Counter[int]())
            _check_sum(line, rows)
            kept = len(landed.set_aside.get(line.stream, {}))
            set_aside.add(line, part.set_aside, kept, landed.set_aside_removed)
            line.problems += [
                f"{line.stream}/{offset} is in the table before it has landed"
                for offset in [offset for offset in rows if offset >= part.offset][:_NAMED_MAX]
            ]
            if part.lost:
                line.problems.append(
                    f"{line.stream}: {part.lost:,} messages were deleted from the topic before they landed"
                )
            lines.append(line)
    return lines


def _unexplained(signal: Signal, landed: Landed) -> list[str]:
    """Checks the rows of streams that have ended: the position keeps only their total."""
    wal, topics = landed.position.wal, landed.position.kafka.topics
    known = {f"{topic}/{number}" for topic, at in topics.items() for number in at.partitions}
    found = sum(
        rows.total() for stream, rows in landed.rows.items() if stream not in known | set(wal.streams)
    )
    expected = wal.left.rows - wal.left.removed
    if found == expected:
        return []
    if found > expected:
        return [f"{signal}: {found - expected:,} rows in the table belong to no stream"]
    return [f"{signal}: {expected - found:,} rows of streams that have ended are missing"]
