"""Which snapshots may go, and which hours get tags: told from metadata alone."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import LongType, NestedField

from frazil.config.maintain import ExpireConfig
from frazil.lake.snapshots import COMMITTED_AT, POSITION
from frazil.lake.upkeep.aging import expirable, hourly
from frazil.pipeline.land.upkeep import settled_position
from frazil.position import LandingPosition, StreamPosition, WalPosition

BEGIN = datetime(2026, 11, 15, 10, tzinfo=UTC).timestamp()
EMPTY = new_table_metadata(
    Schema(NestedField(1, "a", LongType(), required=True)),
    UNPARTITIONED_PARTITION_SPEC,
    UNSORTED_SORT_ORDER,
    "file:///lake/t",
    {},
)


def metadata_of(
    times: list[float],
    refs: Mapping[str, int] | None = None,
    *,
    landed: int | None = None,
    without_position: tuple[int, ...] = (),
    parents: Mapping[int, int | None] | None = None,
    said: Mapping[int, float] | None = None,
) -> TableMetadata:
    """Snapshots 1, 2, … in a chain, made at these seconds after `BEGIN`; `main` is the last, and `landed`.
    `said` is what time it was for those who committed them, if they say so.
    """
    snapshots = [
        Snapshot(
            snapshot_id=number,
            parent_snapshot_id=(parents or {}).get(number, number - 1 or None),
            sequence_number=number,
            timestamp_ms=int((BEGIN + at) * 1000),
            manifest_list=f"file:///lake/t/metadata/snap-{number}.avro",
            summary=Summary(
                Operation.APPEND,
                **(
                    {}
                    if number in without_position
                    else {POSITION: LandingPosition(position_of(number)).to_text()}
                ),
                **({COMMITTED_AT: _millis(said[number])} if said and number in said else {}),
            ),
        )
        for number, at in enumerate(times, 1)
    ]
    named = {
        name: SnapshotRef(snapshot_id=number, snapshot_ref_type=SnapshotRefType.TAG)
        for name, number in (refs or {}).items()
    }
    named["main"] = SnapshotRef(snapshot_id=len(times), snapshot_ref_type=SnapshotRefType.BRANCH)
    named["landed"] = SnapshotRef(snapshot_id=landed or len(times), snapshot_ref_type=SnapshotRefType.TAG)
    return EMPTY.model_copy(update={"snapshots": snapshots, "refs": named, "current_snapshot_id": len(times)})


def position_of(number: int) -> WalPosition:
    return WalPosition({"stream": StreamPosition(sequence=number)})


def _millis(at: float) -> str:
    return str(int((BEGIN + at) * 1000))


def by_clocks(
    clocks: list[float], *, landed: int | None = None, without_position: tuple[int, ...] = ()
) -> TableMetadata:
    """As frazil commits them when that is what the clocks say: timestamps never go back."""
    stamps = itertools.accumulate(clocks, lambda before, clock: max(clock, before + 0.001))
    said = dict(enumerate(clocks, 1))
    return metadata_of(list(stamps), landed=landed, without_position=without_position, said=said)


def settings(**named: float) -> ExpireConfig:
    return ExpireConfig.model_validate({"snapshots_kept": 1, "kept_seconds": 0, "hourly_tags": 0} | named)


def going(metadata: TableMetadata, now: float, **named: float) -> list[int]:
    return expirable(metadata, settings(**named), int((BEGIN + now) * 1000))


def test_the_newest_stay_and_the_young() -> None:
    metadata = metadata_of([0, 10, 20, 30, 40])
    assert going(metadata, 1000) == [1, 2, 3, 4]
    assert going(metadata, 1000, snapshots_kept=3) == [1, 2]
    assert going(metadata, 50, kept_seconds=45) == []  # for the first, see below
    assert going(metadata, 55, kept_seconds=30) == [1, 2]
    assert going(metadata, 1000, snapshots_kept=100) == []


def test_whatever_has_a_name_stays() -> None:
    metadata = metadata_of([0, 10, 20, 30], {"incident-1": 2})
    assert going(metadata, 1000) == [1, 3]
    config = settings()
    later = int((BEGIN + 1000) * 1000)
    assert expirable(metadata, config, later, drop_tags=["incident-1"]) == [1, 2, 3]
    assert expirable(metadata, config, later, create_tags={"hour-20261115T10": 3}) == [1]


def test_nothing_since_the_oldest_reader_goes() -> None:
    assert going(metadata_of([0, 10, 20, 30, 40], {"reader-a": 4, "reader-b": 2}), 1000) == [1]


def test_a_branch_keeps_as_many_as_it_asks_for() -> None:
    metadata = metadata_of([0, 10, 20, 30, 40], {"b": 3})
    metadata.refs["b"] = SnapshotRef(
        snapshot_id=3, snapshot_ref_type=SnapshotRefType.BRANCH, min_snapshots_to_keep=2
    )
    assert going(metadata, 1000) == [1, 4]


def test_what_no_branch_leads_to_goes_when_it_is_old() -> None:
    """Snapshots that were rolled back, or staged and never published."""
    metadata = metadata_of([0, 10, 20, 30], parents={4: 1})
    assert going(metadata, 1000, snapshots_kept=2) == [2, 3]
    assert going(metadata, 35, snapshots_kept=2, kept_seconds=20) == [2]


def test_the_clean_up_of_the_log_still_learns_what_has_settled() -> None:
    """The last landing was long ago, then came one, and compaction on top of both."""
    metadata = metadata_of([0, 10, 20, 9000, 9010], without_position=(3, 5), landed=4)
    now = 9020
    assert going(metadata, now, kept_seconds=1800) == [1]
    kept = metadata.model_copy(update={"snapshots": metadata.snapshots[1:]})
    assert settled_position(kept, 600, BEGIN + now)[0] is not None


@given(
    gaps=st.lists(st.integers(1, 2000), min_size=1, max_size=30),
    compacted=st.sets(st.integers(2, 30)),
    kept=st.integers(1, 10),
    kept_seconds=st.integers(0, 4000),
    grace=st.integers(0, 4000),
    age=st.integers(0, 5000),
    wrong=st.dictionaries(st.integers(0, 29), st.integers(-10_000, 10_000), max_size=3),
)
def test_an_expiry_never_changes_what_has_settled(
    gaps: list[int],
    compacted: set[int],
    kept: int,
    kept_seconds: int,
    grace: int,
    age: int,
    wrong: dict[int, int],
) -> None:
    """Whatever clocks say."""
    times = [float(sum(gaps[: n + 1])) for n in range(len(gaps))]
    landings = [n for n in range(1, len(times) + 1) if n not in compacted]
    metadata = by_clocks(
        [at + wrong.get(number, 0) for number, at in enumerate(times)],
        without_position=tuple(compacted),
        landed=max(landings),
    )
    now = times[-1] + age
    grace = min(grace, kept_seconds)  # as the configuration demands
    gone = set(going(metadata, now, snapshots_kept=kept, kept_seconds=kept_seconds))
    left = [
        each.model_copy(update={"parent_snapshot_id": None}) if each.parent_snapshot_id in gone else each
        for each in metadata.snapshots
        if each.snapshot_id not in gone
    ]
    after = metadata.model_copy(update={"snapshots": left})
    before = settled_position(metadata, grace, BEGIN + now)
    assert settled_position(after, grace, BEGIN + now)[0] == before[0]
    assert {ref.snapshot_id for ref in metadata.refs.values()} <= {each.snapshot_id for each in left}


HOUR = 3600.0


def test_each_hour_that_is_over_gets_a_tag_on_what_landed_last_in_it() -> None:
    metadata = metadata_of([10, 3599.999, 3600, HOUR * 1.5, HOUR * 2.5], without_position=(4,), landed=5)
    found = hourly(metadata, settings(hourly_tags=24), BEGIN + HOUR * 2.9)
    assert found.create == {"hour-20261115T10": 2, "hour-20261115T11": 3}
    assert found.drop == ()
    found = hourly(metadata, settings(hourly_tags=24), BEGIN + HOUR * 3)
    assert found.create["hour-20261115T12"] == 5


def test_a_tag_is_made_once_and_never_moved() -> None:
    metadata = metadata_of([10, 20, HOUR + 1], {"hour-20261115T10": 1})
    assert hourly(metadata, settings(hourly_tags=24), BEGIN + HOUR * 1.5).create == {}


@pytest.mark.parametrize(("kept", "left"), [(0, set()), (1, {"11"}), (2, {"10", "11"}), (24, {"10", "11"})])
def test_tags_of_hours_long_ago_are_dropped(kept: int, left: set[str]) -> None:
    tags = {"hour-20261115T10": 1, "hour-20261115T11": 2, "hour-99999999T99": 1, "incident-1": 1}
    metadata = metadata_of([10, HOUR + 1, HOUR * 2 + 1], tags)
    found = hourly(metadata, settings(hourly_tags=kept), BEGIN + HOUR * 2 + 5)
    assert set(found.drop) == {f"hour-20261115T{hour}" for hour in {"10", "11"} - left}
    assert found.create == {}


def test_hours_in_which_nothing_landed_have_no_tag() -> None:
    metadata = metadata_of([10, HOUR * 5])
    assert list(hourly(metadata, settings(hourly_tags=24), BEGIN + HOUR * 6).create) == [
        "hour-20261115T15",
        "hour-20261115T10",
    ]


def test_the_way_from_main_to_what_has_landed_stays_whole() -> None:
    """Merges of a table that nothing lands in: without it the table would look rolled back."""
    assert going(metadata_of([0, 10, 20, 30], landed=1, without_position=(2, 3, 4)), 1000) == []


def test_what_was_current_until_a_moment_ago_stays_for_the_queries_that_began_on_it() -> None:
    merged = metadata_of([0, 10, 20, 900], {"other": 4}, landed=4, parents={4: 3})
    assert going(merged, 1000, kept_seconds=200) == [1, 2]
    assert going(merged, 1000, kept_seconds=50) == [1, 2, 3]


# Clocks that were wrong

DAYS = 86_400.0
AHEAD = [0, 400 * DAYS, *(60.0 * number for number in range(2, 11))]
"""Eleven commits, a minute between each and the next, the second by a clock that was ahead."""


def test_a_clock_that_was_ahead_once_keeps_nothing_from_going() -> None:
    metadata = by_clocks(AHEAD)
    assert going(metadata, 30 * DAYS, snapshots_kept=3, kept_seconds=1800) == list(range(1, 9))
    assert going(metadata, 660, snapshots_kept=1, kept_seconds=150) == list(range(1, 9))


def test_what_a_query_may_need_stays_whatever_clock_was_ahead() -> None:
    """The second was committed after a minute, and was current until the third came."""
    metadata = by_clocks(AHEAD)
    assert going(metadata, 600, kept_seconds=600) == []
    assert going(metadata, 715, kept_seconds=600) == []
    assert going(metadata, 730, kept_seconds=600) == [1, 2]
    assert going(by_clocks(AHEAD[:2]), 30 * DAYS, kept_seconds=600) == []  # nobody knows since when


def test_what_has_settled_is_known_whatever_clock_was_ahead() -> None:
    metadata = by_clocks(AHEAD)
    assert settled_position(metadata, 600, BEGIN + 30 * DAYS)[0] == position_of(11)
    assert settled_position(metadata, 600, BEGIN + 901)[0] == position_of(6)
    assert settled_position(metadata, 600, BEGIN + 700)[0] == position_of(1)  # the second: after two minutes


def test_hours_get_their_tags_whatever_clock_was_ahead() -> None:
    metadata = by_clocks([10, HOUR * 400, 20, HOUR + 5, HOUR + 10, HOUR * 2 + 1])
    found = hourly(metadata, settings(hourly_tags=24), BEGIN + HOUR * 2.5)
    assert found.create == {"hour-20261115T10": 3, "hour-20261115T11": 5}
