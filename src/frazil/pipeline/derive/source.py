"""Finds the data files of a source table that hold the rows to derive from."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pyiceberg.manifest import DataFile, ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Snapshot

from frazil.errors import DataLost
from frazil.lake.catalog import full_name
from frazil.lake.commits.commit import checkpoint_of
from frazil.lake.live_files import FilePartition, in_parallel, live_files, partition_of
from frazil.lake.snapshots import ERASED, ancestors, position_text
from frazil.position import LandingPosition, NewRows, SourcePosition, landing_position, source_position

Part = Literal["all", "new", "known"]
"""Which rows of a file to read: all, those that landed after the position, or those that landed until it."""


@dataclass(frozen=True)
class SourceFile:
    """A data file of the source, and which of its rows to read."""

    file: DataFile
    part: Part = "all"

    @property
    def partition(self) -> FilePartition:
        return partition_of(self.file)

    @property
    def bytes(self) -> int:
        return int(self.file.file_size_in_bytes)


@dataclass(frozen=True)
class Cut:
    """The files with the rows between two positions of the source: `since` and `until`."""

    since: SourcePosition
    until: SourcePosition
    files: Sequence[SourceFile]
    is_complete: bool = True
    """False: there are more rows after `until`."""
    is_exact: bool = True
    """Whether snapshots told the new files. False: rows are chosen by `_segment`, in files that may hold
    mostly old rows.
    """

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.files)

    @property
    def days(self) -> set[int]:
        return {each.partition.day or 0 for each in self.files}

    @property
    def is_certain(self) -> bool:
        """Whether `_segment` tells new rows from old ones. Not if streams that neither position knows
        have ended.
        """
        return (
            self.is_exact
            or self.since.landing == LandingPosition()
            or self.since.landing.wal.left.streams == self.until.landing.wal.left.streams
        )

    @property
    def new_rows(self) -> NewRows:
        return NewRows(self.since.landing, self.until.landing)


def head_of(table: Table) -> SourcePosition:
    """Returns the position up to which the table has rows now."""
    checkpoint = checkpoint_of(table)
    main = table.metadata.snapshot_by_name(MAIN_BRANCH)
    assert main is not None  # the checkpoint's snapshot is an ancestor of it  # noqa: S101
    return _position(table, main, landing_position(checkpoint.position))


def position_of(table: Table) -> SourcePosition:
    """Returns the position of a derived table. Raises DataLost if it has none that this release can read."""
    try:
        return source_position(checkpoint_of(table).position)
    except ValueError as error:
        reason = f"the table's position cannot be read: {error}; upgrade frazil"
        raise DataLost(full_name(table), reason) from None


def nowhere(source: str) -> SourcePosition:
    """Returns the position of a derived table that holds nothing yet."""
    return SourcePosition(source, 0, LandingPosition())


def unread(table: Table, since: SourcePosition, bytes_max: int) -> Cut:
    """Returns the files with rows that landed after `since`: at most `bytes_max`, but at least one
    snapshot's.

    Follows the snapshots since then. Merged, moved and removed files change nothing in what is derived.
    If the snapshots are gone, or rows were erased since, returns all files that may hold new rows.
    """
    head = head_of(table)
    snapshots = _snapshots_since(table, since)
    if snapshots is None or any(_is_erasure(each) for each in snapshots):
        return _by_segment(table, since, head)
    files: list[SourceFile] = []
    until, size = since, 0
    landings = [each for each in snapshots if _appends(each) and position_text(each) is not None]
    for snapshot, added in zip(
        landings, in_parallel(lambda each: _added(table, each), landings), strict=True
    ):
        size += sum(int(file.file_size_in_bytes) for file in added)
        if files and size > bytes_max:
            return Cut(since, until, files, is_complete=False)
        files += [SourceFile(file) for file in added]
        until = _position(table, snapshot, landing_position(position_text(snapshot) or ""))
    return Cut(since, head, files)


def unread_by_segment(table: Table, since: SourcePosition) -> Cut:
    """Returns all live files that may hold rows that landed after `since`, for a file that `unread` named
    is gone.
    """
    return _by_segment(table, since, head_of(table))


def known(table: Table, position: SourcePosition, days: Collection[int], tenant: str | None = None) -> Cut:
    """Returns the live files of these days (of one tenant) with the rows that landed until the position."""
    files = [
        SourceFile(each.file, "all" if each.sequence <= position.sequence else "known")
        for each in live_files(table)
        for owner, day in [partition_of(each.file)]
        if day in days and (tenant is None or owner == tenant)
    ]
    head = head_of(table)
    is_exact = all(each.part == "all" for each in files)
    return Cut(position, head, sorted(files, key=_place), is_exact=is_exact)


def _by_segment(table: Table, since: SourcePosition, head: SourcePosition) -> Cut:
    part: Part = "all" if since.landing == LandingPosition() else "new"
    files = [SourceFile(each.file, part) for each in live_files(table) if each.sequence > since.sequence]
    return Cut(since, head, sorted(files, key=_place), is_exact=False)


def _place(file: SourceFile) -> tuple[str, int, str]:
    return file.partition.tenant or "", -(file.partition.day or 0), file.file.file_path


def _snapshots_since(table: Table, since: SourcePosition) -> list[Snapshot] | None:
    """Returns the snapshots of `main` after a position, oldest first. None if some of them have expired."""
    main = table.metadata.snapshot_by_name(MAIN_BRANCH)
    found: list[Snapshot] = []
    for snapshot in () if main is None else ancestors(table.metadata, main):
        if snapshot.snapshot_id == since.snapshot_id:
            return found[::-1]
        found.append(snapshot)
    return None


def _appends(snapshot: Snapshot) -> bool:
    return snapshot.summary is not None and snapshot.summary.operation == Operation.APPEND


def _is_erasure(snapshot: Snapshot) -> bool:
    return snapshot.summary is not None and ERASED in snapshot.summary.additional_properties


def _added(table: Table, snapshot: Snapshot) -> list[DataFile]:
    """Returns the files that the snapshot added."""
    return [
        entry.data_file
        for manifest in snapshot.manifests(table.io)
        if manifest.added_snapshot_id == snapshot.snapshot_id
        for entry in manifest.fetch_manifest_entry(table.io)
        if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id
    ]


def _position(table: Table, snapshot: Snapshot, landing: LandingPosition) -> SourcePosition:
    return SourcePosition(table.name()[-1], snapshot.snapshot_id, landing, snapshot.sequence_number or 0)


def tasks(files: Iterable[SourceFile], bytes_max: int) -> list[list[SourceFile]]:
    """Groups files for tasks, each of at most `bytes_max` or a single file. The files of a tenant and day
    are in as few tasks as possible, because each task writes its own files for each of them.
    """
    groups: list[list[SourceFile]] = []
    size = 0
    for file in sorted(files, key=_place):
        if not groups or size + file.bytes > bytes_max:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.bytes
    return groups
