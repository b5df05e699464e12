"""What `frazil maintain` prints. A dry run without work starts no Spark."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from frazil.pipeline.maintain import command
from frazil.pipeline.maintain.command import maintain
from frazil.pipeline.maintain.report import TASKS
from tests.support.known_lake import KnownLake


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def start(*_: Any, **__: Any) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(command, "spark_session", start)
    with contextlib.closing(KnownLake(tmp_path / "data")) as lake:
        lake.fill([("acme", "u1 here", 9, 0.0)])
        yield lake


def test_a_dry_run_names_the_tasks_and_tables_without_work(lake: KnownLake, capsys: Any) -> None:
    assert maintain(lake.config, None, [], dry_run=True, json_output=False) == 0
    tasks = [task for task in TASKS if task != "tier"]  # not configured
    assert capsys.readouterr().out.splitlines() == [f"{task}: nothing to do in logs" for task in tasks]
    assert maintain(lake.config, "expire", ["logs"], dry_run=True, json_output=False) == 0
    assert capsys.readouterr().out == "expire: nothing to do in logs\n"


def test_a_dry_run_names_the_task_the_table_and_the_files_that_are_due(tmp_path: Path, capsys: Any) -> None:
    rule = {"after_seconds": "30d", "table": "logs"}
    with contextlib.closing(KnownLake(tmp_path / "data", maintain={"retention": {"rules": [rule]}})) as lake:
        lake.fill([("acme", "u1 old", 9, 60.0), ("acme", "u2 new", 9, 0.0)])
        before = lake.data_files()
        assert maintain(lake.config, "retention", [], dry_run=True, json_output=False) == 0
        heading, row, last = capsys.readouterr().out.splitlines()[-3:]  # after the log
        assert heading.split()[:3] == ["task", "table", "files"]
        assert row.split()[:3] == ["retention", "logs", "-1"]
        assert last == "dry run: nothing was changed"
        assert lake.data_files() == before
