"""What is known of the streams of one table: which segments are there, and the rows that are kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from frazil.query.chunks import ChunkFolder, Run, merged, run_of
from frazil.query.segment_rows import SegmentRows

_IN_MEMORY_BYTES_MAX = 4 * 2**20
_IN_MEMORY_RUNS_MAX = 64
"""Of one tenant and stream. Rows that nobody asks for are written in larger pieces, or never."""


@dataclass(frozen=True)
class Note:
    """What a segment said. One that could not be read has a problem instead of counts."""

    received: int = 0
    rows_before: int | None = None
    rows_after: int | None = None
    """Of the stream, all tenants."""
    problem: str | None = None


@dataclass
class Part:
    """Consecutive decoded segments of a stream."""

    first: int
    next: int
    notes: dict[int, Note]
    runs: dict[str, Run]

    @property
    def received(self) -> int:
        """Of its oldest segment that says so."""
        return next((self.notes[n].received for n in sorted(self.notes) if self.notes[n].received), 0)

    @property
    def bytes(self) -> int:
        return sum(run.bytes for run in self.runs.values())

    def write_large(self, folder: ChunkFolder, name: str) -> None:
        for run in self.runs.values():
            if run.memory_bytes > _IN_MEMORY_BYTES_MAX:
                run.file, run.table = folder.write(name, run.table), None


def part_of(first: int, segments: Sequence[SegmentRows]) -> Part:
    notes: dict[int, Note] = {}
    pieces: dict[str, list[tuple[int, pa.Table]]] = {}
    for sequence, segment in enumerate(segments, first):
        facts = segment.facts
        if facts is None:
            notes[sequence] = Note(problem=segment.problem)
            continue
        notes[sequence] = Note(
            facts.received_max_unix_nano, facts.stream_rows - facts.rows, facts.stream_rows
        )
        for tenant, table in segment.by_tenant.items():
            pieces.setdefault(tenant, []).append((sequence, table))
    runs = {tenant: run_of(found) for tenant, found in pieces.items()}
    return Part(first, first + len(segments), notes, runs)


@dataclass
class Line:
    """One stream. Segments from `listed` up to `next` are known to have been there without a gap; rows are
    kept of those from `first` on.
    """

    listed: int
    first: int
    next: int
    notes: dict[int, Note] = field(default_factory=dict)
    runs: dict[str, list[Run]] = field(default_factory=dict)
    rows_dropped: int = 0
    """Of the stream, up to the last segment that was read and is not kept."""
    _problems: dict[int, str] = field(default_factory=dict)
    absent_since: float | None = None
    """Since when the store has nothing of it any more."""

    @property
    def bytes(self) -> int:
        return sum(run.bytes for runs in self.runs.values() for run in runs)

    @property
    def oldest(self) -> int:
        """When its oldest kept segment was received."""
        found = (self.notes[number].received for number in range(self.first, self.next))
        return next((received for received in found if received), 0)

    def rows_before_first(self) -> int:
        found = (self.notes[number].rows_before for number in range(self.first, self.next))
        return next((rows for rows in found if rows is not None), self.rows_dropped)

    def problems(self, begin: int) -> list[str]:
        """Of the segments from a sequence on, in their order."""
        return [self._problems[number] for number in sorted(self._problems) if number >= begin]

    def append(self, part: Part) -> None:
        assert part.first == self.next, "parts of a stream follow each other"  # noqa: S101
        self.next = part.next
        self._note(part)
        for tenant, run in part.runs.items():
            self.runs.setdefault(tenant, []).append(run)

    def prepend(self, part: Part) -> None:
        assert part.next == self.first, "parts of a stream follow each other"  # noqa: S101
        self.first = part.first
        self._note(part)
        for tenant, run in part.runs.items():
            self.runs.setdefault(tenant, []).insert(0, run)

    def _note(self, part: Part) -> None:
        self.notes.update(part.notes)
        self._problems.update(
            {number: note.problem for number, note in part.notes.items() if note.problem is not None}
        )

    def forget_before(self, sequence: int) -> list[Run]:
        """Keeps no rows of earlier segments; returns the runs of which nothing is left."""
        if sequence <= self.first:
            return []
        self.first = sequence
        for number, note in self.notes.items():
            if number < sequence and note.rows_after is not None:
                self.rows_dropped = max(self.rows_dropped, note.rows_after)
        self.notes = {number: note for number, note in self.notes.items() if number >= sequence}
        self._problems = {number: text for number, text in self._problems.items() if number >= sequence}
        gone: list[Run] = []
        for tenant, runs in list(self.runs.items()):
            gone += [run for run in runs if run.last < sequence]
            kept = [run for run in runs if run.last >= sequence]
            if kept:
                self.runs[tenant] = kept
                kept[0].starts = kept[0].starts[kept[0].at(sequence) :]
            else:
                del self.runs[tenant]
        return gone

    def write(self, folder: ChunkFolder, name: str, tenant: str) -> None:
        """What is in memory becomes files, one for all that stand together."""
        runs: list[Run] = []
        for group in _together(self.runs.get(tenant, []), folder.chunk_bytes_max):
            if group[0].table is None:
                runs += group
                continue
            run = merged(group, [each.table for each in group])
            run.file, run.table = folder.write(name, run.table), None
            runs.append(run)
        if runs:
            self.runs[tenant] = runs

    def replace(self, tenant: str, old: Sequence[Run], new: Run) -> bool:
        """False if the old ones are not there any more."""
        runs = self.runs.get(tenant, [])
        at = next((number for number, run in enumerate(runs) if run is old[0]), -1)
        if at < 0 or [id(run) for run in runs[at : at + len(old)]] != [id(run) for run in old]:
            return False
        new.starts = new.starts[new.at(self.first) :]
        self.runs[tenant] = [*runs[:at], new, *runs[at + len(old) :]]
        return True

    def write_large(self, folder: ChunkFolder, name: str, tenants: Iterable[str]) -> None:
        for tenant in tenants:
            waiting = [run for run in self.runs.get(tenant, []) if run.table is not None]
            size = sum(run.memory_bytes for run in waiting)
            if size > _IN_MEMORY_BYTES_MAX or len(waiting) > _IN_MEMORY_RUNS_MAX:
                self.write(folder, name, tenant)


def _together(runs: Sequence[Run], bytes_max: int) -> list[list[Run]]:
    """Neighbours in memory, up to the size of one chunk; those in files alone."""
    groups: list[list[Run]] = []
    size = 0
    for run in runs:
        joins = groups and run.table is not None and groups[-1][-1].table is not None
        if joins and size + run.memory_bytes <= bytes_max:
            groups[-1].append(run)
            size += run.memory_bytes
        else:
            groups.append([run])
            size = run.memory_bytes
    return groups
