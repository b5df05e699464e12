"""The commands check views and list them; a pipeline with refused views starts and shows them."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge
from typer.testing import CliRunner

from frazil.cli import app
from frazil.config import load_config
from frazil.pipeline import run as pipeline_run
from frazil.pipeline.derive.deriver import Deriver
from frazil.pipeline.health import HealthServer
from frazil.tables import forget_views
from tests.support.view_lake import ViewLake
from tests.unit.status.test_watcher import Said, Story

GOOD = "SELECT date_trunc('minute', time) AS time, count(*) AS records FROM logs GROUP BY ALL"
BAD = "SELECT time,\n  avg(flags) AS a FROM logs GROUP BY ALL"
runner = CliRunner()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory is not that of the configuration."""
    monkeypatch.chdir("/")
    (tmp_path / "sql").mkdir()
    (tmp_path / "sql" / "good.sql").write_text(GOOD)
    (tmp_path / "sql" / "bad.sql").write_text(BAD)
    forget_views()
    return tmp_path


def configured(folder: Path, views: dict[str, Any], **sections: Any) -> Path:
    path = folder / "frazil.yaml"
    path.write_text(json.dumps({"data_dir": str(folder / "data"), "views": views, **sections}))
    return path


def checked(path: Path) -> tuple[int, str]:
    result = runner.invoke(app, ["--config", str(path), "config", "--check"])
    return result.exit_code, result.output


def test_config_check_names_the_line_of_each_refused_view(folder: Path) -> None:
    views = {name: {"sql": f"sql/{name}.sql"} for name in ("good", "bad", "missing")}
    views["span_metrics"] = {"sql": "sql/good.sql"}
    code, output = checked(configured(folder, views))
    assert code == 2
    assert (
        f"{folder}/sql/bad.sql:2:3: view bad: avg() is not supported\n    select sum(x) and count(x)"
        in output
    )
    assert f"{folder}/sql/missing.sql: view missing: cannot be read: No such file" in output
    assert "views.span_metrics: span_metrics is the name of another table" in output
    assert "good.sql" not in output


def test_config_check_accepts_views_and_what_names_them(folder: Path) -> None:
    rule = {"table": "good", "after_seconds": "7d"}
    path = configured(
        folder,
        {"good": {"sql": "sql/good.sql", "kept": "36h"}},
        derive={"disabled_tables": ["good"]},
        maintain={"retention": {"rules": [rule]}},
    )
    assert checked(path) == (0, "the configuration is valid\n")
    assert load_config(path).views["good"].kept_days == 2
    code, output = checked(configured(folder, {}, derive={"disabled_tables": ["good"]}))
    assert code == 2
    assert "there is no derived table good" in output


@pytest.mark.parametrize(
    ("views", "problem"),
    [
        ({"Bad Name": {"sql": "x.sql"}}, "must be the name of a view"),
        ({"x" * 64: {"sql": "x.sql"}}, "must be the name of a view"),
        ({"good": {}}, "views.good.sql: is required"),
        ({"good": {"sql": "x.sql", "kept": "1h"}}, "must be at least"),
        ({"good": {"sql": "x.sql", "keep": "1d"}}, "did you mean `kept`?"),
    ],
)
def test_a_view_is_configured_by_name_file_and_retention(
    folder: Path, views: dict[str, Any], problem: str
) -> None:
    code, output = checked(configured(folder, views))
    assert code == 2
    assert problem in output


def test_views_are_listed_before_there_is_a_lake(folder: Path) -> None:
    path = configured(folder, {name: {"sql": f"sql/{name}.sql"} for name in ("good", "bad")})
    result = runner.invoke(app, ["--config", str(path), "views", "list", "--json"])
    assert result.exit_code == 0
    listed = json.loads(result.stdout)
    assert [(each["name"], each["source"], each["state"]) for each in listed] == [
        ("good", "logs", "not derived yet"),
        ("bad", "", "refused"),
    ]
    assert "avg() is not supported" in listed[1]["problem"]
    result = runner.invoke(app, ["--config", str(path), "views", "check", "other"])
    assert "there is no view other; there are: good, bad" in result.output


