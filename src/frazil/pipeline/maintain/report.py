"""Reports of maintenance tasks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pyiceberg.manifest import DataFile

Task = Literal["compact", "tier", "manifests", "expire", "retention", "orphans", "fill"]
TASKS: tuple[Task, ...] = ("retention", "compact", "tier", "manifests", "expire", "orphans")
"""The tasks in their order: removed rows need not be merged, and merged files can expire. `fill` runs only on
request.
"""


@dataclass(frozen=True)
class TaskReport:
    """The result of a task, or of its dry run. `files_in` and `bytes_in` were read or removed, `files_out`
    and `bytes_out` replace them. `rows` were written, `rows_removed` are gone, and `rows_combined` partial
    rows of derived tables became part of others: a merge reads the sum of the three. `detail` has counts of
    single tasks; its keys are shown to users.

    `is_unfinished`: the round reached its limit, and the next one should follow at once. `held` is the reason
    why retention waits for a confirmation, or empty. `due_since` is when the oldest remaining rows fell due,
    or when the next rows will, in seconds since 1970; None if no rule applies to any row.
    """

    task: Task
    table: str
    dry_run: bool = False
    files_in: int = 0
    files_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    rows: int = 0
    rows_removed: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    detail: Mapping[str, Any] = field(default_factory=dict)
    is_unfinished: bool = False
    held: str = ""
    due_since: float | None = None
    rows_combined: int = 0

    @property
    def is_nothing(self) -> bool:
        return not (self.files_in or self.files_out or self.rows_removed or any(self.detail.values()))


@dataclass
class Totals:
    """Counts the files, bytes and rows of a task, in the fields of `TaskReport`."""

    files_in: int = 0
    files_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    rows: int = 0
    rows_removed: int = 0
    rows_combined: int = 0
    cpu_seconds: float = 0.0

    def count(
        self,
        removed: Sequence[DataFile],
        added: Sequence[DataFile],
        rows_removed: int,
        rows_combined: int = 0,
    ) -> None:
        self.files_in += len(removed)
        self.files_out += len(added)
        self.bytes_in += bytes_of(removed)
        self.bytes_out += bytes_of(added)
        self.rows += rows_of(added)
        self.rows_removed += rows_removed
        self.rows_combined += rows_combined

    def report(self, task: Task, table: str, begin: float, **facts: Any) -> TaskReport:
        """Returns the report with these totals and further fields. `begin` is a time of the monotonic
        clock.
        """
        return TaskReport(task, table, seconds=time.monotonic() - begin, **{**vars(self), **facts})


def rows_of(files: Sequence[DataFile]) -> int:
    return sum(file.record_count for file in files)


def bytes_of(files: Sequence[DataFile]) -> int:
    return sum(file.file_size_in_bytes for file in files)
