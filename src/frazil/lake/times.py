"""When snapshots were committed, as far as the clocks of those who did it can be believed.

Iceberg does not let the timestamps of a table go back. So after one commit by a clock that was ahead all that
follow bear times that are still to come, for as long as it was ahead. Each snapshot therefore says too what
time it was for its committer, and the order of the commits tells when the one ahead was.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

COMMITTED_AT = "frazil.committed-at"
"""In a snapshot's summary: milliseconds since 1970, by the clock of whoever committed it."""
_DIGITS_MAX = 18


def commit_times(metadata: TableMetadata, now_ms: int) -> dict[int, int]:
    """In milliseconds since 1970, by snapshot: none is still to come, and none is before that of an earlier
    commit.

    What is older than it seems may be kept too long, and what is younger would go too soon. So of the times
    that a snapshot gives the latest counts that is not still to come, or that of an earlier commit if its
    clock was behind. If all are still to come, it was committed no later than the next one that gives
    another, or than now.
    """
    times: dict[int, int] = {}
    unknown: list[int] = []
    latest = 0
    for snapshot in sorted(metadata.snapshots, key=lambda each: each.sequence_number or 0):
        unknown.append(snapshot.snapshot_id)
        past = [ms for ms in _given(snapshot) if ms <= now_ms]
        if past:
            latest = max(latest, *past)
            times.update(dict.fromkeys(unknown, latest))
            unknown.clear()
    return times | dict.fromkeys(unknown, now_ms)


def _given(snapshot: Snapshot) -> Iterator[int]:
    yield snapshot.timestamp_ms
    text = None if snapshot.summary is None else snapshot.summary.additional_properties.get(COMMITTED_AT)
    if text is not None and text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX:
        yield int(text)
