"""What is worth merging, whatever files there are."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from frazil.config.maintain import DAY_SECONDS, CompactConfig
from frazil.lake.upkeep.choose import FILES_MAX, FileFacts, choose, due

MIB = 1024 * 1024
TODAY = 20_000
NOON = TODAY * DAY_SECONDS + DAY_SECONDS / 2
CONFIG = CompactConfig(target_bytes=512 * MIB, fan_in=32, file_cost_bytes=32 * MIB)


def file_of(
    number: int,
    size: int = MIB,
    *,
    tenant: str | None = "shop",
    day: int | None = TODAY,
    committed: float | None = None,
) -> FileFacts:
    """The file of the `number`-th half minute of its day."""
    first = ((day or 0) * DAY_SECONDS + number * 30) * 1_000_000
    return FileFacts(
        path=f"{tenant}/{day}/{number:05}.parquet",
        tenant=tenant,
        day=day,
        bytes=size,
        rows=size // 50,
        first_micros=first,
        last_micros=first + 29_999_999,
        sequence=number + 1,
        committed_seconds=committed,
    )


def files_of(count: int, size: int = MIB, **rest: object) -> list[FileFacts]:
    return [file_of(number, size, **rest) for number in range(count)]  # type: ignore[arg-type]


def paths(group: object) -> list[str]:
    return [file.path for file in group.files]  # type: ignore[attr-defined]


def test_an_open_day_waits_for_as_many_files_as_fan_in_says() -> None:
    few = files_of(CONFIG.fan_in - 1, 20_000)
    assert choose(few, CONFIG, NOON) == []
    (group,) = choose([*few, file_of(CONFIG.fan_in, 20_000)], CONFIG, NOON)
    assert (group.tenant, group.day, group.closed) == ("shop", TODAY, False)
    assert len(group.files) == CONFIG.fan_in
    assert group.bytes == CONFIG.fan_in * 20_000
    assert group.rows == CONFIG.fan_in * 400


def test_what_a_merge_made_is_not_merged_again_with_a_few_small_ones() -> None:
    merged = file_of(0, 15 * MIB)
    small = [file_of(number, 20_000) for number in range(1, CONFIG.fan_in + 8)]
    (group,) = choose([merged, *small], CONFIG, NOON)
    assert paths(group) == [file.path for file in small]


def test_files_that_fill_one_of_the_target_size_need_not_be_many() -> None:
    (group,) = choose(files_of(18, 29 * MIB), CONFIG, NOON)
    assert len(group.files) == 18
    assert choose(files_of(17, 29 * MIB), CONFIG, NOON) == []


def test_a_result_that_is_final_is_made_of_twice_as_many() -> None:
    assert choose(files_of(2 * CONFIG.fan_in - 1, 3 * MIB), CONFIG, NOON) == []
    (group,) = choose(files_of(2 * CONFIG.fan_in, 3 * MIB), CONFIG, NOON)
    assert len(group.files) == 2 * CONFIG.fan_in


def test_a_closed_day_leaves_nothing_small_behind() -> None:
    later = (TODAY + 1) * DAY_SECONDS + CONFIG.closed_after_seconds
    files = [file_of(0, 100), file_of(1, 25 * MIB), file_of(2, 3 * MIB)]
    assert choose(files, CONFIG, later - 1) == []
    (group,) = choose(files, CONFIG, later)
    assert group.closed
    assert len(group.files) == 3


def test_a_day_is_not_closed_while_late_data_keeps_coming() -> None:
    week_later = (TODAY + 7) * DAY_SECONDS
    arrived = week_later - CONFIG.closed_after_seconds + 1
    files = [file_of(0, 100), file_of(1, 100, committed=arrived)]
    assert choose(files, CONFIG, week_later) == []
    assert len(choose(files, CONFIG, week_later + 2)) == 1
    large = [file_of(0, 100), file_of(1, 100), file_of(2, 400 * MIB, committed=arrived)]
    assert len(choose(large, CONFIG, week_later)) == 1, "what is done keeps no day open"


def test_a_late_file_is_no_reason_to_rewrite_a_large_one() -> None:
    week_later = (TODAY + 7) * DAY_SECONDS
    large = [file_of(number, size * MIB) for number, size in enumerate((384, 435, 512, 200, 33))]
    late = [file_of(number, 4_000) for number in range(100, 110)]
    assert choose([*large, late[0]], CONFIG, week_later) == []
    (group,) = choose([*large, *late], CONFIG, week_later)
    assert paths(group) == [file.path for file in late]


def test_neighbours_in_time_are_merged_together() -> None:
    files = files_of(96, 16 * MIB)
    random.Random(7).shuffle(files)
    groups = choose(files, CONFIG, NOON)
    assert sorted(paths(group) for group in groups) == [
        [file_of(number).path for number in range(begin, begin + 32)] for begin in (0, 32, 64)
    ]


def test_what_does_not_fill_a_file_yet_waits_for_more() -> None:
    (group,) = choose(files_of(40, 16 * MIB), CONFIG, NOON)
    assert paths(group) == [file.path for file in files_of(32)]


def test_files_that_cost_as_much_to_rewrite_as_they_spare_stay() -> None:
    """Each would be gone, but for the one that is made of them."""
    later = (TODAY + 3) * DAY_SECONDS
    assert choose(files_of(5, 31 * MIB), CONFIG, later) == []
    assert choose(files_of(5, 25 * MIB), CONFIG, later)[0].gain == 4 * 32 / (5 * 25)
    assert choose([*files_of(2, 31 * MIB), file_of(10, 4 * MIB)], CONFIG, later) == []
    assert len(choose([*files_of(3, 31 * MIB), file_of(10, 40_000)], CONFIG, later)[0].files) == 4


def test_tenants_and_days_are_never_mixed() -> None:
    later = (TODAY + 3) * DAY_SECONDS
    files = [
        file_of(number, tenant=tenant, day=day)
        for number in range(3)
        for tenant in ("shop", "", None)
        for day in (TODAY, TODAY + 1, -1, None)
    ]
    groups = due(files, CONFIG, later)
    assert {(group.tenant, group.day) for group in groups} == {
        (tenant, day) for tenant in ("shop", "", None) for day in (TODAY, TODAY + 1, -1)
    }
    assert all(len(group.files) == 3 for group in groups)
    assert all({(f.tenant, f.day) for f in group.files} == {(group.tenant, group.day)} for group in groups)


def test_a_table_without_days_is_always_open() -> None:
    aside = files_of(CONFIG.fan_in, 3_000, tenant=None, day=None)
    assert choose(aside[1:], CONFIG, NOON) == []
    (group,) = choose(aside, CONFIG, NOON)
    assert not group.closed


def test_the_best_come_first_and_a_round_ends_where_its_bytes_do() -> None:
    config = CONFIG.model_copy(update={"round_bytes_max": 600 * MIB})
    files = [
        *files_of(64, 16 * MIB, tenant="large"),
        *files_of(40, 20_000, tenant="small"),
        *files_of(40, MIB // 2, tenant="medium"),
    ]
    groups = choose(files, config, NOON)
    assert [group.tenant for group in groups] == ["small", "medium", "large"]
    assert [group.gain for group in groups] == sorted((group.gain for group in groups), reverse=True)
    assert sum(group.bytes for group in groups) <= config.round_bytes_max
    assert len(due(files, config, NOON)) == 4


def test_a_round_smaller_than_the_target_still_gets_on() -> None:
    config = CONFIG.model_copy(update={"round_bytes_max": 100 * MIB})
    (group,) = choose(files_of(64, 16 * MIB), config, NOON)
    assert len(group.files) == 6
    assert group.bytes == 96 * MIB


def test_one_merge_reads_so_many_files_at_most() -> None:
    groups = due(files_of(FILES_MAX + 40, 1_000), CONFIG, NOON)
    assert sorted(len(group.files) for group in groups) == [40, FILES_MAX]


def test_files_that_cost_nothing_are_left_alone() -> None:
    assert choose(files_of(500, 1_000), CompactConfig(file_cost_bytes=0), NOON) == []


sizes = st.one_of(
    st.integers(0, 100_000),
    st.integers(100_000, 40 * MIB),
    st.integers(MIB, 600 * MIB),
    st.sampled_from([900, 999, 3 * MIB, 4 * MIB - 1, 31 * MIB, 32 * MIB - 1, 150 * MIB, 384 * MIB - 1]),
)
configs = st.builds(
    CompactConfig,
    target_bytes=st.sampled_from([MIB, 64 * MIB, 512 * MIB]),
    fan_in=st.integers(2, 40),
    file_cost_bytes=st.sampled_from([0, 1000, 4 * MIB, 32 * MIB, 400 * MIB]),
    round_bytes_max=st.sampled_from([MIB, 100 * MIB, 2048 * MIB]),
)


runs = st.tuples(
    sizes,
    st.integers(1, 40),
    st.sampled_from(["a", "b"]),
    st.sampled_from([TODAY - 2, TODAY]),
    st.sampled_from([None, NOON - 100, NOON - 10_000]),
)


@st.composite
def tables(draw: st.DrawFn) -> list[FileFacts]:
    """Runs of files of one size each, one after the other in time."""
    return [
        replace(
            file_of(run * 50 + number, size, tenant=tenant, day=day, committed=committed),
            path=f"{run}-{number}.parquet",
        )
        for run, (size, times, tenant, day, committed) in enumerate(draw(st.lists(runs, max_size=8)))
        for number in range(times)
    ]


@settings(max_examples=150, deadline=None)
@given(files=tables(), config=configs)
def test_whatever_there_is_each_group_pays_and_no_file_is_in_two(
    files: list[FileFacts], config: CompactConfig
) -> None:
    groups = choose(files, config, NOON)
    chosen = [file for group in groups for file in group.files]
    assert len({file.path for file in chosen}) == len(chosen)
    assert {file.path for file in chosen} <= {file.path for file in files}
    assert all(file.bytes < 0.75 * config.target_bytes for file in chosen)
    assert sum(file.bytes for file in chosen) <= config.round_bytes_max
    for group in groups:
        assert 2 <= len(group.files) <= FILES_MAX
        assert {(file.tenant, file.day) for file in group.files} == {(group.tenant, group.day)}
        assert (len(group.files) - 1) * config.file_cost_bytes >= group.bytes
        assert group.gain >= 1
        assert group.bytes <= 1.25 * config.target_bytes
        assert list(group.files) == sorted(group.files, key=lambda file: file.first_micros)


@settings(max_examples=60, deadline=None)
@given(files=tables(), config=configs, seed=st.integers(0, 1000))
def test_the_order_in_which_files_come_does_not_matter(
    files: list[FileFacts], config: CompactConfig, seed: int
) -> None:
    mixed = random.Random(seed).sample(files, len(files))
    assert choose(mixed, config, NOON) == choose(files, config, NOON)


@settings(max_examples=60, deadline=None)
@given(files=tables(), config=configs)
def test_what_is_due_is_due_in_a_round_of_its_own(files: list[FileFacts], config: CompactConfig) -> None:
    """Nothing waits for ever because it does not fit."""
    assert bool(due(files, config, NOON)) == bool(choose(files, config, NOON))
    assert all(group.bytes <= config.round_bytes_max for group in due(files, config, NOON))


@settings(max_examples=60, deadline=None)
@given(files=tables(), config=configs, shrink=st.sampled_from([0.4, 0.85, 1.0]))
def test_merging_ends_when_nothing_new_comes(
    files: list[FileFacts], config: CompactConfig, shrink: float
) -> None:
    there = {file.path: file for file in files}
    for round_number in range(len(files) + 1):
        groups = choose(there.values(), config, NOON)
        if not groups:
            return
        before = len(there)
        for number, group in enumerate(groups):
            for file in group.files:
                del there[file.path]
            made = replace(
                group.files[0],
                path=f"made-{round_number}-{number}",
                bytes=int(group.bytes * shrink),
            )
            there[made.path] = made
        assert len(there) < before
    raise AssertionError("it goes on for ever")
