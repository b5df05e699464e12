"""Both sides of the ledger, laid beside each other."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError

from frazil.config import Config
from frazil.errors import DataLost, SegmentCorrupt, SegmentUnknown, StoreUnavailable
from frazil.lake.catalog import catalog_errors, open_catalog
from frazil.lake.commits.commit import checkpoint_of
from frazil.ledger.landed import Landed, read_landed
from frazil.position import StreamPosition, WalPosition, landing_position
from frazil.tables import SIGNALS, Signal
from frazil.wal.kafka.topics import Topics, TopicState
from frazil.wal.names import SegmentName
from frazil.wal.reader import Segment, WalReader
from frazil.wal.segment import Facts
from frazil.wal.store import open_store

_NAMED_MAX = 20
"""Problems of one kind that are named; the rest is counted."""


@dataclass
class LedgerLine:
    """One stream, or one partition of a topic. Rows, except where it says otherwise."""

    table: str
    stream: str
    durable: int = 0
    landed: int = 0
    removed: int = 0
    """Of those that landed: merged, too old to be kept, or erased."""
    waiting: int = 0
    """Of Kafka: messages, whose rows nobody has counted yet."""
    set_aside: int = 0
    """Segments or messages."""
    segments: int = 0
    bytes: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass
class Ledger:
    lines: list[LedgerLine] = field(default_factory=list)
    of_tables: list[str] = field(default_factory=list)
    """Problems of whole tables; those of streams are with their lines."""

    @property
    def problems(self) -> list[str]:
        return [*self.of_tables, *(problem for line in self.lines for problem in line.problems)]


def balance(config: Config) -> Ledger:
    """Reads the whole write-ahead log and one column of every data file.

    The tables are read first: whatever lands meanwhile is then still in the log, or was counted before, or is
    behind the position that is read last.
    """
    ledger, aside = Ledger(), _SetAside()
    with _catalog(config) as catalog:
        for signal in SIGNALS:
            try:
                landed = Landed() if catalog is None else read_landed(catalog, config.lake.namespace, signal)
            except DataLost as error:
                ledger.of_tables.append(str(error))
                continue
            if config.wal.type != "kafka":
                store = open_store(config)
                listed = list(WalReader(store).segments(signal))
                later = _later(catalog, config, signal, landed)
                ledger.lines += _streams(WalReader(store), signal, listed, landed, later)
            ledger.lines += _partitions(signal, landed, _ends(config, signal), aside)
            ledger.of_tables += [f"{signal}: data file {path} is in the table twice" for path in landed.twice]
            ledger.of_tables += _unexplained(signal, landed)
    aside.check()
    return ledger


@dataclass
class _SetAside:
    """Messages whose rows are gone from the table `set_aside`, where they are kept for a while. Its position
    counts all that were removed from it and not whose they were: so many may be missing in all.
    """

    missing: int = 0
    removed: int = 0
    problems: list[tuple[LedgerLine, str]] = field(default_factory=list)

    def look(self, line: LedgerLine, counted: int, kept: int, removed: int) -> None:
        problem = f"{line.stream}: {counted} messages were set aside, the table set_aside has {kept}"
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


@contextlib.contextmanager
def _catalog(config: Config) -> Iterator[Catalog | None]:
    """None where there is none yet: opening it would make it."""
    if config.lake.catalog.type == "sqlite" and not config.catalog_file.exists():
        yield None
        return
    with contextlib.closing(open_catalog(config)) as catalog:
        yield catalog


def _later(catalog: Catalog | None, config: Config, signal: Signal, landed: Landed) -> WalPosition:
    """Where the table stands now: reading it took a while, in which more may have landed and been deleted."""
    if catalog is None:
        return landed.position.wal
    with catalog_errors():
        try:
            table = catalog.load_table((*config.lake.namespace.split("."), signal))
            return landing_position(checkpoint_of(table).position).wal
        except (NoSuchTableError, DataLost):  # just now: what was read before is checked all the same
            return landed.position.wal


def _streams(
    reader: WalReader, signal: Signal, listed: list[Segment], landed: Landed, later: WalPosition
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
        _check_stream(reader, line, names, landed, later.streams.get(stream, StreamPosition()))
        lines.append(line)
    return lines


def _check_stream(
    reader: WalReader, line: LedgerLine, names: list[SegmentName], landed: Landed, later: StreamPosition
) -> None:
    at = landed.position.wal.streams.get(line.stream, StreamPosition())
    rows = landed.rows.get(line.stream, Counter[int]())
    set_aside = landed.set_aside.get(line.stream, {})
    line.landed, line.durable, line.removed = at.rows, at.durable_rows, at.removed
    line.set_aside = len(set_aside)
    # Rows that were removed may be any of the stream's.
    may_lack = at.removed

    def was_set_aside(sequence: int) -> bool:
        """Its row may have been removed from `set_aside` since."""
        return sequence in set_aside or (landed.set_aside_removed > 0 and not rows[sequence])

    # What a segment that was set aside held, nobody can say: the count may jump behind it.
    wanted, rows_before = at.sequence, -1 if was_set_aside(at.sequence - 1) else at.durable_rows
    for name in names:
        has_landed = name.sequence < at.sequence
        known = name.sequence in set_aside or (has_landed and was_set_aside(name.sequence))
        facts = _facts(reader, line, name, known=known)
        if has_landed:
            found = rows[name.sequence]
            if facts is not None and found != facts.rows and name.sequence not in set_aside:
                may_lack -= max(facts.rows - found, 0)
                if found > facts.rows or may_lack < 0:
                    _missing_or_twice(line, name, found, facts.rows)
            continue
        if at.closed:
            line.problems.append(f"{name.path} lies behind its stream's end: it was never acked, or is lost")
            continue
        if name.sequence != wanted:
            if name.sequence > later.sequence:
                line.problems.append(f"{name.path}: sequence {wanted} is missing before it")
            rows_before = -1
        wanted = name.sequence + 1
        if facts is None:
            rows_before = -1
            continue
        if rows_before >= 0 and facts.stream_rows != rows_before + facts.rows:
            line.problems.append(f"{name.path}: the stream's row count jumps from {rows_before}")
        line.waiting += facts.rows
        line.durable = rows_before = facts.stream_rows
    ahead = sorted(sequence for sequence in rows if sequence >= at.sequence)
    line.problems += [
        f"{line.stream}/{sequence}: {rows[sequence]:,} rows are in {line.table}, and it counts as not landed"
        for sequence in ahead[:_NAMED_MAX]
    ]
    _check_sum(line, rows)


def _check_sum(line: LedgerLine, rows: Counter[int]) -> None:
    found, expected = rows.total(), line.landed - line.removed
    if found != expected:
        what = "missing" if found < expected else "there twice"
        counted = f"{line.landed:,} landed" + (f" and {line.removed:,} removed" if line.removed else "")
        line.problems.append(
            f"{line.table}, {line.stream}: {abs(expected - found):,} rows are {what}: the position counts "
            f"{counted}, the table holds {found:,}"
        )


def _facts(reader: WalReader, line: LedgerLine, name: SegmentName, *, known: bool) -> Facts | None:
    """None if it cannot be read; a problem, unless it is known to be set aside or was cleaned up just now."""
    try:
        return reader.facts(name)
    except FileNotFoundError:
        return None
    except (SegmentCorrupt, SegmentUnknown, StoreUnavailable) as error:
        if not known:
            line.problems.append(str(error))
        return None


def _missing_or_twice(line: LedgerLine, name: SegmentName, found: int, expected: int) -> None:
    if len(line.problems) < _NAMED_MAX:
        what = "are missing" if found < expected else "are there twice"
        line.problems.append(
            f"{name.path}: {abs(found - expected):,} of {expected:,} rows {what} in {line.table}"
        )


def _ends(config: Config, signal: Signal) -> TopicState | None:
    """How far the signal's topic reaches now."""
    if config.wal.kafka is None or config.wal.type != "kafka":
        return None
    return Topics(config.wal.kafka).state(signal)


def _partitions(
    signal: Signal, landed: Landed, state: TopicState | None, aside: _SetAside
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
            aside.look(line, part.set_aside, kept, landed.set_aside_removed)
            line.problems += [
                f"{line.stream}/{offset} is in the table, and counts as not landed"
                for offset in [offset for offset in rows if offset >= part.offset][:_NAMED_MAX]
            ]
            if part.lost:
                line.problems.append(f"{line.stream}: {part.lost:,} messages were gone before they landed")
            lines.append(line)
    return lines


def _unexplained(signal: Signal, landed: Landed) -> list[str]:
    """Rows of streams that left the position must be just as many as it says, without those removed."""
    wal, topics = landed.position.wal, landed.position.kafka.topics
    known = {f"{topic}/{number}" for topic, at in topics.items() for number in at.partitions}
    found = sum(
        rows.total() for stream, rows in landed.rows.items() if stream not in known | set(wal.streams)
    )
    expected = wal.left.rows - wal.left.removed
    if found == expected:
        return []
    if found > expected:
        return [f"{signal}: {found - expected:,} rows are in the table that no stream accounts for"]
    return [f"{signal}: {expected - found:,} rows of streams that have ended are missing"]
