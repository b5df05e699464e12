"""Chooses the files that compaction should merge. Pure: file facts in, groups of files out.

Each file has a fixed cost for readers, even a small one: an entry to plan, a footer, a few reads.
`file_cost_bytes` expresses this cost as the bytes worth rewriting to remove one file. For each tenant and
day:

1. Only small files are merged: below three quarters of `target_bytes`, and below `file_cost_bytes`, because
   rewriting a larger file costs more than removing it saves.
2. When the day is closed (it has ended and no small file was added for a while), all small files are merged.
3. While the day is open, small files wait until they fill a file of the target size, or until there are
   `fan_in` of them, none larger than 2/`fan_in` of their total. Each merge then makes the file of a row at
   least `fan_in`/2 times larger, so no row is rewritten often. If the merged file would not be small, it is
   final, and twice as many files are required.
4. Files adjacent in time are merged together, up to the target size.
5. In all cases, the number of removed files times `file_cost_bytes` must be at least the bytes rewritten.
6. The groups that save most per byte rewritten come first, up to `round_bytes_max`.

Each file of a derived table costs its readers one more partial row of each key, whatever its size. So rules
1, 2 and 5 differ:

- Files are small below three quarters of `target_bytes`. An open day has at most `_DERIVED_FILES_MAX` of
  them: with more, the smallest are merged even if there are fewer than `fan_in` of similar size.
- When the day is closed, all files with rows of several resolutions, of any size, are merged into files of
  one resolution each. Such a file is only merged again if it is small: with late rows, or with others of its
  resolution. If that rewrites more than `file_cost_bytes` for each file that it removes, it waits until no
  late rows were added for a day.
- Pending rows of a day that has ended are settled when the first has waited for twice
  `settled_after_seconds`: all files that may have pending rows are merged. Rows that have waited for less
  than `settled_after_seconds` stay open, so this happens at most once in that time. A day with more than
  `round_bytes_max` in such files is not settled.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from frazil.config.maintain import DAY_SECONDS, CompactConfig
from frazil.lake.live_files import FileFacts, all_facts
from frazil.tables.columns import TableSpec
from frazil.tables.derived.rules import PENDING_RESOLUTIONS, SETTLED, Pending

__all__ = ["FileFacts", "Group", "all_facts", "choose", "due"]

FILES_MAX = 512
"""Maximum number of inputs of one merge: each input costs memory."""
_SMALL_SHARE = 0.75
_OVERSIZE_SHARE = 1.25
_DERIVED_FILES_MAX = 48
"""Small files of an open day of a derived table, before some are merged. Less than the 64 partial rows that a
key may have: more files are added while a merge runs.
"""
_DERIVED_FILES_LEFT = 24


@dataclass(frozen=True)
class Group:
    """Files of one tenant and day to merge into one, ordered by time."""

    tenant: str | None
    day: int | None
    files: tuple[FileFacts, ...]
    gain: float
    """Cost that readers save per byte rewritten: at least 1, except in derived tables."""
    closed: bool
    """Whether the day is closed."""
    due_since: float | None = None
    """Seconds since 1970, if known."""
    settled_until: float | None = None
    """Pending rows of source rows that arrived until then are settled; seconds since 1970. None: no row is
    settled."""

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


def choose(
    files: Iterable[FileFacts], config: CompactConfig, now_seconds: float, spec: TableSpec | None = None
) -> list[Group]:
    """Returns the groups to merge in one round, best first, up to `round_bytes_max` in total. Derived tables
    require `spec`.
    """
    chosen: list[Group] = []
    left = config.round_bytes_max
    for group in due(files, config, now_seconds, spec):
        if group.bytes <= left:
            chosen.append(group)
            left -= group.bytes
    return chosen


def due(
    files: Iterable[FileFacts], config: CompactConfig, now_seconds: float, spec: TableSpec | None = None
) -> list[Group]:
    """Returns all groups worth merging now, best first. No group exceeds `round_bytes_max`. Derived tables
    require `spec`.
    """
    found: list[Group] = []
    for (tenant, day), part in groupby(sorted(files, key=_order), key=lambda file: (file.tenant, file.day)):
        if spec is not None and spec.derived is not None:
            left, settled = _to_settle(list(part), config, now_seconds, spec.derived.pending)
            found += settled
            if left:
                found += _due_derived(left, config, now_seconds, is_split=spec.is_split_by_resolution)
            continue
        small = [file for file in part if file.bytes < small_bytes(config)]
        closed = day is not None and closed_at(day, small, config) <= now_seconds
        for window in _windows(small, config) if closed else _open_windows(small, config):
            gain = _gain(window, config.file_cost_bytes)
            if len(window) > 1 and gain >= 1:
                found.append(Group(tenant, day, tuple(window), gain, closed))
    return sorted(found, key=lambda group: (-group.gain, group.files[0].path))


def _to_settle(
    files: Sequence[FileFacts], config: CompactConfig, now_seconds: float, pending: Pending | None
) -> tuple[Sequence[FileFacts], Sequence[Group]]:
    """Returns the files of one tenant and day that are not settled now, and the group of those that are."""
    day = files[0].day
    if pending is None or day is None:
        return files, ()
    until = now_seconds - pending.settled_after_seconds
    has_open = [file for file in files if file.pending_since is not None and file.resolution != SETTLED]
    due_at = (
        min((file.pending_since or 0.0 for file in has_open), default=math.inf)
        + 2 * pending.settled_after_seconds
    )
    due_at = max(due_at, (day + 1) * DAY_SECONDS + pending.settled_after_seconds)
    chosen = tuple(
        file for file in files if file.resolution is None or file.resolution in PENDING_RESOLUTIONS
    )
    if due_at > now_seconds or not _fits(chosen, config):
        return files, ()
    left = [file for file in files if file not in chosen]
    gain = _gain(chosen, config.file_cost_bytes)
    return left, [Group(files[0].tenant, day, chosen, gain, True, due_at, settled_until=until)]


def _due_derived(
    files: Sequence[FileFacts], config: CompactConfig, now_seconds: float, *, is_split: bool
) -> Iterator[Group]:
    """Yields the groups of one tenant and day of a derived table. `is_split`: files of closed days have one
    resolution each.
    """
    tenant, day = files[0].tenant, files[0].day
    unsplit = [file for file in files if is_split and file.resolution is None]
    split = [file for file in files if not is_split or file.resolution is not None]
    small = [file for file in split if file.bytes < _SMALL_SHARE * config.target_bytes]
    late = unsplit if is_split else small  # split files come from merges, and keep no day open
    if day is not None and (closed := closed_at(day, late, config)) <= now_seconds:
        joined = _joined(unsplit, small, config)
        since = closed + _wait_seconds(len(unsplit), joined, config)
        for window in _bounded_windows([*unsplit, *joined], config) if since <= now_seconds else ():
            if unsplit or len({file.resolution for file in window}) < len(window):
                yield Group(tenant, day, window, _gain(window, config.file_cost_bytes), True, since)
        return
    eager = config.model_copy(update={"file_cost_bytes": config.target_bytes})
    left = [file for file in (unsplit if is_split else small) if file.bytes < small_bytes(eager)]
    windows = [tuple(window) for window in _open_windows(left, eager) if len(window) > 1]
    if not windows and len(left) > _DERIVED_FILES_MAX:
        by_size = sorted(left, key=lambda file: (file.bytes, file.path))
        windows = list(_bounded_windows(by_size[: len(left) - _DERIVED_FILES_LEFT], config))
    for window in windows:
        yield Group(tenant, day, window, _gain(window, config.file_cost_bytes), False)


def _joined(
    unsplit: Sequence[FileFacts], small: Sequence[FileFacts], config: CompactConfig
) -> Sequence[FileFacts]:
    """Returns which small files of one resolution to merge with those that are to be split: all, because late
    rows are of all resolutions. If there are none to split: those of which there are several.
    """
    if unsplit:
        return small if _fits([*unsplit, *small], config) else ()
    counts = Counter(file.resolution for file in small)
    found = [file for file in small if counts[file.resolution] > 1]
    return sorted(found, key=lambda file: (file.resolution or 0, file.path))


def _wait_seconds(unsplit: int, joined: Sequence[FileFacts], config: CompactConfig) -> float:
    """Returns how long `joined`, files of which some were merged before, are left alone after the day closes:
    not at all, unless rewriting them costs more than it saves.
    """
    largest: dict[int | None, int] = {}
    for file in joined:
        largest[file.resolution] = max(file.bytes, largest.get(file.resolution, 0))
    fewer = unsplit + len(joined) - len(largest)
    if sum(largest.values()) <= fewer * config.file_cost_bytes:
        return 0.0
    return max(0.0, DAY_SECONDS - config.closed_after_seconds)


def _fits(files: Sequence[FileFacts], config: CompactConfig) -> bool:
    """Returns whether one merge may read all files."""
    return len(files) <= FILES_MAX and sum(file.bytes for file in files) <= config.round_bytes_max


def _bounded_windows(files: Sequence[FileFacts], config: CompactConfig) -> Iterator[tuple[FileFacts, ...]]:
    """Yields groups of files, as large as one merge may be."""
    window: list[FileFacts] = []
    total = 0
    for file in files:
        if window and (total + file.bytes > config.round_bytes_max or len(window) == FILES_MAX):
            yield tuple(window)
            window, total = [], 0
        window.append(file)
        total += file.bytes
    if window:
        yield tuple(window)


def small_bytes(config: CompactConfig) -> float:
    """Returns the size below which a file is small."""
    return min(_SMALL_SHARE * config.target_bytes, config.file_cost_bytes)


def closed_at(day: int, small: Sequence[FileFacts], config: CompactConfig) -> float:
    """Returns when the day closes. Each new small file, such as late data, keeps the day open: otherwise
    every further small file would cause a rewrite of the merged file.
    """
    commits = [file.committed_seconds or 0.0 for file in small]
    return max([(day + 1) * DAY_SECONDS, *commits]) + config.closed_after_seconds


def _order(file: FileFacts) -> tuple[bool, str, bool, int, int, int, str]:
    """Orders files by tenant, day and time. The path makes the order unique."""
    partition = file.tenant is None, file.tenant or "", file.day is None, file.day or 0
    return *partition, file.first_micros, file.last_micros, file.path


def _open_windows(files: Sequence[FileFacts], config: CompactConfig) -> Iterator[Sequence[FileFacts]]:
    """Yields the windows of an open day. `files` must be ordered by time."""
    left = list(files)
    while pool := _pool(left, config):
        windows = list(_windows(pool, config))
        if not _is_due(windows[-1], config):
            windows.pop()  # more files may be added to it
        if not windows:
            return
        yield from windows
        taken = {file.path for window in windows for file in window}
        left = [file for file in left if file.path not in taken]


def _pool(files: Sequence[FileFacts], config: CompactConfig) -> list[FileFacts]:
    """Returns the largest set of smallest files that are due together, ordered by time."""
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
    count_min = config.fan_in if total < small_bytes(config) else 2 * config.fan_in
    return total >= config.target_bytes or (count >= count_min and largest * config.fan_in <= 2 * total)


def _windows(files: Sequence[FileFacts], config: CompactConfig) -> Iterator[Sequence[FileFacts]]:
    """Yields groups of adjacent files, filled up to the target size or slightly more, except the last."""
    ceiling = min(_OVERSIZE_SHARE * config.target_bytes, config.round_bytes_max)
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
