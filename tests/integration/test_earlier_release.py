"""Data that an earlier release wrote is queried, landed, maintained and erased by this one."""

from __future__ import annotations

import csv
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


def services(config: Path, table: str, *options: str) -> Counter[str]:
    sql = f"SELECT service_name, count(*) FROM {table} GROUP BY ALL"
    text = frazil(config, "query", "--tenant", "default", "--format", "csv", *options, sql)
    return Counter({name: int(rows) for name, rows in list(csv.reader(text.splitlines()))[1:]})


def expected(*names: str) -> Counter[str]:
    return Counter(dict.fromkeys(names, RECORDS))


@pytest.mark.slow
def test_what_an_earlier_release_wrote_is_queried_landed_maintained_and_erased(config: Path) -> None:
    spoiled = {"logs": (), "spans": ("spoiled",), "metrics": ("spoiled",)}
    there = {table: expected(*LANDED, *spoiled[table], "waiting") for table in SIGNALS}
    assert {table: services(config, table) for table in SIGNALS} == there
    assert {table: services(config, table, "--as-of", "tag:before") for table in SIGNALS} == {
        table: expected(*LANDED) for table in SIGNALS
    }
    exit_code, ledger = verified(config)
    assert exit_code == 0, ledger

    with running_pipeline(config) as pipeline:
        waiting = RECORDS * len(SIGNALS)
        pipeline.until("landed", lambda: pipeline.metric("frazil_landed_rows_total") >= waiting)
        assert pipeline.stop() == 0
    assert {table: services(config, table) for table in SIGNALS} == there

    for task in ("compact", "manifests", "expire", "retention", "orphans"):
        frazil(config, "maintain", task)
    assert {table: services(config, table) for table in SIGNALS} == there

    which = ("--tenant", "default", "--where", "service_name IN ('round-2', 'waiting')")
    frazil(config, "erase", *which, "--drop-tags", "--drop-set-aside", "--yes")
    left = {table: expected("round-0", "round-3", *spoiled[table]) for table in SIGNALS}
    assert {table: services(config, table) for table in SIGNALS} == left
    exit_code, ledger = verified(config)
    assert exit_code == 0, ledger
