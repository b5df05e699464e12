"""Retention rules: which files they apply to, and that no file is searched twice or missed."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

from frazil.config import RetentionRule
from frazil.lake.live_files import LiveFile
from frazil.pipeline.maintain.retain.rules import (
    Due,
    RuleProgress,
    key_of,
    newest_day,
    plan_retention,
    progress,
    read_applied,
    rules_of,
    write_applied,
)
from frazil.tables import landed_spec

DAY = 86_400
NOW = 20_000 * DAY + DAY // 2
"""Noon of day 20000."""


def rule(**settings: Any) -> RetentionRule:
    return RetentionRule.model_validate({"after_seconds": "7d", **settings})


def live(tenant: str, day: int, sequence: int = 1) -> LiveFile:
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{tenant}/{day}/{sequence}.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(tenant, day),
        record_count=10,
        file_size_in_bytes=100,
    )
    return LiveFile(file, 1, sequence, sequence)


def paths(due: tuple[Due, ...]) -> list[str]:
    return [each.live.file.file_path for each in due]


def test_a_day_is_counted_from_its_end() -> None:
    seven = rule()
    assert newest_day(seven, 20_000 * DAY) == 19_992
    assert newest_day(seven, 20_000 * DAY - 1) == 19_991


def test_files_of_days_that_are_old_enough_are_dropped_as_a_whole() -> None:
    files = [live("acme", 19_992), live("acme", 19_993), live("globex", 19_000)]
    plan = plan_retention(files, [rule()], NOW, {})
    assert paths(plan.dropped) == ["globex/19000/1.parquet", "acme/19992/1.parquet"]
    assert plan.searched == ()


def test_rules_hold_for_their_tenant_and_table_only() -> None:
    rules = [
        rule(table="spans"),
        rule(tenant="globex"),
        rule(table="logs", tenant="acme", after_seconds="30d"),
    ]
    assert rules_of(landed_spec("logs"), rules) == rules[1:]
    files = [live("acme", 19_990), live("globex", 19_990), live("acme", 19_000)]
    plan = plan_retention(files, rules_of(landed_spec("logs"), rules), NOW, {})
    assert paths(plan.dropped) == ["acme/19000/1.parquet", "globex/19990/1.parquet"]


def test_files_that_are_dropped_as_a_whole_are_not_searched() -> None:
    rules = [rule(where="severity_number < 9"), rule(after_seconds="30d")]
    plan = plan_retention([live("acme", 19_990), live("acme", 19_900)], rules, NOW, {})
    assert paths(plan.dropped) == ["acme/19900/1.parquet"]
    assert paths(plan.searched) == ["acme/19990/1.parquet"]
    assert plan.searched[0].names == (key_of(rules[0]),)


def test_searched_files_are_not_searched_again_unless_they_are_new() -> None:
    where = rule(where="severity_number < 9")
    applied = {key_of(where): RuleProgress(19_990, 5)}
    files = [live("a", 19_990, 5), live("a", 19_990, 6), live("a", 19_991, 5), live("a", 19_993, 9)]
    plan = plan_retention(files, [where], NOW, applied)
    assert paths(plan.searched) == ["a/19990/6.parquet", "a/19991/5.parquet"]
    assert progress(plan, 2, applied, 7) == {key_of(where): RuleProgress(19_992, 7)}


def test_a_rule_that_is_changed_is_another() -> None:
    assert key_of(rule(where="a < 1")) != key_of(rule(where="a < 2"))
    assert key_of(rule(where="a < 1")) != key_of(rule(where="a < 1", after_seconds="8d"))
    assert key_of(rule(where="a < 1")) == key_of(rule(where="a < 1"))


def test_progress_drops_removed_rules() -> None:
    plan = plan_retention([], [rule(where="a < 1")], NOW, {})
    assert progress(plan, 0, {"gone": RuleProgress(1, 1)}, 3).keys() == {key_of(rule(where="a < 1"))}


@pytest.mark.parametrize("text", ["{}", '{"x": 1}', '{"x": {"day": "1", "sequence": 2}}', '{"x": {}}'])
def test_an_invalid_progress_property_is_ignored(text: str) -> None:
    assert read_applied(json.loads(text)) == {}


def test_the_note_can_be_read_back() -> None:
    applied = {"a": RuleProgress(19_000, 7), "b": RuleProgress(-1, 0)}
    assert read_applied(json.loads(write_applied(applied))) == applied


@pytest.mark.parametrize("seed", range(30))
def test_whatever_comes_and_wherever_a_round_ends_each_file_is_searched_once_for_each_rule(seed: int) -> None:
    chance = random.Random(seed)
    rules = [rule(where="a < 1"), rule(where="b < 1", tenant="acme"), rule(where="c < 1", after_seconds="9d")]
    applied: dict[str, RuleProgress] = {}
    files: list[LiveFile] = []
    searched: dict[tuple[str, str], int] = {}
    now, sequence = float(NOW), 0
    for _ in range(20):
        for _ in range(chance.randrange(4)):
            sequence += 1
            day = int(now // DAY) - chance.randrange(14)
            files.append(live(chance.choice(["acme", "globex"]), day, sequence))
        now += chance.randrange(DAY)
        plan = plan_retention(files, rules, now, applied)
        done = chance.randrange(len(plan.searched) + 1)
        before, applied = applied, progress(plan, done, applied, sequence)
        # What was searched and is not remembered is searched again: only that is allowed.
        for due in plan.searched[:done]:
            for name in due.names:
                searched[due.live.file.file_path, name] = searched.get((due.live.file.file_path, name), 0) + 1
        for name, at in applied.items():
            assert at.day >= before.get(name, RuleProgress(-1, 0)).day
    plan = plan_retention(files, rules, now, applied)
    for due in plan.searched:
        for name in due.names:
            searched[due.live.file.file_path, name] = 1
    wanted = {
        (each.file.file_path, key_of(one))
        for each in files
        for one in rules
        if one.tenant in (None, each.file.partition[0]) and each.file.partition[1] <= newest_day(one, now)
    }
    assert wanted <= searched.keys()
    done_all = progress(plan, len(plan.searched), applied, sequence)
    assert plan_retention(files, rules, now, done_all).searched == ()


def test_late_days_of_more_than_a_round_are_searched_once_and_hold_up_no_other_day() -> None:
    """Their rows fall due after the rule has passed their days."""
    condition = rule(where="severity_number < 9")
    late = {("acme", day): float(NOW) for day in range(19_980, 19_986)}
    files = [live("acme", day, sequence) for sequence, (_, day) in enumerate(late, 1)]
    applied = {key_of(condition): RuleProgress(19_990, 100)}
    now = NOW + 8.0 * DAY
    new = live("acme", 19_995, 101)
    searched = []
    for _ in range(10):
        plan = plan_retention([*files, new], [condition], now, applied, late)
        if not plan.searched:
            break
        searched += paths(plan.searched[:2])  # as much as a round may search
        applied = read_applied(json.loads(write_applied(progress(plan, 2, applied, 101))))
    assert sorted(searched) == sorted(each.file.file_path for each in (*files, new))
    again = {**late, ("acme", 19_982): now}
    plan = plan_retention([*files, new], [condition], now + 8 * DAY, applied, again)
    assert paths(plan.searched) == ["acme/19982/3.parquet"]


def test_late_rows_of_one_tenant_postpone_no_rows_of_another() -> None:
    files = [live("acme", 19_980), live("globex", 19_980)]
    for late in ({("acme", 19_980): float(NOW)}, {("acme", None): float(NOW)}):
        assert paths(plan_retention(files, [rule()], NOW, {}, late).dropped) == ["globex/19980/1.parquet"]
        later = plan_retention(files, [rule()], NOW + 8 * DAY, {}, late)
        assert len(later.dropped) == 2
