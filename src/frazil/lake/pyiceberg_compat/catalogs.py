"""PyIceberg's catalogs with timeouts, which override private methods."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Sequence
from typing import Any

import requests
import sqlalchemy
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.table import CommitTableResponse, StagedTable, Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    TableRequirement,
    TableUpdate,
    _apply_table_update,
    _TableMetadataUpdateContext,
    _update_table_metadata_log,
)
from pyiceberg.typedef import Identifier
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

CONNECT_SECONDS_MAX = 5
RESPONSE_SECONDS_MAX = 30
_CATALOG_TABLES = 2


class BoundedSqlCatalog(SqlCatalog):
    """A SQL catalog with timeouts and durable commits."""

    _newest: dict[tuple[str, str], tuple[str, TableMetadata]]
    """By namespace and table, the location of the newest known metadata file, and its content."""

    def _init_catalog(self) -> None:
        self._newest = {}
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

    def _convert_orm_to_iceberg(self, orm_table: IcebergTables) -> Table:
        """Parses each metadata file once: a commit loads its table twice, and metadata files never change."""
        key = (orm_table.table_namespace, orm_table.table_name)
        known = self._newest.get(key)
        if known is None or known[0] != orm_table.metadata_location:
            table = super()._convert_orm_to_iceberg(orm_table)
            self._newest[key] = table.metadata_location, table.metadata
            return table
        location, metadata = known
        return Table(
            identifier=(*Catalog.identifier_to_tuple(orm_table.table_namespace), orm_table.table_name),
            metadata=metadata,
            metadata_location=location,
            io=self._load_file_io(metadata.properties, location),
            catalog=self,
        )

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        response = super().commit_table(table, requirements, updates)
        name = table.name()
        key = (Catalog.namespace_to_string(Catalog.namespace_from(name)), Catalog.table_name_from(name))
        self._newest[key] = response.metadata_location, response.metadata
        return response

    def _update_and_stage_table(
        self,
        current_table: Table | None,
        table_identifier: Identifier,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> StagedTable:
        """Differs from PyIceberg's method for a table that exists:

        - Snapshots are shared with the metadata before. PyIceberg copies all of them, which takes longer the
          more there are.
        - `last_updated_ms` does not decrease. PyIceberg sets it from the clock for a change without a
          snapshot. Iceberg's Java library rejects a table whose time decreased by more than a minute, which
          would happen after a commit from a clock that was ahead.
        """
        if current_table is None:
            return super()._update_and_stage_table(current_table, table_identifier, requirements, updates)
        for requirement in requirements:
            requirement.validate(current_table.metadata)
        metadata = _updated(current_table, updates)
        version = self._parse_metadata_version(current_table.metadata_location) + 1
        provider = load_location_provider(metadata.location, metadata.properties)
        location = provider.new_table_metadata_file_location(version)
        return StagedTable(
            identifier=table_identifier,
            metadata=metadata,
            metadata_location=location,
            io=self._load_file_io(properties=metadata.properties, location=location),
            catalog=self,
        )


def _updated(table: Table, updates: Sequence[TableUpdate]) -> TableMetadata:
    before = metadata = table.metadata
    context = _TableMetadataUpdateContext()
    for update in updates:
        metadata = _apply_table_update(update, metadata, context)
    if context.has_changes():
        metadata = _update_table_metadata_log(metadata, table.metadata_location, before.last_updated_ms)
        now = metadata.last_updated_ms
        if now == before.last_updated_ms:
            now = time.time_ns() // 10**6
        metadata = metadata.model_copy(update={"last_updated_ms": max(now, before.last_updated_ms)})
    metadata.spec().check_compatible(metadata.schema())
    metadata.sort_order().check_compatible(metadata.schema())
    return metadata


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
