"""All uses of PyIceberg's private API, for the pinned version. The catalogs are in `catalogs`: Spark's tasks
import this module, and need no catalog.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import CreateTableTransaction, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import AssertCreate, TableUpdate

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog, MetastoreCatalog
    from pyiceberg.catalog.sql import SqlCatalog

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
