"""Finds the rows of a data file that match a condition, and the files that may have such rows.

    predicate = parse_predicate("attributes['user.id'] = 'u42'", landed_spec("logs"))
    matcher = Matcher.of(predicate, spec, table.schema())
    matcher.matching("/path/of/a.parquet")  # a mask over the file's rows

A row matches if `SELECT … FROM <table> WHERE (<condition>)` would return it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from frazil.errors import LimitReached, QueryInvalid, StoreUnavailable
from frazil.pipeline.maintain.predicates.parse import (
    DUCKDB_ERRORS,
    NAMESPACE,
    Predicate,
    as_error,
    parse_predicate,
)
from frazil.sql.bloom import hashes_of, lacks, read_filters
from frazil.sql.index import Index, of_files
from frazil.sql.promoted_fallback import from_map
from frazil.sql.sandbox import Sandbox, Settings, TableSource
from frazil.sql.types import duckdb_type, quoted
from frazil.tables import Fill, TableSpec
from frazil.tables.promoted import fingerprint_of

__all__ = ["Matcher", "Predicate", "may_match", "parse_predicate"]

Mask = npt.NDArray[np.bool_]
_ROW_NUMBER = "number of the row"
_BATCH_ROWS = 65_536
_FIELD_ID = b"PARQUET:field_id"
_NO_ID = 1_000_000


@dataclass(frozen=True)
class Matcher:
    """Finds matching rows. Can be pickled. Each call uses its own DuckDB instance."""

    predicate: Predicate
    columns: Sequence[tuple[str, str, int]]
    """The table's columns: name, DuckDB type, Iceberg field id."""
    promoted: Mapping[str, str] = field(default_factory=dict)
    """SQL expressions for promoted columns that a file does not have, or that were filled differently."""
    fill: Fill = field(default_factory=lambda: Fill({}))
    memory_bytes: int = 512 << 20
    """DuckDB's memory limit. It does not include intermediate results of a few thousand rows."""
    temp_bytes: int = 4 << 30
    temp_dir: str | None = None
    """The folder for DuckDB's temporary files."""
    hashes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Hashes of the values that matching rows have, by column with a Bloom filter."""

    @classmethod
    def of(
        cls,
        predicate: Predicate,
        spec: TableSpec,
        schema: Schema,
        *,
        properties: Mapping[str, str] | None = None,
        bloom_filters: bool = True,
        **limits: Any,
    ) -> Matcher:
        """Returns a matcher for a table with this schema and properties. Without `bloom_filters`,
        `is_excluded` is never true. DuckDB spills to a temporary folder in `temp_dir`.
        """
        ids = {field.name: field.field_id for field in schema.fields}
        columns = [
            (column.name, duckdb_type(column.type), ids.get(column.name, _NO_ID + at))
            for at, column in enumerate(spec.columns)
        ]
        fill = Fill.of(spec.promoted, properties)
        promoted = {name: from_map(fill.promoted[name]) for name, _, _ in columns if name in fill.promoted}
        hashes = {
            name: found
            for name, constraint in predicate.constraints.items()
            if bloom_filters and name in spec.bloom_filters and (found := hashes_of(constraint.values))
        }
        return cls(predicate, tuple(columns), promoted, fill, hashes=hashes, **limits)

    def is_excluded(self, source: object, footer: pq.FileMetaData, path: str) -> bool:
        """Returns whether Bloom filters of an open file of the table show that none of its rows matches.
        `path` is the file's path in the table. A column whose values are only in the map has no filter.
        """
        unfilled = self.fill.unfilled(fingerprint_of(path))
        ids = {name: identity for name, _, identity in self.columns if name not in unfilled}
        return any(
            name in ids and lacks(read_filters(source, footer, ids[name]), hashes)
            for name, hashes in self.hashes.items()
        )

    def matching(self, path: str, original: str | None = None) -> Mask:
        """Returns a mask of the matching rows of a local Parquet file. `original` is the path of the file in
        the table if `path` is a copy.

        Raises QueryInvalid if the condition fails on some row, such as a cast of a text that is not a number.
        """
        file = _inspect(path, self.predicate.table)
        mask = np.zeros(file.rows, np.bool_)
        with tempfile.TemporaryDirectory(prefix="frazil-match-", dir=self.temp_dir) as folder:
            sandbox = Sandbox(Settings(1, self.memory_bytes, self.temp_bytes, folder, NAMESPACE))
            try:
                unfilled = self.fill.unfilled(fingerprint_of(original or path))
                sandbox.fill([self._source(path, file.field_ids, unfilled)])
                self._mark(sandbox, mask)
            except (*DUCKDB_ERRORS, pa.ArrowException) as error:
                raise self._failed(error, path) from None
            finally:
                sandbox.close()
        return mask

    def _source(self, path: str, field_ids: frozenset[int], unfilled: frozenset[str]) -> TableSource:
        table = self.predicate.table
        missing = {
            name: self.promoted[name]
            for name, _, identity in self.columns
            if name in self.predicate.columns
            and name in self.promoted
            and (identity not in field_ids or name in unfilled)
        }
        if missing:
            older = {"files": [path], "columns": missing, "maps": ()}
            return TableSource(table, self.columns, (), (), [older], [table], _ROW_NUMBER)
        named = [column for column in self.columns if column[0] in self.predicate.columns]
        return TableSource(table, named or self.columns[:1], [path], (), (), [table], _ROW_NUMBER)

    def _mark(self, sandbox: Sandbox, mask: Mask) -> None:
        count = 0
        for batch in sandbox.connection.execute(self._sql).to_arrow_reader(_BATCH_ROWS):
            mask[batch.column(0).to_numpy()] = True
            count += batch.num_rows
        if count != np.count_nonzero(mask):
            raise RuntimeError("DuckDB returned a row of a file twice")

    @property
    def _sql(self) -> str:
        table = quoted(self.predicate.table)
        return f"SELECT {quoted(_ROW_NUMBER)} FROM {table} WHERE {self.predicate.where}"  # noqa: S608

    def _failed(self, error: Exception, path: str) -> Exception:
        found = as_error(error, self._sql, [name for name, _, _ in self.columns], [path])
        if isinstance(found, StoreUnavailable):
            return StoreUnavailable(f"{self.predicate.table}: a data file cannot be read: {found}")
        if isinstance(found, LimitReached):
            return LimitReached(f"{self.predicate.table}: {found}", limit=found.limit)
        return type(found)(
            f"{self.predicate.table}: the condition fails on some rows: {found}. To treat these rows as no "
            "match, use TRY_CAST(… AS …) or TRY(…)"
        )


def may_match(
    predicate: Predicate, files: Sequence[DataFile], schema: Schema, spec: PartitionSpec, fill: Fill
) -> list[bool]:
    """Returns for each file whether its statistics allow a matching row. Ignores the statistics of promoted
    columns that were filled differently than in `fill`.
    """
    if not predicate.constraints:
        return [True] * len(files)
    manifest = of_files(files, spec, schema, predicate.table, fill)
    index = Index([manifest])
    tenants = {tenant for tenant in manifest.tenants if isinstance(tenant, str)}
    found = {
        file.path for tenant in tenants for file in index.select(tenant, predicate.constraints, schema).files
    }
    return [
        tenant not in tenants or file.file_path in found
        for tenant, file in zip(manifest.tenants, files, strict=True)
    ]


@dataclass(frozen=True)
class _File:
    rows: int
    field_ids: frozenset[int]


def _inspect(path: str, table: str) -> _File:
    try:
        with pq.ParquetFile(path) as file:
            ids = [(field.metadata or {}).get(_FIELD_ID) for field in file.schema_arrow]
            rows = file.metadata.num_rows
    except (OSError, pa.ArrowException) as error:
        raise StoreUnavailable(f"{table}: a data file cannot be read: {error}") from error
    known = frozenset(int(identity) for identity in ids if identity is not None)
    if not known:
        # Without field ids all columns would be NULL, and no row would match.
        raise QueryInvalid(
            f"{table}: a data file has no Iceberg field ids, so its columns are unknown. Rewrite it with "
            "Spark's rewrite_data_files"
        )
    return _File(rows, known)
