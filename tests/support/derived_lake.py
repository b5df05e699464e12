"""A lake with derived tables, whose tasks run in this process and not on Spark."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry
from pyiceberg.catalog import Catalog

from frazil.lake.files import LakeFileIO
from frazil.objectives import Objectives
from frazil.pipeline.derive.deriver import Deriver
from frazil.pipeline.derive.metrics import DeriveMetrics
from frazil.position import SourcePosition, source_position
from frazil.tables import Signal, TableSpec, table_specs
from frazil.tables.derived.combine import combine, completed, rolled_up
from frazil.tables.derived.metric_cardinality import with_attributes
from tests.support.known_lake import KnownLake


class DerivedLake(KnownLake):
    def __init__(self, data_dir: Path, **settings: Any) -> None:
        super().__init__(data_dir, **settings)
        self.registry = CollectorRegistry()
        self.derivers: dict[str, Deriver] = {}

    def deriver(self, source: Signal = "logs", **options: Any) -> Deriver:
        """The same one each time, as in a pipeline that goes on."""
        if source not in self.derivers:
            self.restart(source, **options)
        return self.derivers[source]

    def restart(self, source: Signal = "logs", clock: Callable[[], float] | None = None) -> Deriver:
        """A new one, which remembers nothing, as after a crash."""
        self.registry = CollectorRegistry()
        options = {} if clock is None else {"clock": clock}
        objectives = Objectives(self.registry, self.config, ["derive_lag"])
        metrics = DeriveMetrics(self.registry, self.config, objectives)
        made = Deriver(self.config, source, self.catalog, self.runner, metrics, **options)
        self.derivers[source] = made
        return made

    def derive(self, source: Signal = "logs") -> None:
        """All that is left: new rows, then past days."""
        deriver = self.deriver(source)
        while deriver.round() == "more":
            pass
        while deriver.day():
            pass

    def position(self, table: str) -> SourcePosition:
        from frazil.lake.commits.commit import checkpoint_of

        return source_position(checkpoint_of(self.table(table)).position)

    def merged(self, table: str) -> list[tuple[Any, ...]]:
        """The rows of the table, merged, sorted by key."""
        spec = table_specs()[table]
        rows = self.table(table).scan().to_arrow()
        return rows_of(combine(_plain(rows, spec), spec), spec)

    def expected(self, table: str) -> list[tuple[Any, ...]]:
        """The same in a single pass over all rows of the source."""
        spec = with_attributes(table_specs()[table], self.config.derive.cardinality_attributes)
        assert spec.derived is not None
        source = table_specs()[spec.derived.source]
        rows = self.table(spec.derived.source).scan().to_arrow()
        plain = _plain(rows, source)
        return rows_of(combine(rolled_up(spec.derived.derive(plain), spec), spec), spec)


def rows_of(rows: pa.Table, spec: TableSpec) -> list[tuple[Any, ...]]:
    found = [tuple(row.values()) for row in rows.select(_key_first(spec)).to_pylist()]
    return sorted(found, key=lambda row: tuple((value is not None, value) for value in row[: len(spec.key)]))


def _key_first(spec: TableSpec) -> list[str]:
    others = [column.name for column in spec.columns if column.name not in spec.key]
    return [*spec.key, *others]


def _plain(rows: pa.Table, spec: TableSpec) -> pa.Table:
    names = [column.name for column in spec.columns]
    columns = []
    for name in names:
        column = rows.column(name)
        columns.append(column.cast(spec.column(name).type))
    return completed(pa.table(columns, names), spec)


class Crash(BaseException):
    """As if the process had been killed."""


@contextlib.contextmanager
def crashing_at(monkeypatch: pytest.MonkeyPatch, catalog: Catalog, number: int) -> Iterator[list[str]]:
    """Raises at the n-th write of a file or commit to the catalog: half of them after it happened."""
    seen: list[str] = []
    write, commit = LakeFileIO.write, catalog.commit_table

    def struck(name: str, real: Callable[[], Any]) -> Any:
        seen.append(name)
        if len(seen) == (number + 1) // 2:
            if number % 2:
                raise Crash(name)
            real()
            raise Crash(name)
        return real()

    with monkeypatch.context() as patched:
        patched.setattr(
            LakeFileIO, "write", lambda *args, **more: struck("write", lambda: write(*args, **more))
        )
        patched.setattr(catalog, "commit_table", lambda *args: struck("commit", lambda: commit(*args)))
        yield seen
