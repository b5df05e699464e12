"""Erasure while others land, merge and send rows."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from typing import Any

import pytest

from frazil.errors import Conflict, Fenced
from frazil.lake.commits.commit import Committer
from frazil.lake.live_files import live_files
from frazil.ledger import balance
from frazil.pipeline.maintain.erase.report import Proof
from frazil.pipeline.maintain.erase.table import TableEraser
from frazil.storage.local import LocalStore
from tests.support.erasing import LEFT, MARKER, WHERE, assert_erased, copy_of, data_dir
from tests.support.known_lake import KnownLake, holding
from tests.support.local_runner import LocalRunner


def test_a_landing_that_was_on_its_way_is_fenced_and_leaves_nothing_behind(
    filled: KnownLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_job = LocalRunner.run_job

    def run(self: LocalRunner, *given: Any) -> list[Any]:
        results = run_job(self, *given)
        monkeypatch.setattr(LocalRunner, "run_job", run_job)
        filled.erase(WHERE)  # after its files were written, and before they are committed
        return results

    monkeypatch.setattr(LocalRunner, "run_job", run)
    with pytest.raises(Fenced):
        filled.land()
    filled.land()
    assert_erased(filled)


def erased_after_reading(lake: KnownLake, monkeypatch: pytest.MonkeyPatch, segments_read: int) -> None:
    """A landing that has read so many segments when it is erased and proven, and writes after that."""
    read, run_job = LocalStore.read, LocalRunner.run_job

    def run(self: LocalRunner, *given: Any) -> list[Any]:
        monkeypatch.setattr(LocalRunner, "run_job", run_job)
        waiting = sorted(data_dir(lake).glob("wal/logs/**/*.parquet"))[-2:][:segments_read]
        had = {str(path.relative_to(data_dir(lake) / "wal")): path.read_bytes() for path in waiting}
        assert lake.erase(WHERE).is_proven
        monkeypatch.setattr(LocalStore, "read", lambda self, path: had.get(path) or read(self, path))
        return run_job(self, *given)

    monkeypatch.setattr(LocalRunner, "run_job", run)


@pytest.mark.parametrize("segments_read", [1, 2])
def test_a_landing_that_writes_after_the_proof_deletes_its_files(
    filled: KnownLake, monkeypatch: pytest.MonkeyPatch, segments_read: int
) -> None:
    filled.write([("acme", "u7 stays", 9, 0.0)])
    erased_after_reading(filled, monkeypatch, segments_read)
    # Of what it has not read by then, it learns that it is gone; else it is fenced.
    with contextlib.nullcontext() if segments_read == 1 else pytest.raises(Fenced):
        filled.land()
    assert holding(data_dir(filled), MARKER) == []
    assert filled.bodies() == LEFT + Counter({"u7 stays": 1})
    assert balance(filled.config).problems == []


def test_a_merge_that_was_on_its_way_cannot_bring_anything_back(filled: KnownLake) -> None:
    filled.land()
    table = filled.table()
    file = next(each.file for each in live_files(table) if each.file.partition[0] == "acme")
    merged = copy_of(file, "-merged")
    filled.erase(WHERE)
    with pytest.raises(Conflict):
        Committer(filled.catalog, deadline_seconds=20).replace(table, [file], [merged])
    # What it wrote for that last attempt names only what it wrote, and that is gone.
    filled.erase(WHERE)
    assert_erased(filled)


@pytest.mark.slow
def test_the_replacement_of_a_file_is_searched(filled: KnownLake, monkeypatch: pytest.MonkeyPatch) -> None:
    filled.land()
    overwrite, committer = Committer.overwrite, Committer(filled.catalog, deadline_seconds=20)
    waiting = [True]

    def overtaken(self: Committer, table: Any, *given: Any, **facts: Any) -> Any:
        if waiting:
            waiting.pop()
            file = next(each.file for each in live_files(table) if each.file.partition[0] == "acme")
            committer.replace(table, [file], [copy_of(file, "-compacted")])
        return overwrite(self, table, *given, **facts)

    monkeypatch.setattr(Committer, "overwrite", overtaken)
    assert filled.erase(WHERE).is_proven
    assert_erased(filled)


@pytest.mark.slow
def test_a_tenant_that_keeps_sending_such_rows_does_not_prevent_the_end(
    filled: KnownLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    prove = TableEraser.prove

    def meanwhile(self: TableEraser, segments_left: int) -> Proof:
        if self.report.table == "logs":
            filled.now = time.time() + 60
            filled.fill([("acme", f"u42 {MARKER} later", 9, 0.0)])
        return prove(self, segments_left)

    monkeypatch.setattr(TableEraser, "prove", meanwhile)
    report = filled.erase(WHERE)
    assert report.is_proven
    assert filled.bodies() - LEFT == Counter({f"u42 {MARKER} later": 1})


@pytest.mark.slow
def test_rows_from_before_the_cut_that_are_still_there_are_not_proven_away(
    filled: KnownLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    prove = TableEraser.prove

    def meanwhile(self: TableEraser, segments_left: int) -> Proof:
        filled.now = time.time() - 3600
        filled.fill([("acme", f"u42 {MARKER} late", 9, 0.0)])
        return prove(self, segments_left)

    monkeypatch.setattr(TableEraser, "prove", meanwhile)
    report = filled.erase(WHERE)
    assert not report.is_proven
    assert report.tables[0].proof.matches == 1
    assert "NOT PROVEN" in report.text()
