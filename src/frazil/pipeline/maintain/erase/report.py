"""What an erasure did, for the files of whoever must answer for it. It never says what was erased."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

_PATHS_SHOWN_MAX = 20


@dataclass
class Proof:
    """A search of everything that is left, after all was done."""

    files_searched: int = 0
    rows_searched: int = 0
    matches: int = 0
    unreferenced_files: int = 0
    """Files below the table that no snapshot needs: being written by others, or left by those who died. The
    tenant's were searched too.
    """
    files_not_there: int = 0
    """Of those that a snapshot needs: nobody can say what they held."""
    lost: list[str] = field(default_factory=list)
    """Which those are."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Files that a snapshot needs and nobody can say what they hold, and why."""
    files_still_there: int = 0
    """Of those that were deleted."""
    segments_left: int = 0
    """Of the write-ahead log, with rows from before the cut."""

    @property
    def holds(self) -> bool:
        return not (self.matches or self.is_unsure or self.files_still_there or self.segments_left)

    @property
    def is_unsure(self) -> bool:
        """To be run again in vain, until somebody has brought files back."""
        return bool(self.files_not_there or self.unreadable)


@dataclass
class TableErasure:
    """Of one table."""

    table: str
    rows_removed: int = 0
    rows_of_tenant: int = 0
    """What it had before, in the table as it then was."""
    files_rewritten: int = 0
    files_dropped: int = 0
    files_deleted: list[str] = field(default_factory=list)
    """Data files, manifests and versions of metadata."""
    snapshots_expired: list[int] = field(default_factory=list)
    tags_dropped: list[str] = field(default_factory=list)
    wal_segments_deleted: int = 0
    proof: Proof = field(default_factory=Proof)


@dataclass
class Erasure:
    """`cut_unix_micros`: everything that was acked before it was searched."""

    id: str
    tenant: str
    cut_unix_micros: int
    tables: list[TableErasure] = field(default_factory=list)
    set_aside_dropped: int = 0
    kafka_records_deleted: dict[str, int] = field(default_factory=dict)
    """By topic and partition, up to which offset."""
    outside: Sequence[str] = ()
    """What may hold such rows and is out of reach."""
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
        """Nothing that matches is left where we can look."""
        return not self.dry_run and all(table.proof.holds for table in self.tables)

    @property
    def found_nothing(self) -> bool:
        return not (self.rows_removed or self.files_deleted or self.set_aside_dropped)

    @property
    def _next(self) -> str:
        if any(table.proof.is_unsure for table in self.tables):
            return "bring the files back that are gone or cannot be read, and run it again"
        return "run it again"

    def as_dict(self) -> dict[str, Any]:
        return {
            **dataclasses.asdict(self),
            "cut": utc(self.cut_unix_micros),
            "rows_removed": self.rows_removed,
            "proven": self.is_proven,
        }

    def text(self) -> str:
        """For people."""
        would = "would be " if self.dry_run else ""
        lines = [
            f"erasure {self.id} of tenant {self.tenant}",
            f"of everything {'landed' if self.dry_run else 'acked'} before {utc(self.cut_unix_micros)}",
        ]
        for table in self.tables:
            lines.append(
                f"{table.table}: {table.rows_removed:,} of {table.rows_of_tenant:,} rows {would}removed, "
                f"{table.files_rewritten:,} files {would}rewritten, {table.files_dropped:,} {would}dropped"
            )
            if not self.dry_run:
                lines += _details(table)
        if self.set_aside_dropped:
            lines.append(f"set aside: {self.set_aside_dropped:,} items {would}removed")
        lines += [
            f"Kafka: {partition} {would}deleted before offset {offset:,}"
            for partition, offset in sorted(self.kafka_records_deleted.items())
        ]
        if self.found_nothing:
            lines.append("nothing was there to be erased")
        if not self.dry_run:
            lines.append("proven: no file holds it" if self.is_proven else f"NOT PROVEN: {self._next}")
        if self.outside:
            lines += ["out of reach:", *(f"  {each}" for each in self.outside)]
        return "\n".join(lines)


def _details(table: TableErasure) -> list[str]:
    lines = [
        f"  {len(table.snapshots_expired):,} snapshots expired, {len(table.files_deleted):,} files deleted, "
        f"{table.wal_segments_deleted:,} segments of the write-ahead log deleted"
    ]
    if table.tags_dropped:
        lines.append(f"  tags dropped: {', '.join(table.tags_dropped)}")
    lines += _some([f"  deleted: {path}" for path in table.files_deleted])
    proof = table.proof
    lines.append(
        f"  searched again: {proof.rows_searched:,} rows in {proof.files_searched:,} files, "
        f"{proof.matches:,} match; {proof.files_still_there:,} deleted files and {proof.segments_left:,} "
        "segments are still there"
    )
    if lost := proof.lost:
        lines.append(
            f"  files that the table needs and that are gone, so nobody can say what they held: {len(lost):,}"
        )
        lines += _some([f"  gone: {path}" for path in lost])
    if unreadable := proof.unreadable:
        lines.append(f"  files that cannot be read, so nobody can say what they hold: {len(unreadable):,}")
        lines += _some([f"  unreadable: {path}: {reason}" for path, reason in sorted(unreadable.items())])
    return lines


def _some(lines: list[str]) -> list[str]:
    more = len(lines) - _PATHS_SHOWN_MAX
    return lines if more <= 0 else [*lines[:_PATHS_SHOWN_MAX], f"  and {more:,} more"]


def utc(micros: int) -> str:
    moment = datetime.datetime.fromtimestamp(micros / 1e6, datetime.UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
