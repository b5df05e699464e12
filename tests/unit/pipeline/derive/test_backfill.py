"""Past days are derived again one by one, survive a crash, and lose no rows unless an operator allows it."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from frazil.config import Config
from frazil.errors import Conflict, JobFailed, Refused, Stopped
from frazil.lake.commits.commit import Committer
from frazil.lake.live_files import live_files, partition_of
from frazil.ledger import balance
from frazil.pipeline.derive.backfill import Backfill, backfill
from frazil.pipeline.derive.days import add_days, days_guarded, days_left
from frazil.pipeline.derive.request import BackfillRequest
from frazil.pipeline.derive.step import DeriveStep
from frazil.pipeline.derive.task import Derivation
from frazil.position import without
from tests.support.derived_lake import DerivedLake
from tests.support.known_lake import DAY
from tests.unit.pipeline.derive.test_deriver import (
    assert_equal_to_a_single_pass,
    compact,
    rows,
)

TABLE = "log_rollups"
WEEK = {"maintain": {"retention": {"rules": [{"table": "logs", "after_seconds": "7d"}]}}}


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[DerivedLake]:
    with contextlib.closing(DerivedLake(tmp_path)) as made:
        made.fill(rows("cart", "web"), rows("web", tenant="globex", days=1), rows("old", "old", days=3))
        made.derive()
        yield made


def date_of(lake: DerivedLake, days: int) -> str:
    return datetime.datetime.fromtimestamp(lake.now - days * DAY, datetime.UTC).date().isoformat()


def run(
    lake: DerivedLake, first: int = 30, last: int | None = None, table: str = TABLE, **options: Any
) -> tuple[Backfill, list[str]]:
    said: list[str] = []
    sleep = options.pop("sleep", lambda _: None)
    to = None if last is None else date_of(lake, last)
    request = BackfillRequest(table, date_of(lake, first), to, **options)
    clock = lambda: lake.now  # noqa: E731
    found = backfill(
        lake.config, lake.catalog, request, lake.runner, say=said.append, sleep=sleep, clock=clock
    )
    return found, said


def snapshots(lake: DerivedLake) -> list[dict[str, str]]:
    return [each.summary.additional_properties for each in lake.table(TABLE).metadata.snapshots]


def test_each_day_is_one_commit_newest_first_with_progress(lake: DerivedLake) -> None:
    before = len(snapshots(lake))
    found, said = run(lake)
    assert [(each.day - int(lake.now // DAY)) for each in found.days] == [0, -1, -3]
    days = [line for line in said if line.startswith("day ")]
    assert [line.rsplit(",", 1)[0] for line in days] == [
        f"day 1 of 3: {date_of(lake, 0)}, 2 rows of logs",
        f"day 2 of 3: {date_of(lake, 1)}, 1 rows of logs",
        f"day 3 of 3: {date_of(lake, 3)}, 2 rows of logs",
    ]
    assert [each.get("frazil.rederived-days") for each in snapshots(lake)[before:]] == ["1", "1", "1"]
    assert days_left(lake.table(TABLE).metadata) == []
    assert "3 days derived again from 5 rows of logs" in found.text()
    assert_equal_to_a_single_pass(lake)
    assert balance(lake.config).problems == []


def test_only_the_days_of_the_range_are_derived(lake: DerivedLake) -> None:
    found, _ = run(lake, 1, 1)
    assert [each.day for each in found.days] == [int(lake.now // DAY) - 1]
    found, _ = run(lake, 2, 2)
    assert found.done == 0
    assert "nothing to derive" in found.text()
    assert_equal_to_a_single_pass(lake)


def test_rows_that_have_just_landed_are_derived_first(lake: DerivedLake) -> None:
    lake.fill(rows("new"))
    found, said = run(lake, 0)
    assert said[0] == "deriving the rows that have landed"
    assert found.days[0].source_rows.total() == 3
    assert_equal_to_a_single_pass(lake)


def test_a_dry_run_says_what_the_days_hold_and_changes_nothing(lake: DerivedLake) -> None:
    before = snapshots(lake), dict(lake.table(TABLE).properties)
    lake.fill(rows("later"))
    compact(lake)
    found, said = run(lake, dry_run=True)
    assert (snapshots(lake), dict(lake.table(TABLE).properties)) == before
    assert said == []
    newest = found.days[0]
    assert (newest.source_rows.total(), newest.derived_rows.total()) == (2, 2), "later is not derived yet"
    lines = found.text().splitlines()
    assert lines[1].split()[:2] == [date_of(lake, 0), "2"]
    assert lines[-1] == "dry run: nothing was changed"
    assert found.as_dict()["days"][2] | {"source_bytes": 0} == {
        "day": date_of(lake, 3),
        "source_rows": 2,
        "source_files": 1,
        "source_bytes": 0,
        "derived_rows": 2,
        "losses": {},
    }


@pytest.fixture
def retained(tmp_path: Path) -> Iterator[DerivedLake]:
    """All raw rows of one day are gone."""
    with contextlib.closing(DerivedLake(tmp_path, **WEEK)) as made:
        made.fill(rows("old", "old", days=10), rows("older", tenant="globex", days=10), rows("new"))
        made.derive()
        assert made.retain(confirmed=True).rows_removed == 3
        yield made


def test_a_day_whose_source_rows_are_gone_is_refused_with_its_tenants(retained: DerivedLake) -> None:
    before = retained.merged(TABLE)
    with pytest.raises(Refused) as refused:
        run(retained)
    text = str(refused.value)
    assert "on 1 days" in text
    assert f"{date_of(retained, 10)} acme (2 in log_rollups, 0 in logs)" in text
    assert f"{date_of(retained, 10)} globex (1 in log_rollups, 0 in logs)" in text
    assert "--yes" in text
    assert retained.merged(TABLE) == before
    assert days_left(retained.table(TABLE).metadata) == []
    found, _ = run(retained, dry_run=True)
    assert "refused without --yes" in found.text()
    assert len(found.losing) == 1
    found, _ = run(retained, 5)
    assert found.done == 1, "other days are derived"
    assert retained.merged(TABLE) == before


def test_with_yes_the_rows_are_lost_and_the_ledger_balances(retained: DerivedLake) -> None:
    found, _ = run(retained, yes=True)
    assert found.done == 2
    assert_equal_to_a_single_pass(retained)
    ledger = balance(retained.config)
    assert (ledger.problems, ledger.derived[0].counted) == ([], 1)


def test_a_part_of_the_rows_that_is_gone_is_noticed(tmp_path: Path) -> None:
    rule = {"table": "logs", "after_seconds": "7d", "where": "service_name = 'gone'"}
    with contextlib.closing(DerivedLake(tmp_path, maintain={"retention": {"rules": [rule]}})) as lake:
        lake.fill(rows("kept", "gone", days=10))
        lake.derive()
        assert lake.retain(confirmed=True).rows_removed == 1
        with pytest.raises(Refused, match=r"acme \(2 in log_rollups, 1 in logs\)"):
            run(lake)


def test_a_killed_command_is_finished_by_the_pipeline_and_by_the_next_run(lake: DerivedLake) -> None:
    calls = 0

    def stopped(_: float) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise Stopped("killed")

    with pytest.raises(Stopped):
        run(lake, sleep=stopped)
    left = days_left(lake.table(TABLE).metadata)
    assert len(left) == 2
    assert days_guarded(lake.table(TABLE).metadata) == left
    assert lake.restart().day()
    assert days_left(lake.table(TABLE).metadata) == left[1:]
    found, _ = run(lake)
    assert found.done == 3
    assert days_left(lake.table(TABLE).metadata) == days_guarded(lake.table(TABLE).metadata) == []
    assert_equal_to_a_single_pass(lake)


def test_the_background_does_not_lose_rows_that_were_removed_since_the_command(tmp_path: Path) -> None:
    with contextlib.closing(DerivedLake(tmp_path, **WEEK)) as lake:
        lake.fill(rows("old", "old", days=10))
        lake.derive()
        before, day = lake.merged(TABLE), int(lake.now // DAY) - 10
        add_days(lake.catalog, lake.table(TABLE), [day], guarded=True)
        assert lake.retain(confirmed=True).rows_removed == 2
        assert lake.restart().day()
        assert lake.merged(TABLE) == before
        assert days_left(lake.table(TABLE).metadata) == []
        add_days(lake.catalog, lake.table(TABLE), [day], guarded=True)
        add_days(lake.catalog, lake.table(TABLE), [day])
        assert days_guarded(lake.table(TABLE).metadata) == [], "an erasure wants the day in any case"
        add_days(lake.catalog, lake.table(TABLE), [day], guarded=True)
        assert days_guarded(lake.table(TABLE).metadata) == []
        assert lake.restart().day()
        assert lake.merged(TABLE) == []


def test_a_day_that_the_pipeline_derives_in_the_meantime_is_not_derived_twice(lake: DerivedLake) -> None:
    other = lake.restart()
    seen = 0

    def and_derive(_: float) -> None:
        nonlocal seen
        seen += 1
        if seen == 2:  # before the second day
            assert other.day()

    found, said = run(lake, sleep=and_derive)
    assert (found.done, len(found.by_others)) == (2, 1)
    assert "derived by the pipeline" in said[2]
    assert "3 days derived again, 1 of them by the pipeline" in found.text()
    assert_equal_to_a_single_pass(lake)


def rederived(lake: DerivedLake, day: int) -> None:
    assert lake.restart().rederive([TABLE], {day}) == set()


def during_job(lake: DerivedLake, act: Callable[[], None]) -> None:
    """Acts once, before the results of the next job are used."""
    run_job = lake.runner.run_job

    def acting(work: Callable[[Any], Any], items: Any) -> Any:
        results = run_job(work, items)
        lake.runner.run_job = run_job  # type: ignore[method-assign]
        act()
        return results

    lake.runner.run_job = acting  # type: ignore[method-assign]


def test_a_conflict_is_tried_again(lake: DerivedLake) -> None:
    today = int(lake.now // DAY)
    during_job(lake, lambda: rederived(lake, today))
    found, said = run(lake, 0)
    assert found.done == 1
    assert any("is derived again: otel.log_rollups" in line for line in said)
    assert_equal_to_a_single_pass(lake)
    assert balance(lake.config).problems == []


def test_two_processes_that_derive_an_empty_day_at_once_do_not_count_it_twice(lake: DerivedLake) -> None:
    """The day has no derived rows, so the two replace no common file."""
    table, day = lake.table(TABLE), int(lake.now // DAY) - 3
    with contextlib.closing(DerivedLake(lake.config.data_dir)) as again:
        again.now = lake.now
        doomed = [each.file for each in live_files(table) if partition_of(each.file).day == day]
        Committer(lake.catalog, deadline_seconds=20).overwrite(
            table, doomed, [], lambda text: without({}, text, counted=2)
        )
        during_job(lake, lambda: rederived(again, day))
        with pytest.raises(Conflict, match="at the same time"):
            lake.restart().rederive([TABLE], {day})
    assert_equal_to_a_single_pass(lake)
    assert balance(lake.config).problems == []


def test_a_day_that_cannot_be_derived_stops_the_command_and_stays(
    lake: DerivedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(work: Callable[[Any], Any], items: Any) -> Any:
        return [Derivation(failed={TABLE: "broken"}) for _ in items]

    monkeypatch.setattr(lake.runner, "run_job", failing)
    with pytest.raises(JobFailed, match=f"could not be derived for {date_of(lake, 0)}"):
        run(lake)
    assert len(days_left(lake.table(TABLE).metadata)) == 3
    monkeypatch.undo()
    assert_equal_to_a_single_pass(lake)


@pytest.mark.parametrize(
    ("table", "first", "last", "why"),
    [
        ("logs", "2026-11-01", None, "not a derived table; there are: .*log_rollups"),
        ("span_metrics", "2026-11-01", None, "does not exist yet"),
        (TABLE, "yesterday", None, "--from yesterday is not a day"),
        (TABLE, "2026-11-01", "2026-02-30", "--to 2026-02-30 is not a day"),
        (TABLE, "2026-11-02", "2026-11-01", "--from 2026-11-02 is after --to, 2026-11-01"),
        (TABLE, "2999-01-01", None, "is after today"),
    ],
)
def test_a_request_that_cannot_be_done_is_refused(
    lake: DerivedLake, table: str, first: str, last: str | None, why: str
) -> None:
    with pytest.raises(Refused, match=why):
        backfill(lake.config, lake.catalog, BackfillRequest(table, first, last), lake.runner)


def test_a_disabled_table_is_refused(lake: DerivedLake) -> None:
    disabled = lake.config.derive.model_copy(update={"disabled_tables": (TABLE,)})
    lake.config = lake.config.model_copy(update={"derive": disabled})
    with pytest.raises(Refused, match="disabled_tables"):
        run(lake)


def test_past_days_wait_while_a_command_runs_and_go_on_afterwards(lake: DerivedLake) -> None:
    running = [True]
    now = [0.0]
    step = DeriveStep(
        Config.model_validate({"data_dir": lake.config.data_dir}),
        lake.restart(),
        lake.runner,
        lambda: running[0],
        clock=lambda: now[0],
    )
    step.run()  # the first round
    now[0] = 1.0
    while step._has_days:
        running[0] = False
        step.run()
    running[0] = True
    add_days(lake.catalog, lake.table(TABLE), [int(lake.now // DAY)])
    step.run()
    assert len(days_left(lake.table(TABLE).metadata)) == 1
    running[0] = False
    step.run()
    assert days_left(lake.table(TABLE).metadata) == []
