"""Retention and erasure with their tasks on Spark."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from frazil.ledger import balance
from frazil.pipeline.maintain.erase.erase import erase
from frazil.pipeline.maintain.erase.request import EraseRequest
from frazil.pipeline.maintain.retain.retain import retain
from frazil.pipeline.maintain.retain.rules import RetentionRun
from frazil.pipeline.runner import SparkRunner
from tests.support.known_lake import KnownLake, holding

pytestmark = pytest.mark.slow

MARKER = "zanzibar"
ROWS = [
    *(("acme", f"u42 {MARKER} {number}", 9, float(number % 3)) for number in range(9)),
    *(("acme", f"u{number} stays", 9, float(number % 3)) for number in range(9)),
    ("acme", "u1 old debug", 5, 20.0),
    ("acme", "u1 old error", 17, 20.0),
    ("globex", "u42 of globex", 9, 0.0),
]


def test_rows_are_found_and_files_rewritten_by_spark(tmp_path: Path, spark: SparkSession) -> None:
    rules = [{"after_seconds": "7d", "where": "severity_number < 9", "table": "logs"}]
    lake = KnownLake(tmp_path, maintain={"retention": {"rules": rules}})
    with contextlib.closing(lake):
        lake.fill(ROWS[:7], ROWS[7:])
        runner = SparkRunner(lambda: spark, "maintain", 2)
        retained = retain(lake.config, lake.catalog, runner, lake.table(), RetentionRun(lake.now))
        assert retained.rows_removed == 1
        request = EraseRequest("acme", "attributes['user.id'] = 'u42'", ("logs",))
        report = erase(lake.config, lake.catalog, request, runner, sleep=lambda _: None, sync=lambda: None)
        assert report.is_proven
        assert report.rows_removed == 9
        assert holding(tmp_path, MARKER) == []
        wanted = [body for _, body, _, _ in ROWS if MARKER not in body and body != "u1 old debug"]
        assert lake.bodies() == Counter(wanted)
        assert balance(lake.config).problems == []
