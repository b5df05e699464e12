"""Cuts of the tail: what a query reads besides a table's files."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import threading
import time
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from frazil.config import Config
from frazil.errors import StoreUnavailable
from frazil.query.cache import SizedCache
from frazil.query.tail.chunks import Chunk, ChunkFolder, Part
from frazil.query.tail.decode import SegmentDecoder
from frazil.query.tail.listing import Listing, PositionTooOld, Waiting, missing_gaps
from frazil.query.tail.view import READERS, Bounds, SegmentReader, View, ranges
from frazil.tables import SIGNALS, Signal
from frazil.wal.clock import Clock
from frazil.wal.position import Position
from frazil.wal.store import Store, open_store

KEPT_SECONDS = 60.0
"""How long decoded rows are kept after the last query that used them."""
_PROBLEMS_MAX = 10
_FETCHED_BYTES_MAX = 64 * 2**20

Columns = frozenset[str] | None


@dataclass(frozen=True)
class ChunkRef:
    """Rows of one file: those in `ranges` (first, end), or all if there are none."""

    path: str
    ranges: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True)
class TailCut:
    """The files stay until `release`."""

    chunks: Sequence[ChunkRef]
    rows: int
    missing: Sequence[str]
    """Sentences on rows that should be in the cut and are not."""
    key: str
    """Cuts with the same key hold the same rows."""
    time_max: int | None = None
    """The newest `time` of its rows, in microseconds. None if it has no rows."""
    _release: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)

    def release(self) -> None:
        """Safe to call twice."""
        self._release()


@dataclass
class _Table:
    listing: Listing
    reader: SegmentReader
    views: dict[tuple[str, Columns], View] = field(default_factory=dict)
    fetched: dict[str, int] = field(default_factory=dict)
    """By stream, up to which segment bytes were read for queries, or ahead of them."""
    erasures: int = 0
    """How often all that was kept was dropped, because rows were erased."""


class Tail:
    """Decodes segments of the WAL for queries, and keeps the rows for a while. Thread-safe; a call may wait
    for the store.

    `folder` is its own: created if it is missing, private to this user, and removed by `close`.
    """

    def __init__(
        self,
        config: Config,
        folder: Path,
        *,
        store: Store | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        store = store or open_store(config)
        self._place = folder
        self._bytes_max = config.query.tail_bytes_max
        self._has_tenants = bool(config.auth.keys)
        self._folder = ChunkFolder(folder, self._bytes_max)
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="tail")
        self._clock = clock
        self._lock = threading.Lock()
        self._closed = False
        self._fetched: SizedCache[str, bytes] | None = None
        if config.wal.type == "s3":
            self._fetched = SizedCache(_FETCHED_BYTES_MAX)
        self._tables = {signal: self._table(config, signal, store) for signal in SIGNALS}

    def _table(self, config: Config, signal: Signal, store: Store) -> _Table:
        listing = Listing(signal, store, self._pool, self._clock, partial(self._forget, signal))
        decoder = SegmentDecoder(config, signal)
        return _Table(listing, SegmentReader(signal, store, decoder, self._pool, self._fetched))

    def cut(
        self,
        signal: Signal,
        position: Position,
        tenant: str,
        columns: Collection[str] | None = None,
        *,
        lower: int | None = None,
        upper: int | None = None,
    ) -> TailCut:
        """The tenant's rows behind the position that were durable at the call; perhaps later ones too.

        They have `time` and these columns; None: all. `lower` and `upper` bound `time`, in microseconds: rows
        outside may be left out. Raises PositionTooOld and StoreUnavailable.
        """
        table, bounds = self._tables[signal], Bounds(lower, upper)
        with self._open(), self._view(table, tenant, columns) as view:
            waiting, erasures = table.listing.waiting(position), table.erasures
            table.fetched = {stream: segments.stop for stream, segments in waiting.streams.items()}
            with view.loading:
                view.load(waiting, bounds, self._room(view), self._bytes_max)
                with self._lock:
                    if table.erasures != erasures:  # rows that were loaded meanwhile may be erased
                        view.forget()
                        raise PositionTooOld(signal, f"what was in the log of {signal}")
                    self._make_room()
                    missing = self._missing(signal, view, position, waiting)
                    cut = self._cut(view, waiting, bounds, missing, f"{signal}/{tenant}")
                    self._expire()
                    return cut

    def follow(self, positions: Mapping[Signal, Position]) -> None:
        """Drops rows that were not used for a while, or were erased. Of tables that were queried lately,
        reads new segments ahead where that takes long; decodes none.
        """
        with self._open():
            for signal, position in positions.items():
                table = self._tables[signal]
                if table.views:
                    streams = table.listing.waiting(position).streams
                    before, table.fetched = table.fetched, {name: each.stop for name, each in streams.items()}
                    table.reader.fetch(
                        (name, sequence)
                        for name, each in streams.items()
                        for sequence in range(max(each.start, before.get(name, 0)), each.stop)
                    )
            with self._lock:
                self._expire()

    @property
    def bytes(self) -> int:
        """Of what is kept."""
        with self._lock:
            return sum(view.bytes for view in self._views())

    def close(self) -> None:
        """Removes the folder. Safe to call twice."""
        self._closed = True
        self._pool.shutdown(cancel_futures=True)
        shutil.rmtree(self._place, ignore_errors=True)

    @contextlib.contextmanager
    def _open(self) -> Iterator[None]:
        """What fails because of `close` raises StoreUnavailable."""
        try:
            if self._closed:
                raise RuntimeError
            yield
        except (RuntimeError, OSError):
            if self._closed:
                raise StoreUnavailable("the query service is closing") from None
            raise

    # Views

    @contextlib.contextmanager
    def _view(self, table: _Table, tenant: str, columns: Collection[str] | None) -> Iterator[View]:
        wanted = None if columns is None else frozenset(columns)
        with self._lock:
            view = table.views.get((tenant, wanted))
            if view is None:
                view = View(table.reader, tenant, wanted, self._folder, self._lock, self._clock)
                table.views[tenant, wanted] = view
            view.users += 1
        try:
            yield view
        finally:
            with self._lock:
                view.users -= 1
                view.used_at = self._clock()

    def _views(self) -> Iterator[View]:
        for table in self._tables.values():
            yield from table.views.values()

    def _room(self, view: View) -> int:
        """Tenants have equal shares, and so have the views of a tenant; and what the others leave."""
        with self._lock:
            tenants = [each.tenant for each in self._views()]
            share = self._bytes_max // len(set(tenants)) // tenants.count(view.tenant)
            others = sum(each.bytes for each in self._views() if each is not view)
        return max(share, self._bytes_max - others)

    def _make_room(self) -> None:
        """Evicts the oldest rows of the largest view of the tenant that has the most."""
        views = [view for view in self._views() if view.chunks]
        while sum(view.bytes for view in views) > self._bytes_max:
            sizes = {
                tenant: sum(each.bytes for each in views if each.tenant == tenant)
                for tenant in _tenants(views)
            }
            largest = max(views, key=lambda view: (sizes[view.tenant], view.bytes))
            largest.evict_oldest()
            views = [view for view in views if view.chunks]

    def _expire(self) -> None:
        before = self._clock() - KEPT_SECONDS
        for table in self._tables.values():
            for key, view in list(table.views.items()):
                for chunk in [each for each in view.chunks if each.used_at < before]:
                    view.drop(chunk)
                if view.used_at < before and not view.users and not view.chunks:
                    del table.views[key]
        if self._fetched is not None and not any(self._views()):
            self._fetched.clear()

    def _forget(self, signal: Signal) -> None:
        """Rows were erased: what is kept may hold them."""
        table = self._tables[signal]
        table.reader.forget()
        with self._lock:
            table.erasures += 1
            for view in table.views.values():
                view.forget()

    # Cuts

    def _missing(self, signal: Signal, view: View, position: Position, waiting: Waiting) -> list[str]:
        missing = []
        left_out = view.left_out(position, waiting)
        if left_out is not None:
            # The count is of all tenants together, which no tenant may know of the others.
            rows = "rows" if self._has_tenants or not left_out else f"{left_out:,} rows"
            missing.append(
                f"{rows} of {signal} that wait to land are left out, the oldest of them: more than "
                "query.tail_bytes_max waits"
            )
        problems = view.problems(waiting) + missing_gaps(waiting.gaps)
        missing += problems[:_PROBLEMS_MAX]
        if (more := len(problems) - _PROBLEMS_MAX) > 0:
            missing.append(f"and {more} more segments of {signal} that cannot be read")
        return missing

    def _cut(
        self, view: View, waiting: Waiting, bounds: Bounds, missing: Sequence[str], what: str
    ) -> TailCut:
        """Pins the chunks. Under the lock."""
        found: list[tuple[Chunk, list[Part]]] = []
        for chunk in view.chunks:
            parts = view.parts(chunk, waiting)
            if parts:
                chunk.used_at = self._clock()
                if not _is_outside(chunk, bounds):
                    found.append((chunk, parts))
        for chunk, _ in found:
            self._folder.pin(chunk)
        return TailCut(
            [_reference(chunk, parts) for chunk, parts in found],
            sum(part.end_row - part.first_row for _, parts in found for part in parts),
            tuple(missing),
            _key(what, missing, [part for _, parts in found for part in parts]),
            max((chunk.time_max for chunk, _ in found), default=None),
            partial(self._unpin, [chunk for chunk, _ in found]),
        )

    def _unpin(self, pins: list[Chunk]) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._folder.unpin(pins.pop())


def _tenants(views: Sequence[View]) -> set[str]:
    return {view.tenant for view in views}


def _is_outside(chunk: Chunk, bounds: Bounds) -> bool:
    lower, upper = bounds
    return (lower is not None and chunk.time_max < lower) or (upper is not None and chunk.time_min > upper)


def _reference(chunk: Chunk, parts: Sequence[Part]) -> ChunkRef:
    return ChunkRef(str(chunk.path), () if len(parts) == len(chunk.parts) else tuple(ranges(parts)))


def _key(what: str, missing: Sequence[str], parts: Sequence[Part]) -> str:
    """However the rows are divided into chunks, the key is the same."""
    streams: dict[str, array[int]] = {}
    for part in parts:
        streams.setdefault(part.stream, array("q")).append(part.sequence)
    found = [(name, sorted(streams[name])) for name in sorted(streams)]
    return hashlib.sha256(repr((what, tuple(missing), found)).encode()).hexdigest()
