"""Plans a query: chooses its data files and WAL rows, as one consistent cut of each table."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.schema import Schema

from frazil.config import Config
from frazil.errors import QueryInvalid, StoreUnavailable
from frazil.lake.files import LakeFileIO, open_files
from frazil.lake.views import known_views
from frazil.query.cache import SizedCache
from frazil.query.derived import DerivedInfo, derived_info, not_derived, still_to_derive
from frazil.query.lake import Lake, TableLookup, TableVersion
from frazil.query.model import AsOf, Query, Stats
from frazil.query.tail import PositionTooOld, Tail, TailCut
from frazil.sql.bloom import BloomFilters, hashes_of
from frazil.sql.constraint import UNCONSTRAINED, Constraints, union_all
from frazil.sql.index import File
from frazil.sql.merging import merged_columns, with_needed_columns
from frazil.sql.partial_rows import completed_rows, has_pending, on_partial_rows
from frazil.sql.promoted_fallback import from_map, source_columns
from frazil.sql.statement import Statement
from frazil.sql.types import duckdb_type
from frazil.tables import Promoted, TableSpec, table_specs
from frazil.tables.columns import TIME
from frazil.tables.derived.metric_cardinality import with_attributes
from frazil.tables.promoted import promoted

_ATTEMPTS_MAX = 4
_NO_ID = 1_000_000
"""Field ids from this value on occur in no file. For columns that the table does not have yet."""
_BLOOM_BYTES_MAX = 128 << 20
_DAY_SECONDS = 86_400
_UNMATCHED_CACHED_SECONDS = 10.0
"""How long a result is cached that depends on the time, because pending rows count after a while."""


@dataclass
class Plan:
    """The tables that a worker reads, and their statistics. A context manager that releases the tail."""

    tables: list[dict[str, Any]] = field(default_factory=list)
    cuts: list[TailCut] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)
    key: str | None = None
    """Cache key: plans with the same key have the same result. None: the result must not be cached."""
    erased: frozenset[str] = frozenset()
    """Ids of the erasures recorded in the tables of the plan."""

    def __enter__(self) -> Plan:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        for cut in self.cuts:
            cut.release()

    def without_files(self, unreadable: Sequence[str] | None, reason: str) -> Plan:
        """Return the plan without unreadable files (None: without any file), and note it in `stats`."""
        tables, dropped = [], 0
        for table in self.tables:
            kept = _without(table["files"], unreadable)
            older = [{**group, "files": _without(group["files"], unreadable)} for group in table["older"]]
            dropped += len(table["files"]) - len(kept)
            dropped += sum(
                len(before["files"]) - len(after["files"])
                for before, after in zip(table["older"], older, strict=True)
            )
            tables.append({**table, "files": kept, "older": [group for group in older if group["files"]]})
        missing = (*self.stats.missing, f"{dropped} data files cannot be read now: {reason}")
        stats = dataclasses.replace(self.stats, files=self.stats.files - dropped, missing=missing)
        return Plan(tables, self.cuts, stats, None)


@dataclass(frozen=True)
class _Cut:
    lookup: TableLookup
    tail: TailCut | None
    missing: Sequence[str] = ()
    source: TableVersion | None = None
    """Of a derived table, the version of its source."""


class Planner:
    """The planner. Thread-safe. Blocking: planning lists the WAL and may read manifests and segments."""

    def __init__(self, config: Config, lake: Lake, tail: Tail | None) -> None:
        self._config = config
        self._lake = lake
        self._tail = tail
        # Half: leaves time for the commit, and for reading the WAL after it.
        self._safe_seconds = config.land.wal_grace_seconds / 2
        self.bloom_cache: SizedCache[Any, Any] = SizedCache(_BLOOM_BYTES_MAX)
        self._filters = BloomFilters(self.bloom_cache)
        self._io: LakeFileIO = open_files(config)
        self._promoted = promoted(config)
        self._declared: Mapping[str, TableSpec] = {}
        self._specs: dict[str, TableSpec] = {}

    @property
    def specs(self) -> Mapping[str, TableSpec]:
        """The tables that SQL can read, by name. Views may be declared at any time."""
        declared = table_specs(self._promoted)
        if declared is not self._declared:
            attributes = self._config.derive.cardinality_attributes
            self._specs = {
                name: with_attributes(spec, attributes) for name, spec in declared.items() if spec.queried
            }
            self._declared = declared
        return self._specs

    def close(self) -> None:
        self._filters.close()

    def find_views(self, *, age_max_seconds: float | None = None) -> None:
        """Look for new views, if that was not done recently."""
        if age_max_seconds is None:
            self._lake.find_views()
        else:
            self._lake.find_views(age_max_seconds=age_max_seconds)

    def views_in(self, names: Collection[str]) -> list[dict[str, Any]]:
        """Return the declarations of the views among these tables."""
        return [self.declaration(spec) for name, spec in self.views.items() if name in names]

    @property
    def views(self) -> Mapping[str, TableSpec]:
        """The views that this process knows, by name."""
        return {spec.name: spec for spec in known_views()}

    def column_names(self, tables: Sequence[str]) -> list[str]:
        """Return the columns of all these tables, as candidates for a misspelled name."""
        found = {
            column.name for name, spec in self.specs.items() if name in tables for column in spec.sql_columns
        }
        return sorted(found)

    def declarations(self) -> list[dict[str, Any]]:
        """Return the arguments of `TableSource` of all tables, without rows."""
        return [self.declaration(spec) for spec in self.specs.values()]

    def declaration(self, spec: TableSpec) -> dict[str, Any]:
        """Return the arguments of the `TableSource` of one table, without rows."""
        return _source(spec, self._columns(spec, None))

    def derived_info(self, table: str, version: TableVersion | None) -> DerivedInfo | None:
        """Return how far a derived table is, at this version."""
        spec = self.specs[table]
        source = None if spec.derived is None else self._lake.version(spec.derived.source)
        return derived_info(spec, version, source, self._config)

    def plan(
        self, statement: Statement, query: Query, uses: Mapping[str, Sequence[Constraints]] | None = None
    ) -> Plan:
        """Plan a query. `uses` has the constraints of each use of each table."""
        uses = uses or {}
        plan = Plan()
        try:
            for name, spec in self.specs.items():
                if name in statement.tables:
                    self._add(plan, spec, uses.get(name) or [UNCONSTRAINED], query, statement)
                elif name in statement.listed:
                    plan.tables.append(_source(spec, self._columns(spec, None)))
        except BaseException:
            plan.release()
            raise
        if not statement.is_nondeterministic and plan.stats.stale is None and not plan.stats.missing:
            plan.key = self._key(plan, query)
        return plan

    def _add(
        self,
        plan: Plan,
        spec: TableSpec,
        uses: Sequence[Constraints],
        query: Query,
        statement: Statement,
    ) -> None:
        needed = _needed_columns(spec, statement.columns)
        uses = [each for use in uses for each in on_partial_rows(spec, use)]
        if spec.derived is not None:
            found = self._derived_cut(spec, uses, query)
        else:
            found = self._cut(spec, uses, query, needed)
        version, cut = found.lookup.version, found.tail
        if cut is not None:
            plan.cuts.append(cut)
        for each in (version, found.source):
            plan.erased |= frozenset() if each is None else each.erased
        files, total = self._files(version, uses, query, spec)
        columns = self._columns(spec, None if version is None else version.schema)
        every, names = columns, statement.names
        # Measured: declaring all 48 columns to DuckDB takes 5 ms per query.
        columns = [column for column in columns if column[0] in needed]
        hidden = self._hidden(spec, version, [name for name, *_ in columns])
        columns += hidden
        complete, older = _group_by_promotion(
            files, columns, every, {item.column: item for item in spec.promoted}
        )
        plan.tables.append(
            _source(
                spec,
                columns,
                files=complete,
                older=older,
                names=None if names is None else sorted(names),
                tail=[] if cut is None else [(ref.path, ref.ranges) for ref in cut.chunks],
                times=_times(uses),
                hidden=[name for name, *_ in hidden],
            )
        )
        before = plan.stats
        plan.stats = dataclasses.replace(
            before,
            files=before.files + len(files),
            files_total=before.files_total + total,
            bytes=before.bytes + sum(file.bytes for file in files),
            tail_rows=before.tail_rows + (0 if cut is None else cut.rows),
            stale=before.stale or found.lookup.stale,
            missing=(*before.missing, *found.missing, *(() if cut is None else cut.missing)),
            snapshots={**before.snapshots, spec.name: None if version is None else version.snapshot_id},
        )

    def cut(
        self, spec: TableSpec, uses: Sequence[Constraints], query: Query
    ) -> tuple[TableVersion | None, TailCut | None]:
        """Return the landed version and the tail, with the column `time`; of a derived table only the former.
        The caller releases the tail.
        """
        found = self._cut(spec, uses, query, _needed_columns(spec, ()))
        return found.lookup.version, found.tail

    def _cut(
        self,
        spec: TableSpec,
        uses: Sequence[Constraints],
        query: Query,
        needed: Collection[str],
    ) -> _Cut:
        """Read the landed version first, then the tail. A row that lands in between is still in the WAL,
        because segments are kept for a while after landing. If the version is too old to rely on that, read
        both again until no row landed in between.
        """
        signal = spec.signal
        if self._tail is None or signal is None or query.as_of is not None:
            return _Cut(self._lookup(spec.name, query.as_of), None)
        lower, upper = _times(uses)
        lookup = self._lookup(signal)
        for _ in range(_ATTEMPTS_MAX):
            try:
                tail = self._tail.cut(signal, lookup.position, query.tenant, needed, lower=lower, upper=upper)
            except PositionTooOld:
                lookup = self._lookup(signal, renew=True)
                continue
            if self._lake.age_seconds(lookup) <= self._safe_seconds:
                return _Cut(lookup, tail)
            try:
                current = self._lookup(signal, renew=True)
            except BaseException:
                tail.release()
                raise
            if current.position == lookup.position:
                unsure = current.stale is not None and self._lake.age_seconds(current) > self._safe_seconds
                return _Cut(current, tail, (self._maybe_missing(signal, current),) if unsure else ())
            tail.release()
            lookup = current
        raise _deleted_faster(signal)

    def _derived_cut(self, spec: TableSpec, uses: Sequence[Constraints], query: Query) -> _Cut:
        cut = self._with_fresh_rows(spec, uses, query)
        reason = still_to_derive(spec, cut.lookup.version, *_times(uses))
        return dataclasses.replace(cut, missing=(*cut.missing, *reason))

    def _with_fresh_rows(self, spec: TableSpec, uses: Sequence[Constraints], query: Query) -> _Cut:
        """Read the derived rows and their position, then the WAL of the source after that position. What has
        landed since is still in the WAL if derivation is not late: the source's own position says what must
        be there. It must be recent, because segments are deleted some time after landing.
        """
        assert spec.derived is not None  # noqa: S101
        lookup = self._lookup(spec.name, query.as_of)
        config = self._config.derive
        if self._tail is None or query.as_of is not None or spec.derived.view is not None:
            return _Cut(lookup, None)  # only Spark can run a view's SQL
        if not config.enabled or config.is_off(spec.name):
            return _Cut(lookup, None)
        lower, upper = _source_times(spec, uses)
        source, is_renewed = self._lookup(spec.derived.source), False
        for _ in range(_ATTEMPTS_MAX):
            if self._lake.age_seconds(source) > self._safe_seconds:
                source = self._lookup(spec.derived.source, renew=True)
            try:
                tail = self._tail.derived_cut(
                    spec, lookup.position, source.position, query.tenant, lower=lower, upper=upper
                )
            except PositionTooOld:
                if is_renewed:
                    return _Cut(lookup, None, (not_derived(spec, lookup.version),), source.version)
                lookup, source = (self._lookup(name, renew=True) for name in (spec.name, spec.derived.source))
                is_renewed = True
                continue
            if self._lake.age_seconds(source) <= self._safe_seconds:
                return _Cut(lookup, tail, source=source.version)
            try:
                current = self._lookup(spec.derived.source, renew=True)
            except BaseException:
                tail.release()
                raise
            if current.position == source.position:
                unsure = current.stale is not None and self._lake.age_seconds(current) > self._safe_seconds
                missing = (self._maybe_missing(spec.name, current),) if unsure else ()
                return _Cut(lookup, tail, missing, current.version)
            tail.release()
            source = current
        raise _deleted_faster(spec.derived.source)

    def _lookup(self, table: str, as_of: AsOf | None = None, *, renew: bool = False) -> TableLookup:
        lookup = self._lake.lookup(table, as_of, renew=renew)
        if lookup.version is None and as_of is not None:
            raise QueryInvalid(f"the table {table} does not exist yet, so it has no earlier version")
        return lookup

    def _maybe_missing(self, table: str, lookup: TableLookup) -> str:
        seconds = self._lake.age_seconds(lookup)
        return (
            f"rows of {table} that landed in the last {seconds:.0f} s may be missing: the catalog does not "
            "respond, and the WAL keeps landed rows only for "
            f"{self._config.land.wal_grace_seconds:g} s (land.wal_grace_seconds)"
        )

    def _files(
        self,
        version: TableVersion | None,
        uses: Sequence[Constraints],
        query: Query,
        spec: TableSpec,
    ) -> tuple[Sequence[File], int]:
        """Return the files that any use of the table in the query needs, and how many the tenant has."""
        if version is None:
            return [], 0
        found: dict[str, File] = {}
        total = 0
        for use in uses:
            files = version.files(query.tenant, use, unowned=reads_unowned(query, spec))
            total = files.total
            found |= {
                file.path: file for file in self._with_bloom_filters(files.files, use, spec, version.schema)
            }
        return list(found.values()), total

    def _with_bloom_filters(
        self, files: Sequence[File], use: Constraints, spec: TableSpec, schema: Schema
    ) -> Sequence[File]:
        """Returns the files that Bloom filters do not exclude."""
        ids = {each.name: each.field_id for each in schema.fields}
        for name in spec.bloom_filters:
            hashes = hashes_of(use[name].values) if name in use and name in ids else []
            if hashes and len(files) > 1:
                files = self._filters.matching(files, ids[name], hashes, self._io)
        return files

    def _columns(
        self, spec: TableSpec, schema: Schema | None, *, is_complete: bool = False
    ) -> list[tuple[str, str, int]]:
        """Return the columns that SQL sees; if `is_complete`, all."""
        ids = {} if schema is None else {field.name: field.field_id for field in schema.fields}
        return [
            (column.name, duckdb_type(column.type), ids.get(column.name, _NO_ID + number))
            for number, column in enumerate(spec.columns)
            if not column.internal or is_complete
        ]

    def _hidden(
        self, spec: TableSpec, version: TableVersion | None, visible: Collection[str]
    ) -> list[tuple[str, str, int]]:
        """Return the other columns that are needed to complete pending rows."""
        if not has_pending(spec):
            return []
        columns = self._columns(spec, None if version is None else version.schema, is_complete=True)
        return [column for column in columns if column[0] not in visible]

    def _key(self, plan: Plan, query: Query) -> str:
        parts = [query.tenant, query.format, query.sql, repr(list(query.params))]
        parts += [repr(query.as_of), repr(query.rows_max), repr(query.unowned)]
        parts += [f"{name}={snapshot}" for name, snapshot in sorted(plan.stats.snapshots.items())]
        parts += [cut.key for cut in plan.cuts]
        if any(has_pending(self.specs[name]) for name in plan.stats.snapshots):
            parts.append(f"{time.time() // _UNMATCHED_CACHED_SECONDS:.0f}")
        return hashlib.sha256("\x00".join(parts).encode(errors="surrogateescape")).hexdigest()


def _times(uses: Sequence[Constraints]) -> tuple[int | None, int | None]:
    """Return the first and last `time` of the rows that a query needs."""
    bounds = union_all(uses).get(TIME)
    if bounds is None:
        return None, None
    lower, upper = (each if isinstance(each, int) else None for each in (bounds.lower, bounds.upper))
    return lower, upper


def _source_times(spec: TableSpec, uses: Sequence[Constraints]) -> tuple[int | None, int | None]:
    """Return the first and last `time` of the rows of the source that are in the rows of a derived table.
    These have the start of their bucket if `time` is part of the key, which without resolutions is a day.
    """
    assert spec.derived is not None  # noqa: S101
    lower, upper = _times(uses)
    if upper is not None and TIME in spec.key:
        upper += max(spec.derived.resolutions, default=_DAY_SECONDS) * 1_000_000
    return lower, upper


def _deleted_faster(table: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"{table}: WAL segments are deleted faster than they can be read: retry, and if this happens often, "
        "increase land.wal_grace_seconds"
    )


def reads_unowned(query: Query, spec: TableSpec) -> bool:
    return query.unowned and spec.has_unowned_rows


def _source(spec: TableSpec, columns: Sequence[tuple[str, str, int]], **more: Any) -> dict[str, Any]:
    """Return the arguments of a `TableSource`; without rows unless `more` has some."""
    views = {view.name: view.not_null for view in spec.views}
    merged = None
    if spec.derived is not None:
        names = {name for name, _, _ in columns}
        expressions = merged_columns(spec, "duckdb").items()
        merged = {name: expression for name, expression in expressions if name in names}
    return {
        "name": spec.name,
        "columns": columns,
        "files": [],
        "older": [],
        "tail": [],
        "names": None,
        "views": views,
        "merged": merged,
        "completed": completed_rows(spec),
        **more,
    }


def _needed_columns(spec: TableSpec, names: Collection[str] | None) -> frozenset[str]:
    """Return the table's columns among the names, or its first one if there are none. None: all columns. Of a
    derived table, also the columns that are needed to merge those.
    """
    columns = [column.name for column in spec.sql_columns]
    found = frozenset(columns if names is None else (n for n in columns if n in names))
    if spec.derived is not None:
        return with_needed_columns(spec, found)
    return found or frozenset(columns[:1])


def _group_by_promotion(
    files: Sequence[File],
    columns: Sequence[tuple[str, str, int]],
    every: Sequence[tuple[str, str, int]],
    promoted: Mapping[str, Promoted],
) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the paths of files that have all promoted columns, and groups of files that lack some. In the
    latter the attribute map has the values: those files are older than the column, or filled it from other
    attributes.
    """
    promoted_ids = {identity: name for name, _, identity in columns if name in promoted}
    groups: dict[frozenset[str], list[str]] = {frozenset(): []}
    for file in files:
        names = frozenset(name for identity, name in promoted_ids.items() if file.lacks(identity))
        groups.setdefault(names, []).append(local_path(file.path))
    complete = groups.pop(frozenset())
    older = []
    for names, paths in groups.items():
        expressions = {name: from_map(promoted[name]) for name in sorted(names)}
        sources = {source for name in names for source in source_columns(promoted[name])}
        maps = [column for column in every if column[0] in sources and column not in columns]
        older.append({"files": paths, "columns": expressions, "maps": maps})
    return complete, older


def _without(paths: Sequence[str], unreadable: Sequence[str] | None) -> list[str]:
    return [] if unreadable is None else [path for path in paths if path not in unreadable]


def local_path(location: str) -> str:
    """Return the location as DuckDB opens it: `file:/path` and `file:///path` become `/path`."""
    if not location.startswith("file:"):
        return location
    path = location.removeprefix("file:")
    return "/" + path.lstrip("/")
