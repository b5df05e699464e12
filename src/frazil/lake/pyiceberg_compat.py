"""All uses of PyIceberg's private API, for the pinned version."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import requests
import sqlalchemy
from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import CreateTableTransaction, StagedTable, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import AssertCreate, TableRequirement, TableUpdate
from pyiceberg.typedef import Identifier
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

CONNECT_SECONDS_MAX = 5
RESPONSE_SECONDS_MAX = 30
_CATALOG_TABLES = 2
_PATH = 1
"""Index of the path in the fields of a DataFile."""


def schema_of(schema: pa.Schema) -> Schema:
    """Converts an Arrow schema. Assigns new field ids."""
    return assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(schema))


def tables_only(catalog: SqlCatalog) -> Any:
    """Returns the SQL condition that excludes views; None if the catalog's schema has no views."""
    return catalog._iceberg_type_filter()


def delete_old_metadata(catalog: MetastoreCatalog, before: Table, after: TableMetadata) -> None:
    catalog._delete_old_metadata(before.io, before.metadata, after)


def new_table(creation: CreateTableTransaction) -> Table:
    """Returns the table that is being created, which is not in the catalog yet."""
    return creation._table


def commit_creation(
    catalog: Catalog, creation: CreateTableTransaction, updates: Sequence[TableUpdate]
) -> None:
    """Creates the table with further updates, in one commit."""
    catalog.commit_table(creation._table, (AssertCreate(),), (*creation._updates, *updates))


def at_path(file: DataFile, path: str) -> DataFile:
    """Returns the manifest entry of a copy of the file at another path."""
    fields: list[Any] = list(file._data)
    fields[_PATH] = path
    moved = DataFile(*fields)
    moved.spec_id = file.spec_id
    return moved


class BoundedSqlCatalog(SqlCatalog):
    """A SQL catalog with timeouts and durable commits."""

    def _init_catalog(self) -> None:
        sqlalchemy.event.listen(self.engine, "connect", self._prepare)
        sqlalchemy.event.listen(self.engine, "handle_error", _drop_read_only)
        super()._init_catalog()

    def _prepare(self, connection: Any, _: object) -> None:
        with contextlib.closing(connection.cursor()) as cursor:
            if self.engine.dialect.name == "sqlite":
                # EXTRA also syncs the folder, unlike FULL: otherwise a power loss may undo the last commit.
                cursor.execute("PRAGMA synchronous=EXTRA")
            else:
                cursor.execute(f"SET statement_timeout = '{RESPONSE_SECONDS_MAX}s'")
        connection.commit()

    def create_tables(self) -> None:
        """Retries: when several processes start, each may lose the race for each of the two tables once."""
        for _ in range(_CATALOG_TABLES):
            with contextlib.suppress(OperationalError, ProgrammingError, IntegrityError):
                return super().create_tables()
        return super().create_tables()

    def _update_and_stage_table(
        self,
        current_table: Table | None,
        table_identifier: Identifier,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> StagedTable:
        """Keeps `last_updated_ms` from decreasing. PyIceberg sets it from the clock for a change without a
        snapshot. Iceberg's Java library rejects a table whose time decreased by more than a minute, which
        would happen after a commit from a clock that was ahead.
        """
        staged = super()._update_and_stage_table(current_table, table_identifier, requirements, updates)
        before = 0 if current_table is None else current_table.metadata.last_updated_ms
        if staged.metadata.last_updated_ms < before:
            staged.metadata = staged.metadata.model_copy(update={"last_updated_ms": before})
        return staged


def _drop_read_only(context: sqlalchemy.engine.ExceptionContext) -> None:
    """Removes read-only connections from the pool: SQLite silently opens a file read-only if it cannot open
    it for writing at that moment.
    """
    if "readonly database" in str(context.original_exception):
        context.is_disconnect = True


class BoundedRestCatalog(RestCatalog):
    """A REST catalog with timeouts."""

    def _config_headers(self, session: requests.Session) -> None:
        """Sets timeouts, which PyIceberg does not. PyIceberg calls this method first on each new session,
        before OAuth2 and SigV4 use the session.
        """
        super()._config_headers(session)
        session.request = functools.partial(  # type: ignore[method-assign]
            session.request, timeout=(CONNECT_SECONDS_MAX, RESPONSE_SECONDS_MAX)
        )
