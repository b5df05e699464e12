"""Cuts of the tail: the rows that a query reads in addition to a table's data files."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

from frazil.config import Config
from frazil.errors import StoreUnavailable
from frazil.position import WalPosition
from frazil.query.cache import SizedCache
from frazil.query.tail.chunks import Chunk, ChunkFolder, Part
from frazil.query.tail.decode import Bounds, SegmentDecoder
from frazil.query.tail.derived import DeriveFailed, PartialRowsMaker
from frazil.query.tail.listing import Listing, PositionTooOld, Waiting
from frazil.query.tail.view import READERS, SegmentReader, View
from frazil.storage import Store
from frazil.tables import SIGNALS, Signal, TableSpec
from frazil.wal.clock import Clock
from frazil.wal.store import open_store

KEPT_SECONDS = 60.0
"""How long decoded rows are kept after the last query that used them."""
_PROBLEMS_MAX = 10
_CACHE_BYTES = 64 * 2**20
_LOCAL_READERS = 2
"""Threads that read a local WAL. Measured: with eight, decoding small segments takes 1.3 times as long,
because most of the work holds the interpreter lock. A WAL on S3 has more threads, which mostly wait.
"""
_LOADS_MAX = 4
"""Concurrent loads. Each holds about 32 MiB of rows that are not written yet, and a copy of them."""


@dataclass(frozen=True)
class ChunkRef:
    """Rows of one file: those in `ranges` (first, end), or all if `ranges` is empty."""

    path: str
    ranges: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True)
class TailCut:
    """The rows of a query. The files are kept until `release`."""

    chunks: Sequence[ChunkRef]
    rows: int
    """Rows in the WAL. Of a derived table, those from which its partial rows were made."""
    missing: Sequence[str]
    """Descriptions of rows that should be in the cut and are not."""
    key: str
    """Cuts with the same key hold the same rows."""
    time_max: int | None = None
    """The newest `time` of the rows, in microseconds; None without rows."""
    _release: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)

    def release(self) -> None:
        """Safe to call twice."""
        self._release()


@dataclass
class _Table:
    listing: Listing
    reader: SegmentReader
    views: dict[tuple[str, frozenset[str] | None], View] = field(default_factory=dict)
    """By tenant and columns."""


class Tail:
    """Decodes WAL segments for queries, and keeps the rows for a while. Thread-safe; a call may wait for the
    store.

    `folder` is created if it is missing, private to this user, and deleted by `close`.
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
        readers = READERS if config.wal.type == "s3" else _LOCAL_READERS
        self._pool = ThreadPoolExecutor(readers, thread_name_prefix="tail")
        self._clock = clock
        self._lock = threading.Lock()
        self._loads = threading.BoundedSemaphore(_LOADS_MAX)
        self._maker = PartialRowsMaker(self._folder)
        self._closed = False
        # Local segments are fast to read again: only those on S3 are cached.
        self._cache: SizedCache[str, bytes] = SizedCache(_CACHE_BYTES if config.wal.type == "s3" else 0)
        self._tables = {signal: self._table(config, signal, store) for signal in SIGNALS}

    def _table(self, config: Config, signal: Signal, store: Store) -> _Table:
        listing = Listing(signal, store, self._pool, self._clock, partial(self._forget, signal))
        decoder = SegmentDecoder(config, signal)
        return _Table(listing, SegmentReader(signal, store, decoder, self._pool, self._cache))

    def cut(
        self,
        signal: Signal,
        position: WalPosition,
        tenant: str,
        columns: Collection[str] | None = None,
        *,
        lower: int | None = None,
        upper: int | None = None,
    ) -> TailCut:
        """Return the tenant's rows after the position that were durable at the call, and perhaps later ones.

        The rows have `time` and these columns (None: all). `lower` and `upper` bound `time`, in microseconds:
        rows outside may be left out. Raises PositionTooOld and StoreUnavailable.
        """
        names = None if columns is None else frozenset(columns)
        with self._open():
            with self._loaded(signal, position, None, tenant, names, Bounds(lower, upper)) as loaded:
                cut = _cut(loaded, f"{signal}/{tenant}", [_reference(*each) for each in loaded.chunks])
            self._expire()
            return cut

    def derived_cut(
        self,
        spec: TableSpec,
        position: WalPosition,
        landed: WalPosition,
        tenant: str,
        *,
        lower: int | None = None,
        upper: int | None = None,
    ) -> TailCut:
        """Return the tenant's partial rows of a derived table, made from the rows of its source after the
        position. `landed` is the position of the source; `lower` and `upper` bound the time of the source's
        rows.

        Raises as `cut` does, and PositionTooOld if rows that landed after the position are no longer in the
        WAL.
        """
        assert spec.derived is not None  # noqa: S101
        signal, columns = cast(Signal, spec.derived.source), frozenset({"tenant_id", *spec.derived.columns})
        with self._open():
            with self._loaded(signal, position, landed, tenant, columns, Bounds(lower, upper)) as loaded:
                made = []
                try:
                    for chunk, parts in loaded.chunks:
                        made.append((chunk, self._maker.partial_rows(spec, loaded.view.schema, chunk, parts)))
                except DeriveFailed:
                    made.clear()
                    loaded.leave_out(
                        f"rows of {signal} that are not yet in {spec.name} are left out: "
                        "they cannot be derived now"
                    )
                chunks = [ChunkRef(str(rows.path)) for _, rows in made if rows.path is not None]
                # The cut keeps files by keeping their objects.
                cut = _cut(loaded, f"{spec.name}/{tenant}", chunks, made)
                with self._lock:
                    self._make_room()
            self._expire()
            return cut

    def follow(self, positions: Mapping[Signal, WalPosition]) -> None:
        """Drop rows that were not used for a while, or were erased. For a WAL on S3, read ahead new segments
        of tables that were queried recently, without decoding them.
        """
        with self._open():
            for signal, position in positions.items():
                table = self._tables[signal]
                if table.views or self._cache.bytes:
                    waiting = table.listing.waiting(position)  # detects erasures
                    if table.views and self._cache.fits(1):
                        table.reader.fetch(waiting)
            self._expire()

    @property
    def bytes(self) -> int:
        """Size of the files of decoded rows."""
        with self._lock:
            return sum(view.bytes for view in self._views())

    def close(self) -> None:
        """Delete the folder. Safe to call twice."""
        self._closed = True
        self._pool.shutdown(cancel_futures=True)
        shutil.rmtree(self._place, ignore_errors=True)

    @contextlib.contextmanager
    def _open(self) -> Iterator[None]:
        """Turn errors that `close` causes into StoreUnavailable."""
        try:
            if self._closed:
                raise RuntimeError
            yield
        except (RuntimeError, OSError, CancelledError):
            if self._closed:
                raise StoreUnavailable("the query service is closing") from None
            raise

    @contextlib.contextmanager
    def _loaded(
        self,
        signal: Signal,
        position: WalPosition,
        landed: WalPosition | None,
        tenant: str,
        columns: frozenset[str] | None,
        bounds: Bounds,
    ) -> Iterator[_Loaded]:
        """Load the rows of a cut. Meanwhile, no other query loads or cuts rows of the view."""
        table = self._tables[signal]
        waiting = table.listing.waiting(position, landed)
        view = self._view(table, tenant, columns)
        with view.loading:
            try:
                with self._loads:
                    view.load(waiting, bounds, self._room(view), self._bytes_max)
            except PositionTooOld:
                table.listing.forget()
                raise
            with self._lock:
                if table.listing.swept > waiting.swept:  # the loaded rows may include erased ones
                    view.forget()
                    raise PositionTooOld(signal, f"a segment of {signal}")
                self._make_room()
                missing = self._missing(signal, view, position, waiting)
                chunks = self._chunks(view, waiting, bounds)
            yield _Loaded(view, chunks, missing)

    # Views

    def _view(self, table: _Table, tenant: str, columns: frozenset[str] | None) -> View:
        with self._lock:
            view = table.views.get((tenant, columns))
            if view is None:
                view = View(table.reader, tenant, columns, self._folder, self._lock, self._clock)
                table.views[tenant, columns] = view
            view.used_at = self._clock()
        return view

    def _views(self) -> Iterator[View]:
        for table in self._tables.values():
            yield from table.views.values()

    def _room(self, view: View) -> int:
        """Return the bytes that a view may use: its share, or the bytes that other views leave. Tenants have
        equal shares, and so do the views of a tenant.
        """
        with self._lock:
            tenants = [each.tenant for each in self._views()]
            share = self._bytes_max // len(set(tenants)) // tenants.count(view.tenant)
            others = sum(each.bytes for each in self._views() if each is not view)
        return max(share, self._bytes_max - others)

    def _make_room(self) -> None:
        """Evict the oldest rows of the largest view of the tenant that uses the most."""
        while sum(view.bytes for view in self._views()) > self._bytes_max:
            by_tenant: Counter[str] = Counter()
            for view in self._views():
                by_tenant[view.tenant] += view.bytes
            max(self._views(), key=lambda each: (by_tenant[each.tenant], each.bytes)).evict_oldest()

    def _expire(self) -> None:
        """Drop unused rows, except in views that are being loaded: the loading query needs them."""
        before = self._clock() - KEPT_SECONDS
        with self._lock:
            for table in self._tables.values():
                for key, view in list(table.views.items()):
                    if view.loading.locked():
                        continue
                    view.chunks[:] = [chunk for chunk in view.chunks if chunk.used_at >= before]
                    if view.used_at < before and not view.chunks:
                        del table.views[key]
            if not any(table.views for table in self._tables.values()):
                self._cache.clear()

    def _forget(self, signal: Signal) -> None:
        """Drop all rows of a table, because rows were erased."""
        table = self._tables[signal]
        table.reader.forget()
        with self._lock:
            for view in table.views.values():
                view.forget()

    # Cuts

    def _missing(self, signal: Signal, view: View, position: WalPosition, waiting: Waiting) -> list[str]:
        missing = []
        left_out = view.left_out(position, waiting)
        if left_out is not None:
            # The count is over all tenants, and no tenant may learn about others.
            rows = "rows" if self._has_tenants or not left_out else f"{left_out:,} rows"
            missing.append(
                f"{rows} of {signal} that have not landed yet, the oldest ones, are left out: they exceed "
                "query.tail_bytes_max"
            )
        problems = view.problems(waiting)
        problems += [f"{name.path} is missing; the segments after it are left out" for name in waiting.gaps]
        missing += problems[:_PROBLEMS_MAX]
        if (more := len(problems) - _PROBLEMS_MAX) > 0:
            missing.append(f"{more} more segments of {signal} cannot be read")
        return missing

    def _chunks(self, view: View, waiting: Waiting, bounds: Bounds) -> list[tuple[Chunk, list[Part]]]:
        """The caller holds the lock."""
        found: list[tuple[Chunk, list[Part]]] = []
        for chunk in view.chunks:
            parts = chunk.waiting_parts(waiting)
            if parts:
                chunk.used_at = self._clock()
                if not bounds.exclude(chunk.time_min, chunk.time_max):
                    found.append((chunk, parts))
        return found


