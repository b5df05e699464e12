"""Retention removes rows that are old enough, and nothing else, and the ledger still balances."""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile

from frazil.errors import ConfigError
from frazil.lake.commits.commit import Committer
from frazil.lake.commits.metadata_commit import json_property
from frazil.lake.live_files import live_files
from frazil.ledger import balance
from frazil.pipeline.maintain.retain.rules import RETENTION
from tests.support.known_lake import KnownLake
from tests.support.local_runner import LocalRunner


@contextlib.contextmanager
def kept(folder: Path, *rules: dict[str, Any], **settings: Any) -> Iterator[KnownLake]:
    lake = KnownLake(folder, maintain={"retention": {"rules": list(rules), **settings}})
    with contextlib.closing(lake):
        yield lake


ROWS = [
    ("acme", "old debug", 5, 10.0),
    ("acme", "old error", 17, 10.0),
    ("acme", "new debug", 5, 3.0),
    ("globex", "old debug of globex", 5, 10.0),
    ("globex", "ancient", 17, 50.0),
]


def test_files_of_old_days_are_dropped_as_a_whole_and_the_ledger_balances(tmp_path: Path) -> None:
    with kept(tmp_path, {"after_seconds": "7d", "tenant": "acme"}, {"after_seconds": "30d"}) as lake:
        lake.fill(ROWS)
        before = lake.data_files()
        report = lake.retain()
        assert lake.bodies() == Counter({"new debug": 1, "old debug of globex": 1})
        assert lake.data_files() < before, "nothing was rewritten"
        assert (report.rows_removed, report.files_in, report.files_out) == (3, 2, 0)
        assert report.detail["partitions"] == 2
        assert balance(lake.config).problems == []
        assert lake.retain().is_nothing


def test_rows_that_match_a_condition_are_removed_and_files_without_any_are_not_touched(
    tmp_path: Path,
) -> None:
    with kept(tmp_path, {"after_seconds": "7d", "where": "severity_number < 9", "table": "logs"}) as lake:
        lake.fill(ROWS, [("acme", "another old error", 17, 10.0)])
        untouched = {path for path in lake.data_files() if "globex" in path}
        report = lake.retain()
        assert lake.bodies() == Counter(
            {"old error": 1, "another old error": 1, "new debug": 1, "ancient": 1}
        )
        assert report.rows_removed == 2
        assert (report.detail["files_dropped"], report.detail["files_rewritten"]) == (1, 1)
        assert len(untouched & lake.data_files()) == 1
        assert balance(lake.config).problems == []


@pytest.mark.parametrize("where", [None, "severity_number < 9"])
def test_a_file_that_is_lost_does_not_keep_the_others(tmp_path: Path, where: str | None) -> None:
    rule = {"after_seconds": "7d"} | ({} if where is None else {"where": where, "table": "logs"})
    later = {"after_seconds": "1h", "where": "body LIKE 'new%'", "table": "logs"}
    with kept(tmp_path, rule, later) as lake:
        lake.fill([("acme", "lost debug", 5, 20.0)])
        (lost,) = lake.data_files()
        lake.fill(ROWS)
        data = Path(lost).read_bytes()
        Path(lost).unlink()
        would = lake.retain(dry_run=True)
        report = lake.retain()
        assert report.detail["files_lost"] == would.detail["files_lost"] == 1
        assert would.rows_removed == report.rows_removed == (3 if where else 5)
        Path(lost).write_bytes(data)  # to read the rest
        left = ["old error", "ancient"] if where else []
        assert lake.bodies() == Counter([*left, "lost debug"])
        if where is None:  # whole files are looked at each time
            lake.retain()
            assert lake.bodies() == Counter()
        assert balance(lake.config).problems == []


def cut_off(path: str) -> None:
    Path(path).write_bytes(Path(path).read_bytes()[:-100])


def spoil(path: str) -> None:
    """A column that no rule uses."""
    names = pq.read_schema(path).names
    chunk = pq.read_metadata(path).row_group(0).column(names.index("body"))
    assert chunk.path_in_schema == "body"
    data = bytearray(Path(path).read_bytes())
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data[start : start + chunk.total_compressed_size] = bytes(chunk.total_compressed_size)
    Path(path).write_bytes(data)


def double(path: str) -> None:
    rows = pq.read_table(path)
    pq.write_table(pa.concat_tables([rows, rows]), path)


