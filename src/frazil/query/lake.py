"""The landed versions of the tables, from the catalog. Metadata is cached for a short time, manifests for
long.

For each table, one thread at a time reads the catalog. While the catalog does not respond, its last known
state is used, and results are marked as stale.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path

import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from frazil.config import Config
from frazil.errors import CatalogUnavailable, DataLost, FrazilError, QueryInvalid, StoreUnavailable
from frazil.lake.catalog import LEASES, catalog_errors, full_name, metadata_location, open_catalog
from frazil.lake.commits.commit import checkpoint_of
from frazil.lake.files import LakeFileIO
from frazil.lake.snapshots import ancestors, erasures
from frazil.lake.views import candidates, spec_in
from frazil.position import SourcePosition, WalPosition, parse_position
from frazil.query.manifests import Manifests, metadata_errors
from frazil.query.model import AsOf
from frazil.sql.constraint import Constraints
from frazil.sql.index import Files, Index
from frazil.tables import declare_views
from frazil.tables.promoted import promoted
from frazil.times import utc_text

_LOADERS = 4
_ABSENT_KEPT_MAX = 256
_NAMES_SHOWN_MAX = 20
_WAIT_SECONDS = 2.0
"""How long a query waits for the catalog when there is a cached state to use instead."""
_RETRY_SECONDS = 5.0
_COMMIT_SECONDS = 10.0
"""A snapshot becomes visible some time after its timestamp. For `as_of` times more recent than this, the
catalog is read again.
"""
_VIEWS_SECONDS = 30.0
"""How long the list of views may be out of date. A query that names an unknown table looks again."""
_NO_CONSTRAINTS: Constraints = {}

log = structlog.get_logger("frazil.query")


@dataclass(frozen=True)
class TableVersion:
    """An immutable version of a table: its files, and the WAL position up to which rows have landed."""

    name: str
    snapshot_id: int | None
    committed_at: int | None
    """Microseconds since 1970."""
    position: WalPosition
    """The WAL position up to which rows have landed; of a derived table, up to which rows of its source are
    derived. Empty for an `as_of` version, which has no tail.
    """
    schema: Schema
    """The current schema, also for an `as_of` version."""
    stale: str | None
    """Why and since when the catalog does not respond, if this is its last known state."""
    loaded_at: float
    """When the catalog was last read successfully, by the clock of the lake."""
    index: Index = field(repr=False, compare=False)
    metadata: TableMetadata | None = field(default=None, repr=False, compare=False)
    erased: frozenset[str] = frozenset()
    """Ids of the erasures recorded in the table. Caches filled before an erasure must be cleared."""

    def files(
        self, tenant: str, constraints: Constraints = _NO_CONSTRAINTS, *, unowned: bool = False
    ) -> Files:
        """Return the tenant's files that may hold rows for which all constraints hold, without I/O.
        `unowned`: also files of rows without a tenant.
        """
        return self.index.select(tenant, constraints, self.schema, unowned=unowned)


@dataclass(frozen=True)
class TableLookup:
    """The result of a lookup: `version` is None if the table does not exist yet."""

    version: TableVersion | None
    stale: str | None
    loaded_at: float
    """When the catalog was last read successfully, by the clock of the lake."""

    @property
    def position(self) -> WalPosition:
        return WalPosition() if self.version is None else self.version.position


@dataclass(frozen=True)
class _CatalogState:
    """The cached state of a table. `table` is None if the table did not exist."""

    loaded_at: float
    table: Table | None = None
    position: WalPosition = field(default_factory=WalPosition)
    index: Index = field(default_factory=lambda: Index(()))


@dataclass(frozen=True)
class _Outage:
    since: str
    failed_at: float
    error: CatalogUnavailable

    @property
    def reason(self) -> str:
        return f"the catalog has not responded since {self.since}; its last known state is used: {self.error}"


@dataclass
class _Entry:
    known: _CatalogState | None = None
    loading: Future[None] | None = None
    loading_since: float = 0.0


class Lake:
    """Loads and caches versions of tables. Thread-safe. The catalog is opened at the first lookup."""

    def __init__(self, config: Config, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._age_max_seconds = config.query.metadata_age_max_seconds
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._outage: _Outage | None = None
        self._manifests = Manifests(promoted(config))
        self._loaders = ThreadPoolExecutor(_LOADERS, thread_name_prefix="frazil-catalog")
        self._opening = threading.Lock()
        self._catalog: Catalog | None = None
        self._catalog_inode: tuple[int, int] | None = None
        self._is_closed = False
        self._finding_views = threading.Lock()
        self._views_at = -math.inf
        self._other_tables: dict[str, Table | None] = {}

    def version(self, table: str, as_of: AsOf | None = None, *, renew: bool = False) -> TableVersion | None:
        """Return a version with its manifests, or None if the table does not exist yet. `renew` reads the
        catalog even if the cached state is recent.

        Raises CatalogUnavailable if the catalog has never responded, StoreUnavailable if metadata cannot be
        read, QueryInvalid for an `as_of` that names nothing and for tables with delete files.
        """
        return self.lookup(table, as_of, renew=renew).version

    def lookup(self, table: str, as_of: AsOf | None = None, *, renew: bool = False) -> TableLookup:
        """Return the result of `version` and its age, which is also known for a table that does not exist."""
        if as_of is not None:
            return self._lookup_as_of(table, as_of)
        known, stale = self._current(table, renew=renew)
        if known.table is None:
            return TableLookup(None, stale, known.loaded_at)
        found = _version(table, known, known.table, known.table.current_snapshot(), known.index, stale)
        return TableLookup(found, stale, known.loaded_at)

    def age_seconds(self, lookup: TableLookup) -> float:
        return self._clock() - lookup.loaded_at

    def find_views(self, *, age_max_seconds: float = _VIEWS_SECONDS) -> None:
        """Make the views of the lake known to this process, if they were not looked for recently. While the
        catalog does not respond, those that are known stay.
        """
        with self._finding_views:
            if self._clock() - self._views_at < age_max_seconds:
                return
            try:
                names = candidates(self._open(), self._config.lake.namespace)
                self._other_tables = {name: self._other_table(name) for name in names}
                specs = [
                    spec_in(name, table.metadata)
                    for name, table in self._other_tables.items()
                    if table is not None
                ]
                declare_views(spec for spec in specs if spec is not None)
            except (FrazilError, OSError) as error:
                log.debug("views not found", reason=str(error))
            self._views_at = self._clock()

    def _other_table(self, name: str) -> Table | None:
        """Return a table that may be a view. None if it cannot be read: it may be one of another engine."""
        try:
            return self._load(name, self._other_tables.get(name))
        except CatalogUnavailable:
            raise
        except (FrazilError, OSError) as error:
            log.debug("table not readable", table=name, reason=str(error))
            return None

    def warm(self) -> None:
        """Prefetch metadata and manifests of all tables. Only logs errors: queries will report them. Returns
        early if the lake is closed meanwhile.
        """
        try:
            with catalog_errors():
                found = self._open().list_tables(self._config.lake.namespace)
        except Exception as error:
            if not self._is_closed:
                log.info("table metadata not prefetched", reason=str(error))
            return
        for name in {identifier[-1] for identifier in found} - {LEASES}:
            try:
                self.version(name)
            except Exception as error:
                if self._is_closed:
                    return
                log.warning("table metadata not prefetched", table=name, reason=str(error))

    def forget_manifests(self) -> None:
        """Drop all cached manifests: their statistics hold values of rows, which may have been erased."""
        self._manifests.forget()

    def close(self) -> None:
        self._is_closed = True
        self._loaders.shutdown(wait=False, cancel_futures=True)
        self._manifests.close()
        with self._opening:
            if self._catalog is not None:
                self._catalog.close()
                self._catalog = None

    def _lookup_as_of(self, name: str, as_of: AsOf) -> TableLookup:
        """Find an earlier version. Reads the catalog again if the cached state is too old to have the
        version, or names manifests that were deleted since.
        """
        known, stale = self._current(name)
        if self._is_recent(known, as_of):
            known, stale = self._current(name, renew=True)
        for may_renew in (True, False):
            if known.table is None:
                return TableLookup(None, stale, known.loaded_at)
            try:
                snapshot = _snapshot(known.table, as_of)
                index = self._manifests.index(known.table, snapshot)
            except QueryInvalid:
                if not may_renew:
                    raise
            except FileNotFoundError as error:
                if not may_renew:
                    raise StoreUnavailable(
                        f"{name}: {error.filename} is missing, but a snapshot refers to it: "
                        "restore the file, or query another snapshot"
                    ) from error
            else:
                stale = None if as_of.snapshot_id is not None else stale
                state = replace(known, position=WalPosition())
                version = _version(name, state, known.table, snapshot, index, stale)
                return TableLookup(version, stale, known.loaded_at)
            known, stale = self._current(name, renew=True)
        raise AssertionError

    def _is_recent(self, known: _CatalogState, as_of: AsOf) -> bool:
        loaded_at = time.time() - (self._clock() - known.loaded_at)
        return as_of.time is not None and as_of.time > (loaded_at - _COMMIT_SECONDS) * 1_000_000

    def _current(self, name: str, *, renew: bool = False) -> tuple[_CatalogState, str | None]:
        """Return the state of a table and, if it is older than allowed, why."""
        arrived, already_loading = self._clock(), None
        for attempt in range(2):  # a load that began before this query may be too old for it
            with self._lock:
                entry = self._entries.setdefault(name, _Entry())
                already_loading = entry.loading if attempt == 0 else already_loading
                known, outage = entry.known, self._outage
                if known is not None and not renew and arrived - known.loaded_at <= self._age_max_seconds:
                    return known, None
                if outage is not None and self._clock() < outage.failed_at + _RETRY_SECONDS:
                    return _last_known(known, outage)
                loading, since = self._start_loading(name, entry)
            wait_seconds = max(0.0, since + _WAIT_SECONDS - self._clock())
            if known is not None and not wait([loading], wait_seconds).done:
                seconds = self._clock() - known.loaded_at
                return known, f"the catalog is slow to respond; its state of {seconds:.0f} s ago is used"
            try:
                loading.result()
            except CatalogUnavailable as error:
                with self._lock:
                    outage = self._outage or _Outage(_now(), self._clock(), error)
                return _last_known(known, outage)
            except FrazilError as error:
                raise error.again() from error
            renew = renew and loading is already_loading
        with self._lock:
            return entry.known or _CatalogState(arrived), None

    def _start_loading(self, name: str, entry: _Entry) -> tuple[Future[None], float]:
        """Return the load in progress, or start one. The caller holds the lock."""
        if entry.loading is None:
            entry.loading_since = self._clock()
            entry.loading = self._loaders.submit(self._load_entry, name, entry, entry.loading_since)
        return entry.loading, entry.loading_since

    def _load_entry(self, name: str, entry: _Entry, since: float) -> None:
        try:
            known = self._read(name, entry.known, since)
        except BaseException as error:
            with self._lock:
                if isinstance(error, CatalogUnavailable):
                    self._fail(error)
                self._finish_loading(name, entry, entry.known)
            raise
        with self._lock:
            self._outage = None
            self._finish_loading(name, entry, known)

    def _finish_loading(self, name: str, entry: _Entry, known: _CatalogState | None) -> None:
        """Store the state. The caller holds the lock. Keeps a limited number of names that are no tables."""
        entry.known, entry.loading = known, None
        if (known is None or known.table is None) and len(self._entries) > _ABSENT_KEPT_MAX:
            self._entries.pop(name, None)

    def _fail(self, error: CatalogUnavailable) -> None:
        if self._outage is None and not self._is_closed:
            log.warning("catalog unavailable", reason=str(error))
        since = _now() if self._outage is None else self._outage.since
        self._outage = _Outage(since, self._clock(), error)

    def _read(self, name: str, before: _CatalogState | None, since: float) -> _CatalogState:
        try:
            return self._read_once(name, before, since)
        except FileNotFoundError:  # the snapshot has expired: the catalog has a newer one
            try:
                return self._read_once(name, None, since)
            except FileNotFoundError as error:
                raise StoreUnavailable(
                    f"{name}: {error.filename} is missing, but the catalog refers to it: run `frazil doctor` "
                    "for files that can be restored"
                ) from error

    def _read_once(self, name: str, before: _CatalogState | None, since: float) -> _CatalogState:
        table = self._load(name, None if before is None else before.table)
        if table is None:
            return _CatalogState(since)
        if (
            before is not None
            and before.table is not None
            and before.table.metadata_location == table.metadata_location
        ):
            return replace(before, loaded_at=since, table=table)
        try:
            position = _wal_position(checkpoint_of(table).position)
        except ValueError as error:
            raise DataLost(
                full_name(table), f"its position cannot be read: {error}: upgrade frazil"
            ) from error
        return _CatalogState(since, table, position, self._manifests.index(table, table.current_snapshot()))

    def _load(self, name: str, before: Table | None) -> Table | None:
        catalog = self._open()
        identifier = (*self._config.lake.namespace.split("."), name)
        if not isinstance(catalog, SqlCatalog):
            try:
                with catalog_errors():
                    return catalog.load_table(identifier)
            except NoSuchTableError:
                return None
        location = metadata_location(catalog, identifier)
        if location is None:
            return None
        if before is not None and before.metadata_location == location:
            return before
        with metadata_errors(location):
            metadata = FromInputFile.table_metadata(LakeFileIO(catalog.properties).new_input(location))
        files = LakeFileIO({**catalog.properties, **metadata.properties})
        return Table(identifier, metadata, location, files, catalog)

    def _open(self) -> Catalog:
        """Open the catalog. Reopens a SQLite file that was replaced: the handle still reads the old file."""
        with self._opening:
            inode = self._inode()
            if self._catalog is not None and inode != self._catalog_inode:
                if inode is None:
                    raise CatalogUnavailable(
                        f"the catalog file {self._config.catalog_file} is missing: restore it"
                    )
                self._catalog.close()
                self._catalog = None
            if self._catalog is None:
                if self._is_lost():
                    raise CatalogUnavailable(
                        f"the catalog file {self._config.catalog_file} is missing, but "
                        f"{self._config.warehouse} has tables: restore the file from a backup"
                    )
                self._catalog = open_catalog(self._config)
                self._catalog_inode = self._inode()
            return self._catalog

    def _is_lost(self) -> bool:
        """Return whether the SQLite file is missing while tables exist. Opening it would create an empty
        catalog.
        """
        if self._config.lake.catalog.type != "sqlite" or self._inode() is not None:
            return False
        warehouse = self._config.warehouse
        return "://" not in warehouse and next(Path(warehouse).rglob("metadata"), None) is not None

    def _inode(self) -> tuple[int, int] | None:
        if self._config.lake.catalog.type != "sqlite":
            return None
        try:
            found = os.stat(self._config.catalog_file)
        except OSError:
            return None
        return found.st_dev, found.st_ino


def _wal_position(text: str) -> WalPosition:
    """Return the position in the WAL; for a derived table, that of its source up to which it is complete."""
    position = parse_position(text)
    return position.landing.wal if isinstance(position, SourcePosition) else position.wal


def _last_known(known: _CatalogState | None, outage: _Outage) -> tuple[_CatalogState, str]:
    if known is None:
        raise outage.error.again() from outage.error
    return known, outage.reason


def _version(
    name: str, known: _CatalogState, table: Table, snapshot: Snapshot | None, index: Index, stale: str | None
) -> TableVersion:
    return TableVersion(
        name=name,
        snapshot_id=None if snapshot is None else snapshot.snapshot_id,
        committed_at=None if snapshot is None else snapshot.timestamp_ms * 1000,
        position=known.position,
        schema=table.schema(),
        stale=stale,
        loaded_at=known.loaded_at,
        index=index,
        metadata=table.metadata,
        erased=erasures(table.metadata),
    )


def _snapshot(table: Table, as_of: AsOf) -> Snapshot:
    metadata = table.metadata
    found: Snapshot | None
    if as_of.tag is not None:
        ref = metadata.refs.get(as_of.tag)
        found = None if ref is None else metadata.snapshot_by_id(ref.snapshot_id)
        wanted = f"tag `{as_of.tag}`"
    elif as_of.snapshot_id is not None:
        found = metadata.snapshot_by_id(as_of.snapshot_id)
        wanted = f"snapshot {as_of.snapshot_id}"
    elif as_of.time is not None:
        micros = as_of.time
        past = (each for each in _history(metadata) if each.timestamp_ms * 1000 <= micros)
        found = next(past, None)
        wanted = f"snapshot as old as {utc_text(micros / 1e6)}"
    else:
        found, wanted = None, "snapshot without a time, an id or a tag"
    if found is None:
        raise QueryInvalid(f"{full_name(table)} has no {wanted}; {_available(metadata)}")
    return found


def _history(metadata: TableMetadata) -> list[Snapshot]:
    """Return the snapshots of the main branch, newest first, up to the first one that is missing."""
    main = metadata.snapshot_by_name(MAIN_BRANCH)
    return [] if main is None else list(ancestors(metadata, main))


def _available(metadata: TableMetadata) -> str:
    history = _history(metadata)
    names = sorted(metadata.refs)
    shown = ", ".join(names[:_NAMES_SHOWN_MAX]) + (", …" if len(names) > _NAMES_SHOWN_MAX else "")
    oldest = (
        f"the oldest time is {utc_text(history[-1].timestamp_ms / 1e3)}" if history else "it has no snapshots"
    )
    return f"{oldest}, tags and branches are {shown or 'none'}"


def _now() -> str:
    return utc_text(time.time())
