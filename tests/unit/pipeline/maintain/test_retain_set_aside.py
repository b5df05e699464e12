"""Old data that was set aside is removed: first its row, then its copy in the log."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from frazil.errors import Conflict
from frazil.lake.commits import commit
from frazil.lake.commits.commit import Committer
from frazil.ledger import balance
from frazil.pipeline.land import set_aside as landing_set_aside
from frazil.pipeline.maintain.retain import set_aside as retention
from frazil.pipeline.maintain.retain.rules import RetentionRun
from frazil.storage import Store
from tests.support.known_lake import DAY, KnownLake


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[KnownLake]:
    made = KnownLake(tmp_path, land={"wal_grace_seconds": 0})
    with contextlib.closing(made):
        for number in range(2):
            set_aside(made, number)
        yield made


def set_aside(lake: KnownLake, number: int) -> None:
    """A segment that cannot be read; landed, it is a row, a copy, and no more in the log."""
    path = broken(lake, number)
    lake.land()
    path.unlink()


def broken(lake: KnownLake, number: int) -> Path:
    name = lake.write([("acme", f"x{number}", 9, 0.0)])
    path = lake.config.wal_dir / name.path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    return path


def rows(lake: KnownLake) -> int:
    return int(lake.table("set_aside").scan().to_arrow().num_rows)


def copies(lake: KnownLake) -> list[str]:
    return [path.name for path in (lake.config.wal_dir / "set-aside").rglob("*") if path.is_file()]


def test_young_rows_are_kept(lake: KnownLake) -> None:
    lake.retain(table="set_aside")  # which notes the time with the table
    location = lake.table("set_aside").metadata_location
    assert lake.retain(table="set_aside", confirmed=True).is_nothing
    assert lake.table("set_aside").metadata_location == location
    assert (rows(lake), len(copies(lake))) == (2, 4)


def test_old_rows_are_removed_with_their_copies(lake: KnownLake) -> None:
    lake.now += 31 * DAY
    report = lake.retain(table="set_aside", confirmed=True, dry_run=True)
    assert (report.rows_removed, report.detail["copies_deleted"]) == (2, 2)
    assert (rows(lake), len(copies(lake))) == (2, 4)
    report = lake.retain(table="set_aside", confirmed=True)
    assert (report.rows_removed, report.detail["copies_deleted"]) == (2, 2)
    assert (rows(lake), copies(lake)) == (0, [])
    assert lake.retain(table="set_aside", confirmed=True).is_nothing
    assert balance(lake.config).problems == []


def test_copies_whose_rows_went_before_a_death_go_the_next_time(
    lake: KnownLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(store: Store, locations: list[str]) -> None:
        raise KeyboardInterrupt

    lake.now += 31 * DAY
    with monkeypatch.context() as patched:
        patched.setattr(retention, "delete_copies", die)
        with pytest.raises(KeyboardInterrupt):
            lake.retain(table="set_aside", confirmed=True)
    assert (rows(lake), len(copies(lake))) == (0, 4)
    lake.retain(table="set_aside", confirmed=True)
    assert copies(lake) == []


def test_a_copy_stays_while_its_segment_is_in_the_log(lake: KnownLake) -> None:
    """A landing is setting it aside just now, and its row does not exist yet."""
    name = lake.write([("acme", "y", 9, 0.0)])
    lake.store.create(f"set-aside/{name.path}", b"copy")
    lake.now += 400 * DAY
    lake.retain(table="set_aside", confirmed=True)
    assert copies(lake) == [Path(name.path).name]


def test_data_set_aside_by_a_clock_that_is_behind_gets_the_time_known_to_the_table(
    lake: KnownLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.retain(table="set_aside")
    behind = time.time() - 200 * DAY
    monkeypatch.setattr(landing_set_aside, "time", SimpleNamespace(time=lambda: behind))
    monkeypatch.setattr(commit, "time", SimpleNamespace(time=lambda: behind, monotonic=time.monotonic))
    set_aside(lake, 2)
    assert lake.retain(table="set_aside").rows_removed == 0
    assert rows(lake) == 3


def test_a_clock_a_year_ahead_keeps_what_was_set_aside_until_it_is_confirmed(lake: KnownLake) -> None:
    lake.retain(table="set_aside")
    lake.now += 365 * DAY
    report = lake.retain(table="set_aside")
    assert "--confirm set_aside" in report.held
    assert (rows(lake), len(copies(lake))) == (2, 4)
    assert lake.retain(table="set_aside", confirmed=True).rows_removed == 2


def test_rows_of_one_file_that_are_young_stay(lake: KnownLake) -> None:
    table = lake.table("set_aside")
    times = sorted(table.scan().to_arrow()["time"].to_pylist())
    lake.now = times[1].timestamp() + 30 * DAY - 1e-3  # between the two, or before the first
    report = lake.retain(table="set_aside", confirmed=True)
    assert report.rows_removed == 1
    assert rows(lake) == 1
    assert len(copies(lake)) == 2


def test_a_copy_stays_whose_row_has_come_since_the_table_was_loaded(lake: KnownLake) -> None:
    """Of a stream that is older than anything is kept. Its segment has landed and is cleaned up by then."""
    table = lake.table("set_aside")
    set_aside(lake, 2)
    newest = max(lake.table("set_aside").scan().to_arrow()["time"].to_pylist())
    now = newest.timestamp() + 30 * DAY - 1e-3
    retention.retain_set_aside(lake.config, lake.catalog, table, RetentionRun(now, confirmed=True))
    assert rows(lake) == 1
    assert len(copies(lake)) == 2


def test_discarded_files_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def overtaken(*_: Any, **__: Any) -> None:
        raise Conflict("otel.set_aside", "another was faster")

    with contextlib.closing(KnownLake(tmp_path)) as lake:
        broken(lake, 0), broken(lake, 1)
        lake.land()  # both rows are in one file
        table = lake.table("set_aside")
        before = sorted(tmp_path.rglob("*.parquet"))
        monkeypatch.setattr(Committer, "overwrite", overtaken)
        first = lambda rows: pa.array([number == 0 for number in range(rows.num_rows)])  # noqa: E731
        with pytest.raises(Conflict):
            retention.drop_rows(lake.config, lake.catalog, table, first)
        assert sorted(tmp_path.rglob("*.parquet")) == before
        assert rows(lake) == 2