def test_a_pipeline_starts_with_a_refused_view_and_shows_it(folder: Path) -> None:
    views = {name: {"sql": f"sql/{name}.sql"} for name in ("good", "bad")}
    config = load_config(configured(folder, views, pipeline={"listen": "127.0.0.1:0"}))
    pipeline = pipeline_run.Pipeline(config, threading.Event())
    steps = pipeline._steps()
    assert [step.name for step in steps if step.part == "derivation"] == [
        "derivation logs",
        "derivation spans",
        "derivation metrics",
    ]
    registry = pipeline._metrics.registry
    assert registry.get_sample_value("frazil_derive_failing", {"table": "bad"}) == 1
    assert registry.get_sample_value("frazil_derive_view", {"table": "good", "source": "logs"}) == 1
    assert registry.get_sample_value("frazil_derive_disabled", {"table": "good"}) == 0
    assert "bad.sql:2:3" in pipeline._refused_views["bad"]
    pipeline._close_catalog()
    pipeline._health.start()
    pipeline._health.stop()


def test_status_shows_views_without_knowing_them(folder: Path) -> None:
    lines = [
        "frazil_pipeline_leader 1",
        'frazil_derive_view{table="ids",source="spans"} 1',
        'frazil_derive_disabled{table="ids"} 0',
        'frazil_derive_failing{table="ids"} 1',
        'frazil_derive_stopped{table="ids"} 1',
        'frazil_derive_view{table="bad",source=""} 1',
        'frazil_derive_disabled{table="bad"} 0',
        'frazil_derive_failing{table="bad"} 1',
        'frazil_derive_view{table="old",source="logs"} 1',
        'frazil_derive_disabled{table="old"} 1',
    ]
    tables = Story().look(Said("pipeline", "\n".join(lines) + "\n")).status["stages"]["derive"]["tables"]
    shown = {name: (tables[name]["source"], tables[name]["state"]) for name in ("ids", "bad", "old")}
    assert shown == {"ids": ("spans", "stopped"), "bad": ("", "failing"), "old": ("logs", "off")}


@contextlib.contextmanager
def pipeline_of(deriver: Deriver, registry: CollectorRegistry) -> Iterator[str]:
    """The active pipeline's own server, with the problems of one deriver. Yields its address."""
    Gauge("frazil_pipeline_leader", "1 if this pipeline is active.", registry=registry).set(1)
    server = HealthServer("127.0.0.1:0", registry, dict, degraded=lambda: deriver.problems)
    server.start()
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        server.stop()


def listed(path: Path) -> tuple[dict[str, dict[str, Any]], str]:
    result = runner.invoke(app, ["--config", str(path), "views", "list", "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    return {each["name"]: each for each in json.loads(result.stdout)}, result.stderr


def test_the_list_shows_views_that_the_active_pipeline_has_stopped(folder: Path) -> None:
    views = {
        "good": GOOD,
        "users": "SELECT time, attributes['user.id'] AS user, count(*) AS n FROM logs GROUP BY ALL",
    }
    derive = {"view_groups_max": 3}
    with contextlib.closing(ViewLake(folder / "data", views, derive=derive)) as lake:
        lake.fill([("acme", f"u{number} said something", 9, 0.0) for number in range(5)])
        deriver = lake.restart()
        for name in views:
            deriver._metrics.declare_view(name, "logs")
        deriver.round()
        files = {name: {"sql": str(lake.folder / f"{name}.sql")} for name in views}
        with pipeline_of(deriver, lake.registry) as address:
            path = configured(folder, files, pipeline={"listen": address})
            found, said = listed(path)
            assert {name: each["state"] for name, each in found.items()} == {
                "good": "derived",
                "users": "stopped",
            }
            assert "view users: " in found["users"]["problem"]
            assert "more than 3 groups in a round (5 were counted)" in found["users"]["problem"]
            assert said == ""
            text = runner.invoke(app, ["--config", str(path), "views", "list"])
            assert "stopped" in text.stdout
            assert "more than 3 groups in a round" in text.stderr
        found, said = listed(path)
        assert found["users"]["state"] == "derived", "the catalog alone does not tell"
        assert "no active pipeline responds" in said
