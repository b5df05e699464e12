"""Retention of derived tables: their own rules by resolution, which other rules do not change."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.table.snapshots import Operation

from frazil.config import RetentionRule
from frazil.lake.live_files import live_files
from frazil.lake.snapshots import ERASED, REMOVED_BY
from frazil.ledger import balance
from frazil.pipeline.maintain.predicates.decide import all_match
from frazil.pipeline.maintain.predicates.match import Matcher, parse_predicate
from frazil.pipeline.maintain.retain.check import check_rules
from frazil.pipeline.maintain.retain.rules import built_in_rules, rules_of
from frazil.tables import derived_specs, landed_spec, table_specs
from frazil.tables.derived.span_metrics import SPAN_METRICS
from tests.support.known_lake import DAY, KnownLake
from tests.support.partial_lake import NAME, PartialLake, Span


@contextlib.contextmanager
def kept(folder: Path, *rules: dict[str, Any], **settings: Any) -> Iterator[PartialLake]:
    lake = PartialLake(folder, maintain={"retention": {"rules": list(rules), **settings}})
    with contextlib.closing(lake):
        yield lake


def spans(lake: PartialLake, *days: float) -> list[Span]:
    """Spans of so many days ago, at noon."""
    noon = lake.now // DAY * DAY + DAY / 2
    return [
        ("acme", "web", "GET /", 5, noon - each * DAY + second) for each in days for second in (0, 70, 400)
    ]


def resolutions(lake: PartialLake) -> dict[int, set[int]]:
    """The resolutions of the rows of each day, by age in days."""
    found: dict[int, set[int]] = {}
    for row in lake.rows().to_pylist():
        age = int(lake.now // DAY - row["time"].timestamp() // DAY)
        found.setdefault(age, set()).add(row["resolution"])
    return found


def test_rows_are_kept_as_long_as_their_resolution_says(tmp_path: Path) -> None:
    with kept(tmp_path) as lake:
        lake.derive(spans(lake, 3, 14, 16, 62, 402))
        report = lake.retain(table=NAME)
        assert resolutions(lake) == {
            3: {60, 300, 3600, 86_400},
            14: {60, 300, 3600, 86_400},
            16: {300, 3600, 86_400},
            62: {3600, 86_400},
            402: {86_400},
        }
        assert report.rows_removed > 0
        assert (report.detail["files_dropped"], report.detail["files_rewritten"]) == (0, 3)
        assert lake.retain(table=NAME).is_nothing


def test_files_of_one_resolution_are_dropped_without_reading_any(tmp_path: Path) -> None:
    with kept(tmp_path) as lake:
        lake.derive(spans(lake, 16))
        lake.maintainer(lake.now + DAY).run("compact", NAME)
        assert len(lake.facts()) == 4
        files = {each.path for each in lake.facts() if each.resolution != 60}
        before = lake.runner.items
        would = lake.retain(table=NAME, dry_run=True)
        report = lake.retain(table=NAME)
        assert (report.detail["files_dropped"], report.detail["files_searched"]) == (1, 0)
        assert report.rows_removed == would.rows_removed == 3
        assert lake.runner.items == before, "Spark has nothing to do"
        assert {each.path for each in lake.facts()} == files
        assert lake.table(NAME).current_snapshot().summary.operation == Operation.DELETE
        assert lake.retain(table=NAME).is_nothing


def test_a_lost_file_that_is_to_be_dropped_unread_does_not_keep_the_others(tmp_path: Path) -> None:
    with kept(tmp_path) as lake:
        lake.derive(spans(lake, 16, 17))
        lake.maintainer(lake.now + DAY).run("compact", NAME)
        lost = next(each for each in lake.facts() if each.resolution == 60)
        Path(lost.path.removeprefix("file://")).unlink()
        report = lake.retain(table=NAME)
        assert (report.detail["files_dropped"], report.detail["files_lost"]) == (1, 1)
        assert [each.path for each in lake.facts() if each.resolution == 60] == [lost.path]


def test_retention_of_raw_rows_removes_nothing_from_derived_tables(tmp_path: Path) -> None:
    with kept(
        tmp_path, {"after_seconds": "1d"}, {"after_seconds": "1d", "where": "time < '2400-01-01'"}
    ) as lake:
        KnownLake.write(lake, [("acme", "old", 9, 5.0), ("acme", "new", 9, 0.0)])  # type: ignore[list-item]
        lake.land()
        lake.derive(spans(lake, 5, 13))
        before, files = lake.view(), {each.path for each in lake.facts()}
        assert check_rules(lake.config) == []
        assert lake.retain(table="logs").rows_removed == 1
        assert lake.retain(table=NAME).is_nothing
        assert lake.view() == before
        assert {each.path for each in lake.facts()} == files


def test_a_rule_that_names_a_derived_table_replaces_its_rules(tmp_path: Path) -> None:
    rule = {"table": NAME, "where": "resolution < 86400", "after_seconds": "2d"}
    with kept(tmp_path, rule, {"after_seconds": "1h"}) as lake:
        lake.derive(spans(lake, 1, 5, 500))
        lake.retain(table=NAME)
        assert resolutions(lake) == {1: {60, 300, 3600, 86_400}, 5: {86_400}, 500: {86_400}}
    longer = {"table": NAME, "after_seconds": "1000d"}
    with kept(tmp_path / "longer", longer) as lake:
        lake.derive(spans(lake, 500))
        assert lake.retain(table=NAME).is_nothing
        assert resolutions(lake) == {500: {60, 300, 3600, 86_400}}


def test_the_rules_of_a_table_are_those_of_its_spec_or_of_the_configuration() -> None:
    everything = RetentionRule(after_seconds=DAY)
    of_logs = RetentionRule(table="logs", after_seconds=DAY)
    of_table = RetentionRule(table=NAME, tenant="acme", after_seconds=DAY)
    built_in = built_in_rules(SPAN_METRICS)
    assert [(rule.table, rule.where, rule.after_seconds / DAY) for rule in built_in] == [
        (NAME, "resolution = 60", 14),
        (NAME, "resolution = 300", 60),
        (NAME, "resolution = 3600", 400),
    ]
    assert rules_of(SPAN_METRICS, [everything, of_logs]) == built_in
    assert rules_of(SPAN_METRICS, [everything, of_table]) == [of_table]
    assert rules_of(landed_spec("logs"), [everything, of_logs, of_table]) == [everything, of_logs]
    assert rules_of(landed_spec("spans"), []) == []


def test_the_rules_of_all_derived_tables_are_valid(tmp_path: Path) -> None:
    assert derived_specs()
    for spec in derived_specs():
        for rule in built_in_rules(spec):
            if rule.where is not None:
                assert not parse_predicate(rule.where, spec).is_constant


def test_snapshots_of_retention_say_so_in_raw_and_derived_tables_and_those_of_erasure_do_not(
    tmp_path: Path,
) -> None:
    rule = {"table": "logs", "where": "severity_number < 9", "after_seconds": "1d"}
    with kept(tmp_path, rule) as lake:
        rows = [("acme", "old debug", 5, 5.0), ("acme", "old error", 17, 5.0), ("acme", "u42 new", 9, 0.0)]
        KnownLake.write(lake, rows)  # type: ignore[arg-type]
        lake.land()
        lake.derive(spans(lake, 16))
        lake.retain(table="logs")
        lake.retain(table=NAME)
        for table in ("logs", NAME):
            snapshot = lake.table(table).current_snapshot()
            assert snapshot.summary[REMOVED_BY] == "retention", table
            assert snapshot.summary[ERASED] is None
        assert lake.erase("attributes['user.id'] = 'u42'").rows_removed == 1
        summaries = [snapshot.summary for snapshot in lake.table().snapshots() if snapshot.summary[ERASED]]
        assert summaries
        assert all(summary[REMOVED_BY] is None for summary in summaries)


def test_rows_of_a_raw_file_that_is_dropped_by_its_bounds_are_counted_by_stream(tmp_path: Path) -> None:
    rule = {"table": "logs", "where": "severity_number < 9", "after_seconds": "7d"}
    with contextlib.closing(KnownLake(tmp_path, maintain={"retention": {"rules": [rule]}})) as lake:
        lake.fill([("acme", "a debug", 5, 10.0), ("acme", "b debug", 5, 10.0)], [("acme", "error", 17, 10.0)])
        report = lake.retain()
        assert (report.rows_removed, report.detail["files_dropped"], report.files_out) == (2, 1, 0)
        assert lake.bodies() == Counter({"error": 1})
        assert balance(lake.config).problems == []


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("resolution = 60", {60}),
        ("span_metrics.resolution <= 300", {60, 300}),
        ("resolution IN (300, 3600)", {300, 3600}),
        ("NOT (resolution = 60)", {300, 3600, 86_400}),
        ("resolution = 60 OR service_name = 'web'", set()),
        ("resolution = 60 AND kind IS NULL", set()),
        ("CAST(CAST(resolution AS VARCHAR) || 's' AS INT) > 0", set()),
        ("time < '2100-01-01'", set()),
    ],
)
def test_a_condition_is_decided_only_by_integers_that_all_rows_have(
    tmp_path: Path, where: str, expected: set[int]
) -> None:
    with kept(tmp_path) as lake:
        lake.derive(spans(lake, 2))
        table = lake.table(NAME)
        mixed = [live.file for live in live_files(table)]
        predicate = parse_predicate(where, SPAN_METRICS)
        assert all_match(predicate, SPAN_METRICS, mixed, table.schema()) == [False]
        lake.maintainer(lake.now + DAY).run("compact", NAME)
        facts, table = {each.path: each.resolution for each in lake.facts()}, lake.table(NAME)
        files = [live.file for live in live_files(table)]
        found = all_match(predicate, SPAN_METRICS, files, table.schema())
        decided = {facts[file.file_path] for file, is_whole in zip(files, found, strict=True) if is_whole}
        assert decided == expected
        matcher = Matcher.of(predicate, SPAN_METRICS, table.schema())
        for file, is_whole in zip(files, found, strict=True):
            if is_whole:
                assert matcher.matching(file.file_path.removeprefix("file://")).all()


def test_rules_without_a_table_concern_exactly_the_tables_that_are_not_derived() -> None:
    rule = RetentionRule(after_seconds=DAY)
    for spec in table_specs().values():
        assert (rule in rules_of(spec, [rule])) == (spec.derived is None)


def test_a_null_is_not_the_value_of_all_rows(tmp_path: Path) -> None:
    with kept(tmp_path) as lake:
        lake.derive(spans(lake, 2))
        table = lake.table(NAME)
        (file,) = [live.file for live in live_files(table)]
        kind = table.schema().find_field("kind").field_id
        predicate = parse_predicate("kind = 2", SPAN_METRICS)
        assert all_match(predicate, SPAN_METRICS, [file], table.schema()) == [True]
        for nulls in ({kind: 1}, {}, None):
            other: Any = SimpleNamespace(
                lower_bounds=file.lower_bounds, upper_bounds=file.upper_bounds, null_value_counts=nulls
            )
            assert all_match(predicate, SPAN_METRICS, [other], table.schema()) == [False]
