"""The rows that are durable and have not landed yet: what a query reads besides a table's files.

Segments are read once, and kept as files of one tenant's rows. A WAL file is never handed to a query.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import structlog

from frazil.config import Config
from frazil.errors import FrazilError, StoreUnavailable, Transient
from frazil.query.chunks import ChunkFile, ChunkFolder, Run, chunk_bytes_max, to_merge
from frazil.query.follow import Follower, Look
from frazil.query.segment_rows import SegmentDecoder
from frazil.query.streams import Line
from frazil.storage import Store
from frazil.tables import SIGNALS, Signal
from frazil.wal.clock import Clock
from frazil.wal.names import SegmentName
from frazil.wal.position import Position
from frazil.wal.store import open_store

_READERS = 8
_PROBLEMS_MAX = 10

log = structlog.get_logger("frazil.query")


class PositionTooOld(Transient):
    """What a position of `table` points at has landed and was cleaned up. Read the table's metadata again."""

    def __init__(self, table: str, segment: str) -> None:
        super().__init__(f"{segment} has landed and was cleaned up: read the position of {table} again")
        self.table = table
        self.segment = segment

    def __reduce__(self) -> tuple[type[PositionTooOld], tuple[str, str]]:
        return type(self), (self.table, self.segment)


@dataclass(frozen=True)
class ChunkRef:
    """Rows of one file: `rows` of them, from `first_row` on."""

    path: str
    first_row: int
    rows: int


@dataclass(frozen=True)
class TailCut:
    """The files stay until `release`."""

    chunks: Sequence[ChunkRef]
    rows: int
    missing: Sequence[str]
    """What should be in it and is not, for people."""
    key: str
    """Cuts with the same key hold the same rows."""
    time_max: int | None = None
    """The newest `time` of its rows, in microseconds. None if it has no rows."""
    _release: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)

    def release(self) -> None:
        """Safe to call twice."""
        self._release()


class _Round:
    def __init__(self) -> None:
        self.positions: list[Position] = []
        self.done = threading.Event()
        self.look = Look()
        self.error: BaseException | None = None


class _Rounds:
    """One look at a time, shared by all who came before it began. Nobody is served by a look that began
    before they came: what was acked by then might not be in it.
    """

    def __init__(self, look: Callable[[Sequence[Position]], Look]) -> None:
        self._look = look
        self._lock = threading.Lock()
        self._running = threading.Lock()
        self._next: _Round | None = None

    def join(self, position: Position) -> Look:
        with self._lock:
            leads = self._next is None
            mine = self._next = self._next or _Round()
            mine.positions.append(position)
        if leads:
            self._run(mine)
        else:
            mine.done.wait()
        if mine.error is not None:
            raise mine.error.again() if isinstance(mine.error, FrazilError) else mine.error
        return mine.look

    def _run(self, mine: _Round) -> None:
        with self._running:
            with self._lock:
                self._next = None
            try:
                mine.look = self._look(mine.positions)
            except BaseException as error:
                mine.error = error
            finally:
                mine.done.set()


@dataclass(frozen=True)
class _Taken:
    """`at` says which of the run's segments is the first to take."""

    number: int
    stream: str
    run: Run
    at: int


@dataclass
class _Collected:
    runs: list[_Taken] = field(default_factory=list)
    left_out: int = 0
    problems: list[str] = field(default_factory=list)


