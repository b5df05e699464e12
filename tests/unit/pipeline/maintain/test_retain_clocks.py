"""Retention with wrong clocks, and with many due rows: young rows are kept, and held rounds are visible."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import urllib3
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from pydantic import ValidationError
from structlog.testing import capture_logs

from frazil.config import Config
from frazil.errors import JobFailed, Refused
from frazil.lake.clock import (
    CLOCK,
    Partition,
    _bounded,
    by_partition,
    late_days,
    partition_texts,
    record_late,
    recorded_time,
)
from frazil.lake.commits import commit, staging
from frazil.ledger import balance
from frazil.pipeline.health import HealthServer
from frazil.pipeline.land import lander
from frazil.pipeline.maintain import command
from frazil.pipeline.maintain.maintainer import Maintainer, MaintenanceState
from frazil.pipeline.maintain.metrics import MaintainMetrics
from frazil.pipeline.maintain.report import Task
from frazil.pipeline.maintain.retain import rows as retain_rows
from frazil.status.poll import parse_response
from frazil.status.stages import Endpoint
from tests.support.known_lake import DAY, KnownLake
from tests.support.local_runner import LocalRunner

HOUR = 3600


@contextlib.contextmanager
def kept(
    folder: Path, *rules: dict[str, Any], land: dict[str, Any] | None = None, **given: Any
) -> Iterator[KnownLake]:
    lake = KnownLake(folder, land=land or {}, maintain={"retention": {"rules": list(rules), **given}})
    with contextlib.closing(lake):
        yield lake


def with_retention(lake: KnownLake, **changed: Any) -> None:
    """Past the bounds of the configuration, which are for real tables."""
    retention = lake.config.maintain.retention.model_copy(update=changed)
    maintain = lake.config.maintain.model_copy(update={"retention": retention})
    lake.config = lake.config.model_copy(update={"maintain": maintain})


class Keeper:
    """A maintainer with a clock that is set, and its metrics."""

    def __init__(self, lake: KnownLake) -> None:
        self.now = lake.now
        self.registry = CollectorRegistry()
        self.maintainer = Maintainer(
            lake.config,
            lake.catalog,
            LocalRunner(),
            MaintainMetrics(self.registry),
            clock=lambda: self.now,
        )

    def round(self) -> list[Task]:
        return [report.task for report in self.maintainer.round() if report.table == "logs"]

    def gauge(self, name: str) -> float | None:
        return self.registry.get_sample_value(name, {"table": "logs"})


def days_of(ages: list[float]) -> list[list[tuple[str, str, int, float]]]:
    return [[("acme", f"x {age}", 9, age)] for age in ages]


# -- much is due


def test_files_that_go_as_a_whole_go_in_one_round_whatever_their_size(tmp_path: Path) -> None:
    with kept(tmp_path, {"after_seconds": "7d"}) as lake:
        with_retention(lake, rewrite_round_bytes_max=1)
        lake.fill(*days_of([20.0, 19.0, 18.0, 17.0, 1.0]))
        report = lake.retain()
        assert (report.detail["files_dropped"], report.is_unfinished) == (4, False)
        assert len(lake.table().metadata.snapshots) == 7, "five landings, the first snapshot and one commit"
        assert balance(lake.config).problems == []


def test_a_commit_and_a_round_drop_a_bounded_number_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retain_rows, "_DROPS_PER_COMMIT_MAX", 2)
    monkeypatch.setattr(retain_rows, "_DROPS_PER_ROUND_MAX", 3)
    with kept(tmp_path, {"after_seconds": "7d"}) as lake:
        lake.fill(*days_of([20.0, 19.0, 18.0, 17.0, 1.0]))
        before = len(lake.table().metadata.snapshots)
        report = lake.retain()
        assert (report.detail["files_dropped"], report.is_unfinished) == (3, True)
        assert len(lake.table().metadata.snapshots) == before + 2
        assert lake.retain().detail["files_dropped"] == 1
        assert balance(lake.config).problems == []


def test_the_next_round_continues_after_the_other_tasks(tmp_path: Path) -> None:
    with kept(tmp_path, {"after_seconds": "7d", "where": "body LIKE 'x%'", "table": "logs"}) as lake:
        with_retention(lake, rewrite_round_bytes_max=1)
        lake.fill(*days_of([12.0, 11.0, 10.0]))
        keeper = Keeper(lake)
        first = keeper.round()
        assert first[0] == "retention"
        assert "expire" in first
        keeper.now += 5
        assert keeper.round() == ["retention"]
        keeper.now += 5
        assert keeper.round() == ["retention"]
        keeper.now += 5
        assert "retention" not in keeper.round()
        assert lake.bodies().total() == 0


def test_an_unfinished_task_that_fails_is_not_retried_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kept(tmp_path, {"after_seconds": "7d", "where": "body LIKE 'x%'", "table": "logs"}) as lake:
        with_retention(lake, rewrite_round_bytes_max=1)
        lake.fill(*days_of([12.0, 11.0, 10.0]))
        keeper = Keeper(lake)
        keeper.round()
        tried = []

        def fails(*_: Any) -> Iterator[Any]:
            tried.append(True)
            raise JobFailed("no worker")

        monkeypatch.setattr(LocalRunner, "results", fails)
        for _ in range(3):
            keeper.now += 5
            keeper.round()
        assert len(tried) == 1


def test_rows_past_their_rule_are_seen_before_and_after_they_go(tmp_path: Path) -> None:
    with kept(tmp_path, {"after_seconds": "7d", "where": "body LIKE 'x%'", "table": "logs"}) as lake:
        with_retention(lake, rewrite_round_bytes_max=1)
        lake.fill(*days_of([12.0, 10.0, 1.0]))
        keeper = Keeper(lake)
        assert keeper.gauge("frazil_retention_overdue_seconds") is None
        keeper.round()
        overdue = keeper.gauge("frazil_retention_overdue_seconds")
        assert overdue is not None
        assert 2 * DAY <= overdue <= 3 * DAY, "ten days old, counted from the end of its day"
        keeper.round()
        assert keeper.gauge("frazil_retention_overdue_seconds") == 0


def test_without_rules_nothing_is_overdue_and_nothing_is_held(tmp_path: Path) -> None:
    with kept(tmp_path) as lake:
        lake.fill(*days_of([300.0]))
        keeper = Keeper(lake)
        keeper.round()
        assert keeper.gauge("frazil_retention_overdue_seconds") == 0
        assert keeper.gauge("frazil_retention_held") == 0


# -- a clock that is ahead


def test_a_clock_a_year_ahead_removes_nothing_until_it_is_confirmed(tmp_path: Path) -> None:
    with kept(tmp_path, {"after_seconds": "90d"}) as lake:
        lake.fill(*days_of([0.0, 50.0]))
        lake.now += 365 * DAY
        would = lake.retain(dry_run=True)
        assert would.rows_removed == 2
        for report in (would, lake.retain()):
            assert "frazil maintain retention --confirm logs" in report.held
        assert lake.bodies().total() == 2
        report = lake.retain(confirmed=True)
        assert (report.rows_removed, report.held) == (2, "")


def test_landings_by_the_wrong_clock_do_not_make_it_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kept(tmp_path, {"after_seconds": "90d"}) as lake:
        lake.fill(*days_of([0.0, 50.0]))
        lake.retain()
        ahead = lake.now = time.time() + 365 * DAY
        monkeypatch.setattr(staging, "time", SimpleNamespace(time=lambda: ahead))
        monkeypatch.setattr(lander, "_wall_clock", lambda: ahead)
        lake.fill(*days_of([0.0]))
        assert lake.retain().held
        assert lake.bodies().total() == 3


def test_a_table_in_which_nothing_lands_keeps_its_rule_while_retention_looks_at_it(tmp_path: Path) -> None:
    with kept(tmp_path, {"after_seconds": "7d"}) as lake:
        lake.fill(*days_of([0.0]))
        removed = 0
        for _ in range(18):
            report = lake.retain()
            assert report.held == ""
            removed += report.rows_removed
            lake.now += DAY / 2
        assert removed == 1


def test_a_clock_that_was_behind_for_a_while_needs_no_confirmation(tmp_path: Path) -> None:
    with kept(tmp_path, {"after_seconds": "7d"}) as lake:
        lake.fill(*days_of([6.5]))
        right = lake.now
        lake.retain()
        lake.now = 0.0
        assert lake.retain().rows_removed == 0
        lake.now = right + DAY - HOUR
        assert lake.retain().held == ""
        assert recorded_time(lake.table().metadata) == lake.now


def test_the_store_decides_when_the_pipeline_is_ahead(tmp_path: Path) -> None:
    with kept(tmp_path, {"after_seconds": "7d"}) as lake:
        lake.fill(*days_of([6.0]))
        keeper = Keeper(lake)
        keeper.now += 365 * DAY
        keeper.round()
        assert keeper.gauge("frazil_retention_held") == 0
        assert lake.bodies().total() == 1
        assert (recorded_time(lake.table().metadata) or 0) < time.time() + HOUR


# -- a large share


def test_a_round_that_would_remove_a_large_share_waits_and_is_seen(tmp_path: Path) -> None:
    with kept(tmp_path, {"after_seconds": "7d"}) as lake:
        with_retention(lake, confirm_rows_min=0)
        lake.fill(*days_of([12.0, 1.0, 2.0]))
        keeper = Keeper(lake)
        keeper.round()
        assert keeper.gauge("frazil_retention_held") == 1
        assert (keeper.gauge("frazil_retention_overdue_seconds") or 0) > DAY
        assert lake.bodies().total() == 3
        assert lake.retain(confirmed=True).rows_removed == 1
        keeper.now += 5 * 60
        keeper.round()
        assert keeper.gauge("frazil_retention_held") == 0


def test_a_confirmation_is_for_one_round_only(tmp_path: Path) -> None:
    with kept(tmp_path, {"after_seconds": "7d"}) as lake:
        with_retention(lake, confirm_rows_min=0)
        lake.fill(*days_of([12.0, 1.0]))
        assert lake.retain(confirmed=True).rows_removed == 1
        lake.now += DAY / 2
        lake.retain()
        lake.fill(*days_of([12.0]))
        assert lake.retain().held


@pytest.mark.parametrize("where", [None, "body LIKE 'x%'"])
def test_a_new_rule_on_old_rows_waits_and_the_next_days_do_not(tmp_path: Path, where: str | None) -> None:
    rule = {"after_seconds": "7d"} | ({} if where is None else {"where": where, "table": "logs"})
    with kept(tmp_path, rule) as lake:
        with_retention(lake, confirm_rows_min=0)
        lake.fill(*days_of([float(age) for age in range(1, 21)]))
        assert lake.retain().held
        assert lake.retain(confirmed=True).rows_removed == 13
        lake.now += DAY * 0.9
        report = lake.retain()
        assert (report.held, report.rows_removed <= 1) == ("", True)


def test_a_short_rule_removes_half_of_the_table_each_day_without_a_confirmation(tmp_path: Path) -> None:
    with kept(tmp_path, {"after_seconds": "1d"}) as lake:
        with_retention(lake, confirm_rows_min=0)
        lake.now = lake.now // DAY * DAY - HOUR
        removed = 0
        for _ in range(6):
            lake.fill(*days_of([0.0]))
            report = lake.retain()
            assert report.held == ""
            removed += report.rows_removed
            lake.now += DAY
        assert removed == 4


def test_few_rows_need_no_confirmation(tmp_path: Path) -> None:
    with kept(tmp_path, {"after_seconds": "7d"}, confirm_rows_min=3) as lake:
        lake.fill(*days_of([12.0, 13.0]))
        assert lake.retain().rows_removed == 2


def test_the_command_confirms_what_the_pipeline_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with kept(tmp_path, {"after_seconds": "7d"}) as lake:
        with_retention(lake, confirm_rows_min=0)
        lake.fill(*days_of([12.0]))
        monkeypatch.setattr(command, "Maintainer", _here(lake.config))

        def run(*confirmed: str) -> int:
            return command.maintain(
                lake.config, "retention", [], dry_run=False, json_output=False, confirmed=confirmed
            )

        assert run() == 1
        assert "--confirm logs" in capsys.readouterr().err
        assert run("logs") == 0
        assert lake.bodies().total() == 0
        with pytest.raises(Refused, match="no table lgos"):
            run("lgos")
        with pytest.raises(Refused, match="--confirm only works with retention"):
            command.maintain(lake.config, None, [], dry_run=False, json_output=False, confirmed=["logs"])


def _here(config: Config) -> Any:
    def made(_: Config, catalog: Any, runner: object, *given: Any, **options: Any) -> Maintainer:
        return Maintainer(config, catalog, LocalRunner(), *given, **options)

    return made


def test_work_that_waits_for_an_operator_is_degraded_in_the_status_and_the_pipeline_stays_healthy() -> None:
    why = "the clock says 2027"
    server = HealthServer(
        "127.0.0.1:0", CollectorRegistry(), dict[str, str], lambda: {"retention of logs": why}
    )
    server.start()
    try:
        url = f"http://127.0.0.1:{server.port}"
        answer, status = (
            urllib3.PoolManager().request("GET", url + path) for path in ("/healthz", "/status")
        )
    finally:
        server.stop()
    assert (answer.status, answer.json()["ok"]) == (200, True)
    polled = parse_response(Endpoint("pipeline", url), status.status, status.data)
    assert (polled.state, polled.reasons) == ("degraded", [f"retention of logs: {why}"])


def test_the_maintainer_of_the_pipeline_reports_held_retention(tmp_path: Path) -> None:
    with kept(tmp_path, {"after_seconds": "7d"}) as lake:
        with_retention(lake, confirm_rows_min=0)
        lake.fill(*days_of([12.0]))
        state = MaintenanceState()
        metrics = MaintainMetrics(CollectorRegistry())
        maintainer = Maintainer(
            lake.config,
            lake.catalog,
            LocalRunner(),
            metrics,
            state=state,
        )
        with capture_logs() as lines:
            maintainer.round()
            maintainer.round()
        assert "--confirm logs" in state.held["logs"]
        events = [line["event"] for line in lines]
        assert events.count("retention held: confirmation required") == 1


def test_a_gap_that_every_round_would_exceed_is_refused() -> None:
    with pytest.raises(ValidationError, match="less than twice interval_seconds"):
        Config.model_validate(
            {"maintain": {"retention": {"interval_seconds": "2d", "clock_gap_seconds_max": "3d"}}}
        )


# -- receivers whose clock was wrong


def test_rows_of_a_receiver_whose_clock_was_behind_count_from_their_landing(tmp_path: Path) -> None:
    with kept(tmp_path, {"after_seconds": "90d"}, land={"horizon_past_seconds": "30d"}) as lake:
        right = lake.now
        lake.now -= 200 * DAY
        lake.write([("acme", "sent today", 9, -200.0)])
        lake.land()
        assert len(late_days(lake.table().metadata)) == 1
        lake.now = right
        assert lake.retain().rows_removed == 0
        lake.now = right + 89 * DAY
        assert lake.retain(confirmed=True).rows_removed == 0
        lake.now = right + 91 * DAY
        assert lake.retain(confirmed=True).rows_removed == 1
        assert late_days(lake.table().metadata) == {}


def test_rules_with_a_condition_find_late_rows_when_their_time_has_come(tmp_path: Path) -> None:
    rule = {"after_seconds": "90d", "where": "body LIKE 'sent%'", "table": "logs"}
    with kept(tmp_path, rule, land={"horizon_past_seconds": "30d"}) as lake:
        right = lake.now
        lake.now -= 200 * DAY
        lake.write([("acme", "sent today", 9, -200.0), ("acme", "other", 9, -200.0)])
        lake.land()
        lake.now = right
        assert lake.retain().rows_removed == 0
        lake.now = right + 91 * DAY
        assert lake.retain(confirmed=True).rows_removed == 1
        assert lake.retain(confirmed=True).is_nothing
        assert list(lake.bodies()) == ["other"]


def test_a_log_that_waited_for_less_than_a_day_notes_nothing(tmp_path: Path) -> None:
    with kept(tmp_path, {"after_seconds": "90d"}) as lake:
        lake.now -= 20 * HOUR
        lake.fill(*days_of([0.0, 40.0]))
        assert late_days(lake.table().metadata) == {}
        assert CLOCK not in lake.table().metadata.properties


RULE_DAYS, GAP_DAYS = 90, 10


@settings(max_examples=4, deadline=None, derandomize=True)
@given(receiver=st.integers(-400, 400), pipeline=st.integers(-400, 400))
@example(receiver=0, pipeline=0)
@example(receiver=-200, pipeline=0)
@example(receiver=-60, pipeline=0)
@example(receiver=-15, pipeline=0)
@example(receiver=-200, pipeline=-200)
@example(receiver=0, pipeline=365)
@example(receiver=30, pipeline=30)
def test_no_row_younger_than_its_rule_goes_whatever_the_clocks_say(receiver: int, pipeline: int) -> None:
    """Days by which the clocks are wrong for a day. Differences up to the gap are not noticed."""
    with (
        tempfile.TemporaryDirectory() as folder,
        pytest.MonkeyPatch.context() as patch,
        kept(
            Path(folder),
            {"after_seconds": f"{RULE_DAYS}d"},
            land={"horizon_past_seconds": "30d"},
            clock_gap_seconds_max=f"{GAP_DAYS}d",
        ) as lake,
    ):
        start, wrong = time.time(), [0.0]
        sent: dict[str, float] = {}

        def at(day: float) -> None:
            now = start + (day + wrong[0]) * DAY
            lake.now = now
            patch.setattr(lander, "_wall_clock", lambda: now)
            patch.setattr(staging, "time", SimpleNamespace(time=lambda: now))
            clock = SimpleNamespace(time=lambda: now, monotonic=time.monotonic, sleep=time.sleep)
            patch.setattr(commit, "time", clock)
            patch.setattr(retain_rows, "time", clock)

        def send(day: float, age: float, receiver_wrong: float) -> None:
            """Clients have right clocks."""
            name = f"{day} {age}"
            sent[name] = day - age
            lake.now = start + (day + receiver_wrong) * DAY
            lake.write([("acme", name, 9, age + receiver_wrong)])
            at(day)
            lake.land()

        def look(day: float) -> None:
            at(day)
            lake.retain()
            young = {name for name, born in sent.items() if day - born < RULE_DAYS - GAP_DAYS}
            assert young <= lake.bodies().keys()

        at(0)
        for age in (0, 20, 100):
            send(0, age, 0)
        look(0)
        wrong[0] = pipeline
        for day in (0.5, 1.0):
            send(day, 0, receiver)
            send(day, 5, receiver)
            look(day)
        wrong[0] = 0
        for step in range(12):
            look(2 + step * (GAP_DAYS - 1))
        if receiver == pipeline == 0:
            assert not lake.bodies(), "what is past its rule goes"


def test_a_tenant_with_very_many_late_days_has_one_mark_and_takes_none_from_others() -> None:
    late: dict[Partition, float] = {("noisy", day): float(day) for day in range(5_000)}
    late |= {(f"tenant{number}", 7): 8.0 for number in range(100)}
    found = _bounded(late)
    assert found.pop(("noisy", None)) == 4_999
    assert found == {(f"tenant{number}", 7): 8.0 for number in range(100)}
    assert by_partition(partition_texts({**found, ("noisy", None): 4_999.0}))[("noisy", None)] == 4_999
    crowd = _bounded({(f"t{number}", day): 1.0 for number in range(60) for day in range(100)})
    assert len(crowd) <= 4_000 + 60
    assert {tenant for tenant, _ in crowd} == {f"t{number}" for number in range(60)}


def test_landings_of_the_same_late_day_note_it_once(tmp_path: Path) -> None:
    with kept(tmp_path, {"after_seconds": "90d"}, land={"horizon_past_seconds": "30d"}) as lake:
        lake.fill(*days_of([0.0]))
        table = lake.table()
        now = lake.now
        assert record_late(table.catalog, table, [("acme", 19_000)], now)
        assert not record_late(table.catalog, lake.table(), [("acme", 19_000)], now)
        assert record_late(table.catalog, lake.table(), [("acme", 19_000)], now + DAY)
        assert len(late_days(lake.table().metadata)) == 1
