"""Bloom filters of promoted columns: every writer of data files writes them, and queries, erasure and
retention skip files by them. A file without a filter, or whose values are only in the map, is never skipped.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from frazil.config import Config
from frazil.ledger import balance
from frazil.pipeline.maintain.maintainer import Maintainer
from frazil.pipeline.maintain.metrics import MaintainMetrics
from frazil.pipeline.maintain.predicates.match import Matcher
from frazil.pipeline.metrics import Metrics
from frazil.query.model import Stats
from frazil.sql import bloom
from frazil.storage.local import LocalStore
from tests.support.known_lake import DAY, KnownLake
from tests.support.local_runner import LocalRunner
from tests.support.query.small_lake import serving

FILES = 6
PLAIN = {"attribute": "user.id"}
FILTERED = {**PLAIN, "bloom": True}
OTHER_ATTRIBUTES = {**FILTERED, "attribute": ["client.id", "user.id"], "column": "user_id"}


def batch(user: str, days: float = 0.0) -> list[tuple[str, str, int, float]]:
    """Rows of a file whose bounds of `user_id` exclude no user of these tests."""
    return [("acme", f"{each} row", 9, days) for each in ("a", user, "z")]


BATCHES = [batch(f"u{number}") for number in range(FILES)]
BODIES = Counter(body for rows in BATCHES for _, body, _, _ in rows)


def with_promoted(lake: KnownLake, *columns: dict[str, Any]) -> None:
    """Changes the configuration, as between two starts."""
    tables = lake.config.tables.model_validate({"promoted": columns})
    lake.config = lake.config.model_copy(update={"tables": tables})


@contextlib.contextmanager
def kept(folder: Path, *columns: dict[str, Any], **maintain: Any) -> Iterator[KnownLake]:
    lake = KnownLake(folder / "data", tables={"promoted": columns}, maintain=maintain)
    with contextlib.closing(lake):
        yield lake


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[KnownLake]:
    with kept(tmp_path, FILTERED) as lake:
        lake.fill(*BATCHES)
        yield lake


def with_filter(paths: Sequence[str] | set[str]) -> int:
    """The number of files of which every row group has a filter of `user_id`, and no other has one but for
    `trace_id`.
    """
    found = 0
    for path in paths:
        footer = pq.read_metadata(path)
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        columns = [group.column(number) for group in groups for number in range(footer.num_columns)]
        filtered = Counter(each.path_in_schema for each in columns if each.bloom_filter_offset is not None)
        assert filtered["trace_id"] == len(groups)
        assert filtered.keys() <= {"trace_id", "user_id"}
        found += filtered["user_id"] == len(groups)
    return found


def maintainer(lake: KnownLake, days: float = 1.0) -> Maintainer:
    metrics = MaintainMetrics(Metrics().registry)
    return Maintainer(lake.config, lake.catalog, LocalRunner(), metrics, clock=lambda: lake.now + days * DAY)


def answered(config: Config, where: str) -> tuple[Counter[str], Stats]:
    with serving(config) as service:
        told = service.execute(f"SELECT body FROM logs WHERE {where}")
    return Counter(body for (body,) in told.rows), told.stats


# Writers


def test_landing_writes_filters_only_where_they_are_asked_for(tmp_path: Path) -> None:
    with kept(tmp_path, PLAIN) as lake:
        lake.fill(*BATCHES[:2])
        assert with_filter(lake.data_files()) == 0
        with_promoted(lake, FILTERED)
        lake.fill(*BATCHES[2:])
        assert with_filter(lake.data_files()) == FILES - 2
        with_promoted(lake, PLAIN)
        lake.fill(batch("later"))
        assert with_filter(lake.data_files()) == FILES - 2
        assert lake.bodies() == BODIES + Counter(body for _, body, _, _ in batch("later"))


def test_a_merge_of_files_from_before_writes_filters(tmp_path: Path) -> None:
    with kept(tmp_path, PLAIN, compact={"fan_in": 4}) as lake:
        lake.fill(*BATCHES)
        with_promoted(lake, FILTERED)
        assert maintainer(lake, 10).run("compact", "logs").files_out == 1
        assert with_filter(lake.data_files()) == 1
        assert lake.bodies() == BODIES
        assert answered(lake.config, "user_id = 'u3'")[0] == Counter(["u3 row"])


def test_filling_the_columns_of_files_from_before_writes_filters(tmp_path: Path) -> None:
    with kept(tmp_path) as lake:
        lake.fill(*BATCHES[:3])
        with_promoted(lake, FILTERED)
        assert maintainer(lake).run("fill", "logs").files_out == 3
        assert with_filter(lake.data_files()) == 3


def test_files_keep_their_filters_in_another_place(tmp_path: Path) -> None:
    (tmp_path / "cold").mkdir()
    tier = {"location": str(tmp_path / "cold"), "after_seconds": "30d"}
    with kept(tmp_path, FILTERED, tier=tier) as lake:
        lake.fill(batch("u1", 40.0), batch("u2", 50.0))
        before = lake.data_files()
        assert maintainer(lake).run("tier", "logs").files_out == 2
        assert not before & lake.data_files()
        assert with_filter(lake.data_files()) == 2
        found, stats = answered(lake.config, "user_id = 'u2'")
        assert (found, stats.files) == (Counter(["u2 row"]), 1)


def test_retention_and_erasure_write_filters(tmp_path: Path) -> None:
    rule = {"after_seconds": "7d", "where": "user_id = 'u1'", "table": "logs"}
    with kept(tmp_path, PLAIN, retention={"rules": [rule], "confirm_rows_min": 1000}) as lake:
        lake.fill(batch("u1", 10.0), batch("u2"))
        with_promoted(lake, FILTERED)
        assert lake.retain().rows_removed == 1
        assert with_filter(lake.data_files()) == 1
        assert lake.erase("user_id = 'u2'").is_proven
        assert with_filter(lake.data_files()) == 2
        assert lake.bodies() == Counter({"a row": 2, "z row": 2})


# Queries


CASES = [
    ("user_id = 'u3'", ["u3"], 1),
    ("'u3' = user_id AND severity_number = 9", ["u3"], 1),
    ("user_id IN ('u1', 'u4', 'not there')", ["u1", "u4"], 2),
    ("user_id = 'u1' OR user_id = 'u2'", ["u1", "u2"], 2),
    ("user_id = 'not there'", [], 0),
    ("user_id = 'u3' OR body = 'u4 row'", ["u3", "u4"], FILES),
    ("user_id <> 'u3' AND user_id > 'u' AND user_id < 'u4'", ["u0", "u1", "u2"], FILES),
    ("attributes['user.id'] = 'u3'", ["u3"], FILES),
]


def test_a_query_reads_only_files_that_may_hold_the_value(lake: KnownLake) -> None:
    with serving(lake.config) as service:
        for where, users, files in CASES:
            told = service.execute(f"SELECT body FROM logs WHERE {where}")
            assert sorted(told.rows) == [[f"{user} row"] for user in users], where
            assert (told.stats.files, told.stats.files_total) == (files, FILES), where
        inner = service.execute("SELECT body FROM (SELECT * FROM logs) WHERE user_id = 'u3'")
        assert (inner.rows, inner.stats.files) == ([["u3 row"]], 1)


def test_without_the_setting_no_filter_is_used(lake: KnownLake) -> None:
    with_promoted(lake, PLAIN)
    found, stats = answered(lake.config, "user_id = 'u3'")
    assert (found, stats.files) == (Counter(["u3 row"]), FILES)


def test_files_without_a_filter_or_the_column_are_read(tmp_path: Path) -> None:
    """Every file holds the value: in the map alone, without a filter, with one, or filled differently."""
    with kept(tmp_path) as lake:
        for columns in ((), (PLAIN,), (FILTERED,), (OTHER_ATTRIBUTES,), (FILTERED,)):
            with_promoted(lake, *columns)
            lake.fill(batch("everywhere"), batch("elsewhere"))
        found, stats = answered(lake.config, "user_id = 'everywhere'")
        assert found == Counter({"everywhere row": 5})
        # Of the ten files, four have a filter of the column as it is filled now, and two of these the value.
        assert (stats.files, stats.files_total) == (8, 10)


def test_a_filter_of_other_attributes_excludes_nothing(tmp_path: Path) -> None:
    """The column was filled from an attribute that no record has: its filter holds nothing."""
    with kept(tmp_path, {**FILTERED, "attribute": "client.id", "column": "user_id"}) as lake:
        lake.fill(*BATCHES[:3])
        assert with_filter(lake.data_files()) == 3
        assert answered(lake.config, "user_id = 'u1'")[0] == Counter()
        with_promoted(lake, FILTERED)
        found, stats = answered(lake.config, "user_id = 'u1'")
        assert (found, stats.files) == (Counter(["u1 row"]), 3)
        report = lake.erase("user_id = 'u1'")
        assert (report.is_proven, report.rows_removed) == (True, 1)


# Erasure and retention


class Read:
    """Counts the data files that are matched row by row, by the predicate's text."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files: Counter[str] = Counter()
        self.copied = 0
        matching, local = Matcher.matching, LocalStore.local

        def counted(matcher: Matcher, *given: Any) -> Any:
            self.files[matcher.predicate.text] += 1
            return matching(matcher, *given)

        def copied(store: LocalStore, path: str) -> Any:
            self.copied += 1
            return local(store, path)

        monkeypatch.setattr(Matcher, "matching", counted)
        monkeypatch.setattr(LocalStore, "local", copied)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Read:
    return Read(monkeypatch)