class Tail:
    """Follows the WAL while it is asked. Thread-safe; a call may wait for the store.

    `folder` is its own: it is made if need be, for nobody else to look into, and removed at the end.
    """

    def __init__(
        self,
        config: Config,
        folder: Path,
        *,
        store: Store | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._store = store or open_store(config)
        self._place = folder
        self._bytes_max = config.query.tail_bytes_max
        self._has_tenants = bool(config.auth.keys)
        self._folder = ChunkFolder(folder, chunk_bytes_max(self._bytes_max))
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="tail-read")
        self._merger = ThreadPoolExecutor(1, thread_name_prefix="tail-merge")
        self._merging: set[tuple[Signal, str, str]] = set()
        self._closed = False
        self._followers: dict[Signal, Follower] = {
            signal: Follower(
                signal, self._store, SegmentDecoder(config, signal), self._folder, self._readers, clock
            )
            for signal in SIGNALS
        }
        self._rounds: dict[Signal, _Rounds] = {
            signal: _Rounds(partial(self._look, follower)) for signal, follower in self._followers.items()
        }

    def cut(
        self,
        signal: Signal,
        position: Position,
        tenant: str,
        *,
        lower: int | None = None,
        upper: int | None = None,
    ) -> TailCut:
        """The tenant's rows behind the position that were durable when it was called; perhaps later ones too.

        `lower` and `upper` bound `time`, in microseconds: chunks that are wholly outside are left out.
        Raises PositionTooOld and StoreUnavailable.
        """
        look = self._joined(signal, position)
        follower = self._followers[signal]
        with follower.lock:
            found = self._collect(follower, look, position, tenant)
            inside = [
                taken
                for taken in found.runs
                if (lower is None or taken.run.time_max >= lower)
                and (upper is None or taken.run.time_min <= upper)
            ]
            pins = [taken.run.file for taken in inside if taken.run.file is not None]
            for file in pins:
                self._folder.pin(file)
            missing = self._missing(signal, found)
            cut = _cut(inside, missing, f"{signal}/{tenant}", partial(self._unpin, pins))
            streams = {taken.stream for taken in found.runs}
            streams = {name for name in streams if self._is_ragged(follower.lines[name].runs[tenant])}
        for stream in streams:
            self._merge_later(signal, stream, tenant)
        return cut

    def warm(self, positions: Mapping[Signal, Position]) -> None:
        """Reads what a cut would read, so that the first one need not wait for it."""
        for signal, position in positions.items():
            self._joined(signal, position)

    @property
    def bytes(self) -> int:
        """Of what is kept."""
        return sum(follower.bytes for follower in self._followers.values())

    def close(self) -> None:
        """Removes the folder. Safe to call twice."""
        self._closed = True
        self._merger.shutdown(cancel_futures=True)
        self._readers.shutdown(cancel_futures=True)
        shutil.rmtree(self._place, ignore_errors=True)

    def _joined(self, signal: Signal, position: Position) -> Look:
        if self._closed:
            raise StoreUnavailable("the query service is closing")
        try:
            return self._rounds[signal].join(position)
        except RuntimeError:
            if self._closed:  # meanwhile
                raise StoreUnavailable("the query service is closing") from None
            raise

    def _look(self, follower: Follower, positions: Sequence[Position]) -> Look:
        """Each table may have a third of the room, and what the others leave."""
        others = sum(other.bytes for other in self._followers.values() if other is not follower)
        look = follower.look(positions, max(self._bytes_max // len(SIGNALS), self._bytes_max - others))
        self._make_room()
        return look

    def _make_room(self) -> None:
        """Who has most gives first."""
        while sum(follower.bytes for follower in self._followers.values()) > self._bytes_max:
            largest = max(self._followers.values(), key=lambda follower: follower.bytes)
            with largest.lock:
                if not largest.evict_oldest():
                    return

    def _collect(self, follower: Follower, look: Look, position: Position, tenant: str) -> _Collected:
        if max(look.swept, follower.swept) > position.rows:
            raise PositionTooOld(follower.signal, f"what was in the log of {follower.signal}")
        found = _Collected()
        for stream in sorted(follower.lines.keys() | look.gaps.keys()):
            at = position.streams.get(stream)
            if at.closed if at is not None else stream not in look.begun:
                continue
            begin = 0 if at is None else at.sequence
            wanted = SegmentName(follower.signal, stream, begin)
            line = follower.lines.get(stream)
            if look.vanished.get(stream, -1) >= begin:
                raise PositionTooOld(follower.signal, wanted.path)
            if line is None or begin < line.listed or (begin >= line.next and stream in look.gaps):
                if follower.passed.get(stream, 0) > begin:
                    raise PositionTooOld(follower.signal, wanted.path)
                found.problems.append(_not_there(wanted))
                continue
            if begin < line.first:
                found.left_out += max(0, line.rows_before_first() - (0 if at is None else at.durable_rows))
            self._take(follower, stream, line, max(begin, line.first), tenant, found)
            if look.gaps.get(stream) == line.next:
                found.problems.append(_not_there(SegmentName(follower.signal, stream, line.next)))
        return found

    def _take(
        self, follower: Follower, stream: str, line: Line, begin: int, tenant: str, found: _Collected
    ) -> None:
        line.write(self._folder, follower.signal, tenant)
        for run in line.runs.get(tenant, []):
            if run.last >= begin:
                found.runs.append(_Taken(len(found.runs), stream, run, run.at(begin)))
        found.problems += line.problems(begin)

    def _missing(self, signal: Signal, found: _Collected) -> list[str]:
        missing = []
        if found.left_out:
            # How many is of all tenants together, which is nobody's business where there are several.
            rows = "rows" if self._has_tenants else f"{found.left_out:,} rows"
            missing.append(
                f"{rows} of {signal} that wait to land are left out, the oldest of them: more than "
                "query.tail_bytes_max waits"
            )
        missing += found.problems[:_PROBLEMS_MAX]
        if (more := len(found.problems) - _PROBLEMS_MAX) > 0:
            missing.append(f"and {more} more segments of {signal} that cannot be read")
        return missing

    def _is_ragged(self, runs: Sequence[Run]) -> bool:
        return to_merge(runs, self._folder.chunk_bytes_max) > 1

    def _unpin(self, pins: list[ChunkFile]) -> None:
        while True:
            try:
                file = pins.pop()
            except IndexError:
                return
            self._folder.unpin(file)

    def _merge_later(self, signal: Signal, stream: str, tenant: str) -> None:
        what = (signal, stream, tenant)
        if what in self._merging:
            return
        self._merging.add(what)
        with contextlib.suppress(RuntimeError):  # closing
            self._merger.submit(self._merge, signal, stream, tenant)

    def _merge(self, signal: Signal, stream: str, tenant: str) -> None:
        self._merging.discard((signal, stream, tenant))
        try:
            self._followers[signal].merge(stream, tenant)
        except Exception:
            if not self._closed:  # its files go away then
                log.exception("chunks could not be merged; they stay as they are", table=signal)


def _not_there(name: SegmentName) -> str:
    return f"{name.path} is not there, and what lies behind it is left out"


def _cut(inside: Sequence[_Taken], missing: Sequence[str], what: str, release: Callable[[], None]) -> TailCut:
    chunks: list[ChunkRef] = []
    spans: list[tuple[str, int, int]] = []
    before = -1
    for taken in inside:
        run, (sequence, first) = taken.run, taken.run.starts[taken.at]
        assert run.file is not None, "a cut's rows are in files"  # noqa: S101
        chunks.append(ChunkRef(str(run.file.path), first, run.end - first))
        if spans and spans[-1][0] == taken.stream and taken.number == before + 1:
            sequence = spans.pop()[1]  # however the rows are cut into chunks, the key is the same
        spans.append((taken.stream, sequence, run.last))
        before = taken.number
    key = hashlib.sha256(repr((what, tuple(missing), spans)).encode()).hexdigest()
    return TailCut(
        tuple(chunks),
        sum(chunk.rows for chunk in chunks),
        tuple(missing),
        key,
        max((taken.run.time_max for taken in inside), default=None),
        release,
    )
