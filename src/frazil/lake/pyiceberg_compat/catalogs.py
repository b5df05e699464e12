"""PyIceberg's catalogs with timeouts, which override private methods."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import requests
import sqlalchemy
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import StagedTable, Table
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import Identifier
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

CONNECT_SECONDS_MAX = 5
RESPONSE_SECONDS_MAX = 30
_CATALOG_TABLES = 2


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
