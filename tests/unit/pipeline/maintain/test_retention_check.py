"""Retention rules with invalid conditions are reported before they are due."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from frazil import doctor
from frazil.cli import app
from frazil.config import Config
from frazil.pipeline.maintain.retain.check import check_rules


def _config(tmp_path: Path, *rules: dict[str, Any], **facts: Any) -> Config:
    whole = [{"after_seconds": "7d", **rule} for rule in rules]
    return Config.model_validate({"data_dir": tmp_path, "maintain": {"retention": {"rules": whole}}, **facts})


def test_good_rules_have_no_problems(tmp_path: Path) -> None:
    rules = (
        {},
        {"where": "service_name = 'shop'"},
        {"table": "logs", "where": "severity_number < 9"},
        {"table": "spans", "tenant": "acme", "where": "user_id IS NULL"},
    )
    tables = {"promoted": [{"attribute": "user.id"}]}
    assert check_rules(_config(tmp_path, *rules, tables=tables)) == []


def test_a_problem_names_the_rule_and_the_column(tmp_path: Path) -> None:
    config = _config(tmp_path, {}, {"table": "logs", "where": "body = 'x' AND severity_numer < 9"})
    (problem,) = check_rules(config)
    assert problem == (
        "maintain.retention.rules: rule 2, `where` for logs: there is no column severity_numer; did you mean "
        "severity_number or severity_text? (at character 16)"
    )


@pytest.mark.parametrize("table", ["log", "set_aside"])
def test_a_rule_needs_a_table_with_retention_rules(tmp_path: Path, table: str) -> None:
    problems = check_rules(_config(tmp_path, {"table": table}, {"table": table, "where": "body = 'x'"}))
    reason = f"`table`: there is no table {table} with retention rules; there are: logs, spans, metrics, "
    for number, problem in enumerate(problems, 1):
        assert problem.startswith(f"maintain.retention.rules: rule {number}, {reason}")
    assert len(problems) == 2


def test_a_rule_for_all_tables_needs_a_column_of_all(tmp_path: Path) -> None:
    problems = check_rules(_config(tmp_path, {"where": "severity_number < 9"}))
    assert [problem.partition(" for ")[2].partition(":")[0] for problem in problems] == ["spans", "metrics"]
    assert all("set `table`" in problem for problem in problems)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("time < now()", "now()"),
        ("TRUE", "names no column"),
        ("'severity_number' < '9'", "names no column"),
        ("TRUE) OR (TRUE", "not a condition"),
    ],
)
def test_an_invalid_condition_is_reported(tmp_path: Path, where: str, expected: str) -> None:
    (problem,) = check_rules(_config(tmp_path, {"table": "logs", "where": where}))
    assert "rule 1" in problem
    assert expected in problem


def test_doctor_checks_the_rules(tmp_path: Path) -> None:
    good = list(doctor.check_retention(_config(tmp_path, {"table": "logs", "where": "severity_number < 9"})))
    assert [check.status for check in good] == ["ok"]
    (bad,) = doctor.check_retention(_config(tmp_path, {"table": "logs", "where": "severity < 9"}))
    assert bad.status == "fail"
    assert "rule 1" in bad.found
    assert bad.fix


def test_doctor_checks_retention_only_if_there_are_conditions(tmp_path: Path) -> None:
    def checks(config: Config) -> list[str]:
        return [name for name, _ in doctor._checks(config)]

    assert "retention" not in checks(_config(tmp_path, {}))
    assert "retention" in checks(_config(tmp_path, {"where": "TRUE"}))


def test_reading_the_configuration_does_not_load_duckdb() -> None:
    code = (
        "import sys; from frazil.config import Config; Config.model_validate({'maintain': {'retention': "
        "{'rules': [{'where': 'x', 'after_seconds': 1}]}}}); sys.exit('duckdb' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_config_check_checks_the_rules(tmp_path: Path) -> None:
    file = tmp_path / "frazil.yaml"
    rule = "maintain: {retention: {rules: [{table: logs, where: 'severity_numbr < 9', after_seconds: 7d}]}}"
    file.write_text(f"data_dir: {tmp_path}\n{rule}\n")
    runner = CliRunner()
    bad = runner.invoke(app, ["-c", str(file), "config", "--check"])
    assert bad.exit_code == 2
    assert "rule 1" in bad.output
    file.write_text(file.read_text().replace("numbr", "number"))
    assert runner.invoke(app, ["-c", str(file), "config", "--check"]).exit_code == 0
