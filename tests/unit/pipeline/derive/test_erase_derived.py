"""What was computed from erased rows is computed again from the rest; the report names the days."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator
from pathlib import Path

import pytest

from frazil.errors import Refused
from frazil.pipeline.maintain.tag_tables import tag_tables
from frazil.pipeline.metrics import Metrics
from tests.support.derived_lake import Crash, DerivedLake, crashing_at
from tests.support.fault.sweep import points
from tests.support.known_lake import DAY, holding

TABLE = "log_rollups"


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[DerivedLake]:
    with contextlib.closing(DerivedLake(tmp_path)) as made:
        yield made


def row(user: str, service: str, days: float = 0.0, tenant: str = "acme") -> tuple[str, str, int, float]:
    return (tenant, f"{user} {service} said something", 9, days)


def date_of(lake: DerivedLake, days_ago: int) -> str:
    return datetime.datetime.fromtimestamp(lake.now - days_ago * DAY, datetime.UTC).date().isoformat()


def services(lake: DerivedLake) -> set[str]:
    return {str(each[2]) for each in lake.merged(TABLE)}


OF_U1 = "attributes['user.id'] = 'u1'"


def test_days_with_erased_rows_are_computed_again_and_no_file_of_before_is_left(lake: DerivedLake) -> None:
    lake.fill([row("u1", "secret"), row("u2", "cart")], [row("u1", "cart", days=2), row("u3", "web", days=2)])
    lake.fill([row("u4", "web", days=5)])
    lake.derive()
    assert holding(lake.config.data_dir / "warehouse" / "otel" / TABLE, "secret")
    erasure = lake.erase(OF_U1)
    assert erasure.is_proven
    assert lake.merged(TABLE) == lake.expected(TABLE)
    assert services(lake) == {"cart", "web"}
    (report,) = [each for each in erasure.tables if each.table == TABLE]
    assert report.days_recomputed == [date_of(lake, 2), date_of(lake, 0)]
    assert report.days_kept == []
    assert "computed again from the remaining rows" in erasure.text()
    assert holding(lake.config.data_dir / "warehouse" / "otel" / TABLE, "secret") == []


def test_rows_that_had_landed_and_were_not_derived_yet_are_not_lost(lake: DerivedLake) -> None:
    lake.fill([row("u1", "secret"), row("u2", "cart")])
    lake.derive()
    lake.fill([row("u5", "gate"), row("u1", "secret")])
    lake.write([row("u6", "web"), row("u1", "web")])
    assert lake.erase(OF_U1).is_proven
    lake.derive()
    assert lake.merged(TABLE) == lake.expected(TABLE)
    assert services(lake) == {"cart", "gate", "web"}


def test_other_tenants_rows_stay_as_they_are(lake: DerivedLake) -> None:
    lake.fill([row("u1", "cart"), row("u2", "cart")], [row("u1", "vault", tenant="globex")])
    lake.derive()
    before = [each for each in lake.merged(TABLE) if each[0] == "globex"]
    lake.erase(OF_U1)
    assert [each for each in lake.merged(TABLE) if each[0] == "globex"] == before
    assert lake.merged(TABLE) == lake.expected(TABLE)


def test_numbers_of_days_whose_other_rows_are_gone_stay_but_rows_that_match_themselves_go(
    tmp_path: Path,
) -> None:
    rule = {"table": "logs", "where": "severity_number < 9", "after_seconds": "7d"}
    with contextlib.closing(DerivedLake(tmp_path, maintain={"retention": {"rules": [rule]}})) as lake:
        debug = ("acme", "u3 cart said something", 5, 10.0)
        lake.fill([row("u1", "secret", days=10), row("u1", "cart", days=10), debug])
        lake.derive()
        lake.retain(confirmed=True)
        assert sum(each[5] for each in lake.merged(TABLE) if each[1] == 86_400) == 3
        erasure = lake.erase("service_name = 'secret'")
        assert erasure.is_proven
        (report,) = [each for each in erasure.tables if each.table == TABLE]
        assert report.days_kept == [date_of(lake, 10)]
        assert report.days_recomputed == []
        assert report.rows_removed == 4, "one at each resolution"
        assert "numbers stay" in erasure.text()
        assert services(lake) == {"cart"}
        assert sum(each[5] for each in lake.merged(TABLE) if each[1] == 86_400) == 2
        lake.erase("attributes['user.id'] = 'u1'", yes=True)
        assert sum(each[5] for each in lake.merged(TABLE) if each[1] == 86_400) == 2, "pure numbers stay"


def test_rows_that_are_not_derived_yet_do_not_stand_for_counted_rows_that_are_gone(tmp_path: Path) -> None:
    rule = {"table": "logs", "where": "severity_number < 9", "after_seconds": "7d"}
    with contextlib.closing(DerivedLake(tmp_path, maintain={"retention": {"rules": [rule]}})) as lake:
        lake.fill([row("u1", "cart", days=10), ("acme", "u3 cart said something", 5, 10.0)])
        lake.derive()
        lake.retain(confirmed=True)
        lake.fill([row("u2", "web", days=10)])
        assert lake.table("logs").scan().count() == 2, "as many rows as the derived table counts"
        erasure = lake.erase(OF_U1, dry_run=True)
        (report,) = [each for each in erasure.tables if each.table == TABLE]
        assert report.days_kept == [date_of(lake, 10)]
        assert report.days_recomputed == []


def test_a_tag_on_derived_rows_that_count_erased_rows_refuses_the_erasure(lake: DerivedLake) -> None:
    lake.fill([row("u1", "secret"), row("u2", "cart")])
    lake.derive()
    tag_tables(lake.config, lake.catalog, lake.runner, Metrics(), "incident-7")
    with pytest.raises(Refused, match="incident-7"):
        lake.erase(OF_U1)
    assert lake.erase(OF_U1, drop_tags=True).is_proven
    assert lake.merged(TABLE) == lake.expected(TABLE)


def test_a_dry_run_names_the_days_and_changes_nothing(lake: DerivedLake) -> None:
    lake.fill([row("u1", "secret"), row("u2", "cart", days=3)])
    lake.derive()
    before = lake.merged(TABLE)
    erasure = lake.erase(OF_U1, dry_run=True)
    (report,) = [each for each in erasure.tables if each.table == TABLE]
    assert report.days_recomputed == [date_of(lake, 0)]
    assert "would be computed again" in erasure.text()
    assert lake.merged(TABLE) == before


def test_a_table_that_cannot_be_derived_does_not_stop_an_erasure_and_is_derived_again_later(
    lake: DerivedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.fill([row("u1", "secret"), row("u2", "cart")])
    lake.derive()

    def failing(*_: object) -> object:
        raise ValueError("cannot be combined")

    with monkeypatch.context() as broken:
        broken.setattr("frazil.pipeline.derive.task.rolled_up", failing)
        assert lake.erase(OF_U1).is_proven
        assert lake.merged(TABLE) == []
    lake.restart()
    lake.derive()
    assert lake.merged(TABLE) == lake.expected(TABLE)
    assert services(lake) == {"cart"}


def test_rows_of_a_derived_table_can_be_erased_by_a_condition_on_its_own_columns(lake: DerivedLake) -> None:
    lake.fill([row("u1", "cart"), row("u2", "cart"), row("u3", "web")])
    lake.derive()
    erasure = lake.erase("example LIKE '%cart%'", tables=("log_patterns",))
    assert erasure.is_proven
    assert [table.table for table in erasure.tables] == ["log_patterns"]
    left = lake.table("log_patterns").scan().to_arrow().to_pylist()
    assert {each["service_name"] for each in left} == {"web"}
    assert services(lake) == {"cart", "web"}


def test_the_report_names_derived_tables_to_which_the_condition_cannot_be_applied(lake: DerivedLake) -> None:
    lake.fill([row("u1", "secret"), row("u2", "cart")])
    lake.derive()
    (line,) = [each for each in lake.erase("body LIKE 'u1%'").outside if "log_patterns" in each]
    assert "the source no longer holds" in line
    outside = lake.erase("service_name = 'cart'", yes=True).outside
    assert not any("log_patterns" in each for each in outside)


@pytest.mark.slow
def test_an_erasure_that_crashed_at_any_step_is_completed_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in points(400, 5):
        with contextlib.closing(DerivedLake(tmp_path / str(number))) as lake:
            lake.fill([row("u1", "secret"), row("u2", "cart")])
            lake.derive()
            lake.write([row("u3", "web"), row("u1", "secret")])
            crashed = False
            with crashing_at(monkeypatch, lake.catalog, number):
                try:
                    lake.erase(OF_U1)
                except Crash:
                    crashed = True
            assert lake.erase(OF_U1).is_proven
            lake.restart()
            lake.derive()
            assert lake.merged(TABLE) == lake.expected(TABLE)
            assert services(lake) == {"cart", "web"}
            assert holding(lake.config.data_dir / "warehouse" / "otel" / TABLE, "secret") == []
        if not crashed:
            assert number > 12
            return
    raise AssertionError("the sweep has no end")
