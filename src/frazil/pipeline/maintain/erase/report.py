"""The report of an erasure, as evidence for audits. It does not contain the erased data or the condition."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from frazil.times import utc_text

_PATHS_SHOWN_MAX = 20


@dataclass
class Proof:
    """The result of searching all remaining data after the erasure."""

    files_searched: int = 0
    rows_searched: int = 0
    matches: int = 0
    unreferenced_files: int = 0
    """Files in the table's folder that no snapshot needs: being written now, or left by killed processes.
    Those of the tenant were searched too.
    """
    files_not_there: int = 0
    """Missing files that a snapshot needs: their content is unknown."""
    lost: list[str] = field(default_factory=list)
    """The paths of these missing files."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Unreadable files that a snapshot needs, with the reason."""
    files_still_there: int = 0
    """Deleted files that still exist."""
    segments_left: int = 0
    """WAL segments with rows from before the erasure."""

    @property
    def holds(self) -> bool:
        return not (self.matches or self.needs_restore or self.files_still_there or self.segments_left)

    @property
    def needs_restore(self) -> bool:
        """The erasure cannot be proven until missing or unreadable files are restored."""
        return bool(self.files_not_there or self.unreadable)


@dataclass
class TableErasure:
    table: str
    is_derived: bool = False
    rows_removed: int = 0
    rows_of_tenant: int = 0
    """Rows of the tenant in the current snapshot before the erasure."""
    files_rewritten: int = 0
    files_dropped: int = 0
    files_deleted: list[str] = field(default_factory=list)
    """Data files, manifests and metadata files."""
    snapshots_expired: list[int] = field(default_factory=list)
    tags_dropped: list[str] = field(default_factory=list)
    wal_segments_deleted: int = 0
    days_recomputed: list[str] = field(default_factory=list)
    """Of a derived table: days that were computed again from the rows that are left, as YYYY-MM-DD."""
    days_kept: list[str] = field(default_factory=list)
    """Of a derived table: days whose numbers still count erased rows, because the source no longer holds
    all other rows of the day.
    """
    proof: Proof = field(default_factory=Proof)


@dataclass
class Erasure:
    """The whole erasure. All data acknowledged before `cut_unix_micros` was searched."""

    id: str
    tenant: str
    cut_unix_micros: int
    tables: list[TableErasure] = field(default_factory=list)
    set_aside_dropped: int = 0
    kafka_records_deleted: dict[str, int] = field(default_factory=dict)
    """The first remaining offset, by topic and partition."""
    outside: Sequence[str] = ()
    """Places that may hold matching rows and that frazil cannot erase."""
    blockers: list[str] = field(default_factory=list)
    """Of a dry run: the reasons for which the erasure would be refused."""
    seconds: float = 0.0
    dry_run: bool = False

    @property
    def rows_removed(self) -> int:
        return sum(table.rows_removed for table in self.tables)

    @property
    def files_deleted(self) -> int:
        return sum(len(table.files_deleted) for table in self.tables)

    @property
    def is_proven(self) -> bool:
        return not self.dry_run and all(table.proof.holds for table in self.tables)

    @property
    def found_nothing(self) -> bool:
        return not (self.rows_removed or self.files_deleted or self.set_aside_dropped)

    @property
    def _next(self) -> str:
        if any(table.proof.needs_restore for table in self.tables):
            return "restore the missing or unreadable files, then run the erasure again"
        return "run the erasure again"

    def as_dict(self) -> dict[str, Any]:
        return {
            **dataclasses.asdict(self),
            "cut": utc_text(self.cut_unix_micros / 1e6),
            "rows_removed": self.rows_removed,
            "proven": self.is_proven,
        }

    def text(self) -> str:
        """Returns the report for the terminal."""
        would = "would be " if self.dry_run else ""
        lines = [
            f"erasure {self.id} of tenant {self.tenant}",
            f"covers all data {'landed' if self.dry_run else 'acknowledged'} before "
            f"{utc_text(self.cut_unix_micros / 1e6)}",
        ]
        for table in self.tables:
            lines += _days(table, would) if table.is_derived else _rows(table, would)
            lines += _details(table, dry_run=self.dry_run)
        if self.set_aside_dropped:
            lines.append(f"set aside: {self.set_aside_dropped:,} items {would}removed")
        lines += [
            f"Kafka: {partition} {would}deleted before offset {offset:,}"
            for partition, offset in sorted(self.kafka_records_deleted.items())
        ]
        if self.found_nothing:
            lines.append("no matching rows found")
        if self.dry_run:
            lines += (
                ["the erasure would be refused:", *(f"  {why}" for why in self.blockers)]
                if self.blockers
                else ["nothing was changed; the erasure would not be refused"]
            )
        else:
            verdict = "proven: no file holds matching rows" if self.is_proven else f"NOT PROVEN: {self._next}"
            lines.append(f"{verdict} ({self.seconds:.0f} s)")
        if self.outside:
            lines += ["not covered by this erasure:", *(f"  {each}" for each in self.outside)]
        return "\n".join(lines)


def _rows(table: TableErasure, would: str) -> list[str]:
    return [
        f"{table.table}: {table.rows_removed:,} of {table.rows_of_tenant:,} rows {would}removed, "
        f"{table.files_rewritten:,} files {would}rewritten, {table.files_dropped:,} {would}dropped"
    ]


def _days(table: TableErasure, would: str) -> list[str]:
    again, kept = table.days_recomputed, table.days_kept
    lines = [f"{table.table} (derived): {_range(again)} {would}computed again from the remaining rows"]
    if table.rows_removed:
        lines.append(f"  {table.rows_removed:,} rows {would}removed that match the condition themselves")
    if kept:
        lines.append(
            f"  {_range(kept)}: numbers stay, because the source no longer holds all other rows of these days"
        )
    return lines


def _range(days: list[str]) -> str:
    if not days:
        return "no days"
    return f"{len(days):,} days ({days[0]} to {days[-1]})" if len(days) > 1 else f"1 day ({days[0]})"


def _details(table: TableErasure, *, dry_run: bool) -> list[str]:
    tags = [f"  tags {'that would be ' if dry_run else ''}dropped: {', '.join(table.tags_dropped)}"]
    lines = tags if table.tags_dropped else []
    if dry_run:
        return lines
    if table.snapshots_expired or table.files_deleted or table.wal_segments_deleted:
        lines.append(
            f"  {len(table.snapshots_expired):,} snapshots expired, {len(table.files_deleted):,} files "
            f"deleted, {table.wal_segments_deleted:,} WAL segments deleted"
        )
    proof = table.proof
    lines.append(
        f"  verified: {proof.rows_searched:,} rows in {proof.files_searched:,} files searched, "
        f"{proof.matches:,} match; {proof.files_still_there:,} deleted files and {proof.segments_left:,} "
        "WAL segments still exist"
    )
    if lost := proof.lost:
        lines.append(f"  missing files of the table, with unknown content: {len(lost):,}")
        lines += _some([f"  missing: {path}" for path in lost])
    if unreadable := proof.unreadable:
        lines.append(f"  unreadable files of the table, with unknown content: {len(unreadable):,}")
        lines += _some([f"  unreadable: {path}: {reason}" for path, reason in sorted(unreadable.items())])
    return lines


def _some(lines: list[str]) -> list[str]:
    more = len(lines) - _PATHS_SHOWN_MAX
    return lines if more <= 0 else [*lines[:_PATHS_SHOWN_MAX], f"  and {more:,} more"]
