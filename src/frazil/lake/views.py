"""Finds the views in the lake. Each table of a view carries its query, so no process needs a configuration to
know what it holds.
"""

from __future__ import annotations

import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from frazil.errors import CatalogUnavailable
from frazil.lake.catalog import LEASES, catalog_errors, table_or_none
from frazil.tables import TableSpec, declare_views, derived_specs, reserved_names
from frazil.tables.derived.view import OFF, VIEW_STATE, view_query
from frazil.tables.views import view_spec

log = structlog.get_logger("frazil.lake")


def known_views() -> list[TableSpec]:
    """Returns the views that this process knows."""
    return [spec for spec in derived_specs() if spec.derived is not None and spec.derived.view is not None]


def candidates(catalog: Catalog, namespace: str) -> list[str]:
    """Returns the names of tables that may be views."""
    try:
        with catalog_errors():
            names = {identifier[-1] for identifier in catalog.list_tables(namespace)}
    except NoSuchNamespaceError:
        return []
    return sorted(names - reserved_names() - {LEASES})


def spec_in(name: str, metadata: TableMetadata) -> TableSpec | None:
    """Returns the declaration of a table that is a view. None if it is none, or if this release cannot read
    it.
    """
    try:
        query = view_query(metadata.properties)
        return None if query is None else view_spec(name, query)
    except ValueError as error:
        log.error("view not readable", view=name, reason=str(error))
        return None


def is_off(metadata: TableMetadata) -> bool:
    """Returns whether the pipeline's configuration does not have the view."""
    return metadata.properties.get(VIEW_STATE) == OFF


def stored_views(catalog: Catalog, namespace: str) -> dict[str, tuple[TableSpec, Table]]:
    """Returns the views of the lake by name. Leaves out tables that cannot be read: those of other engines
    must not stop frazil. Raises CatalogUnavailable.
    """
    found = {}
    for name in candidates(catalog, namespace):
        try:
            with catalog_errors():
                table = table_or_none(catalog, namespace, name)
        except CatalogUnavailable:
            raise
        except Exception as error:
            log.warning("table not readable", table=name, reason=str(error))
            continue
        spec = None if table is None else spec_in(name, table.metadata)
        if table is not None and spec is not None:
            found[name] = spec, table
    return found


def load_views(catalog: Catalog, namespace: str) -> None:
    """Makes the views of the lake known to this process. Raises CatalogUnavailable."""
    declare_views(spec for spec, _ in stored_views(catalog, namespace).values())
