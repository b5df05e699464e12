"""A round of merging: what is worth it is chosen, merged on Spark, and put in the place of what it was."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import structlog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from frazil.config import CompactConfig
from frazil.errors import Conflict, JobFailed
from frazil.lake.choose import Group, all_facts, choose
from frazil.lake.commit import Committer
from frazil.lake.discard import discard
from frazil.lake.live import LiveFile, live_files
from frazil.pipeline.datafile import Layout
from frazil.pipeline.maintain.bad import BadFiles
from frazil.pipeline.maintain.merge import Merge, Merged, MergeSettings, merge
from frazil.pipeline.maintain.reasons import reason_of
from frazil.pipeline.maintain.report import Task, TaskReport
from frazil.pipeline.runner import Runner
from frazil.position import without

_COMMIT_SECONDS = 60.0
"""Merges that are ready are committed together, so that there are few snapshots, but none waits for long."""

log = structlog.get_logger("frazil.maintain")
Progress = Callable[[int, int], None]
"""Called with the bytes that are done and those that there are."""


@dataclass
class _Total:
    files_in: int = 0
    files_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    rows: int = 0
    rows_removed: int = 0
    cpu_seconds: float = 0.0
    conflicts: int = 0
    vanished: int = 0
    failed: int = 0
    bad_files: int = 0


@dataclass(frozen=True)
class _Failed:
    reason: str


@dataclass(frozen=True)
class _Done:
    removed: tuple[DataFile, ...]
    merged: Merged


class Compaction:
    """One table's. What is in `bad` is left out; what is found to be bad is added to it."""

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
        self._committer = committer
        self._runner = runner
        self._bad = bad
        self._spoilt: set[tuple[str | None, int | None]] = set()
        """Tenants and days of merges that came to nothing because of a bad file."""
        self._total = _Total()
        self._reason = ""

    def plan(self, now_seconds: float) -> tuple[dict[str, LiveFile], list[Group]]:
        """All files of the table, and groups of those to merge."""
        live = {each.file.file_path: each for each in live_files(self._table)}
        left_out = self._bad.left_out(self._table.name()[-1], live, now_seconds)
        fit = [each for path, each in live.items() if path not in left_out]
        return live, self._groups(fit, now_seconds)

    def _groups(self, files: Sequence[LiveFile], now_seconds: float) -> list[Group]:
        return choose(all_facts(files, self._table), self._config, now_seconds)

    def run(self, now_seconds: float, *, dry_run: bool, progress: Progress | None = None) -> TaskReport:
        begin = time.monotonic()
        live, groups = self.plan(now_seconds)
        if dry_run:
            return self._would(groups, begin)
        self._merge_all(live, groups, now_seconds, progress)
        if self._spoilt:  # the other files of those days, by the same rules
            self._table.refresh()
            live, groups = self.plan(now_seconds)
            again = [group for group in groups if (group.tenant, group.day) in self._spoilt]
            self._merge_all(live, again, now_seconds, progress)
        if self._total.failed and not self._total.files_out:
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
        bytes_all, bytes_done = sum(_size(job.inputs) for job in merges.values()), 0
        settings = MergeSettings.of(self._config)
        work = partial(_numbered, self._layout, settings)
        ready: list[_Done] = []
        ready_since = time.monotonic()
        try:
            for number, merged in self._runner.results(work, list(merges.items())):
                job = merges[number]
                bytes_done += _size(job.inputs)
                if progress is not None:
                    progress(bytes_done, bytes_all)
                if isinstance(merged, _Failed):
                    self._failed(job, merged)
                elif merged.vanished or merged.unreadable:
                    self._blame(job, merged, now_seconds)
                elif _rows(job.inputs) - _rows(merged.added) != merged.removed.total():
                    self._failed(job, _Failed("the rows of its files are not as many as the table says"))
                elif merged.added:
                    ready.append(_Done(job.inputs, merged))
                if time.monotonic() - ready_since >= _COMMIT_SECONDS:
                    self._commit(ready)
                    ready, ready_since = [], time.monotonic()
        except JobFailed:
            self._commit(ready)  # or whatever fails each time would let nothing get done
            raise
        self._commit(ready)

    def _blame(self, job: Merge, merged: Merged, now_seconds: float) -> None:
        """Notes the bad files. Of those that are gone, others may have replaced some meanwhile."""
        name, bad = self._table.name()[-1], dict(merged.unreadable)
        if merged.vanished:
            self._table.refresh()
            live = {each.file.file_path for each in live_files(self._table)}
            bad |= dict.fromkeys(live.intersection(merged.vanished), "it is gone")
        if not bad:
            self._total.vanished += 1
            log.info("files to be merged were replaced by others", table=name, files=len(merged.vanished))
            return
        self._spoilt.add((job.tenant, job.day))
        self._total.failed += 1
        self._total.bad_files += len(bad)
        for path, reason in sorted(bad.items()):
            self._reason = f"{path}: {reason}"
            if self._bad.note(name, path, reason, now_seconds):
                log.error("file is bad, and left out of merging", table=name, path=path, reason=reason)

    def _failed(self, job: Merge, failed: _Failed) -> None:
        self._total.failed += 1
        self._reason = failed.reason
        log.error(
            "files could not be merged",
            table=self._table.name()[-1],
            files=len(job.inputs),
            first=job.inputs[0].file_path,
            reason=failed.reason,
        )

    def _merge(self, group: Group, live: dict[str, LiveFile]) -> Merge:
        inputs = tuple(live[facts.path].file for facts in group.files)
        return Merge(inputs, group.tenant, group.day)

    def _commit(self, ready: Sequence[_Done]) -> None:
        """All in one; if another was faster somewhere, one by one, so that only that work is lost."""
        if not ready:
            return
        try:
            self._replace(ready)
        except Conflict:
            if len(ready) == 1:
                self._total.conflicts += 1
                log.info("merged for nothing: others changed those files", table=self._table.name()[-1])
                discard(self._table, ready[0].merged.added)
                return
            for each in ready:
                self._commit([each])

    def _replace(self, ready: Sequence[_Done]) -> None:
        removed = [file for each in ready for file in each.removed]
        added = [file for each in ready for file in each.merged.added]
        dropped: Counter[str] = sum((each.merged.removed for each in ready), Counter())
        began = min(each.merged.began for each in ready)
        if dropped:
            advance = partial(without, dropped)
            committed = self._committer.overwrite(
                self._table,
                removed,
                added,
                advance,
                facts={"frazil.merged": str(dropped.total())},
                began=began,
            )
        else:
            committed = self._committer.replace(self._table, removed, added, began=began)
        total = self._total
        total.files_in += len(removed)
        total.files_out += len(added)
        total.bytes_in += _size(removed)
        total.bytes_out += _size(added)
        total.rows += sum(each.merged.rows for each in ready)
        total.rows_removed += dropped.total()
        total.cpu_seconds += sum(each.merged.cpu_seconds for each in ready)
        log.info(
            self.event,
            table=self._table.name()[-1],
            files_in=len(removed),
            files_out=len(added),
            bytes_in=_size(removed),
            bytes_out=_size(added),
            rows=sum(each.merged.rows for each in ready),
            snapshot=committed.snapshot_id,
            attempts=committed.attempts,
        )

    def _would(self, groups: Sequence[Group], begin: float) -> TaskReport:
        for group in groups:
            size = sum(facts.bytes for facts in group.files)
            self._total.files_in += len(group.files)
            self._total.files_out += max(1, round(size / self._config.target_bytes))
            self._total.bytes_in += size
            self._total.rows += sum(facts.rows for facts in group.files)
        return self._report(begin, dry_run=True)

    def _report(self, begin: float, *, dry_run: bool) -> TaskReport:
        total = self._total
        return TaskReport(
            self.task,
            self._table.name()[-1],
            dry_run,
            total.files_in,
            total.files_out,
            total.bytes_in,
            total.bytes_out,
            total.rows,
            total.rows_removed,
            time.monotonic() - begin,
            total.cpu_seconds,
            {
                "conflicts": total.conflicts,
                "vanished": total.vanished,
                "failed": total.failed,
                "bad_files": total.bad_files,
            },
        )


def _numbered(
    layout: Layout, settings: MergeSettings, job: tuple[int, Merge]
) -> tuple[int, Merged | _Failed]:
    """Runs in Spark's workers. Files that cannot be read must not keep all others from being merged."""
    try:
        return job[0], merge(layout, job[1], settings)
    except Exception as error:
        return job[0], _Failed(reason_of(error))


def _rows(files: Sequence[DataFile]) -> int:
    return sum(file.record_count for file in files)


def _size(files: Sequence[DataFile]) -> int:
    return sum(file.file_size_in_bytes for file in files)
