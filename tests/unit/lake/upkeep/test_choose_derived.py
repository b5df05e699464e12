"""A day of a derived table: one commit a minute, with all that is due merged every minute. How many partial
rows a key has at any time, and how often a byte is written again.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.config.maintain import DAY_SECONDS, CompactConfig, TierConfig
from frazil.lake.upkeep.choose import FILES_MAX, FileFacts, Group, choose, due
from frazil.lake.upkeep.tier import choose_tier
from frazil.tables.columns import TableSpec
from frazil.tables.derived.span_metrics import SPAN_METRICS
from tests.unit.lake.upkeep.test_choose import MIB, TODAY

CONFIG = CompactConfig()
PARTIAL_ROWS_MAX = 64
RESOLUTIONS = (60, 300, 3600, 86_400)
BEGIN = TODAY * DAY_SECONDS
CLOSED = BEGIN + DAY_SECONDS + CONFIG.closed_after_seconds
FOOTER_BYTES = 6_000
ROW_BYTES = 40
WHOLE = SPAN_METRICS
"""Split by resolution when the day is closed."""
UNSPLIT = replace(
    SPAN_METRICS,
    columns=tuple(column for column in SPAN_METRICS.columns if column.name != "resolution"),
    sort_by=SPAN_METRICS.sort_by[1:],
    derived=replace(SPAN_METRICS.derived, resolutions=()) if SPAN_METRICS.derived else None,
)

Buckets = frozenset[tuple[int, int]]
"""Resolution and number of the bucket. Each bucket has a row of each series."""


@dataclass
class Day:
    """One tenant's day: its files with the buckets in them, and what merging them cost."""

    series: int
    spec: TableSpec = WHOLE
    config: CompactConfig = CONFIG
    files: dict[str, tuple[FileFacts, Buckets]] = field(default_factory=dict)
    appended_bytes: int = 0
    rewritten_bytes: int = 0
    merges: int = 0
    number: int = 0

    def append(self, minutes: set[int], now: float) -> None:
        """A commit with rows of these minutes, of all resolutions."""
        seconds = {minute * 60 for minute in minutes}
        buckets = frozenset((each, second // each) for each in RESOLUTIONS for second in seconds)
        self.appended_bytes += self._add(buckets, now)

    def _add(self, buckets: Buckets, now: float) -> int:
        self.number += 1
        size = FOOTER_BYTES + len(buckets) * self.series * ROW_BYTES
        found = {resolution for resolution, _ in buckets}
        only = found.pop() if len(found) == 1 and self.spec.has("resolution") else None
        path = f"{self.number:05}.parquet"
        times = BEGIN * 10**6, (BEGIN + DAY_SECONDS) * 10**6 - 1
        rows = len(buckets) * self.series
        facts = FileFacts(path, "shop", TODAY, size, rows, *times, self.number, now, only)
        self.files[path] = facts, buckets
        return size

    @property
    def facts(self) -> list[FileFacts]:
        return [facts for facts, _ in self.files.values()]

    def partial_rows(self) -> int:
        """The most partial rows that a key has."""
        counts: dict[tuple[int, int], int] = {}
        for _, buckets in self.files.values():
            for bucket in buckets:
                counts[bucket] = counts.get(bucket, 0) + 1
        return max(counts.values())

    def merge(self, group: Group, now: float) -> None:
        """As compaction does: a row for each bucket, in a file for each resolution if the day is closed, and
        a new file at the target size.
        """
        buckets = frozenset[tuple[int, int]]().union(*(self.files.pop(each.path)[1] for each in group.files))
        self.merges += 1
        is_split = group.closed and self.spec.is_split_by_resolution
        parts = (
            [{each for each in buckets if each[0] == one} for one in RESOLUTIONS] if is_split else [buckets]
        )
        per_file = max(1, -(-self.config.target_bytes // (self.series * ROW_BYTES)))
        for part in parts:
            ordered = sorted(part)
            for first in range(0, len(ordered), per_file):
                self.rewritten_bytes += self._add(frozenset(ordered[first : first + per_file]), now)

    def merge_all(self, now: float) -> int:
        done = self.merges
        while groups := choose(self.facts, self.config, now, self.spec):
            for group in groups:
                self.merge(group, now)
        return self.merges - done

    @property
    def amplification(self) -> float:
        return self.rewritten_bytes / self.appended_bytes


def filled(day: Day, *, commits: int = 1440, late: float = 0.0, every: int = 1) -> int:
    """Appends a commit a minute, and merges what is due every so many minutes. Returns the most partial rows
    that a key of the whole day had.
    """
    chance, most = random.Random(7), 0
    for minute in range(commits):
        minutes = {max(0, minute - 1), minute}
        if chance.random() < late:
            minutes.add(chance.randrange(minute + 1))
        day.append(minutes, BEGIN + minute * 60 + 60)
        most = max(most, len(day.files))  # before anything is merged, each has a partial row
        if minute % every == 0:
            day.merge_all(BEGIN + minute * 60 + 60)
    return most


@pytest.mark.parametrize("spec", [WHOLE, UNSPLIT], ids=["split", "unsplit"])
@pytest.mark.parametrize(("series", "amplification"), [(20, 0.4), (1_000, 0.8), (5_000, 0.8)])
def test_a_key_has_few_partial_rows_while_its_day_is_open_and_one_when_it_is_merged(
    series: int, amplification: float, spec: TableSpec
) -> None:
    day = Day(series, spec)
    assert filled(day, late=0.1) <= PARTIAL_ROWS_MAX
    assert day.merge_all(CLOSED - 60) == 0, "the day is not closed yet"
    assert day.merge_all(CLOSED + 60) == 1
    assert day.partial_rows() == 1
    assert day.amplification <= amplification
    expected = set(RESOLUTIONS) if spec is WHOLE else {None}
    assert {facts.resolution for facts in day.facts} == expected
    assert len(day.files) == len(expected)


def test_a_day_of_many_gigabytes_has_few_partial_rows_too() -> None:
    day = Day(30_000)
    assert filled(day, late=0.1) <= PARTIAL_ROWS_MAX
    assert day.appended_bytes > 4 * CONFIG.round_bytes_max
    day.merge_all(CLOSED + 60)
    assert None not in {facts.resolution for facts in day.facts}
    assert day.partial_rows() <= 2, "each merge reads at most round_bytes_max"
    day.merge_all(CLOSED + DAY_SECONDS)
    assert day.amplification <= 1.1
    small = [facts.resolution for facts in day.facts if facts.bytes < 0.75 * CONFIG.target_bytes]
    assert len(small) == len(set(small))
    assert day.merge_all(CLOSED + 30 * DAY_SECONDS) == 0


@pytest.mark.parametrize("fan_in", [4, 1000])
def test_the_bound_of_partial_rows_does_not_depend_on_fan_in(fan_in: int) -> None:
    day = Day(100, config=CompactConfig(fan_in=fan_in))
    assert filled(day, late=0.1) <= PARTIAL_ROWS_MAX
    assert day.amplification <= 10


def test_a_closed_day_of_one_file_for_each_resolution_is_not_merged_again() -> None:
    day = Day(100)
    filled(day, commits=100)
    day.merge_all(CLOSED + 60)
    before = {*day.files}
    assert len(before) == len(RESOLUTIONS)
    for hours in (1, 3, 30, 24 * 30):
        assert day.merge_all(CLOSED + hours * 3600) == 0
    assert {*day.files} == before
    tier = TierConfig(location="/cold", after_seconds=DAY_SECONDS)
    moved = choose_tier(day.facts, "/cold/data", tier, CONFIG, CLOSED + 2 * DAY_SECONDS, WHOLE)
    assert {facts.path for facts in moved} == before


def test_a_day_that_was_merged_into_one_file_before_it_closed_is_split() -> None:
    day = Day(100)
    day.append({*range(1440)}, BEGIN + DAY_SECONDS)
    assert day.merge_all(CLOSED + 60) == 1
    assert {facts.resolution for facts in day.facts} == set(RESOLUTIONS)


def test_late_rows_of_a_closed_day_are_merged_after_a_while_and_together() -> None:
    day = Day(100)
    filled(day)
    day.merge_all(CLOSED + 60)
    begin = CLOSED + DAY_SECONDS
    for minute in range(20):
        day.append({minute}, begin + minute * 60)
        assert day.merge_all(begin + minute * 60) == 0
    last = begin + 19 * 60
    assert day.merge_all(last + CONFIG.closed_after_seconds - 1) == 0
    (group,) = due(day.facts, CONFIG, last + CONFIG.closed_after_seconds, WHOLE)
    assert group.due_since == last + CONFIG.closed_after_seconds
    assert day.merge_all(last + CONFIG.closed_after_seconds) == 1
    assert day.partial_rows() == 1
    assert len(day.files) == len(RESOLUTIONS)


def test_late_rows_that_never_end_are_merged_with_each_other() -> None:
    day = Day(100)
    filled(day)
    day.merge_all(CLOSED + 60)
    finished, done = {*day.files}, day.rewritten_bytes
    for minute in range(1440):
        day.append({minute}, CLOSED + minute * 60)
        day.merge_all(CLOSED + minute * 60)
        assert day.partial_rows() <= PARTIAL_ROWS_MAX
    assert finished <= {*day.files}
    assert day.rewritten_bytes - done < done


def test_few_late_rows_of_a_large_day_wait_until_no_more_were_added_for_a_day() -> None:
    day = Day(5_000)
    filled(day)
    day.merge_all(CLOSED + 60)
    late = CLOSED + DAY_SECONDS
    day.append({7}, late)
    assert day.merge_all(late + CONFIG.closed_after_seconds + 60) == 0
    assert day.partial_rows() == 2
    assert day.merge_all(late + DAY_SECONDS) == 1
    assert day.partial_rows() == 1


def test_a_maintainer_that_was_away_catches_up() -> None:
    day = Day(100)
    filled(day, every=10_000)
    assert len(day.files) > FILES_MAX
    day.merge_all(CLOSED + 60)
    day.merge_all(CLOSED + 120)
    assert day.partial_rows() == 1
    assert len(day.files) == len(RESOLUTIONS)


@given(
    commits=st.lists(st.sets(st.integers(0, 1439), min_size=1, max_size=4), min_size=1, max_size=30),
    series=st.sampled_from([1, 1_000, 20_000]),
    split=st.booleans(),
    round_mib=st.sampled_from([8, 64, 2048]),
    fan_in=st.integers(2, 40),
)
def test_merging_ends_whatever_files_there_are_and_keeps_all_keys(
    commits: list[set[int]], series: int, split: bool, round_mib: int, fan_in: int
) -> None:
    config = CompactConfig(fan_in=fan_in, round_bytes_max=round_mib * MIB, target_bytes=8 * MIB)
    day = Day(series, WHOLE if split else UNSPLIT, config)
    for number, minutes in enumerate(commits):
        day.append(minutes, BEGIN + number * 60)
        if number % 3 == 0:
            day.merge_all(BEGIN + number * 60)
    buckets = frozenset[tuple[int, int]]().union(*(each for _, each in day.files.values()))
    now = CLOSED
    for _ in range(20):
        now += 2 * DAY_SECONDS
        if not day.merge_all(now):
            break
    else:
        raise AssertionError("files are merged again and again")
    assert frozenset[tuple[int, int]]().union(*(each for _, each in day.files.values())) == buckets
    assert all(
        not split or facts.resolution is not None or facts.bytes > config.round_bytes_max
        for facts in day.facts
    )
    if sum(facts.bytes for facts in day.facts) < 0.75 * config.target_bytes:
        assert day.partial_rows() == 1
