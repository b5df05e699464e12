"""Which files go to another place, and where that may be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.config import Config
from frazil.config.maintain import DAY_SECONDS, CompactConfig, TierConfig
from frazil.errors import Refused
from frazil.lake.catalog import ensure_namespace, open_catalog
from frazil.lake.commits.metadata_commit import set_properties
from frazil.lake.upkeep.choose import FileFacts, due
from frazil.lake.upkeep.tier import choose_tier, data_folders, record_folder, tier_folder, tier_folders
from tests.support.lake.history import History

MIB = 1 << 20
TODAY = 20_000
NOW = TODAY * DAY_SECONDS + DAY_SECONDS / 2
FOLDER = "/cold/otel/logs/1/data"
COMPACT = CompactConfig()
TIER = TierConfig(location="/cold", after_seconds=7 * DAY_SECONDS)


def file_of(
    name: str, day: int | None = TODAY - 30, size: int = 500 * MIB, tenant: str | None = "shop", **facts: Any
) -> FileFacts:
    begin = (day or 0) * DAY_SECONDS * 10**6
    path = f"{facts.pop('folder', '/hot')}/{tenant}/{day}/{name}.parquet"
    return FileFacts(path, tenant, day, size, 1, begin, begin + 10**6, 1, **facts)


def names(files: list[FileFacts]) -> list[str]:
    return [file.path.rpartition("/")[2].removesuffix(".parquet") for file in files]


def test_days_that_ended_long_enough_ago_go_the_oldest_first() -> None:
    files = [
        file_of("b", TODAY - 8),  # ended seven days and half a day ago
        file_of("c", TODAY - 7),
        file_of("a", TODAY - 20),
        file_of("d", TODAY - 20, tenant=None),
        file_of("e", None),
    ]
    assert names(choose_tier(files, FOLDER, TIER, COMPACT, NOW)) == ["a", "d", "b"]
    assert names(choose_tier(files, FOLDER, TIER, COMPACT, NOW + DAY_SECONDS)) == ["a", "d", "b", "c"]


def test_a_day_in_which_something_is_to_be_merged_waits_and_another_does_not() -> None:
    small = [file_of(str(number), size=MIB) for number in range(2)]
    other = file_of("other", tenant="pay")
    assert due(small, COMPACT, NOW)
    assert names(choose_tier([*small, file_of("large"), other], FOLDER, TIER, COMPACT, NOW)) == ["other"]
    never = CompactConfig(enabled=False)
    assert len(choose_tier([*small, file_of("large"), other], FOLDER, TIER, never, NOW)) == 4


def test_a_day_into_which_late_data_came_a_moment_ago_waits() -> None:
    late = [file_of("late", size=MIB, committed_seconds=NOW - 60), file_of("large")]
    assert choose_tier(late, FOLDER, TIER, COMPACT, NOW) == []
    assert len(choose_tier(late, FOLDER, TIER, COMPACT, NOW + COMPACT.closed_after_seconds)) == 2


def test_what_is_there_stays_and_does_not_hold_up_the_rest_of_its_day() -> None:
    there = file_of("there", size=MIB, folder=FOLDER, committed_seconds=NOW - 60)
    assert names(choose_tier([there, file_of("here")], FOLDER, TIER, COMPACT, NOW)) == ["here"]
    elsewhere = file_of("elsewhere", folder=f"{FOLDER}-before")
    assert names(choose_tier([there, elsewhere], FOLDER, TIER, COMPACT, NOW)) == ["elsewhere"]


@given(st.lists(st.integers(1, 3000), max_size=30), st.integers(1, 3000))
def test_a_round_is_bounded_and_always_gets_on(sizes: list[int], most: int) -> None:
    tier = TIER.model_copy(update={"round_bytes_max": most * MIB})
    left = [file_of(f"{at:02}", size=size * MIB) for at, size in enumerate(sizes)]
    never = CompactConfig(enabled=False)
    while left:
        taken = choose_tier(left, FOLDER, tier, never, NOW)
        assert taken
        assert len(taken) == 1 or sum(file.bytes for file in taken) <= tier.round_bytes_max
        left = [file for file in left if file not in taken]


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with closing(open_catalog(Config.model_validate({"data_dir": tmp_path}))) as catalog:
        ensure_namespace(catalog, "otel")
        made = History(catalog)
        made.land()
        yield made


def test_a_table_notes_its_folders_and_only_its_own_count(history: History, tmp_path: Path) -> None:
    table = history.table
    folder = tier_folder(table, f"{tmp_path}/cold")
    assert folder.startswith(f"{tmp_path}/cold/otel/")
    assert folder.endswith(f"/{table.metadata.table_uuid}/data")
    other = tier_folder(table, f"{tmp_path}/colder")
    record_folder(table.catalog, table, folder)
    record_folder(table.catalog, table, other)  # on the table as it was: both stay
    set_properties(table.catalog, table, {"frazil.tier.1": "/", "frazil.tier.2": f"{tmp_path}/home/data"})
    assert set(tier_folders(history.table.metadata)) == {folder, other}
    assert data_folders(history.table)[0] == f"{table.location()}/data"


def test_a_table_and_its_other_place_are_apart_and_of_one_kind() -> None:
    def place(root: str, location: str) -> str:
        table: Any = SimpleNamespace(
            location=lambda: root, name=lambda: ("otel", "logs"), metadata=SimpleNamespace(table_uuid="1")
        )
        return tier_folder(table, location)

    assert place("s3a://lake/otel/logs", "s3://lake/colder") == "s3://lake/colder/otel/logs/1/data"
    for root, location in [
        ("s3://lake/otel/logs", "/cold"),
        ("/lake/otel/logs", "s3://cold"),
        ("file:///lake/otel/logs", "s3://cold"),
    ]:
        with pytest.raises(Refused, match="same kind"):
            place(root, location)
    for root, location in [
        ("s3a://lake/otel/logs", "s3://lake/otel/logs/cold"),
        ("s3://lake/otel/logs", "s3://lake"),
        ("file:///lake/otel/logs", "/lake/otel/logs"),
    ]:
        with pytest.raises(Refused, match="overlaps the table"):
            place(root, location)
