"""Retention: rows go when they are as old as the rules say, whole files where that will do.

What is taken out of a table is counted in its position, by where it came from: the ledger still adds up.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from frazil.config import Config, RetentionRule
from frazil.errors import ConfigError, Conflict, QueryInvalid, QueryRefused
from frazil.lake.clock import believed_now, clock_held, forget_late, late_days, note_time, utc
from frazil.lake.commit import committer_of
from frazil.lake.discard import discard
from frazil.lake.live import LiveFile, in_parallel, live_files
from frazil.lake.properties import json_property, set_properties
from frazil.pipeline.datafile import Layout
from frazil.pipeline.gather import gathered
from frazil.pipeline.maintain.report import TaskReport
from frazil.pipeline.maintain.rules import (
    RETENTION,
    Applied,
    Due,
    RetentionPlan,
    is_new_ground,
    key_of,
    plan_retention,
    progress,
    read_applied,
    write_applied,
)
from frazil.pipeline.maintain.runner import Runner
from frazil.pipeline.maintain.search import Searched, Wanted, search_all
from frazil.query.predicate import Matcher, Predicate, may_match, parse_predicate
from frazil.tables import Signal, landed_spec
from frazil.tables.promoted import promoted
from frazil.wal.position import without

_DROPS_PER_COMMIT_MAX = 1000
"""Files that one commit drops. Each commit makes landings that are under way begin again, so few
large commits are better than many small ones.
"""
_DROPS_PER_ROUND_MAX = 10_000
"""Then the other tasks have their turn."""

log = structlog.get_logger("frazil.maintain")


@dataclass
class _Total:
    dropped: int = 0
    rewritten: int = 0
    searched: int = 0
    conflicts: int = 0
    lost: int = 0
    unreadable: int = 0
    rows: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    cpu_seconds: float = 0.0
    partitions: set[tuple[str, int]] = field(default_factory=set)

    def count(self, file: DataFile, found: Searched) -> None:
        if not found.matches:
            return
        self.rows += found.matches
        self.bytes_in += file.file_size_in_bytes
        self.partitions.add((file.partition[0], file.partition[1]))
        if found.added is None:
            self.dropped += 1
        else:
            self.rewritten += 1
            self.bytes_out += found.added.file_size_in_bytes


class Retention:
    def __init__(
        self,
        config: Config,
        catalog: Catalog,
        runner: Runner,
        table: Table,
        signal: Signal,
        rules: Sequence[RetentionRule],
    ) -> None:
        self._catalog = catalog
        self._runner = runner
        self._table = table
        self._name = table.name()[-1]
        self._rules = rules
        self._settings = config.maintain.retention
        self._round_bytes_max = config.maintain.retention.rewrite_round_bytes_max
        self._committer = committer_of(config, catalog)
        extra = promoted(config)
        self._layout = Layout.of(
            table, signal, extra, config.maintain.compact.compression_level, rewriting=True
        )
        spec = landed_spec(signal, extra)
        self._predicates: dict[str, Predicate] = {
            key_of(rule): _parsed(rule, rule.where, spec) for rule in rules if rule.where is not None
        }
        self._matchers = {
            key: Matcher.of(predicate, spec, table.schema(), extra, properties=table.properties)
            for key, predicate in self._predicates.items()
        }
        self._passed_over: set[str] = set()
        self._finished: set[str] = set()
        self._failed: dict[str, str] = {}
        """Rules that have no answer for some row, and why."""
        self._total = _Total()
        main = table.current_snapshot()
        self._sequence = 0 if main is None else main.sequence_number or 0
        self._is_alone = True

    def run(
        self, clock: float, begin: float, *, dry_run: bool, confirmed: bool, others: float | None
    ) -> TaskReport:
        """`clock` is the current time. With `confirmed` it is trusted, and any share of rows may go. For
        `others` see `believed_now`.
        """
        metadata, files = self._table.metadata, live_files(self._table)
        before, late = read_applied(json_property(metadata, RETENTION)), late_days(metadata)
        wanted = plan_retention(files, self._rules, clock, before, late)
        gap = self._settings.clock_gap_seconds_max
        now = clock if confirmed else believed_now(metadata, clock, gap, others)
        plan = wanted if now == clock else plan_retention(files, self._rules, now, before, late)
        held = clock_held(self._name, now, clock) if wanted.files - plan.files else ""
        held = held or ("" if confirmed else self._share_held(plan, files, before, now))
        if dry_run:
            self._would(wanted)
            return self._report(begin, wanted, dry_run=True, held=held)
        if held:
            return self._report(begin, wanted, dry_run=False, held=held)
        note_time(self._catalog, self._table, now)
        whole, done = self._drop(plan), 0
        size, left = 0, _in_days(plan.searched, self._round_bytes_max)
        while left and whole and size < self._round_bytes_max:
            group = left.pop(0)
            parts = gathered(group, lambda due: due.bytes, self._round_bytes_max)
            if not all(self._apply(part) for part in parts):
                left.append(group)
                break  # what was replaced meanwhile is to be searched in its new place
            size += self._spent(group)
            done += len(group)
        applied = progress(plan, done, before, self._sequence, self._failed.keys())
        # What was to be dropped, and is still there, was not searched.
        if whole and applied != before:
            set_properties(self._catalog, self._table, {RETENTION: write_applied(applied)})
        is_all = whole and not left
        if is_all and late:
            longest = max(rule.after_seconds for rule in self._rules)
            forget_late(self._catalog, self._table, now - longest)
        return self._report(begin, wanted, dry_run=False, is_unfinished=not is_all and bool(self._finished))

    def _drop(self, plan: RetentionPlan) -> bool:
        """Drops the files of which all rows are due. Returns False if some are left for the next round."""
        due = plan.dropped[:_DROPS_PER_ROUND_MAX]
        groups = gathered(due, lambda _: 1, _DROPS_PER_COMMIT_MAX)
        applied = [self._apply(group) for group in groups]  # one that was overtaken leaves the others alone
        return all(applied) and len(due) == len(plan.dropped)

    def _share_held(
        self, plan: RetentionPlan, files: Sequence[LiveFile], applied: Mapping[str, Applied], now: float
    ) -> str:
        """Why the round must not be done without a confirmation; empty if it may. What fell due just now is
        what every day brings, and does not count. Of files that are searched, all rows count: how many would
        go is known only after the search.
        """
        before = now - self._settings.clock_gap_seconds_max
        new = [due for due in plan.searched if due.since < before and is_new_ground(due, applied)]
        may_go = [due for due, names in zip(new, self._may_match(new), strict=True) if names]
        whole = [due for due in plan.dropped if due.since < before]
        rows = sum(due.live.file.record_count for due in (*whole, *may_go))
        total = sum(live.file.record_count for live in files)
        if rows < self._settings.confirm_rows_min or rows <= self._settings.confirm_share * total:
            return ""
        return (
            f"up to {rows:,} of {total:,} rows of {self._name} have long been due at {utc(now)}, more than "
            f"maintain.retention.confirm_share allows; check the rules and the clock, then run "
            f"`frazil maintain retention --confirm {self._name}`"
        )

    def _apply(self, group: Sequence[Due]) -> bool:
        """Finds, writes anew and commits. False if another process has changed these files meanwhile."""
        began = time.time()
        both = self._searched(group, rewrite=True)
        removed = [due.live.file for due, searched in both if searched.matches]
        found = [searched for _, searched in both if searched.matches]
        if not self._pass_over([searched for _, searched in both]):
            self._discard(found)
            return False
        if not removed:
            self._finish(group)
            return True
        counts: Counter[str] = sum((each.removed for each in found), Counter())
        added = [each.added for each in found if each.added is not None]
        before, after = (sum(file.record_count for file in files) for files in (removed, added))
        if before - after != counts.total():
            raise AssertionError(f"{before:,} rows became {after:,}, and {counts.total():,} were to go")
        try:
            committed = self._committer.overwrite(
                self._table,
                removed,
                added,
                partial(without, counts),
                facts={"frazil.retained": str(counts.total())},
                began=began,
            )
        except Conflict as error:
            log.info("files were replaced meanwhile; the next round has them", reason=str(error))
            self._discard(found)
            return False
        for file, searched in zip(removed, found, strict=True):
            self._total.count(file, searched)
        own = committed.metadata.snapshot_by_id(committed.snapshot_id)
        self._is_alone &= own is not None and own.sequence_number == self._sequence + 1
        self._sequence += self._is_alone  # else somebody's files, not searched yet, are among those up to it
        log.info(
            "rows removed by retention",
            table=self._name,
            rows=counts.total(),
            files=len(removed),
            snapshot=committed.snapshot_id,
        )
        self._finish(group)
        return True

    def _finish(self, group: Sequence[Due]) -> None:
        self._finished |= {due.live.file.file_path for due in group} - self._passed_over

    def _pass_over(self, found: Sequence[Searched]) -> bool:
        """Leaves out the files that are gone or cannot be read, if the table still says that it has them:
        nobody has replaced them then, and no round that waits for them would ever end.
        """
        gone = [each for each in found if each.is_gone]
        unreadable = [each for each in found if each.unreadable is not None]
        if not gone and not unreadable:
            return True
        if not self._live_now().issuperset(each.path for each in (*gone, *unreadable)):
            return False
        self._passed_over |= {each.path for each in (*gone, *unreadable)}
        self._total.lost += len(gone)
        self._total.unreadable += len(unreadable)
        for each in gone:
            log.warning("a file of the table is gone; retention goes on without it", path=each.path)
        for each in unreadable:
            log.warning(
                "a file of the table cannot be read; retention goes on without it",
                path=each.path,
                reason=each.unreadable,
            )
        return True

    def _spent(self, group: Sequence[Due]) -> int:
        """Bytes. What was passed over, or is only for rules without an answer, comes again each time and must
        not use up the round.
        """
        return sum(
            due.bytes
            for due in group
            if due.live.file.file_path not in self._passed_over
            and not (due.names and self._failed.keys() >= set(due.names))
        )

    def _live_now(self) -> set[str]:
        return {each.file.file_path for each in live_files(self._catalog.load_table(self._table.name()))}

    def _searched(self, group: Sequence[Due], *, rewrite: bool) -> list[tuple[Due, Searched]]:
        """Without those files whose statistics say that no row can be meant."""
        wanted = {
            due.live.file.file_path: (due, names)
            for due, names in zip(group, self._may_match(group), strict=True)
            if names or not due.names
        }
        jobs = [Wanted.of(due.live.file, names) for due, names in wanted.values()]
        found = list(search_all(self._runner, self._layout, self._matchers, jobs, rewrite=rewrite))
        self._total.searched += len(found)
        self._total.cpu_seconds += sum(each.cpu_seconds for each in found)
        for each in found:
            self._failed |= each.failed
        return [(wanted[each.path][0], each) for each in found]

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

    def _would(self, plan: RetentionPlan) -> None:
        """Counts, and changes nothing."""
        searched = self._searched(plan.searched, rewrite=False)
        both = [*zip(plan.dropped, in_parallel(self._whole, plan.dropped), strict=True), *searched]
        self._pass_over([found for _, found in both])
        for due, found in both:
            self._total.count(due.live.file, found)
            self._total.rewritten += 0 < found.matches < found.rows
            self._total.dropped -= 0 < found.matches < found.rows

    def _whole(self, due: Due) -> Searched:
        """As if it had been searched: the manifests say how many rows it has."""
        path, rows = due.live.file.file_path, due.live.file.record_count
        try:
            size = len(self._table.io.new_input(path))
        except FileNotFoundError:
            return Searched(path, is_gone=True)
        if size != due.bytes:
            return Searched(path, unreadable=f"it has {size:,} bytes, and the table says {due.bytes:,}")
        return Searched(path, rows, Counter({"": rows}))

    def _discard(self, found: Sequence[Searched]) -> None:
        """Nothing can ever commit these: what they stand for is gone."""
        self._total.conflicts += 1
        discard(self._table, [each.added for each in found if each.added is not None])

    def _refuse_failed(self) -> None:
        """At the end, when all else is done."""
        reasons = [
            f"`{rule.where}` cannot be told of every row, and was left out: {self._failed[key_of(rule)]}"
            for rule in self._rules
            if key_of(rule) in self._failed
        ]
        if reasons:
            raise ConfigError("maintain.retention.rules: " + "; ".join(reasons))

    def _report(
        self, begin: float, plan: RetentionPlan, *, dry_run: bool, held: str = "", is_unfinished: bool = False
    ) -> TaskReport:
        """`plan` has all that is due by the clock. ConfigError if a rule could not be applied and the others
        have no more to do.
        """
        if not is_unfinished:
            self._refuse_failed()
        total = self._total
        due = (*plan.dropped, *plan.searched)
        left = [each.since for each in due if each.live.file.file_path not in self._finished]
        since = min((plan.next_due, *left))
        return TaskReport(
            "retention",
            self._name,
            dry_run,
            files_in=total.dropped + total.rewritten,
            files_out=total.rewritten,
            bytes_in=total.bytes_in,
            bytes_out=total.bytes_out,
            rows_removed=total.rows,
            seconds=time.monotonic() - begin,
            cpu_seconds=total.cpu_seconds,
            detail={
                "files_dropped": total.dropped,
                "files_rewritten": total.rewritten,
                "files_searched": total.searched,
                "partitions": len(total.partitions),
                "conflicts": total.conflicts,
                "files_lost": total.lost,
                "files_unreadable": total.unreadable,
            },
            is_unfinished=is_unfinished,
            held=held,
            due_since=None if since == math.inf else since,
        )


def _parsed(rule: RetentionRule, where: str, spec: object) -> Predicate:
    try:
        return parse_predicate(where, spec)  # type: ignore[arg-type]
    except (QueryInvalid, QueryRefused) as error:
        hint = "" if rule.table else "; name the `table` that it is for"
        raise ConfigError(f"maintain.retention.rules: `{where}` cannot be used: {error}{hint}") from None


def _in_days(due: Sequence[Due], bytes_max: int) -> list[list[Due]]:
    """Groups of about so many bytes. No day is cut: only whole days can be remembered as searched."""
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
