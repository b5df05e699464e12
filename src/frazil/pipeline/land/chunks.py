"""From a stream of tables to data files, in bounded memory."""

from __future__ import annotations

import pyarrow as pa

from frazil.pipeline.arrange import Horizon, arrange
from frazil.pipeline.datafile import Layout, write_part
from frazil.pipeline.land.results import TaskResult

CHUNK_BYTES_MAX = 128 * 2**20
"""Rows in memory that become files together. Arranging holds them about three times."""


class Chunks:
    """Collects tables and writes files whenever enough have come together, and at the end."""

    def __init__(
        self, layout: Layout, horizon: Horizon, name: str, result: TaskResult, *, files_max: int | None
    ) -> None:
        """`files_max` is how many files the task may write; None: as many as its rows need."""
        self._layout = layout
        self._horizon = horizon
        self._name = name
        self._result = result
        self._files_max = files_max
        self._tables: list[pa.Table] = []
        self._bytes = 0
        self._written = 0

    def add(self, table: pa.Table) -> None:
        """`table` has exactly the layout's coded schema. Does nothing once the task needs too many files."""
        if self._result.too_many_files:
            return
        rows_max = max(1, CHUNK_BYTES_MAX * table.num_rows // max(table.nbytes, 1))
        for start in range(0, table.num_rows, rows_max):
            piece = table.slice(start, rows_max)
            self._tables.append(piece)
            self._bytes += piece.nbytes
            if self._bytes >= CHUNK_BYTES_MAX:
                self.flush()

    def flush(self) -> None:
        if not self._tables:
            return
        tables, self._tables, self._bytes = self._tables, [], 0
        rows = sum(table.num_rows for table in tables)
        arranged = arrange(tables, self._layout.spec, self._horizon)
        self._result.files_needed += len(arranged.parts)
        if self._files_max is not None and self._result.files_needed > self._files_max:
            self._result.too_many_files = True
            return
        for part in arranged.parts:
            self._result.files.append(write_part(self._layout, part, f"{self._name}-{self._written:05d}"))
            self._written += 1
        self._result.rows += rows
        self._result.clamped += arranged.clamped