@pytest.mark.parametrize(
    ("damage", "where"),
    [
        (cut_off, None),
        (cut_off, "severity_number < 9"),
        (spoil, "severity_number < 9"),
        (double, None),
        (double, "severity_number < 9"),
    ],
)
def test_a_file_that_cannot_be_read_does_not_keep_the_others(
    tmp_path: Path, damage: Callable[[str], None], where: str | None
) -> None:
    rule = {"after_seconds": "7d"} | ({} if where is None else {"where": where, "table": "logs"})
    with kept(tmp_path, rule) as lake:
        lake.fill([("acme", "torn debug", 5, 20.0), ("acme", "torn error", 17, 20.0)])
        (torn,) = lake.data_files()
        lake.fill(ROWS)
        data = Path(torn).read_bytes()
        damage(torn)
        if damage is not spoil:  # found only by a rewrite
            assert lake.retain(dry_run=True).detail["files_unreadable"] == 1
        report = lake.retain()
        assert (report.rows_removed, report.detail["files_unreadable"]) == (2 if where else 4, 1)
        assert torn in lake.data_files()
        Path(torn).write_bytes(data)  # to read the rest
        left = ["old error", "ancient"] if where else []
        assert lake.bodies() == Counter([*left, "new debug", "torn debug", "torn error"])
        if where is None:  # whole files are looked at each time
            assert lake.retain().rows_removed == 2
        assert balance(lake.config).problems == []


def test_the_replacement_of_an_unreadable_file_is_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kept(tmp_path, {"after_seconds": "7d", "where": "severity_number < 9", "table": "logs"}) as lake:
        lake.fill([("acme", "old debug", 5, 10.0), ("acme", "old error", 17, 10.0)])
        (live,) = live_files(lake.table())
        results, waiting = LocalRunner.results, [True]

        def overtaken(self: LocalRunner, *given: Any) -> Any:
            if waiting:
                waiting.pop()
                Committer(lake.catalog, deadline_seconds=20).replace(
                    lake.table(), [live.file], [copy_of(live.file)]
                )
                cut_off(live.file.file_path)
            return results(self, *given)

        monkeypatch.setattr(LocalRunner, "results", overtaken)
        report = lake.retain()
        assert (report.rows_removed, report.detail["files_unreadable"]) == (0, 0)
        assert lake.retain().rows_removed == 1
        assert lake.bodies() == Counter({"old error": 1})
        assert balance(lake.config).problems == []


def test_a_rule_that_fails_on_some_row_does_not_stop_the_others(tmp_path: Path) -> None:
    number = {"after_seconds": "7d", "where": "CAST(attributes['user.id'] AS INT) > 5", "table": "logs"}
    debug = {"after_seconds": "7d", "where": "severity_number < 9", "table": "logs"}
    with kept(tmp_path, number, debug) as lake:
        lake.fill(
            [("acme", "7 seven", 17, 20.0)], [("acme", "abc", 17, 19.0), ("acme", "abc debug", 5, 19.0)]
        )
        lake.fill([("acme", "1 debug", 5, 10.0), ("acme", "8 eight", 17, 10.0)])
        for _ in range(2):
            with pytest.raises(ConfigError, match=r"CAST\(attributes.*TRY_CAST") as raised:
                lake.retain()
            assert "severity_number" not in str(raised.value)
        assert not lake.bodies().keys() & {"abc debug", "1 debug"}
        with pytest.raises(ConfigError, match="TRY_CAST"):
            lake.retain(dry_run=True)
        assert len(json_property(lake.table().metadata, RETENTION)) == 1
        mended = {**number, "where": "TRY_CAST(attributes['user.id'] AS INT) > 5"}
    with kept(tmp_path, mended, debug) as lake:
        lake.retain()
        assert lake.bodies() == Counter({"abc": 1})
        assert balance(lake.config).problems == []


def in_small_rounds(lake: KnownLake) -> None:
    retention = lake.config.maintain.retention.model_copy(update={"rewrite_round_bytes_max": 1})
    maintain = lake.config.maintain.model_copy(update={"retention": retention})
    lake.config = lake.config.model_copy(update={"maintain": maintain})


def test_files_that_are_due_in_every_round_do_not_use_up_the_round(tmp_path: Path) -> None:
    number = {"after_seconds": "7d", "where": "CAST(attributes['user.id'] AS INT) > 5", "table": "logs"}
    debug = {"after_seconds": "7d", "where": "severity_number < 9", "tenant": "globex", "table": "logs"}
    with kept(tmp_path, {**number, "tenant": "acme"}, debug, {"after_seconds": "60d"}) as lake:
        in_small_rounds(lake)
        lake.fill([("acme", "lost", 9, 90.0), ("globex", "torn", 9, 80.0)])
        lost, torn = sorted(lake.data_files())
        lake.fill([("acme", "abc", 9, 30.0 - day) for day in range(3)], [("globex", "debug", 5, 10.0)])
        data = {path: Path(path).read_bytes() for path in (lost, torn)}
        Path(lost).unlink()
        cut_off(torn)
        with pytest.raises(ConfigError):
            lake.retain()
        for path, content in data.items():
            Path(path).write_bytes(content)
        assert lake.bodies() == Counter({"abc": 3, "lost": 1, "torn": 1})


