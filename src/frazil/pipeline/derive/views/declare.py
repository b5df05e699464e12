"""Makes the tables of configured views: asks Spark for the types of a query, and compares it with what an
existing table holds.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from frazil.config import Config
from frazil.errors import Refused
from frazil.lake.catalog import catalog_errors, table_or_none
from frazil.lake.commits.metadata_commit import set_properties
from frazil.lake.views import is_off, known_views, spec_in
from frazil.pipeline.derive.task import columns_of
from frazil.pipeline.derive.views.task import DAY, FACTS, rows_schema, sql_of
from frazil.pipeline.runner import Runner
from frazil.tables import TableSpec, declare_views, table_specs
from frazil.tables.columns import TENANT, type_name
from frazil.tables.derived.view import OFF, ON, VIEW, VIEW_STATE, ViewQuery
from frazil.tables.promoted import promoted
from frazil.tables.views import view_spec


def declared_view(config: Config, catalog: Catalog, name: str, query: ViewQuery, runner: Runner) -> TableSpec:
    """Returns the table of a view, and makes it known to this process. Asks Spark only if the table does not
    exist.

    Raises Refused if the query is not valid, or if the table holds rows of another query.
    """
    with catalog_errors():
        table = table_or_none(catalog, config.lake.namespace, name)
    spec = analysed(config, name, query, runner) if table is None else _spec_of(catalog, table, name, query)
    declare_views([spec])
    return spec


def _spec_of(catalog: Catalog, table: Table, name: str, query: ViewQuery) -> TableSpec:
    """Returns the spec of an existing table. Stores how long rows are kept, if that has changed."""
    found = spec_in(name, table.metadata)
    stored = None if found is None or found.derived is None else found.derived.view
    if stored is None:
        raise Refused(f"view {name}: there is a table of that name that is not a view; choose another name")
    if not query.means(stored):
        raise Refused(
            f"view {name}: its SQL has changed, and the table holds rows of the earlier one, which stay "
            f"queryable: {stored.sql}. Declare the new SQL under another name, or restore the earlier one"
        )
    updates = {}
    if stored.kept_days != query.kept_days:
        stored = replace(stored, kept_days=query.kept_days)
        updates[VIEW] = stored.to_text()
    if is_off(table.metadata):
        updates[VIEW_STATE] = ON
    if updates:
        set_properties(catalog, table, updates)
    return view_spec(name, stored)


def mark_off(config: Config, catalog: Catalog) -> list[str]:
    """Notes in the tables of views that the configuration no longer has that they are not derived. Returns
    their names.
    """
    names = [spec.name for spec in known_views() if spec.name not in config.views]
    for name in names:
        with catalog_errors():
            table = table_or_none(catalog, config.lake.namespace, name)
        if table is not None and not is_off(table.metadata):
            set_properties(catalog, table, {VIEW_STATE: OFF})
    return names


def analysed(config: Config, name: str, query: ViewQuery, runner: Runner) -> TableSpec:
    """Returns the table of a view, with the types that Spark finds. Runs no job. Raises Refused if Spark
    refuses the query, or if a column has a type that no view can have.
    """
    source = table_specs(promoted(config))[query.source]
    needed = columns_of(query.reads, source)
    found = runner.schema_of(rows_schema(needed), sql_of(query))
    names = [TENANT, FACTS, DAY, *(column.name for column in query.columns)]
    if found.names != names:
        raise Refused(f"view {name}: Spark returns other columns than the query names")
    columns = tuple(replace(each, type=_type_text(found.field(each.name).type)) for each in query.columns)
    try:
        return view_spec(name, replace(query, columns=columns))
    except ValueError as error:
        raise Refused(f"view {name}: {error}") from None


def _type_text(type_: pa.DataType) -> str:
    if pa.types.is_timestamp(type_):
        return "TIMESTAMP" if type_.tz else "TIMESTAMP_NTZ"
    if pa.types.is_date(type_):
        return "DATE"
    try:
        return type_name(type_)
    except KeyError:
        return str(type_).upper().replace("DECIMAL128", "DECIMAL")
