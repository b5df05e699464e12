"""What has landed, as the catalog knows it: metadata kept for a moment, decoded manifests kept for long.

Manifests never change, so each is decoded once. The catalog is asked by one thread at a time for each table;
when it does not answer, what it said last is used, and said to be so.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path

import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestFile
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
from frazil.position import WalPosition, landing_position
from frazil.query.model import AsOf
from frazil.sql.constants import Constraints
from frazil.sql.index import File, Files, Index, Manifest, decode, has_deletes
from frazil.tables import Fill, Promoted, table_specs
from frazil.tables.promoted import promoted
from frazil.times import utc_text

__all__ = ["File", "Files", "Lake", "Looked", "TableVersion"]

FILES_KEPT_MAX = 200_000
"""Data files whose statistics are kept in memory, beyond those of the snapshots in use: about 1 KB each."""
_INDEXES_KEPT = 16
_READERS = 8
_ASKERS = 4
_ABSENT_KEPT_MAX = 256
_NAMES_SHOWN_MAX = 20
# How long a query waits for the catalog when there is something it can be answered from.
_PATIENCE_SECONDS = 2.0
_ASK_AGAIN_SECONDS = 5.0
_COMMIT_SECONDS = 10.0
"""A snapshot's time is a while before it can be seen: a time that is no longer ago than this is looked for in
what the catalog says now.
"""
_NO_CONSTRAINTS: Constraints = {}

log = structlog.get_logger("frazil.query")


@dataclass(frozen=True)
class TableVersion:
    """A table at one moment: its files and the position that belongs to them. Nothing in it changes later."""

    name: str
    snapshot_id: int | None
    committed_at: int | None
    """Microseconds since 1970."""
    position: WalPosition
    """What has landed. Empty for a version of the past, which has no tail."""
    schema: Schema
    """The current one, also for a version of the past."""
    stale: str | None
    """Why and since when the catalog does not answer, if this is what it said last."""
    loaded_at: float
    """When the catalog was last asked with success, by the clock of the lake."""
    index: Index = field(repr=False, compare=False)
    metadata: TableMetadata | None = field(default=None, repr=False, compare=False)
    erased: frozenset[str] = frozenset()
    """The erasures that the table knows of, by their ids: what was kept of it before is to be forgotten."""

    def files(
        self, tenant: str, constraints: Constraints = _NO_CONSTRAINTS, *, unowned: bool = False
    ) -> Files:
        """Those of the tenant that may hold rows for which all constraints hold. Reads nothing. `unowned`:
        also those of rows without a tenant.
        """
        return self.index.select(tenant, constraints, self.schema, unowned=unowned)


@dataclass(frozen=True)
class Looked:
    """What a look at a table found: `version` is None if there is no such table yet."""

    version: TableVersion | None
    stale: str | None
    asked_at: float
    """When the catalog was last asked with success, by the clock of the lake."""

    @property
    def position(self) -> WalPosition:
        return WalPosition() if self.version is None else self.version.position


class Manifests:
    """Decoded manifests and indexes of snapshots, by path: what is under a path never changes."""

    def __init__(
        self,
        extra: Sequence[Promoted] = (),
        *,
        files_max: int = FILES_KEPT_MAX,
        indexes_max: int = _INDEXES_KEPT,
    ) -> None:
        self._extra = tuple(extra)
        self._files_max = files_max
        self._indexes_max = indexes_max
        self._lock = threading.Lock()
        self._manifests: OrderedDict[str, Manifest] = OrderedDict()
        self._files = 0
        self._indexes: OrderedDict[str, Index] = OrderedDict()
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="frazil-manifests")

    def index(self, table: Table, snapshot: Snapshot | None) -> Index:
        """FileNotFoundError if a manifest is gone: the snapshot has expired meanwhile."""
        if snapshot is None:
            return Index(())
        with self._lock:
            if (found := self._indexes.get(snapshot.manifest_list)) is not None:
                self._indexes.move_to_end(snapshot.manifest_list)
                return found
        found = Index(self._load(table, _living(table, snapshot)))
        with self._lock:
            self._indexes[snapshot.manifest_list] = found
            while len(self._indexes) > self._indexes_max:
                self._indexes.popitem(last=False)
        return found

    def forget(self) -> None:
        with self._lock:
            self._manifests.clear()
            self._indexes.clear()
            self._files = 0

    def close(self) -> None:
        self._readers.shutdown(wait=False, cancel_futures=True)

    def _load(self, table: Table, wanted: Sequence[ManifestFile]) -> list[Manifest]:
        paths = [manifest.manifest_path for manifest in wanted]
        with self._lock:
            found = {path: self._manifests[path] for path in paths if path in self._manifests}
        missing = [manifest for manifest in wanted if manifest.manifest_path not in found]
        spec = table_specs(self._extra).get(table.name()[-1])
        fill = Fill.of(() if spec is None else spec.promoted, table.metadata.properties)
        if len(missing) == 1:
            decoded = [_decode(table, missing[0], fill)]
        else:
            decoded = list(self._readers.map(lambda manifest: _decode(table, manifest, fill), missing))
        found |= {manifest.manifest_path: one for manifest, one in zip(missing, decoded, strict=True)}
        self._keep(found)
        return [found[path] for path in paths]

    def _keep(self, used: dict[str, Manifest]) -> None:
        """Those just used stay whatever their number: the snapshot needs them all."""
        with self._lock:
            for path, manifest in used.items():
                if path not in self._manifests:
                    self._manifests[path] = manifest
                    self._files += len(manifest)
                self._manifests.move_to_end(path)
            while self._files > self._files_max and next(iter(self._manifests)) not in used:
                _, dropped = self._manifests.popitem(last=False)
                self._files -= len(dropped)


def _living(table: Table, snapshot: Snapshot) -> list[ManifestFile]:
    with _readable(snapshot.manifest_list):
        manifests = [
            manifest
            for manifest in snapshot.manifests(table.io)
            if manifest.has_added_files() or manifest.has_existing_files()
        ]
    if any(manifest.content != ManifestContent.DATA for manifest in manifests):
        raise has_deletes(full_name(table))
    return manifests


def _decode(table: Table, manifest: ManifestFile, fill: Fill) -> Manifest:
    with _readable(manifest.manifest_path):
        entries = manifest.fetch_manifest_entry(table.io)
    spec = table.metadata.specs()[manifest.partition_spec_id]
    return decode(entries, spec, table.schema(), full_name(table), fill)


@contextlib.contextmanager
def _readable(path: str) -> Iterator[None]:
    """A file that is there and makes no sense cannot be read, like one in a store that is down."""
    try:
        yield
    except (FrazilError, FileNotFoundError):
        raise
    except Exception as error:
        log.error("metadata cannot be read", path=path, reason=str(error))
        raise StoreUnavailable(f"metadata cannot be read: {type(error).__name__}") from error


@dataclass(frozen=True)
class _Known:
    """What the catalog said when it was asked. `table` is None if there was none."""

    asked_at: float
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
        return f"the catalog does not answer since {self.since}, so this is the last known: {self.error}"


@dataclass
class _Entry:
    known: _Known | None = None
    asking: Future[None] | None = None
    asking_since: float = 0.0


class Lake:
    """What has landed, as the catalog knows it. For any number of threads. Nothing is opened before it is
    asked for.
    """

    def __init__(self, config: Config, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._age_max_seconds = config.query.metadata_age_max_seconds
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._outage: _Outage | None = None
        self._manifests = Manifests(promoted(config))
        self._askers = ThreadPoolExecutor(_ASKERS, thread_name_prefix="frazil-catalog")
        self._opening = threading.Lock()
        self._catalog: Catalog | None = None
        self._catalog_inode: tuple[int, int] | None = None

    def version(self, table: str, as_of: AsOf | None = None, *, renew: bool = False) -> TableVersion | None:
        """None if there is no such table yet. Its manifests are read with it, so that files and position
        belong together. `renew` asks the catalog now, however young what is known is.

        Raises CatalogUnavailable if the catalog does not answer and never did, StoreUnavailable if metadata
        cannot be read, QueryInvalid for an `as_of` that names nothing and for tables with delete files.
        """
        return self.look(table, as_of, renew=renew).version

    def look(self, table: str, as_of: AsOf | None = None, *, renew: bool = False) -> Looked:
        """As `version`, and says also of a table that is not there how old that knowledge is."""
        if as_of is not None:
            return self._past(table, as_of)
        known, stale = self._current(table, renew=renew)
        if known.table is None:
            return Looked(None, stale, known.asked_at)
        found = _version(table, known, known.table, known.table.current_snapshot(), known.index, stale)
        return Looked(found, stale, known.asked_at)

    def age_seconds(self, looked: Looked) -> float:
        return self._clock() - looked.asked_at

    def warm(self) -> None:
        """Reads metadata and manifests of all tables ahead. Errors are logged: queries will meet them too."""
        try:
            with catalog_errors():
                found = self._open().list_tables(self._config.lake.namespace)
        except Exception as error:
            log.info("tables could not be read ahead", reason=str(error))
            return
        for name in {identifier[-1] for identifier in found} - {LEASES}:
            try:
                self.version(name)
            except Exception as error:
                log.warning("table could not be read ahead", table=name, reason=str(error))

    def forget_manifests(self) -> None:
        """Statistics hold values of rows. What is still needed is read again."""
        self._manifests.forget()

    def close(self) -> None:
        self._askers.shutdown(wait=False, cancel_futures=True)
        self._manifests.close()
        with self._opening:
            if self._catalog is not None:
                self._catalog.close()
                self._catalog = None

    def _past(self, name: str, as_of: AsOf) -> Looked:
        """What is known may be too old to know what is asked for, or name manifests that are gone by now."""
        known, stale = self._current(name)
        if self._is_recent(known, as_of):
            known, stale = self._current(name, renew=True)
        for may_renew in (True, False):
            if known.table is None:
                return Looked(None, stale, known.asked_at)
            try:
                snapshot = _snapshot(known.table, as_of)
                index = self._manifests.index(known.table, snapshot)
            except QueryInvalid:
                if not may_renew:
                    raise
            except FileNotFoundError as error:
                if not may_renew:
                    raise StoreUnavailable(
                        f"{name}: {error.filename} is gone, and a snapshot still needs it"
                    ) from error
            else:
                stale = None if as_of.snapshot_id is not None else stale
                past = replace(known, position=WalPosition())
                version = _version(name, past, known.table, snapshot, index, stale)
                return Looked(version, stale, known.asked_at)
            known, stale = self._current(name, renew=True)
        raise AssertionError

    def _is_recent(self, known: _Known, as_of: AsOf) -> bool:
        asked_at = time.time() - (self._clock() - known.asked_at)
        return as_of.time is not None and as_of.time > (asked_at - _COMMIT_SECONDS) * 1_000_000

    def _current(self, name: str, *, renew: bool = False) -> tuple[_Known, str | None]:
        """What is known and, if that is older than it may be, why."""
        arrived, on_its_way = self._clock(), None
        for look in range(2):  # an answer that was on its way when this query came may be too old for it
            with self._lock:
                entry = self._entries.setdefault(name, _Entry())
                on_its_way = entry.asking if look == 0 else on_its_way
                known, outage = entry.known, self._outage
                if known is not None and not renew and arrived - known.asked_at <= self._age_max_seconds:
                    return known, None
                if outage is not None and self._clock() < outage.failed_at + _ASK_AGAIN_SECONDS:
                    return _last(known, outage)
                asking, since = self._asking(name, entry)
            patience = max(0.0, since + _PATIENCE_SECONDS - self._clock())
            if known is not None and not wait([asking], patience).done:
                seconds = self._clock() - known.asked_at
                return known, f"the catalog is slow to answer, so this is what was known {seconds:.0f} s ago"
            try:
                asking.result()
            except CatalogUnavailable as error:
                with self._lock:
                    outage = self._outage or _Outage(_now(), self._clock(), error)
                return _last(known, outage)
            except FrazilError as error:
                raise error.again() from error
            renew = renew and asking is on_its_way
        with self._lock:
            return entry.known or _Known(arrived), None

    def _asking(self, name: str, entry: _Entry) -> tuple[Future[None], float]:
        """The question that is on its way, or a new one. Under the lock."""
        if entry.asking is None:
            entry.asking_since = self._clock()
            entry.asking = self._askers.submit(self._ask, name, entry, entry.asking_since)
        return entry.asking, entry.asking_since

    def _ask(self, name: str, entry: _Entry, since: float) -> None:
        try:
            known = self._read(name, entry.known, since)
        except BaseException as error:
            with self._lock:
                if isinstance(error, CatalogUnavailable):
                    self._fail(error)
                self._answer(name, entry, entry.known)
            raise
        with self._lock:
            self._outage = None
            self._answer(name, entry, known)

    def _answer(self, name: str, entry: _Entry, known: _Known | None) -> None:
        """Under the lock. Names that mean nothing are not kept without end."""
        entry.known, entry.asking = known, None
        if (known is None or known.table is None) and len(self._entries) > _ABSENT_KEPT_MAX:
            self._entries.pop(name, None)

    def _fail(self, error: CatalogUnavailable) -> None:
        if self._outage is None:
            log.warning("the catalog does not answer", reason=str(error))
        since = _now() if self._outage is None else self._outage.since
        self._outage = _Outage(since, self._clock(), error)

    def _read(self, name: str, before: _Known | None, since: float) -> _Known:
        try:
            return self._read_once(name, before, since)
        except FileNotFoundError:  # expired between the catalog's answer and now: it knows better by now
            try:
                return self._read_once(name, None, since)
            except FileNotFoundError as error:
                raise StoreUnavailable(
                    f"{name}: {error.filename} is gone, and the catalog's metadata needs it; `frazil doctor` "
                    "looks for what can be brought back"
                ) from error

    def _read_once(self, name: str, before: _Known | None, since: float) -> _Known:
        table = self._load(name, None if before is None else before.table)
        if table is None:
            return _Known(since)
        if before is not None and _same(before.table, table):
            return replace(before, asked_at=since, table=table)
        try:
            position = landing_position(checkpoint_of(table).position).wal
        except ValueError as error:
            raise DataLost(
                full_name(table), f"its position cannot be read: {error}; upgrade frazil"
            ) from error
        return _Known(since, table, position, self._manifests.index(table, table.current_snapshot()))

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
        metadata = _metadata(LakeFileIO(catalog.properties), location)
        files = LakeFileIO({**catalog.properties, **metadata.properties})
        return Table(identifier, metadata, location, files, catalog)

    def _open(self) -> Catalog:
        """A SQLite file that was moved away would go on answering from where it is."""
        with self._opening:
            inode = self._inode()
            if self._catalog is not None and inode != self._catalog_inode:
                if inode is None:
                    raise CatalogUnavailable(f"the catalog {self._config.catalog_file} is gone")
                self._catalog.close()
                self._catalog = None
            if self._catalog is None:
                if self._is_lost():
                    raise CatalogUnavailable(
                        f"the catalog {self._config.catalog_file} is gone, and {self._config.warehouse} has "
                        "tables: bring it back"
                    )
                self._catalog = open_catalog(self._config)
                self._catalog_inode = self._inode()
            return self._catalog

    def _is_lost(self) -> bool:
        """Opening it would make an empty one, in which no table has any rows."""
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


def _same(before: Table | None, now: Table) -> bool:
    return before is not None and before.metadata_location == now.metadata_location


def _last(known: _Known | None, outage: _Outage) -> tuple[_Known, str]:
    if known is None:
        raise outage.error.again() from outage.error
    return known, outage.reason


def _metadata(files: FileIO, location: str) -> TableMetadata:
    with _readable(location):
        return FromInputFile.table_metadata(files.new_input(location))


def _version(
    name: str, known: _Known, table: Table, snapshot: Snapshot | None, index: Index, stale: str | None
) -> TableVersion:
    return TableVersion(
        name=name,
        snapshot_id=None if snapshot is None else snapshot.snapshot_id,
        committed_at=None if snapshot is None else snapshot.timestamp_ms * 1000,
        position=known.position,
        schema=table.schema(),
        stale=stale,
        loaded_at=known.asked_at,
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
        running = f"tag `{as_of.tag}`"
    elif as_of.snapshot_id is not None:
        found = metadata.snapshot_by_id(as_of.snapshot_id)
        running = f"snapshot {as_of.snapshot_id}"
    elif as_of.time is not None:
        micros = as_of.time
        past = (each for each in _history(metadata) if each.timestamp_ms * 1000 <= micros)
        found = next(past, None)
        running = f"snapshot as old as {utc_text(micros / 1e6)}"
    else:
        found, running = None, "snapshot without a time, an id or a tag"
    if found is None:
        raise QueryInvalid(f"{full_name(table)} has no {running}; {_what_exists(metadata)}")
    return found


def _history(metadata: TableMetadata) -> list[Snapshot]:
    """Newest first, as far as no snapshot between is missing: where one is, nobody knows what was then."""
    main = metadata.snapshot_by_name(MAIN_BRANCH)
    return [] if main is None else list(ancestors(metadata, main))


def _what_exists(metadata: TableMetadata) -> str:
    history = _history(metadata)
    names = sorted(metadata.refs)
    shown = ", ".join(names[:_NAMES_SHOWN_MAX]) + (", …" if len(names) > _NAMES_SHOWN_MAX else "")
    oldest = (
        f"the oldest time is {utc_text(history[-1].timestamp_ms / 1e3)}" if history else "there is no time"
    )
    return f"{oldest}, tags and branches are {shown or 'none'}"


def _now() -> str:
    return utc_text(time.time())
