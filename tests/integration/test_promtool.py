"""The rules and the scrape example, by Prometheus' own checker."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

PROMETHEUS = Path(__file__).parents[2] / "deploy" / "prometheus"

pytestmark = pytest.mark.slow  # fetches a package the first time


def run(promtool: Path, *arguments: str) -> str:
    ended = subprocess.run(
        [promtool, *arguments], cwd=PROMETHEUS, capture_output=True, text=True, timeout=240, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_the_scrape_example_and_its_rules_are_valid(promtool: Path) -> None:
    said = run(promtool, "check", "config", "prometheus.yml")
    assert "2 rule files found" in said


def test_alerts_fire_when_they_should_and_only_then(promtool: Path) -> None:
    assert "SUCCESS" in run(promtool, "test", "rules", "alerts_test.yml")


def test_an_alert_that_no_longer_fires_fails_the_test_of_the_rules(promtool: Path, tmp_path: Path) -> None:
    """The checker is believed above, so it must be able to say no."""
    shutil.copytree(PROMETHEUS, tmp_path, dirs_exist_ok=True)
    alerts = (PROMETHEUS / "alerts.yml").read_text()
    deaf = alerts.replace(
        "frazil:receive_refused:ratio_rate5m > 0.05", "frazil:receive_refused:ratio_rate5m > 2"
    )
    assert deaf != alerts
    (tmp_path / "alerts.yml").write_text(deaf)
    ended = subprocess.run(
        [promtool, "test", "rules", "alerts_test.yml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ended.returncode != 0
    assert "FrazilReceiverRefusing" in ended.stdout + ended.stderr
