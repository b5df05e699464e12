"""Commits that are lost, held up or overtaken. The table is `set_aside`."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import SetSnapshotRefUpdate

from frazil.lake.commits.commit import Checkpoint
from frazil.pipeline.datafile import Layout, write_part
from frazil.pipeline.partition_sort import Part
from frazil.tables import SET_ASIDE
from tests.support.wal_stores import HandClock

IDENTIFIER = ("otel", "set_aside")
Commit = Callable[..., Any]
CommitFault = Callable[[], object]


class Sleep:
    """Moves the clock, and says for how long it was asked to sleep."""

    def __init__(self, clock: HandClock) -> None:
        self._clock = clock
        self.slept: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._clock.seconds += seconds


def rows_of(*sources: str) -> pa.Table:
    now = datetime.datetime.now(datetime.UTC)
    rows = [
        {"time": now, "table_name": "logs", "source": source, "reason": "", "bytes": 1} for source in sources
    ]
    return pa.Table.from_pylist(rows, schema=SET_ASIDE.arrow_schema)


def data_file(checkpoint: Checkpoint, *sources: str) -> DataFile:
    layout = Layout.of(checkpoint.table, SET_ASIDE, 1)
    return write_part(layout, Part(None, None, rows_of(*sources)), layout.batch)


def sources(catalog: Catalog) -> list[str]:
    scanned = catalog.load_table(IDENTIFIER).scan(selected_fields=("source",)).to_arrow()
    return sorted(scanned["source"].to_pylist())


def inject(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, *calls: Callable[[Commit, tuple[Any, ...]], Any]
) -> list[int]:
    """The first commits go through these, one each; the rest as they are. Returns what counts them."""
    real, waiting, made = catalog.commit_table, list(calls), []

    def commit_table(*args: Any) -> Any:
        made.append(len(made))
        return waiting.pop(0)(real, args) if waiting else real(*args)

    monkeypatch.setattr(catalog, "commit_table", commit_table)
    return made


def applied_and_lost(real: Commit, args: tuple[Any, ...]) -> Any:
    real(*args)
    raise CommitStateUnknownException("the answer was lost")


def lost_on_the_way(real: Commit, args: tuple[Any, ...]) -> Any:
    raise ConnectionResetError("the request was lost")


def then(call: Callable[[Commit, tuple[Any, ...]], Any], fault: CommitFault) -> Any:
    def both(real: Commit, args: tuple[Any, ...]) -> Any:
        try:
            return call(real, args)
        finally:
            fault()

    return both


def first(fault: CommitFault) -> Any:
    def both(real: Commit, args: tuple[Any, ...]) -> Any:
        fault()
        return real(*args)

    return both


def move(table: Table, name: str, snapshot_id: int) -> None:
    """As an operator would, by any engine."""
    kind = SnapshotRefType.BRANCH if name == "main" else SnapshotRefType.TAG
    update = SetSnapshotRefUpdate(
        ref_name=name,
        type=kind,
        snapshot_id=snapshot_id,
        max_ref_age_ms=None,
        max_snapshot_age_ms=None,
        min_snapshots_to_keep=None,
    )
    table.catalog.commit_table(table, (), (update,))