def test_erasure_reads_only_files_that_may_hold_the_value_and_proves_it_on_all(
    lake: KnownLake, read: Read
) -> None:
    report = lake.erase("user_id IN ('u2', 'u4')")
    assert (report.is_proven, report.rows_removed) == (True, 2)
    assert lake.bodies() == BODIES - Counter(["u2 row", "u4 row"])
    # Two files hold such rows: they are searched, and read again to be written without.
    assert read.files["user_id IN ('u2', 'u4')"] == 4
    logs = report.tables[0]
    assert logs.proof.rows_searched == 3 * FILES - 2, "the proof reads every row, whatever filters say"
    assert sum(read.files.values()) == 4 + FILES
    assert balance(lake.config).problems == []


def test_a_dry_run_copies_no_file_that_cannot_hold_the_value(lake: KnownLake, read: Read) -> None:
    assert lake.erase("user_id = 'not there'", dry_run=True).rows_removed == 0
    assert (read.copied, +read.files) == (0, Counter())
    assert lake.erase("user_id = 'u2'", dry_run=True).rows_removed == 1
    assert read.copied == 1


def test_erasure_finds_rows_in_files_without_a_filter(tmp_path: Path, read: Read) -> None:
    with kept(tmp_path) as lake:
        for columns in ((), (PLAIN,), (OTHER_ATTRIBUTES,), (FILTERED,)):
            with_promoted(lake, *columns)
            lake.fill(batch("everywhere"), batch("elsewhere"))
        report = lake.erase("user_id = 'everywhere'", dry_run=True)
        assert report.rows_removed == 4
        assert read.files["user_id = 'everywhere'"] == 7, "one file has a filter without the value"
        report = lake.erase("user_id = 'everywhere'")
        assert (report.is_proven, report.rows_removed) == (True, 4)
        assert lake.bodies() == Counter({"elsewhere row": 4, "a row": 8, "z row": 8})


