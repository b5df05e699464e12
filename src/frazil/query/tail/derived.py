"""Makes partial rows of derived tables from the rows of the tail, as derivation will after they have
landed."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pyarrow as pa
import structlog

from frazil.query.tail.chunks import Chunk, ChunkFolder, Part, PartialRows
from frazil.tables import TableSpec
from frazil.tables.derived.combine import rolled_up
from frazil.tables.encoding import with_dictionary

_SLICE_ROWS = 32_768
"""Rows that are derived at once: between slices, other tenants take their turn. Measured: a slice takes 5 to
60 ms, depending on the table, and holds the interpreter lock for about a third of it.
"""
_LOG_SECONDS = 60.0
"""Between two log entries about one table."""
_SLICES_MAX = 2
"""Slices that are derived at the same time, of all tenants."""

log = structlog.get_logger("frazil.query")


class DeriveFailed(Exception):
    """The function of a derived table failed on rows of the tail."""


class PartialRowsMaker:
    """Makes partial rows, and keeps them with the chunk from which they were made. Thread-safe, except that
    calls for one chunk must not overlap.
    """

    def __init__(self, folder: ChunkFolder) -> None:
        self._folder = folder
        self._turns = threading.BoundedSemaphore(_SLICES_MAX)
        self._failed_at: dict[str, float] = {}

    def partial_rows(
        self, spec: TableSpec, schema: pa.Schema, chunk: Chunk, parts: Sequence[Part]
    ) -> PartialRows:
        """Return the partial rows of these parts of a chunk with the columns of `schema`. Raises
        DeriveFailed."""
        known = chunk.partial_rows.get(spec.name)
        if known is not None and known[0] == tuple(parts):
            return known[1]
        made = self._folder.write_partial_rows(
            self._derived(spec, self._folder.read(chunk, schema, parts)), with_dictionary(spec.coded_schema)
        )
        chunk.partial_rows[spec.name] = (tuple(parts), made)
        return made

    def _derived(self, spec: TableSpec, rows: Sequence[tuple[Part, pa.Table]]) -> pa.Table:
        assert spec.derived is not None  # noqa: S101
        source = pa.concat_tables([table for _, table in rows])
        slices = []
        for first in range(0, source.num_rows, _SLICE_ROWS):
            with self._turns:
                part = source.slice(first, _SLICE_ROWS).combine_chunks()
                slices.append(self._rolled_up(spec, part))
        return pa.concat_tables(slices)

    def _rolled_up(self, spec: TableSpec, rows: pa.Table) -> pa.Table:
        assert spec.derived is not None  # noqa: S101
        try:
            return rolled_up(spec.derived.derive(rows), spec)
        except MemoryError:
            raise
        except Exception as error:
            now = time.monotonic()
            if now - self._failed_at.get(spec.name, -_LOG_SECONDS) >= _LOG_SECONDS:
                self._failed_at[spec.name] = now
                log.warning(
                    "rows of the tail not derived", table=spec.name, reason=f"{type(error).__name__}: {error}"
                )
            raise DeriveFailed(spec.name) from error