def test_nothing_is_searched_twice_and_what_comes_late_is_searched(tmp_path: Path) -> None:
    with kept(tmp_path, {"after_seconds": "7d", "where": "body LIKE '%debug%'", "table": "logs"}) as lake:
        lake.fill(ROWS)
        assert lake.retain().detail["files_searched"] == 3
        assert json_property(lake.table().metadata, RETENTION)
        assert lake.retain().detail["files_searched"] == 0
        lake.fill([("acme", "late debug", 5, 10.0)])
        report = lake.retain()
        assert report.detail["files_searched"] == 1
        assert report.rows_removed == 1
        assert balance(lake.config).problems == []


def test_a_dry_run_counts_and_changes_nothing(tmp_path: Path) -> None:
    rules = (
        {"after_seconds": "7d", "where": "severity_number < 9", "table": "logs"},
        {"after_seconds": "30d"},
    )
    with kept(tmp_path, *rules) as lake:
        lake.fill(ROWS)
        location = lake.table().metadata_location
        report = lake.retain(dry_run=True)
        assert lake.table().metadata_location == location
        assert report.dry_run
        would = (report.rows_removed, report.detail["files_dropped"], report.detail["files_rewritten"])
        assert would == (3, 2, 1)
        assert report.bytes_in > 0
        done = lake.retain()
        assert would == (done.rows_removed, done.detail["files_dropped"], done.detail["files_rewritten"])


def test_an_invalid_condition_is_reported_and_nothing_changes(tmp_path: Path) -> None:
    with kept(
        tmp_path, {"after_seconds": "7d", "where": "severity_numbr < 9"}, {"after_seconds": "7d"}
    ) as lake:
        lake.fill(ROWS)
        with pytest.raises(ConfigError, match=r"severity_numbr.*severity_number.*set the `table`"):
            lake.retain()
        assert lake.bodies().total() == len(ROWS)


def test_a_round_is_bounded_and_the_next_continues(tmp_path: Path) -> None:
    with kept(tmp_path, {"after_seconds": "7d", "where": "body LIKE '%x%'", "table": "logs"}) as lake:
        in_small_rounds(lake)
        lake.fill([("acme", f"x {day}", 9, 10.0 + day) for day in range(4)])
        removed = [lake.retain().rows_removed for _ in range(5)]
        assert removed == [1, 1, 1, 1, 0]
        assert lake.bodies() == Counter()
        assert balance(lake.config).problems == []


def test_the_only_row_of_the_table_can_be_erased(tmp_path: Path) -> None:
    with kept(tmp_path, {"after_seconds": "7d"}) as lake:
        lake.fill([("acme", "x", 9, 10.0)])
        assert lake.retain().rows_removed == 1
        assert lake.bodies() == Counter()
        lake.fill([("acme", "y", 9, 1.0)])
        assert lake.bodies() == Counter({"y": 1})
        assert balance(lake.config).problems == []


def test_files_that_are_replaced_meanwhile_are_left_for_the_next_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kept(tmp_path, {"after_seconds": "7d", "where": "severity_number < 9", "table": "logs"}) as lake:
        lake.fill(ROWS)
        overwrite, waiting = Committer.overwrite, [True]

        def overtaken(self: Committer, table: Any, removed: Any, *given: Any, **facts: Any) -> Any:
            if waiting.pop() if waiting else False:
                self.replace(table, removed[:1], [copy_of(removed[0])])
            return overwrite(self, table, removed, *given, **facts)

        monkeypatch.setattr(Committer, "overwrite", overtaken)
        report = lake.retain()
        assert (report.rows_removed, report.detail["conflicts"]) == (0, 1)
        assert lake.bodies().total() == len(ROWS)
        written = {str(path) for path in tmp_path.glob("warehouse/otel/logs/data/**/*.parquet")}
        assert len(written - lake.data_files()) == 1, "what was written for nothing is gone"
        assert lake.retain().rows_removed == 2
        assert balance(lake.config).problems == []


def copy_of(file: DataFile) -> DataFile:
    """The same rows under another name, as a merge of one file would write them."""
    path = file.file_path.replace(".parquet", "-merged.parquet")
    shutil.copy(file.file_path, path)
    copy = DataFile(*file._data)
    copy._data[1] = path
    copy.spec_id = file.spec_id
    return copy
