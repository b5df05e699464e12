"""Views follow their source as other derived tables do. SQL runs in DuckDB here: tests/spark has Spark's."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from prometheus_client import CollectorRegistry

from frazil.config import Config
from frazil.config.maintain import RetentionConfig
from frazil.errors import JobFailed, Refused
from frazil.lake.views import is_off, known_views, load_views
from frazil.ledger.balance import balance
from frazil.pipeline.derive.backfill import backfill
from frazil.pipeline.derive.days import days_left
from frazil.pipeline.derive.request import BackfillRequest
from frazil.pipeline.derive.views.command import listed_views
from frazil.pipeline.derive.views.declare import mark_off
from frazil.pipeline.maintain.maintainer import Maintainer
from frazil.pipeline.maintain.metrics import MaintainMetrics
from frazil.pipeline.maintain.retain.check import check_rules
from frazil.pipeline.maintain.tag_tables import tag_tables
from frazil.pipeline.metrics import Metrics
from frazil.tables import forget_views, table_specs
from frazil.times import day_text
from tests.support.derived_lake import Crash, crashing_at
from tests.support.known_lake import DAY, holding
from tests.support.view_lake import BY_SERVICE, ViewLake

VIEW = "by_service"
OF_WARNINGS = """
SELECT date_trunc('hour', time) AS time, attributes['user.id'] AS user, count(*) AS records
FROM logs WHERE severity_number > 8 GROUP BY ALL
"""


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[ViewLake]:
    with contextlib.closing(ViewLake(tmp_path, {VIEW: BY_SERVICE})) as made:
        yield made


def rows(
    *names: str, days: float = 0.0, tenant: str = "acme", user: str = "u1", severity: int = 9
) -> list[tuple[str, str, int, float]]:
    return [(tenant, f"{user} {name} said something", severity, days) for name in names]


def assert_equal_to_a_single_pass(lake: ViewLake, view: str = VIEW) -> None:
    found = lake.merged(view)
    assert found == lake.expected(view)
    assert found


def maintainer(lake: ViewLake) -> Maintainer:
    compacting = lake.config.maintain.compact.model_copy(update={"fan_in": 2, "file_cost_bytes": 1 << 26})
    settings = lake.config.maintain.model_copy(update={"compact": compacting})
    config = lake.config.model_copy(update={"maintain": settings})
    return Maintainer(config, lake.catalog, lake.runner, MaintainMetrics(CollectorRegistry()))


def metric(lake: ViewLake, name: str, table: str = VIEW) -> float | None:
    return lake.registry.get_sample_value(name, {"table": table})


def test_a_view_is_derived_after_each_landing_and_counts_each_row_once(lake: ViewLake) -> None:
    lake.fill(rows("cart", "cart", "web"), rows("cart", severity=18))
    assert lake.deriver().round() == "derived"
    assert_equal_to_a_single_pass(lake)
    lake.fill(rows("cart", days=3, tenant="globex"))
    lake.derive()
    assert_equal_to_a_single_pass(lake)
    assert {row[0] for row in lake.merged(VIEW)} == {"acme", "globex"}, "the tenant is part of the key"
    assert lake.position(VIEW).counted == 5
    assert lake.deriver().round() == "idle"


def test_the_table_says_what_it_is_to_a_process_without_the_configuration(lake: ViewLake) -> None:
    lake.fill(rows("cart"))
    lake.derive()
    (known,) = known_views()
    forget_views()
    assert VIEW not in table_specs()
    load_views(lake.catalog, lake.config.lake.namespace)
    (found,) = known_views()
    assert found.derived is not None
    assert known.derived is not None
    assert (found.derived.view, found.columns, found.key) == (known.derived.view, known.columns, known.key)
    assert found.key == ("tenant_id", "time", "service_name")


@pytest.mark.parametrize("seed", range(2))
def test_random_landings_merges_restarts_and_repeated_days_are_equal_to_a_single_pass(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    with contextlib.closing(ViewLake(tmp_path, {VIEW: BY_SERVICE, "warnings": OF_WARNINGS})) as lake:
        for _ in range(12):
            has_view = lake.catalog.table_exists(f"otel.{VIEW}")
            match rng.choice(["land", "land", "land", "derive", "derive", "compact", "restart", "day"]):
                case "land":
                    names = rng.choices(["cart", "web", "gate"], k=rng.randint(1, 6))
                    days, severity = rng.choice([0, 0, 0, 1, 3]), rng.choice([5, 9, 18])
                    tenant, user = rng.choice(["acme", "globex"]), rng.choice(["u1", "u2"])
                    lake.fill(rows(*names, days=days, tenant=tenant, user=user, severity=severity))
                case "derive":
                    lake.deriver().round()
                case "compact" if has_view:
                    maintainer(lake).run("compact", rng.choice(["logs", VIEW]))
                case "restart":
                    lake.restart()
                case "day" if has_view:
                    lake.deriver().rederive([VIEW], {int(lake.now // DAY) - rng.choice([0, 1, 3])})
        lake.fill(rows("last"))
        lake.derive()
        assert_equal_to_a_single_pass(lake)
        assert_equal_to_a_single_pass(lake, "warnings")


@pytest.mark.slow
def test_a_crash_at_any_step_loses_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 200):
        with contextlib.closing(ViewLake(tmp_path / str(number), {VIEW: BY_SERVICE})) as lake:
            lake.fill(rows("cart", "web"), rows("web", tenant="globex"))
            crashed = False
            with crashing_at(monkeypatch, lake.catalog, number):
                try:
                    lake.derive()
                    lake.fill(rows("gate"))
                    lake.derive()
                    lake.deriver().rederive([VIEW], {int(lake.now // DAY)})
                except Crash:
                    crashed = True
            lake.land()
            lake.restart()
            lake.derive()
            assert_equal_to_a_single_pass(lake)
        if not crashed:
            assert number > 6
            return


def test_a_broken_view_stops_neither_the_tables_nor_the_other_views(tmp_path: Path) -> None:
    views = {
        VIEW: BY_SERVICE,
        "refused": "SELECT avg(flags) AS a FROM logs GROUP BY ALL",
        "misplaced": "SELECT time + INTERVAL 1 DAY AS time, count(*) AS c FROM logs GROUP BY ALL",
        "typed": "SELECT time, to_date(time) AS day, count(*) AS c FROM logs GROUP BY ALL",
    }
    derive = {"disabled_tables": ["log_patterns"]}
    with contextlib.closing(ViewLake(tmp_path, views, derive=derive)) as lake:
        lake.fill(rows("cart"))
        deriver = lake.deriver()
        lake.derive()
        assert_equal_to_a_single_pass(lake)
        assert_equal_to_a_single_pass(lake, "log_rollups")
        problems = deriver.problems
        assert {*problems} == {"misplaced", "typed"}
        assert "not on the day (UTC) of their source" in problems["misplaced"]
        assert "day has type DATE, but a key can only be STRING" in problems["typed"]
        assert metric(lake, "frazil_derive_failing", "misplaced") == 1
        assert metric(lake, "frazil_derive_failing") == 0
        assert lake.table("misplaced").scan().to_arrow().num_rows == 0
        states = {each.name: each.state for each in listed_views(lake.config)}
        assert states == {
            VIEW: "derived",
            "refused": "refused",
            "misplaced": "derived",
            "typed": "not derived yet",
        }
        lake.fill(rows("web"))
        lake.derive()
        assert_equal_to_a_single_pass(lake)


def with_groups_max(lake: ViewLake, groups: int) -> None:
    derive = lake.config.derive.model_copy(update={"view_groups_max": groups})
    lake.config = lake.config.model_copy(update={"derive": derive})
    lake.derivers.clear()


def test_a_view_with_too_many_groups_stops_after_one_job_and_says_so(tmp_path: Path) -> None:
    views = {VIEW: BY_SERVICE, "users": OF_WARNINGS}
    with contextlib.closing(ViewLake(tmp_path, views)) as lake:
        with_groups_max(lake, 3)
        lake.fill([row for number in range(4) for row in rows("cart", user=f"u{number}")])
        now = [lake.now]
        deriver = lake.restart(clock=lambda: now[0])
        assert deriver.round() == "derived"
        assert (
            "stopped: the query has more than 3 groups in a round (4 were counted)"
            in deriver.problems["users"]
        )
        assert "derive.view_groups_max" in deriver.problems["users"]
        assert metric(lake, "frazil_derive_stopped", "users") == 1
        assert lake.table("users").scan().to_arrow().num_rows == 0
        assert not list((lake.config.data_dir / "warehouse" / "otel" / "users").rglob("*.parquet"))
        jobs = lake.counted_sql
        now[0] += 1_000_000
        lake.fill(rows("cart"))
        deriver.round()
        assert lake.counted_sql == jobs + 1, "only the other view ran"
        assert_equal_to_a_single_pass(lake)
        with_groups_max(lake, 4)  # and a restart
        lake.derive()
        assert_equal_to_a_single_pass(lake, "users")


def test_a_past_day_may_have_more_groups_than_a_round(tmp_path: Path) -> None:
    with contextlib.closing(ViewLake(tmp_path, {"users": OF_WARNINGS})) as lake:
        with_groups_max(lake, 2)
        lake.fill(*(rows("cart", user=f"u{number}") for number in range(5)))
        for _ in range(5):
            lake.derive()
        lake.derivers.clear()
        lake.fill(*(rows("cart", user=f"v{number}") for number in range(2)))
        with_groups_max(lake, 4)
        batch = lake.config.derive.model_copy(update={"batch_bytes_max": 1})
        lake.config = lake.config.model_copy(update={"derive": batch})
        lake.derive()
        assert_equal_to_a_single_pass(lake, "users")


def test_a_view_is_compacted_like_other_derived_tables(lake: ViewLake) -> None:
    for number in range(6):
        lake.fill(rows("cart", "web", severity=5 + number))
        lake.derive()
    before = lake.table(VIEW).scan().to_arrow().num_rows
    report = maintainer(lake).run("compact", VIEW)
    assert report.rows_combined > 0
    assert lake.table(VIEW).scan().to_arrow().num_rows == before - report.rows_combined
    assert_equal_to_a_single_pass(lake)
    assert {each.table for each in maintainer(lake).round()} <= {*table_specs()}


def test_a_view_outlives_its_source_and_is_kept_as_long_as_it_says(tmp_path: Path) -> None:
    rule = {"table": "logs", "after_seconds": "7d"}
    retention = {"maintain": {"retention": {"rules": [rule]}}}
    with contextlib.closing(ViewLake(tmp_path, {VIEW: BY_SERVICE}, **retention)) as lake:
        lake.fill(rows("ancient", days=120), rows("old", days=30), rows("new"))
        lake.derive()
        assert lake.retain(confirmed=True).rows_removed == 2
        assert {row[2] for row in lake.merged(VIEW)} == {"ancient", "old", "new"}
        assert lake.retain(table=VIEW, confirmed=True).rows_removed == 1
        assert {row[2] for row in lake.merged(VIEW)} == {"old", "new"}
        shorter = {VIEW: {**lake.written({VIEW: BY_SERVICE})[VIEW], "kept": "20d"}}
        lake.config = type(lake.config).model_validate(lake.config.model_dump() | {"views": shorter})
        lake.derivers.clear()
        lake.derive()
        assert lake.retain(table=VIEW, confirmed=True).rows_removed == 1
        assert {row[2] for row in lake.merged(VIEW)} == {"new"}


def test_an_erasure_computes_the_days_of_a_view_again(tmp_path: Path) -> None:
    with contextlib.closing(ViewLake(tmp_path, {VIEW: BY_SERVICE, "users": OF_WARNINGS})) as lake:
        lake.fill(rows("cart", "secret", user="u7"), rows("cart", user="u2"), rows("web", user="u7", days=2))
        lake.derive()
        folder = lake.config.data_dir / "warehouse" / "otel"
        assert holding(folder / "users", "u7")
        erasure = lake.erase("attributes['user.id'] = 'u7'")
        assert erasure.is_proven
        reports = {each.table: each for each in erasure.tables}
        today = int(lake.now // DAY)
        for view in (VIEW, "users"):
            assert reports[view].days_recomputed == [day_text(today - 2), day_text(today)]
            assert_equal_to_a_single_pass(lake, view)
            assert holding(folder / view, "u7") == []
        assert holding(folder / VIEW, "secret") == []


def test_a_view_that_is_off_is_erased_from_too_and_stays_queryable(tmp_path: Path) -> None:
    with contextlib.closing(ViewLake(tmp_path, {VIEW: BY_SERVICE, "users": OF_WARNINGS})) as lake:
        lake.fill(rows("cart", user="u7"), rows("cart", user="u2"))
        lake.derive()
        lake.configure({VIEW: BY_SERVICE})
        assert mark_off(lake.config, lake.catalog) == ["users"]
        assert is_off(lake.table("users").metadata)
        request = BackfillRequest("users", day_text(int(lake.now // DAY)))
        with pytest.raises(Refused, match="add it to `views`"):
            backfill(lake.config, lake.catalog, request, lake.runner)
        lake.fill(rows("cart", user="u3"))
        lake.derive()
        assert {row[2] for row in lake.merged("users")} == {"u2", "u7"}, "it is not derived any longer"
        assert {each.name: each.state for each in listed_views(lake.config)} == {
            VIEW: "derived",
            "users": "off",
        }
        assert lake.erase("attributes['user.id'] = 'u7'").is_proven
        assert holding(lake.config.data_dir / "warehouse" / "otel" / "users", "u7") == []
        lake.configure({VIEW: BY_SERVICE, "users": OF_WARNINGS})
        lake.derive()
        assert not is_off(lake.table("users").metadata)
        assert_equal_to_a_single_pass(lake, "users")


def test_conditions_on_a_column_that_is_also_a_function_of_sql_read_the_column(tmp_path: Path) -> None:
    """DuckDB knows `user` without a table."""
    with contextlib.closing(ViewLake(tmp_path, {"users": OF_WARNINGS})) as lake:
        lake.fill(*(rows("cart", user=name, days=10) for name in ("u2", "u3", "u7")))
        lake.derive()
        rules = [{"table": "users", "after_seconds": "7d", "where": "user = 'u7'"}]
        lake.config = with_rules(lake, rules)
        assert check_rules(lake.config) == []
        assert lake.retain(table="users", confirmed=True).rows_removed > 0
        assert {row[2] for row in lake.merged("users")} == {"u2", "u3"}
        assert lake.erase("user = 'u2'", tables=("users",)).is_proven
        assert {row[2] for row in lake.merged("users")} == {"u3"}
        (problem,) = check_rules(with_rules(lake, [{**rules[0], "where": "current_user = 'u7'"}]))
        assert "names no column" in problem


def test_a_retention_rule_of_a_removed_view_applies_until_its_table_is_dropped(tmp_path: Path) -> None:
    rules = [{"table": "users", "after_seconds": "7d", "where": "visitor = 'u7'"}]
    sql = OF_WARNINGS.replace("AS user", "AS visitor")
    with contextlib.closing(
        ViewLake(tmp_path, {"users": sql}, maintain={"retention": {"rules": rules}})
    ) as lake:
        lake.fill(rows("cart", user="u7", days=10), rows("cart", user="u2", days=10))
        lake.derive()
        lake.configure({})
        forget_views()
        assert check_rules(lake.config) == [], "the lake has the view"
        misspelt = [{**rules[0], "where": "visitors = 'u7'"}]
        (problem,) = check_rules(with_rules(lake, misspelt))
        assert "rule 1, `where` for users: there is no column visitors" in problem
        assert lake.retain(table="users", confirmed=True).rows_removed > 0
        assert {row[2] for row in lake.merged("users")} == {"u2"}
        lake.catalog.drop_table("otel.users")
        forget_views()
        (problem,) = check_rules(lake.config)
        assert "rule 1, `table`: there is no table users with retention rules" in problem
        assert problem.endswith("If users was a view and its table was dropped, remove the rule")


def test_an_unreadable_lake_does_not_refuse_rules_that_may_name_its_views(
    tmp_path: Path,
) -> None:
    rules = [{"table": "users", "after_seconds": "7d"}]
    rules += [{"table": "logs", "after_seconds": "7d", "where": "x = 1"}]
    with contextlib.closing(ViewLake(tmp_path, {}, maintain={"retention": {"rules": rules}})) as lake:
        lake.config.catalog_file.write_bytes(b"no database" * 1000)
        forget_views()
        with structlog.testing.capture_logs() as logged:
            (problem,) = check_rules(lake.config)
        assert "rule 2, `where` for logs" in problem
        assert "tables of retention rules not checked" in [each["event"] for each in logged]


def with_rules(lake: ViewLake, rules: list[dict[str, str]]) -> Config:
    retention = RetentionConfig.model_validate({"rules": rules})
    maintain = lake.config.maintain.model_copy(update={"retention": retention})
    return lake.config.model_copy(update={"maintain": maintain})


def test_a_changed_definition_never_mixes_with_the_earlier_one(lake: ViewLake) -> None:
    lake.fill(rows("cart", "web"))
    lake.derive()
    before = lake.merged(VIEW)
    lake.configure(
        {VIEW: BY_SERVICE.replace("minute", "hour"), "hourly": BY_SERVICE.replace("minute", "hour")}
    )
    lake.fill(rows("cart"))
    lake.derive()
    assert lake.merged(VIEW) == before
    assert "its SQL has changed" in lake.deriver().problems[VIEW]
    assert "under another name" in lake.deriver().problems[VIEW]
    assert {each.name: each.state for each in listed_views(lake.config)}[VIEW] == "changed"
    request = BackfillRequest(VIEW, day_text(int(lake.now // DAY)))
    with pytest.raises(Refused, match="has changed"):
        backfill(lake.config, lake.catalog, request, lake.runner)
    assert_equal_to_a_single_pass(lake, "hourly")
    lake.configure({VIEW: f"-- the same\n{BY_SERVICE}"})
    lake.derive()
    assert lake.deriver().problems == {}
    assert_equal_to_a_single_pass(lake)


def test_a_table_of_another_engine_is_not_taken_for_a_view(lake: ViewLake) -> None:
    schema = table_specs()["log_rollups"].arrow_schema
    lake.catalog.create_table(f"otel.{VIEW}", schema=schema)
    lake.fill(rows("cart"))
    lake.derive()
    assert "is not a view; choose another name" in lake.deriver().problems[VIEW]
    load_views(lake.catalog, "otel")
    assert known_views() == []


def test_past_days_of_a_view_are_derived_newest_first_and_on_request(tmp_path: Path) -> None:
    with contextlib.closing(
        ViewLake(tmp_path, {VIEW: BY_SERVICE}, derive={"batch_bytes_max": "1MiB"})
    ) as lake:
        lake.fill(*(rows("cart", "web", days=day) for day in (0, 1, 2)))
        small = lake.config.derive.model_copy(update={"batch_bytes_max": 1})
        lake.config = lake.config.model_copy(update={"derive": small})
        assert lake.deriver().round() == "more"
        assert len(days_left(lake.table(VIEW).metadata)) == 3
        lake.derive()
        assert_equal_to_a_single_pass(lake)
        today = day_text(int(lake.now // DAY))
        found = backfill(lake.config, lake.catalog, BackfillRequest(VIEW, today), lake.runner)
        assert found.done == 1
        assert_equal_to_a_single_pass(lake)
        with pytest.raises(Refused, match=f"there are: .*{VIEW}"):
            backfill(lake.config, lake.catalog, BackfillRequest("no_view", today), lake.runner)


def test_verify_compares_a_view_that_counts_all_rows_with_its_source(lake: ViewLake) -> None:
    lake.fill(rows("cart", "web"), rows("web", tenant="globex", days=1))
    lake.derive()
    ledger = balance(lake.config)
    (line,) = [each for each in ledger.derived if each.table == VIEW]
    assert (line.counted, line.in_source, line.problems) == (3, 3, [])


def test_a_tag_pins_a_view(lake: ViewLake) -> None:
    lake.fill(rows("cart"))
    lake.derive()
    cut = tag_tables(lake.config, lake.catalog, lake.runner, Metrics(), "incident-1")
    assert VIEW in {tag.table for tag in cut.tags}


def test_a_job_that_fails_is_tried_again_alone(tmp_path: Path) -> None:
    derive = {"disabled_tables": ["log_patterns"]}
    with contextlib.closing(ViewLake(tmp_path, {VIEW: BY_SERVICE}, derive=derive)) as lake:
        check_a_job_that_fails(lake)


def check_a_job_that_fails(lake: ViewLake) -> None:
    lake.fill(rows("cart"))
    now = [lake.now]
    deriver = lake.restart(clock=lambda: now[0])
    run_sql: Callable[..., Any] = lake.runner.run_sql

    def fail(*_: Any) -> Any:
        raise JobFailed("a Spark job failed: an executor was lost")

    lake.runner.run_sql = fail  # type: ignore[method-assign]
    assert deriver.round() == "derived"
    assert "an executor was lost" in deriver.problems[VIEW]
    assert_equal_to_a_single_pass(lake, "log_rollups")
    lake.runner.run_sql = run_sql  # type: ignore[method-assign]
    assert deriver.round() == "idle"
    now[0] += 61
    assert deriver.round() == "derived"
    assert deriver.problems == {}
    assert_equal_to_a_single_pass(lake)


def test_a_promoted_column_is_read_from_the_map_in_files_that_lack_it(tmp_path: Path) -> None:
    sql = "SELECT date_trunc('hour', time) AS time, user_id, count(*) AS records FROM logs GROUP BY ALL"
    promoted = {"promoted": [{"attribute": "user.id"}]}
    with contextlib.closing(ViewLake(tmp_path, {VIEW: BY_SERVICE})) as lake:
        lake.fill(rows("cart", user="u1"))
    with contextlib.closing(ViewLake(tmp_path, {"by_user": sql}, tables=promoted)) as lake:
        lake.write(rows("cart", user="u2"), stream="20261001T081823121-9f86d081884c7d65")
        lake.land()
        lake.derive()
        assert {row[2]: row[3] for row in lake.merged("by_user")} == {"u1": 1, "u2": 1}
