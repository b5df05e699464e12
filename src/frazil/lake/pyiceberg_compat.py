"""All that frazil uses of PyIceberg's private API, for the pinned version, and nothing else."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import requests
import sqlalchemy
from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import CreateTableTransaction, StagedTable, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import AssertCreate, TableRequirement, TableUpdate
from pyiceberg.typedef import Identifier
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

CONNECT_SECONDS_MAX = 5
ANSWER_SECONDS_MAX = 30
_CATALOG_TABLES = 2
_PATH = 1
"""The place of the path in a DataFile's fields."""


def tables_only(catalog: SqlCatalog) -> Any:
    """Returns the condition that leaves out views; None where the catalog has none."""
    return catalog._iceberg_type_filter()


def delete_old_metadata(catalog: MetastoreCatalog, before: Table, after: TableMetadata) -> None:
    catalog._delete_old_metadata(before.io, before.metadata, after)


def new_table(creation: CreateTableTransaction) -> Table:
    """Returns the table that is being created. The catalog does not know it yet."""
    return creation._table


def commit_creation(
    catalog: Catalog, creation: CreateTableTransaction, updates: Sequence[TableUpdate]
) -> None:
    """Creates the table with further updates, in one commit."""
    catalog.commit_table(creation._table, (AssertCreate(),), (*creation._updates, *updates))


def at_path(file: DataFile, path: str) -> DataFile:
    """Returns the description of a copy of the file."""
    fields: list[Any] = list(file._data)
    fields[_PATH] = path
    moved = DataFile(*fields)
    moved.spec_id = file.spec_id
    return moved


class BoundedSqlCatalog(SqlCatalog):
    def _init_catalog(self) -> None:
        sqlalchemy.event.listen(self.engine, "connect", self._prepare)
        sqlalchemy.event.listen(self.engine, "handle_error", _drop_read_only)
        super()._init_catalog()

    def _prepare(self, connection: Any, _: object) -> None:
        with contextlib.closing(connection.cursor()) as cursor:
            if self.engine.dialect.name == "sqlite":
                # EXTRA is FULL and syncs the folder too: without it a power loss may undo the last commit.
                cursor.execute("PRAGMA synchronous=EXTRA")
            else:
                cursor.execute(f"SET statement_timeout = '{ANSWER_SECONDS_MAX}s'")
        connection.commit()

    def create_tables(self) -> None:
        """Of several processes that find none, each may lose each table to another once."""
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
        """PyIceberg takes the clock for a change without a snapshot. Java refuses a table that went back in
        time by more than a minute, as it would after another clock was ahead.
        """
        staged = super()._update_and_stage_table(current_table, table_identifier, requirements, updates)
        before = 0 if current_table is None else current_table.metadata.last_updated_ms
        if staged.metadata.last_updated_ms < before:
            staged.metadata = staged.metadata.model_copy(update={"last_updated_ms": before})
        return staged


def _drop_read_only(context: sqlalchemy.engine.ExceptionContext) -> None:
    """SQLite opens a file read-only where it cannot open it for writing just then, and says nothing. Such a
    connection must not stay in the pool.
    """
    if "readonly database" in str(context.original_exception):
        context.is_disconnect = True


class BoundedRestCatalog(RestCatalog):
    def _config_headers(self, session: requests.Session) -> None:
        """PyIceberg waits for answers without end. This is what it calls first on each new session, before
        OAuth2 and SigV4 use it.
        """
        super()._config_headers(session)
        session.request = functools.partial(  # type: ignore[method-assign]
            session.request, timeout=(CONNECT_SECONDS_MAX, ANSWER_SECONDS_MAX)
        )
