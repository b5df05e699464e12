"""Compaction: chooses small files, merges them on Spark, and commits the merged files in their place."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import structlog
from pyiceberg.table import Table

from frazil.config import CompactConfig
from frazil.errors import JobFailed, reason_of
from frazil.lake.commits.commit import Committer
from frazil.lake.live_files import LiveFile, live_files
from frazil.lake.upkeep.choose import Group, all_facts, choose
from frazil.pipeline.datafile import Layout
from frazil.pipeline.maintain.merge.merge import Merge, Merged, MergeSettings, merge
from frazil.pipeline.maintain.report import Task, TaskReport, Totals, bytes_of
from frazil.pipeline.maintain.rewrite import Rewrite, Swap
from frazil.pipeline.runner import Runner

_PAUSE_SECONDS = 2 * 3600.0
_PAUSE_SECONDS_MAX = 24 * 3600.0

log = structlog.get_logger("frazil.maintain")
Progress = Callable[[int, int], None]
"""Called with the bytes that are done and the total."""


@dataclass(frozen=True)
class _Failed:
    reason: str


@dataclass(frozen=True)
class _Bad:
    reason: str
    until: float
    pause_seconds: float


class BadFiles:
    """Live files of all tables that could not be read. They are excluded from merging and moving for some
    hours, longer each time: otherwise every merge that includes one of them would fail. Kept in memory only.
    """

    def __init__(self) -> None:
        self._tables: dict[str, dict[str, _Bad]] = {}

    def note(self, table: str, path: str, reason: str, now_seconds: float) -> bool:
        """Returns whether the file or the reason is new."""
        known = self._tables.setdefault(table, {})
        before = known.get(path)
        pause = _PAUSE_SECONDS if before is None else min(2 * before.pause_seconds, _PAUSE_SECONDS_MAX)
        known[path] = _Bad(reason, now_seconds + pause, pause)
        return before is None or before.reason != reason

    def excluded(self, table: str, live: Collection[str], now_seconds: float) -> set[str]:
        """Returns the files of the table that must not be tried now. Drops files that are no longer live."""
        known = self._tables.get(table, {})
        for path in [path for path in known if path not in live]:
            del known[path]
        # A longer exclusion than the maximum was noted by a wrong clock.
        latest = now_seconds + _PAUSE_SECONDS_MAX
        return {path for path, bad in known.items() if now_seconds < bad.until <= latest}


class Compaction:
    """One round of compaction of one table. Skips the files in `bad`, and adds unreadable files to it."""

    task: Task = "compact"
    event = "compacted"

    def __init__(
        self,
        table: Table,
        layout: Layout,
        config: CompactConfig,
        committer: Committer,
        runner: Runner,
        bad: BadFiles,
    ) -> None:
        self._table = table
        self._layout = layout
        self._config = config
        self._runner = runner
        self._bad = bad
        self._retry: set[tuple[str | None, int | None]] = set()
        """Tenants and days of merges that failed because of a bad file."""
        self._totals = Totals()
        self._rewrite = Rewrite(
            table,
            committer,
            self._totals,
            self.event,
            counted_as="frazil.merged",
            combines=layout.spec.derived is not None,
        )
        self._vanished = self._failed = self._bad_files = 0
        self._reason = ""

    def plan(self, now_seconds: float) -> tuple[dict[str, LiveFile], list[Group]]:
        """Returns all files of the table, and the groups of files to merge."""
        live = {each.file.file_path: each for each in live_files(self._table)}
        excluded = self._bad.excluded(self._table.name()[-1], live, now_seconds)
        usable = [each for path, each in live.items() if path not in excluded]
        return live, self._groups(usable, now_seconds)

    def _groups(self, files: Sequence[LiveFile], now_seconds: float) -> list[Group]:
        return choose(all_facts(files, self._table), self._config, now_seconds, self._layout.spec)

    def run(self, now_seconds: float, *, dry_run: bool, progress: Progress | None = None) -> TaskReport:
        begin = time.monotonic()
        live, groups = self.plan(now_seconds)
        if dry_run:
            return self._dry_run_report(groups, begin)
        self._merge_all(live, groups, now_seconds, progress)
        if self._retry:  # merge the other files of these days
            self._table.refresh()
            live, groups = self.plan(now_seconds)
            again = [group for group in groups if (group.tenant, group.day) in self._retry]
            self._merge_all(live, again, now_seconds, progress)
        if self._failed and not self._totals.files_out:
            raise JobFailed(f"files could not be merged: {self._reason}")
        return self._report(begin, dry_run=False)

    def _merge_all(
        self,
        live: dict[str, LiveFile],
        groups: Sequence[Group],
        now_seconds: float,
        progress: Progress | None,
    ) -> None:
        merges = {number: self._merge(group, live) for number, group in enumerate(groups)}
        bytes_all, bytes_done = sum(bytes_of(job.inputs) for job in merges.values()), 0
        work = partial(_numbered, self._layout, MergeSettings.of(self._config))
        with self._rewrite.batches() as add:
            for number, merged in self._runner.results(work, list(merges.items())):
                job = merges[number]
                bytes_done += bytes_of(job.inputs)
                if progress is not None:
                    progress(bytes_done, bytes_all)
                if isinstance(merged, _Failed):
                    self._log_failed(job, merged.reason)
                    continue
                self._totals.cpu_seconds += merged.cpu_seconds
                swap = Swap(
                    job.inputs, merged.added, merged.began, merged.removed, merged.combined, made=merged.made
                )
                if merged.vanished or merged.unreadable:
                    self._note_bad(job, merged, now_seconds)
                elif not swap.adds_up:
                    self._log_failed(job, "the files do not have as many rows as the table's metadata says")
                elif merged.added:
                    add(swap)

    def _note_bad(self, job: Merge, merged: Merged, now_seconds: float) -> None:
        """Notes the bad files of a merge. Missing files that another process has replaced are not bad."""
        name, bad = self._table.name()[-1], dict(merged.unreadable)
        if merged.vanished:
            self._table.refresh()
            live = {each.file.file_path for each in live_files(self._table)}
            bad |= dict.fromkeys(live.intersection(merged.vanished), "the file does not exist")
        if not bad:
            self._vanished += 1
            log.info(
                "merge skipped: files replaced by another process", table=name, files=len(merged.vanished)
            )
            return
        self._retry.add((job.tenant, job.day))
        self._failed += 1
        self._bad_files += len(bad)
        for path, reason in sorted(bad.items()):
            self._reason = f"{path}: {reason}"
            if self._bad.note(name, path, reason, now_seconds):
                log.error("unreadable file excluded from merging", table=name, path=path, reason=reason)

    def _log_failed(self, job: Merge, reason: str) -> None:
        self._failed += 1
        self._reason = reason
        log.error(
            "files not merged",
            table=self._table.name()[-1],
            files=len(job.inputs),
            first=job.inputs[0].file_path,
            reason=reason,
        )

    def _merge(self, group: Group, live: dict[str, LiveFile]) -> Merge:
        inputs = tuple(live[facts.path].file for facts in group.files)
        is_split = group.closed and self._layout.spec.is_split_by_resolution
        return Merge(
            inputs, group.tenant, group.day, by_resolution=is_split, settled_until=group.settled_until
        )

    def _dry_run_report(self, groups: Sequence[Group], begin: float) -> TaskReport:
        derived = self._layout.spec.derived
        for group in groups:
            split = len(derived.resolutions) if derived is not None and group.closed else 1
            size = sum(facts.bytes for facts in group.files)
            self._totals.files_in += len(group.files)
            self._totals.files_out += max(1, split, round(size / self._config.target_bytes))
            self._totals.bytes_in += size
            self._totals.rows += sum(facts.rows for facts in group.files)
        return self._report(begin, dry_run=True)

    def _report(self, begin: float, *, dry_run: bool) -> TaskReport:
        return self._totals.report(
            self.task,
            self._table.name()[-1],
            begin,
            dry_run=dry_run,
            detail={
                "conflicts": self._rewrite.conflicts,
                "vanished": self._vanished,
                "failed": self._failed,
                "bad_files": self._bad_files,
            },
        )


class Filling(Compaction):
    """Rewrites files whose promoted columns are not filled, each separately, newest days first because most
    queries read them. Committed files are filled, so a run after an interruption does the rest.
    """

    task: Task = "fill"
    event = "promoted columns filled"

    def _groups(self, files: Sequence[LiveFile], now_seconds: float) -> list[Group]:
        unfilled = [each for each in files if self._layout.is_unfilled(each.file)]
        groups = [
            Group(facts.tenant, facts.day, (facts,), gain=1.0, closed=True)
            for facts in all_facts(unfilled, self._table)
        ]
        return sorted(groups, key=lambda group: (-(group.day or 0), group.files[0].path))


def _numbered(
    layout: Layout, settings: MergeSettings, job: tuple[int, Merge]
) -> tuple[int, Merged | _Failed]:
    """Runs one merge in a Spark worker. Returns errors, so that the other merges continue."""
    try:
        return job[0], merge(layout, job[1], settings)
    except Exception as error:
        return job[0], _Failed(reason_of(error))
