"""Maintenance on a real Spark: merging during landing, two maintainers, tags; the ledger always balances."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from frazil.errors import JobFailed, Refused
from frazil.lake.commits.commit import Committer
from frazil.lake.live_files import live_files
from frazil.lake.snapshots import LANDED
from frazil.pipeline.maintain.maintainer import Maintainer
from frazil.pipeline.maintain.metrics import MaintainMetrics
from frazil.pipeline.maintain.tag_tables import list_tagged, tag_tables, untag_tables
from frazil.pipeline.metrics import Metrics
from frazil.pipeline.runner import SparkRunner
from frazil.tables import SIGNALS, Signal
from frazil.tables.promoted import fingerprint_of
from tests.components.process import wait_until
from tests.support.integration.messages import request
from tests.support.previous_version import writing_as_before
from tests.support.spark.land_lake import Lake, Sent, Stream, canonical_rows, opened

BATCHES = 4
RECORDS = 5
SETTINGS = {
    "wal": {"local": {"free_bytes_min": 0}},
    "maintain": {"compact": {"fan_in": 2}, "expire": {"snapshots_kept": 1}},
}


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> Iterator[Lake]:
    with opened({"data_dir": tmp_path, **SETTINGS}) as made:
        yield made


def fill(lake: Lake, batches: int = BATCHES, *signals: Signal) -> None:
    """Each batch is landed by itself, so that each makes a file of its own."""
    streams = [Stream(lake.store, signal) for signal in signals or SIGNALS]
    for number in range(batches):
        for stream in streams:
            stream.write([Sent(request(stream.signal, f"service-{number}", RECORDS))])
        lake.land(*signals)


def maintainer(lake: Lake) -> Maintainer:
    return Maintainer(lake.config, lake.catalog, runner_of(lake), MaintainMetrics(Metrics().registry))


def runner_of(lake: Lake) -> SparkRunner:
    return SparkRunner(lake.spark, "maintain", lake.config.maintain.compact.parallel_tasks)


def files_of(lake: Lake, name: str) -> list[str]:
    return sorted(each.file.file_path for each in live_files(lake.table(name)))


def rows_of(lake: Lake, signal: Signal) -> list[Any]:
    return canonical_rows(signal, lake.by_duckdb(signal))


def landed_at(lake: Lake, name: str) -> int:
    found: int = lake.table(name).metadata.refs[LANDED].snapshot_id
    return found


@pytest.mark.parametrize(
    "signal",
    ["logs", pytest.param("spans", marks=pytest.mark.slow), pytest.param("metrics", marks=pytest.mark.slow)],
)
def test_small_files_become_one_and_every_engine_reads_the_same_rows(lake: Lake, signal: Signal) -> None:
    fill(lake, BATCHES, signal)
    before, landed = rows_of(lake, signal), landed_at(lake, signal)
    assert len(files_of(lake, signal)) == BATCHES
    report = maintainer(lake).run("compact", signal)
    assert (report.files_in, report.files_out, report.rows) == (BATCHES, 1, BATCHES * RECORDS)
    assert report.bytes_out > 0
    assert len(files_of(lake, signal)) == 1
    assert rows_of(lake, signal) == before
    assert canonical_rows(signal, lake.by_spark(signal)) == before
    assert landed_at(lake, signal) == landed
    assert not lake.ledger().problems
    assert maintainer(lake).run("compact", signal).is_nothing


@pytest.mark.slow
def test_files_of_an_earlier_release_are_filled_beside_others_and_every_engine_reads_the_same_rows(
    lake: Lake,
) -> None:
    with writing_as_before():
        fill(lake, 2, "logs")
    fill(lake, 1, "logs")
    before, landed = rows_of(lake, "logs"), landed_at(lake, "logs")
    report = maintainer(lake).run("fill", "logs")
    assert (report.files_in, report.files_out, report.rows) == (2, 2, 2 * RECORDS)
    assert all(fingerprint_of(path) for path in files_of(lake, "logs"))
    assert rows_of(lake, "logs") == before
    assert canonical_rows("logs", lake.by_spark("logs")) == before
    assert landed_at(lake, "logs") == landed
    assert not lake.ledger().problems
    assert maintainer(lake).run("fill", "logs").is_nothing


@pytest.mark.slow
def test_a_dry_run_reports_the_changes_and_makes_none(lake: Lake) -> None:
    fill(lake, BATCHES, "logs")
    table = lake.table("logs")
    there = sorted(lake.config.data_dir.rglob("*"))
    for task in ("retention", "compact", "manifests", "expire", "orphans", "fill"):
        maintainer(lake).run(task, "logs", dry_run=True)
    report = maintainer(lake).run("compact", "logs", dry_run=True)
    assert (report.files_in, report.files_out, report.rows) == (BATCHES, 1, BATCHES * RECORDS)
    assert lake.table("logs").metadata == table.metadata
    assert sorted(lake.config.data_dir.rglob("*")) == there


@pytest.mark.slow
def test_a_landing_while_files_are_merged_loses_nothing_and_neither_does_the_merge(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(lake, BATCHES, "logs")
    replace = Committer.replace
    begun: list[int] = []

    def landing_first(self: Committer, *args: Any, **options: Any) -> Any:
        begun.append(1)
        fill(lake, 1, "logs")
        return replace(self, *args, **options)

    monkeypatch.setattr(Committer, "replace", landing_first)
    maintainer(lake).run("compact", "logs")
    assert begun == [1]
    assert lake.by_pyiceberg("logs").num_rows == (BATCHES + 1) * RECORDS
    assert len(files_of(lake, "logs")) == 2
    assert not lake.ledger().problems


@pytest.mark.slow
def test_of_two_maintainers_on_the_same_files_one_wins_and_the_other_changes_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(lake, BATCHES, "logs")
    before = rows_of(lake, "logs")
    replace, rival = Committer.replace, maintainer(lake)
    begun: list[int] = []

    def rival_first(self: Committer, *args: Any, **options: Any) -> Any:
        if not begun:
            begun.append(1)
            assert rival.run("compact", "logs").files_out == 1
        return replace(self, *args, **options)

    monkeypatch.setattr(Committer, "replace", rival_first)
    report = maintainer(lake).run("compact", "logs")
    assert (report.files_out, report.detail["conflicts"]) == (0, 1)
    assert rows_of(lake, "logs") == before
    assert len(files_of(lake, "logs")) == 1
    assert not lake.ledger().problems


@pytest.mark.slow
def test_identical_spans_become_one_and_the_ledger_counts_them(tmp_path: Path, spark: SparkSession) -> None:
    compact = {"fan_in": 2, "merge_identical_spans": True}
    with opened({"data_dir": tmp_path, **SETTINGS, "maintain": {"compact": compact}}) as lake:
        stream = Stream(lake.store, "spans")
        sent = Sent(request("spans", "shop", RECORDS))
        for received in (sent, Sent(sent.request, received_unix_nano=sent.received_unix_nano + 10**9)):
            stream.write([received])
            lake.land("spans")
        assert lake.by_pyiceberg("spans").num_rows == 2 * RECORDS
        report = maintainer(lake).run("compact", "spans")
        assert report.rows_removed == RECORDS
        rows = lake.by_pyiceberg("spans")
        assert len(set(rows["span_id"].to_pylist())) == rows.num_rows == RECORDS
        assert set(rows["_segment"].to_pylist()) == {f"{stream.name}/0"}
        ledger = lake.ledger()
        assert not ledger.problems
        assert sum(line.removed for line in ledger.lines) == RECORDS
        fill(lake, 1, "spans")  # landing goes on from the position that the merge carried
        assert not lake.ledger().problems


@pytest.mark.slow
def test_a_round_does_what_is_due_and_the_tables_stay_as_they_were(lake: Lake) -> None:
    fill(lake)
    before = {signal: rows_of(lake, signal) for signal in SIGNALS}
    now = [lake.table("logs").metadata.last_updated_ms / 1000 + 10_000]
    keeper = Maintainer(
        lake.config, lake.catalog, runner_of(lake), MaintainMetrics(Metrics().registry), clock=lambda: now[0]
    )
    done = {(report.task, report.table) for report in keeper.round() if not report.is_nothing}
    assert {("compact", signal) for signal in SIGNALS} <= done
    assert {signal: rows_of(lake, signal) for signal in SIGNALS} == before
    assert keeper.round() == []
    now[0] += 100_000
    done = {(report.task, report.table) for report in keeper.round() if not report.is_nothing}
    assert {("expire", signal) for signal in SIGNALS} <= done
    assert {signal: rows_of(lake, signal) for signal in SIGNALS} == before
    assert not lake.ledger().problems


def test_unknown_tables_are_refused_by_name(lake: Lake) -> None:
    fill(lake, 1, "logs")
    with pytest.raises(Refused, match="there is no table trucks; there are: logs"):
        maintainer(lake).run("compact", "trucks")


@pytest.mark.slow
def test_a_tag_pins_what_was_acked_before_it_in_every_table(lake: Lake) -> None:
    fill(lake, 1)
    for signal in SIGNALS:  # waits in the log
        Stream(lake.store, signal).write([Sent(request(signal, "late", RECORDS))])
    made = tag_tables(lake.config, lake.catalog, runner_of(lake), Metrics(), "incident-42")
    assert {tag.table for tag in made.tags} >= set(SIGNALS)
    assert not made.missing
    before = {signal: rows_of(lake, signal) for signal in SIGNALS}
    assert all(len(rows) == 2 * RECORDS for rows in before.values())
    fill(lake)
    keeper = Maintainer(
        lake.config, lake.catalog, runner_of(lake), MaintainMetrics(Metrics().registry), clock=lambda: 9e9
    )
    keeper.round()
    for signal in SIGNALS:
        ref = lake.table(signal).metadata.refs["incident-42"].snapshot_id
        then: pa.Table = lake.table(signal).scan(snapshot_id=ref).to_arrow()
        assert then.num_rows == 2 * RECORDS
    with pytest.raises(Refused, match="the tag incident-42 exists already"):
        tag_tables(lake.config, lake.catalog, runner_of(lake), Metrics(), "incident-42")
    assert [cut.name for cut in list_tagged(lake.config, lake.catalog)] == ["incident-42"]
    assert untag_tables(lake.config, lake.catalog, "incident-42") == 3
    assert list_tagged(lake.config, lake.catalog) == []


@pytest.mark.parametrize(
    "name", ["", "a b", "landed", "main", "hour-20261115T10", "reader-x", "x" * 64, "../x"]
)
def test_invalid_tag_names_are_refused(lake: Lake, name: str) -> None:
    with pytest.raises(Refused):
        tag_tables(lake.config, lake.catalog, runner_of(lake), Metrics(), name)


@pytest.mark.slow
def test_running_spark_jobs_can_be_cancelled(lake: Lake) -> None:
    runner = SparkRunner(lake.spark, "maintain", 2)
    results = runner.results(_doubled, [1, 2, 3])
    assert next(results) in (2, 4)
    runner.stop()
    with pytest.raises(JobFailed), contextlib.closing(results):
        list(results)
    assert sorted(SparkRunner(lake.spark, "maintain", 2).results(_doubled, [1, 2, 3])) == [2, 4, 6]


def test_a_failed_call_of_a_runner_cancels_only_its_own_jobs(lake: Lake, tmp_path: Path) -> None:
    runner, begun, go_on = SparkRunner(lake.spark, "maintain", 1), tmp_path / "begun", tmp_path / "go-on"
    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(runner.run_job, partial(_when_allowed, begun, go_on), [1])
        assert wait_until(begun.exists, seconds_max=120)
        with pytest.raises(JobFailed, match="ZeroDivisionError"):
            list(runner.results(_divided, [0, 1]))
        go_on.touch()
        assert other.result(60) == [2]
    assert not runner.is_stopped


def _doubled(number: int) -> int:
    return 2 * number


def _when_allowed(begun: Path, go_on: Path, number: int) -> int:
    begun.touch()
    assert wait_until(go_on.exists, seconds_max=120)
    return 2 * number


def _divided(number: int) -> float:
    return 1 / number


@pytest.mark.slow
def test_files_of_old_days_move_and_every_engine_reads_the_same_rows(
    tmp_path: Path, spark: SparkSession
) -> None:
    (tmp_path / "cold").mkdir()
    tier = {"location": str(tmp_path / "cold"), "after_seconds": "7d"}
    maintain = {"tier": tier, "compact": {"enabled": False}}
    with opened({"data_dir": tmp_path / "data", **SETTINGS, "maintain": maintain}) as lake:
        fill(lake, 2, "logs")
        before, later = rows_of(lake, "logs"), time.time() + 30 * 86_400
        metrics = MaintainMetrics(Metrics().registry)
        keeper = Maintainer(lake.config, lake.catalog, runner_of(lake), metrics, clock=lambda: later)
        report = keeper.run("tier", "logs")
        assert (report.files_in, report.files_out, report.rows) == (2, 2, 2 * RECORDS)
        assert all(path.startswith(f"{tmp_path}/cold/") for path in files_of(lake, "logs"))
        assert rows_of(lake, "logs") == before
        assert canonical_rows("logs", lake.by_spark("logs")) == before
        assert not lake.ledger().problems