def test_what_filters_cannot_exclude_is_searched(lake: KnownLake, read: Read) -> None:
    for where in (
        "user_id = 'u2' OR body = 'u4 row'",
        "attributes['user.id'] IN ('u2', 'u4')",
        "user_id >= 'u4' AND user_id <= 'u5'",
    ):
        assert lake.erase(where, dry_run=True).rows_removed == 2
        assert read.files[where] == FILES


def test_an_unreferenced_file_is_deleted_if_it_holds_such_rows(lake: KnownLake) -> None:
    orphans = []
    for path in sorted(lake.data_files()):
        data = Path(path).read_bytes()
        orphans.append(Path(path).with_name(f"orphan-{Path(path).name}"))
        orphans[-1].write_bytes(data)
    report = lake.erase("user_id = 'u2'")
    assert report.is_proven
    assert sum(orphan.exists() for orphan in orphans) == FILES - 1


def test_a_file_whose_footer_says_something_else_than_the_table_is_not_skipped(lake: KnownLake) -> None:
    """It is reported as unreadable, as without filters."""
    one, other = sorted(lake.data_files())[:2]
    with kept(Path(one).parents[7] / "more", FILTERED) as more:
        more.fill([*batch("x"), *batch("y")])
        (larger,) = more.data_files()
        Path(one).write_bytes(Path(larger).read_bytes())
    with pytest.raises(Exception, match="6 rows, but the table's metadata says 3"):
        lake.erase("user_id = 'not there'")
    assert Path(other).exists()


def test_retention_reads_only_files_that_may_hold_the_value(tmp_path: Path, read: Read) -> None:
    rule = {"after_seconds": "7d", "where": "user_id = 'u3'", "table": "logs"}
    with kept(tmp_path, FILTERED, retention={"rules": [rule], "confirm_rows_min": 1000}) as lake:
        lake.fill(*(batch(f"u{number}", 10.0) for number in range(FILES)))
        report = lake.retain()
        assert report.rows_removed == 1
        assert sum(read.files.values()) == 1
        assert lake.bodies() == BODIES - Counter(["u3 row"])


def test_a_file_is_read_if_one_of_several_rules_may_match(tmp_path: Path, read: Read) -> None:
    rules = [
        {"after_seconds": "7d", "where": f"user_id = '{user}'", "table": "logs"} for user in ("u1", "u3")
    ]
    with kept(tmp_path, FILTERED, retention={"rules": rules, "confirm_rows_min": 1000}) as lake:
        lake.fill(*(batch(f"u{number}", 10.0) for number in range(FILES)))
        assert lake.retain().rows_removed == 2
        assert sum(read.files.values()) == 4, "two files, each for both rules"
        assert lake.bodies() == BODIES - Counter(["u1 row", "u3 row"])


# The tests must notice filters that exclude too much


def test_filters_that_exclude_everything_lose_rows_of_queries_and_fail_the_proof(
    lake: KnownLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bloom, "lacks", lambda *_: True)
    monkeypatch.setattr("frazil.pipeline.maintain.predicates.match.lacks", lambda *_: True)
    assert answered(lake.config, "user_id = 'u3'")[0] == Counter()
    report = lake.erase("user_id = 'u3'")
    assert not report.is_proven
    assert report.tables[0].proof.matches == 1
