"""Data that an earlier release wrote is queried, landed, maintained and erased by this one."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from frazil.tables import SIGNALS
from tests.support.earlier_folder import DATA, RECORDS, frazil, unpacked
from tests.support.spark.land_process import running_pipeline, verified

LANDED = ("round-0", "round-2", "round-3")
"""Rows of `round-1` were erased."""


@pytest.fixture(params=sorted(path.name.removesuffix(".tar.xz") for path in DATA.glob("*.tar.xz")))
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    with unpacked(request.param, tmp_path) as path:
        yield path


def services(config: Path, *options: str) -> dict[str, Counter[str]]:
    """The rows of each service in each table, by one query: starting a process costs more than a query."""
    selects = (f"SELECT '{table}', service_name, count(*) FROM {table} GROUP BY ALL" for table in SIGNALS)
    sql = " UNION ALL ".join(selects)
    text = frazil(config, "query", "--tenant", "default", "--format", "csv", *options, sql)
    found: dict[str, Counter[str]] = {table: Counter() for table in SIGNALS}
    for table, name, rows in list(csv.reader(text.splitlines()))[1:]:
        found[table][name] = int(rows)
    return found


def expected(*names: str) -> Counter[str]:
    return Counter(dict.fromkeys(names, RECORDS))


@pytest.mark.slow
def test_what_an_earlier_release_wrote_is_queried_landed_maintained_and_erased(config: Path) -> None:
    spoiled = {"logs": (), "spans": ("spoiled",), "metrics": ("spoiled",)}
    there = {table: expected(*LANDED, *spoiled[table], "waiting") for table in SIGNALS}
    assert services(config) == there
    assert services(config, "--as-of", "tag:before") == {table: expected(*LANDED) for table in SIGNALS}
    exit_code, ledger = verified(config)
    assert exit_code == 0, ledger

    with running_pipeline(config) as pipeline:
        waiting = RECORDS * len(SIGNALS)
        pipeline.until("landed", lambda: pipeline.metric("frazil_landed_rows_total") >= waiting)
        assert pipeline.stop() == 0
    assert services(config) == there

    done = {report["task"] for report in json.loads(frazil(config, "maintain", "--json"))}
    assert done >= {"compact", "manifests", "expire", "retention", "orphans"}
    assert services(config) == there

    which = ("--tenant", "default", "--where", "service_name IN ('round-2', 'waiting')")
    frazil(config, "erase", *which, "--drop-tags", "--drop-set-aside", "--yes")
    left = {table: expected("round-0", "round-3", *spoiled[table]) for table in SIGNALS}
    assert services(config) == left
    exit_code, ledger = verified(config)
    assert exit_code == 0, ledger
