"""Chooses the snapshots that may expire and the hourly tags, from a table's metadata alone."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from frazil.config.maintain import ExpireConfig
from frazil.lake.snapshots import ancestors, commit_times, landed_snapshot, position_text
from frazil.lake.tags import hour_of, hour_tag, kind_of

_HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class HourlyTags:
    """Tags to create, with their snapshots, and tags to drop."""

    create: Mapping[str, int]
    drop: tuple[str, ...]


def hourly(metadata: TableMetadata, config: ExpireConfig, now_seconds: float) -> HourlyTags:
    """Returns the changes so that the last snapshot landed in each past hour is tagged. An hour without a
    landing has no tag.
    """
    this_hour = datetime.fromtimestamp(now_seconds, UTC).replace(minute=0, second=0, microsecond=0)
    first = this_hour - config.hourly_tags * _HOUR
    create: dict[str, int] = {}
    landed = landed_snapshot(metadata)
    times = commit_times(metadata, int(now_seconds * 1000))
    for snapshot in () if landed is None else ancestors(metadata, landed):
        landed_at = datetime.fromtimestamp(times[snapshot.snapshot_id] / 1000, UTC)
        if landed_at < first:
            break
        name = hour_tag(landed_at)
        if landed_at < this_hour and position_text(snapshot) is not None and name not in metadata.refs:
            create.setdefault(name, snapshot.snapshot_id)
    drop = (name for name in metadata.refs if (hour := hour_of(name)) is not None and hour < first)
    return HourlyTags(create, tuple(sorted(drop)))


def expirable(
    metadata: TableMetadata,
    config: ExpireConfig,
    now_ms: int,
    *,
    create_tags: Mapping[str, int] | None = None,
    drop_tags: Collection[str] = (),
) -> list[int]:
    """Returns the ids of snapshots that may expire once those tags are created and dropped, oldest first.

    Kept snapshots:
    - those that a branch or tag names;
    - the newest `snapshots_kept` of `main`, and of a branch its `min_snapshots_to_keep`;
    - those younger than `kept_seconds`, or current at that time, because queries may still use them;
    - all since the oldest tag of a reader;
    - those between `main` and `landed`, which prove that nothing was rolled back;
    - those from `landed` down to the newest position older than `kept_seconds`, which WAL clean-up uses.
    """
    kept = {ref.snapshot_id for name, ref in metadata.refs.items() if name not in drop_tags}
    kept.update((create_tags or {}).values())
    oldest_ms = now_ms - int(config.kept_seconds * 1000)
    times = commit_times(metadata, now_ms)
    kept.update(snapshot_id for snapshot_id, at_ms in times.items() if at_ms >= oldest_ms)
    for name, ref in metadata.refs.items():
        count = ref.min_snapshots_to_keep or 0
        count = max(count, config.snapshots_kept) if name == MAIN_BRANCH else count
        kept.update(each.snapshot_id for each in itertools.islice(_chain(metadata, ref.snapshot_id), count))
    kept.update(_current_since(metadata, times, oldest_ms))
    kept.update(_down_to_landed(metadata))
    kept.update(_down_to_settled(metadata, times, oldest_ms))
    unread = _oldest_reader(metadata, drop_tags)
    if unread is not None:
        kept.update(each.snapshot_id for each in metadata.snapshots if _sequence(each) >= unread)
    expired = [each for each in metadata.snapshots if each.snapshot_id not in kept]
    return [each.snapshot_id for each in sorted(expired, key=_sequence)]


def _chain(metadata: TableMetadata, snapshot_id: int) -> Iterator[Snapshot]:
    snapshot = metadata.snapshot_by_id(snapshot_id)
    return iter(()) if snapshot is None else ancestors(metadata, snapshot)


def _current_since(metadata: TableMetadata, times: Mapping[int, int], oldest_ms: int) -> Iterator[int]:
    """Yields the snapshots that were `main` at that time or later, regardless of their age."""
    main = metadata.current_snapshot_id
    for successor, snapshot in itertools.pairwise(() if main is None else _chain(metadata, main)):
        if times[successor.snapshot_id] < oldest_ms:
            return
        yield snapshot.snapshot_id


def _down_to_landed(metadata: TableMetadata) -> Iterator[int]:
    main, landed = metadata.current_snapshot_id, landed_snapshot(metadata)
    if main is None or landed is None:
        return
    for snapshot in _chain(metadata, main):
        if snapshot.snapshot_id == landed.snapshot_id:
            return
        yield snapshot.snapshot_id


def _down_to_settled(metadata: TableMetadata, times: Mapping[int, int], oldest_ms: int) -> Iterator[int]:
    """Yields all snapshots on the way: across a gap, the position could not be found from `landed`."""
    landed = landed_snapshot(metadata)
    for snapshot in () if landed is None else ancestors(metadata, landed):
        yield snapshot.snapshot_id
        if position_text(snapshot) is not None and times[snapshot.snapshot_id] < oldest_ms:
            return


def _oldest_reader(metadata: TableMetadata, drop_tags: Collection[str]) -> int | None:
    found = [
        _sequence(snapshot)
        for name, ref in metadata.refs.items()
        if kind_of(name) == "reader" and name not in drop_tags
        if (snapshot := metadata.snapshot_by_id(ref.snapshot_id)) is not None
    ]
    return min(found, default=None)


def _sequence(snapshot: Snapshot) -> int:
    return snapshot.sequence_number or 0
