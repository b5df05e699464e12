"""Erasure from one table: from its current snapshot, from old snapshots, and from unreferenced files.

The erasing commit fences other writers. It moves `landed`, so no landing that began before it can commit; and
it removes every file with such rows, so no merge of these files can commit. Therefore an unreferenced file
with such rows can never become part of the table again.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from frazil.config import Config
from frazil.errors import CatalogUnavailable, Conflict, DataLost, QueryInvalid, Refused
from frazil.lake.commits.cleanup import data_files_of
from frazil.lake.commits.commit import committer_of
from frazil.lake.files import LakeFileIO
from frazil.lake.live_files import live_files, partition_of
from frazil.lake.snapshots import ERASED, ERASED_TENANT, landed_snapshot
from frazil.lake.tags import kind_of
from frazil.lake.upkeep.expire import expire
from frazil.lake.upkeep.orphans import Orphan, find_orphans
from frazil.lake.upkeep.reachability import name_of
from frazil.lake.upkeep.tier import data_folders, tier_folders
from frazil.pipeline.datafile import Layout
from frazil.pipeline.maintain.erase.history import TenantHistory, read_history
from frazil.pipeline.maintain.erase.report import Proof, TableErasure
from frazil.pipeline.maintain.predicates.match import Matcher, Predicate, may_match
from frazil.pipeline.maintain.report import Totals
from frazil.pipeline.maintain.rewrite import Rewrite, Swap
from frazil.pipeline.maintain.search import SearchResult, SearchTarget, search_all
from frazil.pipeline.runner import Runner
from frazil.tables import TableSpec

_ROUNDS_MAX = 20
_ALL = float("inf")
_CONDITION, _UNREFERENCED, _BEFORE_CUT = "condition", "unreferenced", "before the cut"


@dataclass(frozen=True)
class SearchSummary:
    """The result of the search before anything is changed."""

    rows: int = 0
    """Rows of the tenant in the current snapshot."""
    matches: int = 0
    files_whole: int = 0
    """Files in which all rows match."""
    files_part: int = 0
    tags: tuple[str, ...] = ()
    """Tags of users or readers that keep a file with matching rows."""


class TableEraser:
    def __init__(
        self,
        config: Config,
        catalog: Catalog,
        runner: Runner,
        spec: TableSpec,
        tenant: str,
        predicate: Predicate,
        before_cut: Predicate,
        erasure: str,
    ) -> None:
        """`before_cut` matches the rows that were received before the erasure began. Only these must be gone
        at the end, so that a tenant that keeps sending does not prevent the proof.
        """
        self._catalog = catalog
        self._runner = runner
        self._identifier = (*config.lake.namespace.split("."), spec.name)
        self._tenant = tenant
        self._predicate = predicate
        self._facts = {ERASED: erasure, ERASED_TENANT: tenant}
        self._committer = committer_of(config, catalog)
        table = self._load()
        schema, level = table.schema(), config.maintain.compact.compression_level
        self._layout = Layout.of(table, spec, level, rewriting=True)
        self._matchers = {
            _CONDITION: Matcher.of(predicate, spec, schema, properties=table.properties),
            # Without filters, so that damaged files are found. The proof must not depend on filters either.
            _UNREFERENCED: Matcher.of(
                predicate, spec, schema, properties=table.properties, bloom_filters=False
            ),
            _BEFORE_CUT: Matcher.of(
                before_cut, spec, schema, properties=table.properties, bloom_filters=False
            ),
        }
        self._files = LakeFileIO(table.io.properties)
        self._known: dict[str, SearchResult] = {}
        """Search results by path. Data files never change."""
        self._unknown: dict[str, SearchResult] = {}
        """Missing and unreadable files, whose content is unknown."""
        self._totals = Totals()
        self.matched_days: set[int] = set()
        """The days of all files with matching rows, in any snapshot."""
        self.report = TableErasure(spec.name)

    def search(self) -> SearchSummary:
        """Searches all snapshots. Changes nothing."""
        table = self._load()
        history = self._history(table)
        matched = self._matching(table, history.files.values())
        files = history.of(_main(table))
        self._refuse_unreadable(files)
        reached = self._reached(table, history, matched)
        now = [self._known[file.file_path] for file in files if file.file_path in matched]
        return SearchSummary(
            rows=sum(file.record_count for file in files),
            matches=sum(each.matches for each in now),
            files_whole=sum(each.matches == each.rows for each in now),
            files_part=sum(each.matches != each.rows for each in now),
            tags=tuple(sorted(self._pinning(table, reached, ("incident", "reader")))),
        )

    def remove(self) -> None:
        """Removes rows until the current snapshot has no match. May remove rows that land later."""
        for _ in range(_ROUNDS_MAX):
            table = self._load()
            files = [
                each.file for each in live_files(table) if partition_of(each.file).tenant == self._tenant
            ]
            if not self.report.rows_of_tenant:
                self.report.rows_of_tenant = sum(file.record_count for file in files)
            matched = self._matching(table, files)
            self._refuse_unreadable(files)
            if not matched:
                return
            self._overwrite(table, [file for file in files if file.file_path in matched])
        raise self._too_many_changes()

    def expire(self, *, drop_tags: bool) -> None:
        """Expires every snapshot that needs a file with matching rows, and deletes the files. Also expires
        old snapshots that need a missing or unreadable file: otherwise nothing could be proven.
        """
        for _ in range(_ROUNDS_MAX):
            table = self._load()
            history = self._history(table)
            reached = self._reached(table, history, self._matching(table, history.files.values()))
            if not reached:
                return
            landed = landed_snapshot(table.metadata)
            if _main(table) in reached:
                self.remove()  # matching rows have landed since the last removal
                continue
            if landed is None or landed.snapshot_id in reached:
                self._move_refs(table)
                continue
            pinning = self._pinning(table, reached, ("incident", "reader"))
            if pinning and not drop_tags:
                raise Refused(pinned_message({self.report.table: pinning}))
            drop = pinning | self._pinning(table, reached, ("hour",))
            kept = {ref.snapshot_id for name, ref in table.metadata.refs.items() if name not in drop}
            ids = [each.snapshot_id for each in table.metadata.snapshots if each.snapshot_id not in kept]
            try:
                expired = expire(
                    self._catalog,
                    table,
                    ids,
                    drop_tags=drop,
                    properties={ERASED: self._facts[ERASED]},
                    drop_old_metadata=True,
                )
            except Conflict:
                continue  # a tag was created at the same time
            self.report.snapshots_expired += expired.snapshots
            self.report.tags_dropped += expired.tags_dropped
            self.report.files_deleted += expired.files
            return
        raise self._too_many_changes()

    def delete_unreferenced(self) -> None:
        """Deletes unreferenced files of the tenant that have matching rows or are unreadable."""
        table = self._load()
        orphans = find_orphans(table, 0.0, _ALL)
        of_tenant = [orphan for orphan in orphans if self._is_data(orphan.path)]
        doomed = [orphan.path for orphan in of_tenant if orphan.path.endswith(".tmp")]
        targets = [
            SearchTarget(orphan.path, orphan.bytes, (_UNREFERENCED,))
            for orphan in of_tenant
            if not orphan.path.endswith(".tmp")
        ]
        matched = {each.path for each in self._run(targets) if each.matches or each.unreadable is not None}
        if matched:
            self._move_refs(table)
            table = self._load()
            doomed += sorted(matched & {orphan.path for orphan in find_orphans(table, 0.0, _ALL)})
        self._delete(doomed)
        self._delete(self._dead_metadata(table, orphans))

    def prove(self, segments_left: int) -> Proof:
        """Searches all remaining files of the tenant, without statistics or earlier results."""
        table = self._load()
        existing = self._names_in(table.location(), *tier_folders(table.metadata))
        orphans = find_orphans(table, 0.0, _ALL)
        history = self._history(table)
        targets = [
            SearchTarget.of(file, [_BEFORE_CUT]) for file in history.files.values() if self._concerns(file)
        ]
        targets += [
            SearchTarget(orphan.path, orphan.bytes, (_BEFORE_CUT,))
            for orphan in orphans
            if self._is_data(orphan.path)
        ]
        found = self._run(targets)
        of_table = [each for each in found if each.path in history.files]
        lost = sorted(each.path for each in of_table if each.is_gone)
        # The next attempt can expire old snapshots that need such files, but not the current snapshot.
        self._note(each for each in of_table if _main(table) not in history.reached_by[each.path])
        proof = Proof(
            files_searched=sum(not each.is_gone for each in found),
            rows_searched=sum(each.rows for each in found),
            matches=sum(each.matches for each in found),
            files_not_there=len(lost),
            lost=lost,
            unreadable={each.path: each.unreadable for each in of_table if each.unreadable is not None},
            unreferenced_files=len(orphans),
            files_still_there=len({name_of(path) for path in self.report.files_deleted} & existing),
            segments_left=segments_left,
        )
        self.report.proof = proof
        return proof

    def _history(self, table: Table) -> TenantHistory:
        return read_history(table, self._tenant)

    def _concerns(self, file: DataFile) -> bool:
        """Returns whether the file must not have matching rows at the end."""
        return True

    @property
    def _name(self) -> str:
        return ".".join(self._identifier)

    def _load(self) -> Table:
        return self._catalog.load_table(self._identifier)

    def _too_many_changes(self) -> CatalogUnavailable:
        return CatalogUnavailable(
            f"{self._name} was changed by other processes in {_ROUNDS_MAX} attempts; run the erasure again"
        )

    def _overwrite(self, table: Table, files: Sequence[DataFile]) -> None:
        """Commits the files without matching rows. Changes nothing if another process has changed the
        files.
        """
        began, by_path = time.time(), {file.file_path: file for file in files}
        found = self._run([SearchTarget.of(file, [_CONDITION]) for file in files], rewrite=True)
        self._note(found)
        self._refuse_unreadable(files)
        swap = Swap.of(((by_path[each.path], each) for each in found), began)
        rewrite = Rewrite(table, self._committer, self._totals, "rows erased", facts=self._facts)
        if len(swap.removed) == len(files):
            rewrite.commit([swap])
        else:
            rewrite.discard(swap, "a file does not exist")
        self.report.rows_removed = self._totals.rows_removed
        self.report.files_rewritten = self._totals.files_out
        self.report.files_dropped = self._totals.files_in - self._totals.files_out

    def _move_refs(self, table: Table) -> None:
        """Moves `main` and `landed` with an empty commit, so that files written before can no longer be
        committed.
        """
        self._committer.overwrite(table, [], [], lambda position: position, facts=self._facts)

    def _matching(self, table: Table, files: Iterable[DataFile]) -> set[str]:
        files = list(files)
        new = [file for file in files if file.file_path not in self._known]
        may = may_match(self._predicate, new, table.schema(), table.spec(), self._layout.fill)
        targets = [SearchTarget.of(file, [_CONDITION]) for file, yes in zip(new, may, strict=True) if yes]
        self._note(found := self._run(targets))
        self._known |= {each.path: each for each in found if each.path not in self._unknown}
        matched = [file for file in files if (each := self._known.get(file.file_path)) and each.matches]
        self.matched_days |= {partition_of(file).day or 0 for file in matched}
        return {file.file_path for file in matched}

    def _reached(self, table: Table, history: TenantHistory, matched: Collection[str]) -> set[int]:
        past = [path for path in self._unknown if _main(table) not in history.reached_by.get(path, ())]
        return history.snapshots_of([*matched, *past]) | history.broken

    def _run(self, targets: Sequence[SearchTarget], *, rewrite: bool = False) -> list[SearchResult]:
        """Searches the files on Spark. Raises QueryInvalid if the condition fails on some row."""
        found = list(search_all(self._runner, self._layout, self._matchers, targets, rewrite=rewrite))
        if failed := next((each.failed for each in found if each.failed), None):
            raise QueryInvalid(next(iter(failed.values())))
        return found

    def _note(self, found: Iterable[SearchResult]) -> None:
        for each in found:
            self._unknown.pop(each.path, None)
            if each.is_gone or each.unreadable is not None:
                self._unknown[each.path] = each
                self._known.pop(each.path, None)

    def _refuse_unreadable(self, files: Iterable[DataFile]) -> None:
        """Raises DataLost if one of these files of the current snapshot is unreadable."""
        for file in files:
            each = self._unknown.get(file.file_path)
            if each is not None and each.unreadable is not None:
                raise DataLost(
                    self._name,
                    f"{each.path} cannot be read and may hold matching rows: {each.unreadable}; restore it "
                    "from a backup, then run the erasure again",
                )

    def _pinning(self, table: Table, reached: Collection[int], kinds: Collection[str]) -> set[str]:
        return {
            name
            for name, ref in table.metadata.refs.items()
            if ref.snapshot_id in reached and kind_of(name) in kinds
        }

    def _is_data(self, path: str) -> bool:
        return f"/data/tenant_id={quote(self._tenant, safe='')}/" in path

    def _dead_metadata(self, table: Table, orphans: Sequence[Orphan]) -> list[str]:
        """Returns unreferenced manifests that name a deleted file of the tenant: they hold its statistics."""
        metadata = [orphan for orphan in orphans if "/metadata/" in orphan.path]
        dead = [each.path for each in metadata if ".avro." in each.path and each.path.endswith(".tmp")]
        manifests = [
            each
            for each in metadata
            if each.path.endswith(".avro") and not name_of(each.path).startswith("snap-")
        ]
        if not manifests:
            return dead
        existing = self._names_in(*data_folders(table))
        return dead + [
            manifest.path
            for manifest in manifests
            if any(
                self._is_data(path) and name_of(path) not in existing
                for path in data_files_of(self._files, manifest.path, manifest.bytes)
            )
        ]

    def _names_in(self, *folders: str) -> set[str]:
        return {name_of(file.path) for folder in folders for file in self._files.walk(folder)}

    def _delete(self, paths: Sequence[str]) -> None:
        self._files.delete_all(paths)
        self.report.files_deleted += paths


def _main(table: Table) -> int | None:
    main = table.current_snapshot()
    return None if main is None else main.snapshot_id


def pinned_message(tags: Mapping[str, Collection[str]]) -> str:
    """Returns the message for tags, by table, that keep snapshots which must expire."""
    names = sorted(set().union(*tags.values()))
    return (
        f"the tags {', '.join(names)} keep snapshots of {', '.join(sorted(tags))} with matching rows, or "
        "with missing or unreadable files; delete the tags (`frazil tag delete`), or erase with --drop-tags"
    )
