"""From a question to the files and rows that answer it: one consistent cut of each table."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.schema import Schema

from frazil.config import Config
from frazil.errors import QueryInvalid, StoreUnavailable
from frazil.lake.files import LakeFileIO, open_files
from frazil.query.bloom import VALUES_MAX, Filters
from frazil.query.constants import Constants
from frazil.query.constraints import ANYTHING, either_all, wanted_rows
from frazil.query.index import File
from frazil.query.lake import Lake, Looked, TableVersion
from frazil.query.model import AsOf, Constraints, Question, Stats
from frazil.query.older import from_map, source_columns
from frazil.query.sql import Statement
from frazil.query.tail import PositionTooOld, Tail, TailCut
from frazil.query.types import duckdb_type, kind_of
from frazil.tables import DEFAULT_PROMOTED, SIGNALS, Signal, TableSpec, table_spec
from frazil.tables.promoted import promoted

_LOOKS_MAX = 4
_NO_ID = 1_000_000
"""Field ids from here on are in no file: for columns that the table is yet to get."""
_BLOOM_BYTES_MAX = 128 << 20


@dataclass
class Plan:
    """What a worker is told, and what it costs. To be released."""

    tables: list[dict[str, Any]] = field(default_factory=list)
    cuts: list[TailCut] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)
    key: str | None = None
    """The same question with the same key has the same answer. None: it may not."""
    erased: frozenset[str] = frozenset()
    """The erasures that its tables know of."""

    def release(self) -> None:
        for cut in self.cuts:
            cut.release()

    def without_files(self, gone: Sequence[str] | None, reason: str) -> Plan:
        """The same without files that cannot be read (None: without any), saying so."""
        tables, dropped = [], 0
        for table in self.tables:
            kept = _without(table["files"], gone)
            older = [{**group, "files": _without(group["files"], gone)} for group in table["older"]]
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
    looked: Looked
    tail: TailCut | None
    missing: Sequence[str] = ()


class Planner:
    """Blocking: it lists, and may read manifests and segments. Thread-safe."""

    def __init__(self, config: Config, lake: Lake, tail: Tail | None) -> None:
        self._config = config
        self._lake = lake
        self._tail = tail
        # Half: a commit takes a while, and so does reading the log after it.
        self._safe_seconds = config.land.wal_grace_seconds / 2
        self._filters = Filters(_BLOOM_BYTES_MAX)
        self._io: LakeFileIO = open_files(config)
        extra = promoted(config)
        self._promoted = {item.column: item for item in (*DEFAULT_PROMOTED, *extra)}
        self.specs: Mapping[Signal, TableSpec] = {signal: table_spec(signal, extra) for signal in SIGNALS}
        self._kinds = {
            str(name): {column.name: kind_of(column.type) for column in spec.columns}
            for name, spec in self.specs.items()
        }

    def close(self) -> None:
        self._filters.close()

    def column_names(self, tables: Sequence[str]) -> list[str]:
        """Of all these tables: what may have been meant by a name that is none."""
        found = {
            column.name for name, spec in self.specs.items() if name in tables for column in spec.columns
        }
        return sorted(found)

    def plan(self, statement: Statement, question: Question) -> Plan:
        constants = Constants.of(time.time_ns() // 1000, question.params)
        uses = wanted_rows(statement.root, self._kinds, constants)
        plan = Plan()
        try:
            for signal in SIGNALS:
                if signal in statement.tables:
                    self._add(plan, signal, uses.get(signal) or [ANYTHING], question, statement)
        except BaseException:
            plan.release()
            raise
        if not statement.is_changing and plan.stats.stale is None and not plan.stats.missing:
            plan.key = self._key(plan, question)
        return plan

    def _add(
        self,
        plan: Plan,
        signal: Signal,
        uses: Sequence[Constraints],
        question: Question,
        statement: Statement,
    ) -> None:
        found = self._cut(signal, uses, question)
        version, cut = found.looked.version, found.tail
        if cut is not None:
            plan.cuts.append(cut)
        if version is not None:
            plan.erased |= version.erased
        files, total = self._files(version, uses, question.tenant)
        columns = self._columns(signal, None if version is None else version.schema)
        every, names, asked = columns, statement.names, statement.columns
        if asked is not None:
            # Measured: DuckDB takes 5 ms for each question to learn of all 48 columns.
            columns = [column for column in columns if column[0] in asked] or columns[:1]
        whole, older = self._by_age(files, columns)
        if older:
            columns = self._with_maps(columns, every, older)
        plan.tables.append(
            {
                "name": signal,
                "columns": columns,
                "files": whole,
                "older": older,
                "names": None if names is None else sorted(names),
                "tail": [] if cut is None else [(ref.path, ref.first_row, ref.rows) for ref in cut.chunks],
            }
        )
        before = plan.stats
        plan.stats = dataclasses.replace(
            before,
            files=before.files + len(files),
            files_total=before.files_total + total,
            bytes=before.bytes + sum(file.bytes for file in files),
            tail_rows=before.tail_rows + (0 if cut is None else cut.rows),
            stale=before.stale or found.looked.stale,
            missing=(*before.missing, *found.missing, *(() if cut is None else cut.missing)),
            snapshots={**before.snapshots, signal: None if version is None else version.snapshot_id},
        )

    def cut(
        self, signal: Signal, uses: Sequence[Constraints], question: Question
    ) -> tuple[TableVersion | None, TailCut | None]:
        """What has landed, and what has not. The latter is to be released."""
        found = self._cut(signal, uses, question)
        return found.looked.version, found.tail

    def _cut(self, signal: Signal, uses: Sequence[Constraints], question: Question) -> _Cut:
        """What has landed first, then what has not: a row that lands in between is still in the log, because
        segments outlive their landing. Where that may not be so, both are read until none lands in between.
        """
        if self._tail is None or question.as_of is not None:
            return _Cut(self._look(signal, question.as_of), None)
        bounds = either_all(uses).get("time")
        lower = bounds.lower if bounds is not None and isinstance(bounds.lower, int) else None
        upper = bounds.upper if bounds is not None and isinstance(bounds.upper, int) else None
        looked = self._look(signal)
        for _ in range(_LOOKS_MAX):
            try:
                tail = self._tail.cut(signal, looked.position, question.tenant, lower=lower, upper=upper)
            except PositionTooOld:
                looked = self._look(signal, renew=True)
                continue
            if self._lake.age_seconds(looked) <= self._safe_seconds:
                return _Cut(looked, tail)
            try:
                now = self._look(signal, renew=True)
            except BaseException:
                tail.release()
                raise
            if now.position == looked.position:
                unsure = now.stale is not None and self._lake.age_seconds(now) > self._safe_seconds
                return _Cut(now, tail, (self._perhaps_gone(signal, now),) if unsure else ())
            tail.release()
            looked = now
        raise StoreUnavailable(
            f"{signal}: the log is cleaned up faster than it can be read; ask again, and if it is often so, "
            "set land.wal_grace_seconds to more"
        )

    def _look(self, signal: Signal, as_of: AsOf | None = None, *, renew: bool = False) -> Looked:
        looked = self._lake.look(signal, as_of, renew=renew)
        if looked.version is None and as_of is not None:
            raise QueryInvalid(f"there is no table {signal} yet, so none as of then")
        return looked

    def _perhaps_gone(self, signal: Signal, looked: Looked) -> str:
        seconds = self._lake.age_seconds(looked)
        return (
            f"rows of {signal} that landed in the last {seconds:.0f} s may be missing: the catalog does not "
            "say where they are, and the log keeps them for "
            f"{self._config.land.wal_grace_seconds:g} s (land.wal_grace_seconds)"
        )

    def _files(
        self, version: TableVersion | None, uses: Sequence[Constraints], tenant: str
    ) -> tuple[Sequence[File], int]:
        """Each use of a table needs its own files; the table is all of them."""
        if version is None:
            return [], 0
        found: dict[str, File] = {}
        total = 0
        for use in uses:
            files = version.files(tenant, use)
            total = files.total
            found |= {file.path: file for file in self._holding(files.files, use)}
        return list(found.values()), total

    def _holding(self, files: Sequence[File], use: Constraints) -> Sequence[File]:
        wanted = use.get("trace_id")
        if wanted is None or not wanted.values or len(wanted.values) > VALUES_MAX or len(files) < 2:
            return files
        texts = [value for value in wanted.values if isinstance(value, str)]
        return self._filters.holding(files, "trace_id", texts, self._io)

    def _columns(self, signal: Signal, schema: Schema | None) -> list[tuple[str, str, int]]:
        ids = {} if schema is None else {field.name: field.field_id for field in schema.fields}
        return [
            (column.name, duckdb_type(column.type), ids.get(column.name, _NO_ID + number))
            for number, column in enumerate(self.specs[signal].columns)
        ]

    def _by_age(
        self, files: Sequence[File], columns: Sequence[tuple[str, str, int]]
    ) -> tuple[list[str], list[dict[str, Any]]]:
        """Paths of files that have all promoted columns, and groups of those from before some were, or with
        some that were filled from other attributes: there the map has the values.
        """
        promoted_ids = {identity: name for name, _, identity in columns if name in self._promoted}
        groups: dict[frozenset[str], list[str]] = {frozenset(): []}
        for file in files:
            names = frozenset(name for identity, name in promoted_ids.items() if file.lacks(identity))
            groups.setdefault(names, []).append(local_path(file.path))
        whole = groups.pop(frozenset())
        older = [
            {"files": paths, "columns": {name: from_map(self._promoted[name]) for name in sorted(names)}}
            for names, paths in groups.items()
        ]
        return whole, older

    def _with_maps(
        self,
        columns: Sequence[tuple[str, str, int]],
        every: Sequence[tuple[str, str, int]],
        older: Sequence[Mapping[str, Any]],
    ) -> list[tuple[str, str, int]]:
        """The columns, and the maps that older files take some of them from."""
        wanted = {name for name, _, _ in columns}
        for group in older:
            wanted.update(*(source_columns(self._promoted[name]) for name in group["columns"]))
        return [column for column in every if column[0] in wanted]

    def _key(self, plan: Plan, question: Question) -> str:
        parts = [question.tenant, question.format, question.sql, repr(list(question.params))]
        parts += [repr(question.as_of), repr(question.rows_max)]
        parts += [f"{name}={snapshot}" for name, snapshot in sorted(plan.stats.snapshots.items())]
        parts += [cut.key for cut in plan.cuts]
        return hashlib.sha256("\x00".join(parts).encode(errors="surrogateescape")).hexdigest()


def _without(paths: Sequence[str], gone: Sequence[str] | None) -> list[str]:
    return [] if gone is None else [path for path in paths if path not in gone]


def local_path(location: str) -> str:
    """As DuckDB opens it: `file:/path` and `file:///path` become the path, the rest stays."""
    if not location.startswith("file:"):
        return location
    path = location.removeprefix("file:")
    return "/" + path.lstrip("/")
