"""Erasing from one table: from what it is now, from what it was, and from what lies beside it.

What fences others: the commit that erases moves `landed`, so no landing that began before it can commit, and
takes away every file with such rows, so no merge of them can. A file that nobody's snapshot needs and that
holds such rows can therefore never become part of the table again.
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
from frazil.pipeline.maintain.erase.history import History, read_history
from frazil.pipeline.maintain.erase.report import Proof, TableErasure
from frazil.pipeline.maintain.predicates.match import Matcher, Predicate, may_match
from frazil.pipeline.maintain.report import Totals
from frazil.pipeline.maintain.rewrite import Rewrite, Swap
from frazil.pipeline.maintain.search import Searched, Wanted, search_all
from frazil.pipeline.runner import Runner
from frazil.tables import TableSpec

_ROUNDS_MAX = 20
_ALL = float("inf")
_CONDITION, _BEFORE_CUT = "condition", "before the cut"


@dataclass(frozen=True)
class Found:
    """What a first look found. Nothing was changed."""

    rows: int = 0
    """Of the tenant, in the table as it is."""
    matches: int = 0
    files_whole: int = 0
    """Of which all rows match."""
    files_part: int = 0
    tags: tuple[str, ...] = ()
    """Made by people or readers, and reaching a file with matching rows."""


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
        """`before_cut` holds for those of the rows that were received before it: only they must be gone, and
        a tenant who goes on sending does not keep it from ending.
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
            _BEFORE_CUT: Matcher.of(before_cut, spec, schema, properties=table.properties),
        }
        self._files = LakeFileIO(table.io.properties)
        self._known: dict[str, Searched] = {}
        """What was found in files: they never change."""
        self._unsure: dict[str, Searched] = {}
        """Files that are gone or cannot be read, so that nobody can say what they hold."""
        self._totals = Totals()
        self.report = TableErasure(spec.name)

    def look(self) -> Found:
        table = self._load()
        history = read_history(table, self._tenant)
        matched = self._matching(table, history.files.values())
        files = history.of(_main(table))
        self._refuse_unreadable(files)
        reached = self._reached(table, history, matched)
        now = [self._known[file.file_path] for file in files if file.file_path in matched]
        return Found(
            rows=sum(file.record_count for file in files),
            matches=sum(each.matches for each in now),
            files_whole=sum(each.matches == each.rows for each in now),
            files_part=sum(each.matches != each.rows for each in now),
            tags=tuple(sorted(self._pinning(table, reached, ("incident", "reader")))),
        )

    def remove(self) -> None:
        """Until the table as it is has no such row. Those that come meanwhile may go too."""
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
        raise CatalogUnavailable(f"{self._name} is being changed all the time; erase again")

    def expire(self, *, drop_tags: bool) -> None:
        """Takes away every snapshot that needs a file with such rows, and the files. So too if it is of the
        past and needs a file of which nobody can say what it holds: nothing could be proven otherwise.
        """
        for _ in range(_ROUNDS_MAX):
            table = self._load()
            history = read_history(table, self._tenant)
            reached = self._reached(table, history, self._matching(table, history.files.values()))
            if not reached:
                return
            landed = landed_snapshot(table.metadata)
            if _main(table) in reached:
                self.remove()  # such rows have come meanwhile
                continue
            if landed is None or landed.snapshot_id in reached:
                self._move_on(table)
                continue
            pinning = self._pinning(table, reached, ("incident", "reader"))
            if pinning and not drop_tags:
                raise Refused(pinned({self.report.table: pinning}))
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
                continue  # a tag has come
            self.report.snapshots_expired += expired.snapshots
            self.report.tags_dropped += expired.tags_dropped
            self.report.files_deleted += expired.files
            return
        raise CatalogUnavailable(f"{self._name} is being changed all the time; erase again")

    def delete_unreferenced(self) -> None:
        """Files that no snapshot needs and that hold such rows, or of which that cannot be said."""
        table = self._load()
        orphans = find_orphans(table, 0.0, _ALL)
        mine = [orphan for orphan in orphans if self._is_data(orphan.path)]
        gone = [orphan for orphan in mine if orphan.path.endswith(".tmp")]
        whole = [orphan for orphan in mine if not orphan.path.endswith(".tmp")]
        wanted = [Wanted(orphan.path, orphan.bytes, (_CONDITION,)) for orphan in whole]
        holding = {each.path for each in self._search(wanted) if each.matches or each.unreadable is not None}
        if holding:
            self._move_on(table)
            table = self._load()
            still = {orphan.path for orphan in find_orphans(table, 0.0, _ALL)}
            gone += [orphan for orphan in whole if orphan.path in holding & still]
        self._delete([orphan.path for orphan in gone])
        self._delete(self._dead_metadata(table, orphans))

    def prove(self, segments_left: int) -> Proof:
        """Searches everything that is left, whatever its statistics say and was found before."""
        table = self._load()
        there = self._names_in(table.location(), *tier_folders(table.metadata))
        orphans = find_orphans(table, 0.0, _ALL)
        history = read_history(table, self._tenant)
        wanted = [Wanted.of(file, [_BEFORE_CUT]) for file in history.files.values()]
        wanted += [
            Wanted(orphan.path, orphan.bytes, (_BEFORE_CUT,))
            for orphan in orphans
            if self._is_data(orphan.path)
        ]
        found = self._search(wanted)
        of_table = [each for each in found if each.path in history.files]
        lost = sorted(each.path for each in of_table if each.is_gone)
        # What the table needs as it is cannot be helped; snapshots of the past can go, if it is tried again.
        self._note(each for each in of_table if _main(table) not in history.reached_by[each.path])
        proof = Proof(
            files_searched=sum(not each.is_gone for each in found),
            rows_searched=sum(each.rows for each in found),
            matches=sum(each.matches for each in found),
            files_not_there=len(lost),
            lost=lost,
            unreadable={each.path: each.unreadable for each in of_table if each.unreadable is not None},
            unreferenced_files=len(orphans),
            files_still_there=len({name_of(path) for path in self.report.files_deleted} & there),
            segments_left=segments_left,
        )
        self.report.proof = proof
        return proof

    @property
    def _name(self) -> str:
        return ".".join(self._identifier)

    def _load(self) -> Table:
        return self._catalog.load_table(self._identifier)

    def _overwrite(self, table: Table, files: Sequence[DataFile]) -> None:
        """If another process has changed the files, changes nothing: the next look finds what there is."""
        began, by_path = time.time(), {file.file_path: file for file in files}
        found = self._search([Wanted.of(file, [_CONDITION]) for file in files], rewrite=True)
        self._note(found)
        self._refuse_unreadable(files)
        swap = Swap.of(((by_path[each.path], each) for each in found), began)
        rewrite = Rewrite(table, self._committer, self._totals, "rows erased", facts=self._facts)
        if len(swap.removed) == len(files):
            rewrite.commit([swap])
        else:
            rewrite.discard(swap, "a file is gone")
        self.report.rows_removed = self._totals.rows_removed
        self.report.files_rewritten = self._totals.files_out
        self.report.files_dropped = self._totals.files_in - self._totals.files_out

    def _move_on(self, table: Table) -> None:
        """Moves `main` and `landed`: whatever was written before, and is not in the table, never will be."""
        self._committer.overwrite(table, [], [], lambda position: position, facts=self._facts)

    def _matching(self, table: Table, files: Iterable[DataFile]) -> set[str]:
        files = list(files)
        unknown = [file for file in files if file.file_path not in self._known]
        may = may_match(self._predicate, unknown, table.schema(), table.spec(), self._layout.fill)
        wanted = [Wanted.of(file, [_CONDITION]) for file, yes in zip(unknown, may, strict=True) if yes]
        self._note(found := self._search(wanted))
        self._known |= {each.path: each for each in found if each.path not in self._unsure}
        return {
            path for file in files if (path := file.file_path) in self._known and self._known[path].matches
        }

    def _reached(self, table: Table, history: History, matched: Collection[str]) -> set[int]:
        """The snapshots that must go."""
        past = [path for path in self._unsure if _main(table) not in history.reached_by.get(path, ())]
        return history.snapshots_of([*matched, *past]) | history.broken

    def _search(self, wanted: Sequence[Wanted], *, rewrite: bool = False) -> list[Searched]:
        """QueryInvalid if the condition has no answer for some row."""
        found = list(search_all(self._runner, self._layout, self._matchers, wanted, rewrite=rewrite))
        if failed := next((each.failed for each in found if each.failed), None):
            raise QueryInvalid(next(iter(failed.values())))
        return found

    def _note(self, found: Iterable[Searched]) -> None:
        for each in found:
            self._unsure.pop(each.path, None)
            if each.is_gone or each.unreadable is not None:
                self._unsure[each.path] = each
                self._known.pop(each.path, None)

    def _refuse_unreadable(self, files: Iterable[DataFile]) -> None:
        """Files of the table as it is. Rows of theirs can neither be found nor taken out."""
        for file in files:
            each = self._unsure.get(file.file_path)
            if each is not None and each.unreadable is not None:
                raise DataLost(
                    self._name,
                    f"{each.path} cannot be read, so nobody can say whether it holds such rows: "
                    f"{each.unreadable}; bring it back from a backup, and erase again",
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
        """Manifests that no snapshot needs and that name a file which is gone: they hold its statistics."""
        mine = [orphan for orphan in orphans if "/metadata/" in orphan.path]
        dead = [each.path for each in mine if ".avro." in each.path and each.path.endswith(".tmp")]
        manifests = [
            each
            for each in mine
            if each.path.endswith(".avro") and not name_of(each.path).startswith("snap-")
        ]
        if not manifests:
            return dead
        there = self._names_in(*data_folders(table))
        return dead + [
            manifest.path
            for manifest in manifests
            if any(
                self._is_data(path) and name_of(path) not in there
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


def pinned(tags: Mapping[str, Collection[str]]) -> str:
    """Why it is refused. The names, by table."""
    names = sorted(set().union(*tags.values()))
    return (
        f"the tags {', '.join(names)} pin snapshots of {', '.join(sorted(tags))} with such rows, or with "
        "files that are gone or cannot be read; delete them (`frazil tag delete`), or erase with --drop-tags"
    )
