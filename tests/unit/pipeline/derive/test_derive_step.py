"""Derivation as a step: what it tells of lag, of failures and of landings, while landing goes on."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pyarrow as pa
import pytest

from frazil.config import Config
from frazil.errors import CatalogUnavailable
from frazil.objectives import Objectives, targets
from frazil.pipeline.derive.deriver import Deriver
from frazil.pipeline.derive.metrics import DeriveMetrics
from frazil.pipeline.derive.step import DeriveStep, Pace
from frazil.pipeline.health import HealthServer
from frazil.pipeline.metrics import Metrics
from frazil.pipeline.steps import StepRunner, StepThread
from frazil.tables import declared, derived_specs, table_specs
from tests.support.derived_lake import DerivedLake

TABLE = "log_rollups"
AGE = "frazil_derive_pending_age_seconds"


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[DerivedLake]:
    with contextlib.closing(DerivedLake(tmp_path)) as made:
        yield made


def rows(*names: str) -> list[tuple[str, str, int, float]]:
    return [("acme", f"u1 {name} said something", 9, 0.0) for name in names]


def sample(lake: DerivedLake, name: str, **labels: str) -> float | None:
    return lake.registry.get_sample_value(name, labels or {"table": TABLE})


def step_of(lake: DerivedLake, deriver: Deriver) -> DeriveStep:
    return DeriveStep(lake.config, deriver, lake.runner)


def failing(rows: pa.Table) -> pa.Table:
    raise ValueError("no such column")


def test_rows_are_pending_from_their_landing_until_they_are_derived(
    lake: DerivedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [lake.now]
    monkeypatch.setattr("frazil.pipeline.derive.metrics.time.time", lambda: now[0])
    deriver = lake.deriver()
    lake.fill(rows("cart"))
    deriver.landed()
    now[0] += 20
    lake.fill(rows("web"))
    deriver.landed()
    now[0] += 20
    assert sample(lake, AGE) == 40, "the oldest"
    assert deriver.round() == "derived"
    assert sample(lake, AGE) == 0


def test_rows_that_land_during_a_round_stay_pending(
    lake: DerivedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [lake.now]
    monkeypatch.setattr("frazil.pipeline.derive.metrics.time.time", lambda: now[0])
    deriver, run_job = lake.deriver(), lake.runner.run_job
    lake.fill(rows("cart"))
    deriver.landed()
    now[0] += 30

    def and_land_meanwhile(work: Callable[[Any], Any], items: Any) -> Any:
        lake.runner.run_job = run_job  # type: ignore[method-assign]
        lake.fill(rows("meanwhile"))
        deriver.landed()
        return run_job(work, items)

    lake.runner.run_job = and_land_meanwhile  # type: ignore[method-assign]
    deriver.round()
    now[0] += 5
    assert sample(lake, AGE) == 5
    deriver.round()
    assert sample(lake, AGE) == 0
    assert deriver.round() == "idle"
    assert sample(lake, AGE) == 0


def test_rows_of_a_table_that_fails_stay_pending(lake: DerivedLake, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [lake.now]
    monkeypatch.setattr("frazil.pipeline.derive.metrics.time.time", lambda: now[0])
    with broken_table():
        deriver = lake.restart(clock=lambda: now[0])
        lake.fill(rows("cart"))
        deriver.landed()
        deriver.round()
        deriver.round()
        now[0] += 30
        assert sample(lake, AGE) == 0
        assert (sample(lake, AGE, table="broken_rollups") or 0) >= 30


@contextlib.contextmanager
def broken_table() -> Iterator[None]:
    spec = table_specs()[TABLE]
    assert spec.derived is not None
    derived = dataclasses.replace(spec.derived, derive=failing)
    with declared(dataclasses.replace(spec, name="broken_rollups", derived=derived)):
        yield


def test_each_batch_of_rows_counts_against_the_objective_and_a_tables_first_one_does_not(
    lake: DerivedLake,
) -> None:
    def events() -> float | None:
        return sample(lake, "frazil_objective_events_total", objective="derive_lag")

    lake.fill(rows("cart"))
    lake.derive()
    assert events() == 0, "they may have landed before the table was declared"
    tables = len(derived_specs("logs"))
    for number in (1, 2):
        lake.fill(rows("web"))
        lake.derive()
        assert events() == number * tables
    assert lake.deriver().round() == "idle"
    lake.deriver().rederive([TABLE], {int(lake.now // 86_400)})
    assert events() == 2 * tables, "past days have no objective"
    assert sample(lake, "frazil_objective_missed_total", objective="derive_lag") == 0


def test_a_batch_that_landed_too_long_ago_misses_the_objective() -> None:
    metrics = Metrics()
    derive = DeriveMetrics(metrics.registry, Config(), metrics.objectives)
    for landed_at in (None, 0.0):
        derive.committed(TABLE, source_rows=5, rows=2, files=1, size=100, landed_at=landed_at)
    labels = {"objective": "derive_lag"}
    assert metrics.registry.get_sample_value("frazil_objective_events_total", labels) == 1
    assert metrics.registry.get_sample_value("frazil_objective_missed_total", labels) == 1


def test_the_target_is_the_interval_and_a_round_unless_it_is_configured() -> None:
    def target(**sections: Any) -> float | None:
        return targets(Config.model_validate(sections)).get("derive_lag")

    assert target() == 75
    assert target(derive={"interval_seconds": "10m"}) == 615
    assert target(status={"derive_lag_seconds": "2m"}) == 120
    assert target(derive={"enabled": False}) is None


def test_the_time_of_the_last_commit_is_known_after_a_restart_if_the_table_has_rows(
    lake: DerivedLake,
) -> None:
    name = "frazil_derive_last_commit_timestamp_seconds"
    lake.fill(rows("cart"))
    lake.derive()
    committed_at = sample(lake, name)
    assert committed_at == pytest.approx(lake.now, abs=60)
    lake.restart()
    assert sample(lake, name) is None
    lake.fill(rows("web"))
    with broken(lake):
        lake.deriver().round()
    assert sample(lake, name) == pytest.approx(committed_at, abs=5)


@contextlib.contextmanager
def broken(lake: DerivedLake) -> Iterator[None]:
    """Spark fails all jobs."""
    run_job = lake.runner.run_job

    def fails(work: Callable[[Any], Any], items: Any) -> Any:
        raise CatalogUnavailable("the catalog does not respond")

    lake.runner.run_job = fails  # type: ignore[method-assign]
    with contextlib.suppress(CatalogUnavailable):
        yield
    lake.runner.run_job = run_job  # type: ignore[method-assign]


def test_a_table_without_rows_has_no_last_commit(lake: DerivedLake) -> None:
    lake.fill(rows("cart"))
    settings = lake.config.derive.model_copy(update={"batch_bytes_max": 1})
    lake.config = lake.config.model_copy(update={"derive": settings})
    lake.restart().round()
    assert sample(lake, "frazil_derive_last_commit_timestamp_seconds") is None
    lake.restart().round()
    assert sample(lake, "frazil_derive_last_commit_timestamp_seconds") is None


def test_a_pipeline_tells_which_tables_are_off() -> None:
    def off(**derive: Any) -> float | None:
        metrics = Metrics()
        DeriveMetrics(metrics.registry, Config.model_validate({"derive": derive}))
        return metrics.registry.get_sample_value("frazil_derive_disabled", {"table": TABLE})

    assert off() == 0
    assert off(disabled_tables=[TABLE]) == 1
    assert off(disabled_tables=["span_metrics"]) == 0
    assert off(enabled=False) == 1


def test_a_table_that_fails_degrades_the_pipeline_with_its_reason_until_it_is_derived(
    lake: DerivedLake,
) -> None:
    now = [lake.now]
    with broken_table():
        step = step_of(lake, lake.restart(clock=lambda: now[0]))
        lake.fill(rows("cart"))
        step.landed()
        step.run()
    (problem,) = step.degraded.items()
    assert problem[0] == "broken_rollups"
    assert "no such column" in problem[1]
    assert "landing continues" in problem[1]
    with declared(dataclasses.replace(table_specs()[TABLE], name="broken_rollups")):
        now[0] += 3600
        step = step_of(lake, lake.restart(clock=lambda: now[0]))
        step.landed()
        step.run()
    assert step.degraded == {}


def test_a_source_that_cannot_be_read_fails_all_its_tables_until_a_round_succeeds(
    lake: DerivedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.fill(rows("cart"))
    now = [1000.0]
    deriver = lake.restart()
    step = DeriveStep(lake.config, deriver, lake.runner, clock=lambda: now[0])
    thread = StepThread(step, Metrics())
    with monkeypatch.context() as patched:
        patched.setattr(deriver._tables, "source_table", lambda: 1 / 0)
        assert thread.turn() > 0
    assert list(step.degraded) == ["derivation logs"]
    assert "division by zero" in step.degraded["derivation logs"]
    assert sample(lake, "frazil_derive_failing") == 1
    now[0] += 120
    thread.turn()
    assert step.degraded == {}
    assert sample(lake, "frazil_derive_failing") == 0


def test_each_landing_is_derived_at_once_also_if_one_came_early(lake: DerivedLake) -> None:
    now = [1000.0]
    step = DeriveStep(lake.config, lake.deriver(), lake.runner, clock=lambda: now[0])
    for seconds in (0, 12, 72, 132):  # the start of Spark made the first landing late
        now[0] = 1000 + seconds
        lake.fill(rows("cart"))
        step.landed()
        step.run()
        assert lake.merged(TABLE) == lake.expected(TABLE), seconds
    now[0] += 1
    lake.fill(rows("web"))
    step.landed()
    step.run()
    assert lake.merged(TABLE) != lake.expected(TABLE), "on average one round per interval"


@pytest.mark.parametrize("gap", [0.5, 20.0, 59.0])
def test_rounds_are_on_average_an_interval_apart(gap: float) -> None:
    pace, began = Pace(60), 0
    for turn in range(int(6000 / gap)):
        if pace.allows(turn * gap):
            pace.began(turn * gap)
            began += 1
    assert 95 <= began <= 102


def test_a_derived_table_that_fails_keeps_the_pipeline_ready_but_not_healthy(lake: DerivedLake) -> None:
    metrics = Metrics()
    step = step_of(lake, lake.deriver())
    steps = StepRunner([step], metrics)
    server = HealthServer(
        "127.0.0.1:0", metrics.registry, lambda: steps.problems, degraded=lambda: steps.degraded
    )
    server.start()

    def answer(path: str) -> tuple[int, str]:
        try:
            with urlopen(f"{server.url}{path}") as response:
                return response.status, response.read().decode()
        except OSError as error:
            return error.code, error.read().decode()  # type: ignore[attr-defined]

    try:
        assert [answer(path)[0] for path in ("/readyz", "/healthz")] == [200, 200]
        step._problem = "the catalog does not respond"
        assert answer("/livez")[0] == 200
        assert answer("/readyz")[0] == 200
        assert answer("/healthz")[0] == 503
        assert "the catalog does not respond" in answer("/healthz")[1]
    finally:
        server.stop()


def test_a_pipeline_that_stands_down_tells_nothing_of_lag(lake: DerivedLake) -> None:
    metrics = DeriveMetrics(
        lake.registry, lake.config, Objectives(lake.registry, lake.config, ["derive_lag"])
    )
    metrics.landed([TABLE])
    assert sample(lake, AGE) is not None
    metrics.stand_down()
    assert sample(lake, AGE) is None
    metrics.pending(TABLE, None)
    assert sample(lake, AGE) == 0, "what landed before is not remembered"
