"""Checks of dependencies: run on demand, kept for a while, and never waited for long."""

from __future__ import annotations

import threading
from pathlib import Path

from frazil.config import Config
from frazil.dependencies import Checked, Dependencies, checks_of
from frazil.errors import StoreUnavailable


def test_a_result_is_kept_and_a_problem_is_named() -> None:
    runs: list[int] = []

    def fail() -> str:
        runs.append(1)
        raise StoreUnavailable("no answer")

    kept, fresh = Checked(fail), Checked(fail, age_max_seconds=0)
    assert [kept.problem(), kept.problem(), fresh.problem(), fresh.problem()] == ["no answer"] * 4
    assert len(runs) == 3


def test_a_check_that_hangs_is_a_problem_and_is_not_started_twice() -> None:
    runs: list[int] = []
    answered = threading.Event()

    def hang() -> str:
        runs.append(1)
        answered.wait(30)
        return ""

    checked = Checked(hang, wait_seconds=0.01)
    assert checked.problem().startswith("no response for")
    assert checked.problem().startswith("no response for")
    assert len(runs) == 1
    answered.set()
    checked._wait = 30
    assert checked.problem() == ""


def test_only_problems_are_told_by_the_names_of_their_checks() -> None:
    def defect() -> str:
        raise ValueError("a bug")

    found = Dependencies({"good": lambda: "", "bad": lambda: "away", "broken": defect}).problems()
    assert found == {"bad": "away", "broken": "ValueError: a bug"}


def test_a_local_deployment_depends_on_nothing_else(tmp_path: Path) -> None:
    assert checks_of(Config(data_dir=tmp_path), "wal", "catalog", "warehouse") == {}
