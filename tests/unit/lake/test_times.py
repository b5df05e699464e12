"""When snapshots were committed, told from what clocks have said and in which order commits came."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.metadata import TableMetadata

from frazil.lake.snapshots import COMMITTED_AT, commit_times
from tests.unit.lake.upkeep.test_aging import BEGIN, by_clocks, metadata_of

YEAR = 365 * 86_400.0


def times(metadata: TableMetadata, now: float) -> list[float]:
    """In seconds after `BEGIN`, the first snapshot's first."""
    found = commit_times(metadata, int((BEGIN + now) * 1000))
    return [found[each.snapshot_id] / 1000 - BEGIN for each in metadata.snapshots]


def test_clocks_that_are_right_are_believed() -> None:
    assert times(by_clocks([0, 60, 120]), 200) == [0, 60, 120]


def test_other_engines_say_nothing_but_the_timestamp() -> None:
    assert times(metadata_of([0, 60, 120]), 200) == [0, 60, 120]
    assert times(metadata_of([0, 60, 120], said={2: 60}), 200) == [0, 60, 120]


def test_after_a_clock_that_was_ahead_commits_have_their_own_times() -> None:
    metadata = by_clocks([0, YEAR, 120, 180])
    assert metadata.snapshots[-1].timestamp_ms > (BEGIN + YEAR) * 1000
    assert times(metadata, 200) == [0, 120, 120, 180]


def test_what_was_committed_ahead_is_as_young_as_can_be_until_another_commit() -> None:
    assert times(by_clocks([0, YEAR]), 200) == [0, 200]
    assert times(metadata_of([0, YEAR, YEAR + 0.001]), 200) == [0, 200, 200]


def test_a_clock_that_was_behind_makes_nothing_older_than_what_was_there_before() -> None:
    assert times(by_clocks([0, 60, -YEAR, 180]), 200) == [0, 60, pytest.approx(60.001), 180]
    assert times(metadata_of([0, 60, YEAR, YEAR], said={3: 90, 4: -YEAR}), 200) == [0, 60, 90, 90]


def test_whoever_is_behind_takes_nothing_for_old() -> None:
    assert times(by_clocks([0, 60, 120]), -YEAR) == [-YEAR] * 3


@pytest.mark.parametrize("text", ["", "soon", "1e3", "\u0663", "-5", "9" * 30])
def test_what_is_no_time_is_not_believed(text: str) -> None:
    metadata = metadata_of([0, 60])
    for snapshot in metadata.snapshots:
        assert snapshot.summary is not None
        snapshot.summary[COMMITTED_AT] = text
    assert times(metadata, 200) == [0, 60]


@given(
    gaps=st.lists(st.integers(1, 5000), min_size=1, max_size=30),
    ahead=st.dictionaries(st.integers(0, 29), st.integers(1, 100_000)),
    age=st.integers(0, 50_000),
)
def test_no_commit_is_taken_for_older_than_it_is_when_clocks_were_ahead(
    gaps: list[int], ahead: dict[int, int], age: int
) -> None:
    true = [sum(gaps[: number + 1]) for number in range(len(gaps))]
    now = true[-1] + age
    found = times(by_clocks([at + ahead.get(number, 0) for number, at in enumerate(true)]), now)
    assert found == sorted(found)
    assert all(at <= taken + 0.001 and taken <= now for at, taken in zip(true, found, strict=True))
