"""Which files are worth merging. Pure: facts of files in, groups out.

A file costs whoever reads the table something however small it is: an entry to plan, a footer, a few reads.
`file_cost_bytes` says what, as bytes that may be rewritten to be rid of it. For each tenant and day:

1. Only small files are merged: under three quarters of `target_bytes`, and under `file_cost_bytes`, as a
   larger one costs more to rewrite than its absence spares.
2. When the day is over and no small file came for a while, all that there are are merged.
3. While it is open they wait until they fill a file of the target size, or until there are `fan_in` of them,
   none larger than 2/`fan_in` of all: a merge then makes the file that a row is in at least `fan_in`/2 times
   larger, so no row is written again often. If that file is not small, it is final: then for twice as many.
4. Neighbours in time are merged together, up to the target size.
5. Always: files gone times `file_cost_bytes` are at least the bytes rewritten. If not, they stay.
6. What spares most for each byte rewritten comes first, up to `round_bytes_max`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from frazil.config.maintain import DAY_SECONDS, CompactConfig
from frazil.lake.facts import FileFacts, all_facts

__all__ = ["FileFacts", "Group", "all_facts", "choose", "due"]

FILES_MAX = 512
"""Of one merge: each input costs it memory."""
_DONE = 0.75
_OVER = 1.25


@dataclass(frozen=True)
class Group:
    """Files of one tenant and day to make one of, in the order of their time."""

    tenant: str | None
    day: int | None
    files: tuple[FileFacts, ...]
    gain: float
    """What readers are spared for each byte rewritten, in bytes: at least 1."""
    closed: bool
    """Whether its day is."""

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


def choose(files: Iterable[FileFacts], config: CompactConfig, now_seconds: float) -> list[Group]:
    """What one round should merge, the best first: no more than `round_bytes_max` in all."""
    chosen: list[Group] = []
    left = config.round_bytes_max
    for group in due(files, config, now_seconds):
        if group.bytes <= left:
            chosen.append(group)
            left -= group.bytes
    return chosen


def due(files: Iterable[FileFacts], config: CompactConfig, now_seconds: float) -> list[Group]:
    """All that is worth merging now, the best first, however much it is. No group is more than a round."""
    found: list[Group] = []
    for (tenant, day), part in groupby(sorted(files, key=_place), key=lambda file: (file.tenant, file.day)):
        small = [file for file in part if file.bytes < small_bytes(config)]
        closed = day is not None and closed_at(day, small, config) <= now_seconds
        for window in _windows(small, config) if closed else _open_windows(small, config):
            gain = _gain(window, config.file_cost_bytes)
            if len(window) > 1 and gain >= 1:
                found.append(Group(tenant, day, tuple(window), gain, closed))
    return sorted(found, key=lambda group: (-group.gain, group.files[0].path))


def small_bytes(config: CompactConfig) -> float:
    """Smaller files are to be merged."""
    return min(_DONE * config.target_bytes, config.file_cost_bytes)


def closed_at(day: int, small: Sequence[FileFacts], config: CompactConfig) -> float:
    """Small files that keep coming, as late data does, keep their day open: else what was made of the first
    would be rewritten for each that follows.
    """
    commits = [file.committed_seconds or 0.0 for file in small]
    return max([(day + 1) * DAY_SECONDS, *commits]) + config.closed_after_seconds


def _place(file: FileFacts) -> tuple[bool, str, bool, int, int, int, str]:
    """By tenant and day, then in time. Paths make it one order whatever order files came in."""
    partition = file.tenant is None, file.tenant or "", file.day is None, file.day or 0
    return *partition, file.first_micros, file.last_micros, file.path


def _open_windows(files: Sequence[FileFacts], config: CompactConfig) -> Iterator[Sequence[FileFacts]]:
    """Of a day that is open. `files` are in the order of their time."""
    left = list(files)
    while pool := _pool(left, config):
        windows = list(_windows(pool, config))
        if not _is_due(windows[-1], config):
            windows.pop()  # it may still grow
        if not windows:
            return
        yield from windows
        taken = {file.path for window in windows for file in window}
        left = [file for file in left if file.path not in taken]


def _pool(files: Sequence[FileFacts], config: CompactConfig) -> list[FileFacts]:
    """As many of the smallest as are due together, in the order of their time."""
    total, size_max = 0, -1
    for count, file in enumerate(sorted(files, key=lambda file: file.bytes), 1):
        total += file.bytes
        if _enough(count, total, file.bytes, config):
            size_max = file.bytes
    return [file for file in files if file.bytes <= size_max]


def _is_due(window: Sequence[FileFacts], config: CompactConfig) -> bool:
    total = sum(file.bytes for file in window)
    return _enough(len(window), total, max(file.bytes for file in window), config)


def _enough(count: int, total: int, largest: int, config: CompactConfig) -> bool:
    wanted = config.fan_in if total < small_bytes(config) else 2 * config.fan_in
    return total >= config.target_bytes or (count >= wanted and largest * config.fan_in <= 2 * total)


def _windows(files: Sequence[FileFacts], config: CompactConfig) -> Iterator[Sequence[FileFacts]]:
    """Neighbours, up to the target size and not much over. All but the last are as full as they get."""
    ceiling = min(_OVER * config.target_bytes, config.round_bytes_max)
    window: list[FileFacts] = []
    total = 0
    for file in files:
        full = total >= config.target_bytes or total + file.bytes > ceiling or len(window) == FILES_MAX
        if window and full:
            yield window
            window, total = [], 0
        window.append(file)
        total += file.bytes
    if window:
        yield window


def _gain(files: Sequence[FileFacts], file_cost_bytes: int) -> float:
    return (len(files) - 1) * file_cost_bytes / max(1, sum(file.bytes for file in files))
