"""Applies retention rules to a table: drops whole files if possible, else rewrites them.

The table's position counts the removed rows by stream, so that `frazil verify` still balances.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence

import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from frazil.config import Config, RetentionRule
from frazil.errors import ConfigError, QueryInvalid, QueryRefused
from frazil.lake.clock import clock_hold_reason, late_days, record_time, remove_late, utc
from frazil.lake.commits.commit import committer_of
from frazil.lake.commits.metadata_commit import json_property, set_properties
from frazil.lake.counted import counted_in
from frazil.lake.live_files import LiveFile, in_parallel, live_files
from frazil.lake.snapshots import BY_RETENTION
from frazil.pipeline.datafile import Layout
from frazil.pipeline.maintain.predicates.decide import all_match
from frazil.pipeline.maintain.predicates.match import Matcher, Predicate, may_match, parse_predicate
from frazil.pipeline.maintain.report import TaskReport, Totals
from frazil.pipeline.maintain.retain.rules import (
    RETENTION,
    Due,
    RetentionPlan,
    RetentionRun,
    RuleProgress,
    is_first_search,
    key_of,
    plan_retention,
    progress,
    read_applied,
    write_applied,
)
from frazil.pipeline.maintain.rewrite import Rewrite, Swap
from frazil.pipeline.maintain.search import SearchResult, SearchTarget, search_all
from frazil.pipeline.runner import Runner, batched
from frazil.tables import SEGMENT, TableSpec

_DROPS_PER_COMMIT_MAX = 1000
"""Files that one commit drops. Each commit makes a concurrent landing retry, so few large commits are better
than many small ones.
"""
_DROPS_PER_ROUND_MAX = 10_000

log = structlog.get_logger("frazil.maintain")


class Retention:
    """One round of retention of one table."""

    def __init__(
        self,
        config: Config,
        catalog: Catalog,
        runner: Runner,
        table: Table,
        spec: TableSpec,
        rules: Sequence[RetentionRule],
    ) -> None:
        self._catalog = catalog
        self._runner = runner
        self._table = table
        self._name = table.name()[-1]
        self._rules = rules
        self._settings = config.maintain.retention
        self._round_bytes_max = config.maintain.retention.rewrite_round_bytes_max
        self._totals = Totals()
        self._rewrite = Rewrite(
            table,
            committer_of(config, catalog),
            self._totals,
            "rows removed by retention",
            facts=BY_RETENTION,
            counted_as="frazil.retained",
        )
        self._spec = spec
        self._layout = Layout.of(table, spec, config.maintain.compact.compression_level, rewriting=True)
        self._predicates: dict[str, Predicate] = {
            key_of(rule): _parsed(rule, rule.where, spec) for rule in rules if rule.where is not None
        }
        self._matchers = {
            key: Matcher.of(predicate, spec, table.schema(), properties=table.properties)
            for key, predicate in self._predicates.items()
        }
        self._skipped: set[str] = set()
        self._unread: set[str] = set()
        """Files that were dropped without reading them."""
        self._finished: set[str] = set()
        self._failed: dict[str, str] = {}
        """Rules whose condition failed on some row, with the reason."""
        self._partitions: set[tuple[str, int]] = set()
        self._searched_files = self._lost = self._unreadable = 0
        main = table.current_snapshot()
        self._sequence = 0 if main is None else main.sequence_number or 0
        self._is_alone = True

    def run(self, run: RetentionRun, begin: float) -> TaskReport:
        """Runs the round. `begin` is a time of the monotonic clock."""
        metadata, files = self._table.metadata, live_files(self._table)
        before, late = read_applied(json_property(metadata, RETENTION)), late_days(metadata)
        by_clock = plan_retention(files, self._rules, run.clock, before, late)
        now = run.trusted_time(metadata, self._settings)
        plan = by_clock if now == run.clock else plan_retention(files, self._rules, now, before, late)
        held = clock_hold_reason(self._name, now, run.clock) if by_clock.files - plan.files else ""
        held = held or ("" if run.confirmed else self._share_held(plan, files, before, now))
        if run.dry_run:
            self._count_matches(by_clock)
            return self._report(begin, by_clock, dry_run=True, held=held)
        if held:
            return self._report(begin, by_clock, dry_run=False, held=held)
        record_time(self._catalog, self._table, now)
        all_dropped, done = self._drop(plan), 0
        size, left = 0, _group_by_day(plan.searched, self._round_bytes_max)
        while left and all_dropped and size < self._round_bytes_max:
            group = left.pop(0)
            parts = batched(group, lambda due: due.bytes, self._round_bytes_max)
            if not all(self._apply(part) for part in parts):
                left.append(group)
                break  # the files that replace these must be searched first
            size += self._searched_bytes(group)
            done += len(group)
        applied = progress(plan, done, before, self._sequence, self._failed.keys())
        # Files that were to be dropped but still exist have not been searched.
        if all_dropped and applied != before:
            set_properties(self._catalog, self._table, {RETENTION: write_applied(applied)})
        is_complete = all_dropped and not left
        if is_complete and late:
            longest = max(rule.after_seconds for rule in self._rules)
            remove_late(self._catalog, self._table, now - longest)
        is_unfinished = not is_complete and bool(self._finished)
        return self._report(begin, by_clock, dry_run=False, is_unfinished=is_unfinished)

    def _drop(self, plan: RetentionPlan) -> bool:
        """Drops files whose rows are all due. Returns False if some are left for the next round."""
        due = plan.dropped[:_DROPS_PER_ROUND_MAX]
        groups = batched(due, lambda _: 1, _DROPS_PER_COMMIT_MAX)
        applied = [self._apply(group) for group in groups]  # also after a conflict of an earlier group
        return all(applied) and len(due) == len(plan.dropped)

    def _share_held(
        self, plan: RetentionPlan, files: Sequence[LiveFile], applied: Mapping[str, RuleProgress], now: float
    ) -> str:
        """Returns why the round needs a confirmation, or an empty string. Rows that fell due recently do not
        count: that is normal. All rows of files to search count: the matches are known only after the search.
        """
        before = now - self._settings.clock_gap_seconds_max
        new = [due for due in plan.searched if due.since < before and is_first_search(due, applied)]
        searched = [due for due, names in zip(new, self._may_match(new), strict=True) if names]
        dropped = [due for due in plan.dropped if due.since < before]
        rows = sum(due.live.file.record_count for due in (*dropped, *searched))
        total = sum(live.file.record_count for live in files)
        if rows < self._settings.confirm_rows_min or rows <= self._settings.confirm_share * total:
            return ""
        return (
            f"up to {rows:,} of {total:,} rows of {self._name} would be removed at {utc(now)}, more than "
            f"maintain.retention.confirm_share allows; check the rules and the clock, then run "
            f"`frazil maintain retention --confirm {self._name}`"
        )

    def _apply(self, group: Sequence[Due]) -> bool:
        """Searches the files, rewrites those with due rows, and commits. Returns False if another process has
        changed these files since they were listed.
        """
        began = time.time()
        found = self._search(group, rewrite=True)
        swap = Swap.of(((due.live.file, result) for due, result in found), began)
        if not self._skip_unreadable([result for _, result in found]):
            self._rewrite.discard(swap, "a file was replaced")
            return False
        if swap.removed:
            committed = self._rewrite.commit([swap])
            if committed is None:
                return False
            self._partitions |= {due.partition for due, result in found if result.matches}
            own = committed.metadata.snapshot_by_id(committed.snapshot_id)
            self._is_alone &= own is not None and own.sequence_number == self._sequence + 1
            self._sequence += self._is_alone  # files of other processes are not searched yet
        self._finished |= {due.live.file.file_path for due in group} - self._skipped
        return True

    def _skip_unreadable(self, found: Sequence[SearchResult]) -> bool:
        """Skips files that are missing or unreadable but still in the table: waiting for them would block
        retention. Returns False if another process has replaced one of them.
        """
        gone = [each for each in found if each.is_gone]
        unreadable = [each for each in found if each.unreadable is not None]
        if not gone and not unreadable:
            return True
        if not self._live_now().issuperset(each.path for each in (*gone, *unreadable)):
            return False
        self._skipped |= {each.path for each in (*gone, *unreadable)}
        self._lost += len(gone)
        self._unreadable += len(unreadable)
        for each in gone:
            log.warning("missing data file skipped by retention", path=each.path)
        for each in unreadable:
            log.warning("unreadable data file skipped by retention", path=each.path, reason=each.unreadable)
        return True

    def _searched_bytes(self, group: Sequence[Due]) -> int:
        """Returns the bytes that count for the limit of the round. Files that are dropped unread do not
        count, and neither do files that are skipped or have only failed rules: these are due in every round.
        """
        return sum(
            due.bytes
            for due in group
            if due.live.file.file_path not in self._skipped | self._unread
            and not (due.names and self._failed.keys() >= set(due.names))
        )

    def _live_now(self) -> set[str]:
        return {each.file.file_path for each in live_files(self._catalog.load_table(self._table.name()))}

    def _search(self, group: Sequence[Due], *, rewrite: bool) -> list[tuple[Due, SearchResult]]:
        """Searches the files, except those whose statistics exclude a match. Does not read files whose
        statistics show that all rows match, except for the sources of the rows, if the ledger counts them.
        """
        targets: dict[str, tuple[Due, tuple[str, ...]]] = {}
        unread: list[Due] = []
        for due, names, is_whole in zip(group, self._may_match(group), self._is_whole(group), strict=True):
            if is_whole and not self._spec.has(SEGMENT.name):
                unread.append(due)
            elif is_whole or names:
                targets[due.live.file.file_path] = due, () if is_whole else names
        jobs = [SearchTarget.of(due.live.file, names) for due, names in targets.values()]
        found = list(search_all(self._runner, self._layout, self._matchers, jobs, rewrite=rewrite))
        self._searched_files += len(found)
        self._totals.cpu_seconds += sum(each.cpu_seconds for each in found)
        for each in found:
            self._failed |= each.failed
        self._unread |= {due.live.file.file_path for due in unread}
        whole = zip(unread, in_parallel(self._all_rows, unread), strict=True)
        return [*whole, *((targets[each.path][0], each) for each in found)]

    def _is_whole(self, group: Sequence[Due]) -> list[bool]:
        """Returns for each file whether all of its rows are due, as far as statistics show that."""
        found = [not due.names for due in group]
        for key, predicate in self._predicates.items():
            concerned = [at for at, due in enumerate(group) if key in due.names]
            files = [group[at].live.file for at in concerned]
            matches = all_match(predicate, self._spec, files, self._table.schema())
            for at, is_whole in zip(concerned, matches, strict=True):
                found[at] = found[at] or is_whole
        return found

    def _may_match(self, group: Sequence[Due]) -> list[tuple[str, ...]]:
        names: list[list[str]] = [[] for _ in group]
        for key, predicate in self._predicates.items():
            if key in self._failed:
                continue
            concerned = [at for at, due in enumerate(group) if key in due.names]
            files = [group[at].live.file for at in concerned]
            may = may_match(predicate, files, self._table.schema(), self._table.spec(), self._layout.fill)
            for at, yes in zip(concerned, may, strict=True):
                if yes:
                    names[at].append(key)
        return [tuple(each) for each in names]

    def _count_matches(self, plan: RetentionPlan) -> None:
        """Counts the rows and files of a dry run."""
        searched = self._search(plan.searched, rewrite=False)
        found = [*zip(plan.dropped, in_parallel(self._all_rows, plan.dropped), strict=True), *searched]
        self._skip_unreadable([result for _, result in found])
        for due, result in found:
            if result.matches:
                self._totals.count([due.live.file], [], result.matches)
                self._totals.files_out += result.matches < result.rows
                self._partitions.add(due.partition)

    def _all_rows(self, due: Due) -> SearchResult:
        """Returns a result in which all rows match, from the manifest, without reading the file."""
        path, rows = due.live.file.file_path, due.live.file.record_count
        try:
            size = len(self._table.io.new_input(path))
        except FileNotFoundError:
            return SearchResult(path, is_gone=True)
        if size != due.bytes:
            reason = f"it has {size:,} bytes, but the table's metadata says {due.bytes:,}"
            return SearchResult(path, unreadable=reason)
        derived = self._layout.spec.derived
        counted = counted_in(self._table, [due.live.file], derived) if derived and derived.counts else 0
        return SearchResult(path, rows, Counter({"": rows}), counted=counted)

    def _refuse_failed(self) -> None:
        """Raises ConfigError for rules that failed, after all other rules were applied."""
        reasons = [
            f"`{rule.where}` failed on some row and was not applied: {self._failed[key_of(rule)]}"
            for rule in self._rules
            if key_of(rule) in self._failed
        ]
        if reasons:
            raise ConfigError("maintain.retention.rules: " + "; ".join(reasons))

    def _report(
        self, begin: float, plan: RetentionPlan, *, dry_run: bool, held: str = "", is_unfinished: bool = False
    ) -> TaskReport:
        """Returns the report. `plan` has everything that is due by the clock. Raises ConfigError if a rule
        failed and the round is finished.
        """
        if not is_unfinished:
            self._refuse_failed()
        totals = self._totals
        due = (*plan.dropped, *plan.searched)
        left = [each.since for each in due if each.live.file.file_path not in self._finished]
        since = min((plan.next_due, *left))
        return totals.report(
            "retention",
            self._name,
            begin,
            dry_run=dry_run,
            rows=0,
            detail={
                "files_dropped": totals.files_in - totals.files_out,
                "files_rewritten": totals.files_out,
                "files_searched": self._searched_files,
                "partitions": len(self._partitions),
                "conflicts": self._rewrite.conflicts,
                "files_lost": self._lost,
                "files_unreadable": self._unreadable,
            },
            is_unfinished=is_unfinished,
            held=held,
            due_since=None if since == math.inf else since,
        )


def _parsed(rule: RetentionRule, where: str, spec: TableSpec) -> Predicate:
    try:
        return parse_predicate(where, spec)
    except (QueryInvalid, QueryRefused) as error:
        hint = "" if rule.table else "; set the `table` of the rule"
        raise ConfigError(f"maintain.retention.rules: `{where}` is invalid: {error}{hint}") from None


def _group_by_day(due: Sequence[Due], bytes_max: int) -> list[list[Due]]:
    """Groups files of about `bytes_max` bytes. No day is split: progress is recorded in whole days."""
    groups: list[list[Due]] = []
    size = 0
    for each in due:
        is_new_day = bool(groups) and groups[-1][-1].day != each.day
        if not groups or (is_new_day and size + each.bytes > bytes_max):
            groups.append([])
            size = 0
        groups[-1].append(each)
        size += each.bytes
    return groups