@dataclass(frozen=True)
class _Loaded:
    view: View
    chunks: list[tuple[Chunk, list[Part]]]
    missing: list[str]

    def leave_out(self, reason: str) -> None:
        self.chunks.clear()
        self.missing.append(reason)


def _cut(loaded: _Loaded, what: str, refs: Sequence[ChunkRef], more: list[Any] | None = None) -> TailCut:
    """Return a cut that keeps the chunks, and the objects in `more`, until it is released."""
    parts = [part for _, parts in loaded.chunks for part in parts]

    def release() -> None:
        loaded.chunks.clear()
        if more is not None:
            more.clear()

    return TailCut(
        refs,
        sum(part.end_row - part.first_row for part in parts),
        tuple(loaded.missing),
        _key(what, loaded.missing, parts),
        max((chunk.time_max for chunk, _ in loaded.chunks), default=None),
        release,
    )


def _reference(chunk: Chunk, parts: Sequence[Part]) -> ChunkRef:
    ranges: list[tuple[int, int]] = []
    for part in parts if len(parts) < len(chunk.parts) else ():
        if ranges and ranges[-1][1] == part.first_row:
            ranges[-1] = (ranges[-1][0], part.end_row)
        else:
            ranges.append((part.first_row, part.end_row))
    return ChunkRef(str(chunk.path), tuple(ranges))


def _key(what: str, missing: Sequence[str], parts: Sequence[Part]) -> str:
    """Return a key that does not depend on how the rows are divided into chunks."""
    segments = sorted((part.stream, part.sequence) for part in parts)
    return hashlib.sha256(repr((what, tuple(missing), segments)).encode()).hexdigest()
