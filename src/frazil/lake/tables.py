"""Creates tables from their specs, and evolves existing ones in place."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import structlog
from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import NestedField

from frazil.config import Config
from frazil.errors import CatalogUnavailable, ConfigError, DataLost
from frazil.lake.catalog import catalog_errors, full_name, open_existing_catalog, table_or_none
from frazil.lake.commits.commit import Checkpoint, checkpoint_of
from frazil.lake.commits.staging import stage_append
from frazil.lake.files import LakeFileIO
from frazil.lake.pyiceberg_compat import commit_creation, new_table
from frazil.lake.schema import iceberg_schema, partition_spec, properties, sort_order
from frazil.lake.snapshots import POSITION
from frazil.tables import Promoted, table_specs
from frazil.tables.columns import Column, TableSpec

_RACES_MAX = 5
_CONFIGURED = {"string": "string", "long": "int", "double": "double", "boolean": "bool"}
"""Iceberg types and their names in `tables.promoted`."""

log = structlog.get_logger("frazil.lake")


def open_table(catalog: Catalog, namespace: str, spec: TableSpec, first_position: str) -> Checkpoint:
    """Creates or evolves the table of a spec. Returns it with its landing position."""
    identifier = (*namespace.split("."), spec.name)
    for _ in range(_RACES_MAX):
        try:
            table = catalog.load_table(identifier)
        except NoSuchTableError:
            table = _create(catalog, identifier, spec, first_position)
        try:
            return checkpoint_of(evolve(table, spec))
        except CommitFailedException:
            continue  # another process is evolving it too
    raise CatalogUnavailable(
        f"{'.'.join(identifier)} could not be evolved in {_RACES_MAX} attempts: other processes changed it"
    )


def _create(catalog: Catalog, identifier: tuple[str, ...], spec: TableSpec, first_position: str) -> Table:
    """Creates the table, an empty first snapshot and its tag in one commit, so that the first landing needs
    no special case.
    """
    schema = iceberg_schema(spec)
    creation = catalog.create_table_transaction(
        identifier,
        schema=schema,
        partition_spec=partition_spec(spec, schema),
        sort_order=sort_order(spec, schema),
        properties=properties(spec),
    )
    table = new_table(creation)
    _refuse_remains(catalog, table)
    staged = stage_append(table, [], {POSITION: first_position})
    try:
        commit_creation(catalog, creation, staged.updates)
        log.info("table created", table=".".join(identifier))
    except (TableAlreadyExistsError, CommitFailedException):
        log.info("table created by another process", table=".".join(identifier))
    return catalog.load_table(identifier)


def _refuse_remains(catalog: Catalog, table: Table) -> None:
    """Raises DataLost if the location holds a table that the catalog has lost. A new table there would not
    contain its rows, and clean-up has removed them from the write-ahead log.
    """
    if not isinstance(catalog, MetastoreCatalog):
        return
    files = LakeFileIO(table.io.properties).list(f"{table.location()}/metadata").files
    # A creation that was interrupted before its commit leaves only the first version.
    if any(file.endswith(".metadata.json") and not file.startswith("00000-") for file in files):
        raise DataLost(
            full_name(table),
            f"it is not in the catalog, but {table.location()} holds a table of that name; restore the "
            "catalog (`frazil doctor --rebuild-catalog`), or move that folder away to create an empty table",
        )


def evolve(table: Table, spec: TableSpec) -> Table:
    """Adds missing columns in the spec's order, partitions if the table has none, and missing properties.

    Raises ConfigError if the type of a column or the partitions differ: existing files cannot change.
    """
    have = table.schema()
    names = {field.name for field in have.fields}
    missing = [column for column in spec.columns if column.name not in names]
    for conflict in _conflicts(have, spec):
        raise ConfigError(conflict.explain([full_name(table)]))
    unpartitioned = _is_unpartitioned(table, spec)
    if not unpartitioned:
        _check_partitions(table, have, spec)
    wanted = properties(spec)
    changed = {key: value for key, value in wanted.items() if key not in table.properties}
    changed.pop("format-version", None)
    if not missing and not changed and not unpartitioned:
        return table
    with table.transaction() as transaction:
        if missing:
            fresh = iceberg_schema(spec)
            with transaction.update_schema() as update:
                for column in missing:
                    added = fresh.find_field(column.name)
                    update.add_column(column.name, added.field_type, doc=added.doc)
                    if (before := _before(spec, column)) is not None:
                        update.move_after(column.name, before)
                    else:
                        update.move_first(column.name)
        if unpartitioned:
            with transaction.update_spec() as partitions:
                for field in partition_spec(spec, transaction.table_metadata.schema()).fields:
                    source = transaction.table_metadata.schema().find_column_name(field.source_id)
                    partitions.add_field(source or "", field.transform, field.name)
        if changed:
            transaction.set_properties(changed)
    log.info(
        "table schema or properties changed",
        table=full_name(table),
        columns=[column.name for column in missing],
        properties=sorted(changed),
    )
    return table.refresh()


def _before(spec: TableSpec, column: Column) -> str | None:
    names = [each.name for each in spec.columns]
    at = names.index(column.name)
    return names[at - 1] if at else None


@dataclass(frozen=True)
class _Conflict:
    """A column whose type in the table differs from the spec's."""

    column: str
    have: str
    wanted: str

    def explain(self, tables: Sequence[str]) -> str:
        have, wanted = (_CONFIGURED.get(each, each) for each in (self.have, self.wanted))
        remedy = f"set its type to {have}, or " if self.have in _CONFIGURED else ""
        return (
            f"tables.promoted: column {self.column} has type {have} in {', '.join(tables)}, but the "
            f"configuration says {wanted}; {remedy}give it another name with `column`"
        )


def _conflicts(have: Schema, spec: TableSpec) -> Iterator[_Conflict]:
    fresh = iceberg_schema(spec)
    old = {field.name: _shape(field) for field in have.fields}
    for column in spec.columns:
        new = _shape(fresh.find_field(column.name))
        if old.get(column.name, new) != new:
            yield _Conflict(column.name, old[column.name], new)


@dataclass(frozen=True)
class PromotedCheck:
    """The result of comparing the configured types of promoted columns with the tables."""

    problems: tuple[str, ...] = ()
    unchecked: str = ""
    """Why the check was not possible; else empty."""

    def refuse(self) -> None:
        """Raises ConfigError if a type differs. Only logs if the check was not possible: landing checks each
        table again.
        """
        if self.problems:
            raise ConfigError("; ".join(self.problems))
        if self.unchecked:
            log.warning("promoted columns not checked", reason=self.unchecked)


def check_promoted(config: Config, extra: Sequence[Promoted]) -> PromotedCheck:
    """Compares the promoted columns `extra` with existing tables. Changes nothing, never raises."""
    if not extra:
        return PromotedCheck()
    try:
        specs = [spec for spec in table_specs(extra).values() if spec.promoted]
    except ValueError as error:
        return PromotedCheck((f"tables.promoted: {error}; give the new column another name with `column`",))
    try:
        catalog = open_existing_catalog(config)
        if catalog is None:
            return PromotedCheck()
        with contextlib.closing(catalog), catalog_errors():
            found: dict[_Conflict, list[str]] = {}
            for spec in specs:
                table = table_or_none(catalog, config.lake.namespace, spec.name)
                for conflict in () if table is None else _conflicts(table.schema(), spec):
                    found.setdefault(conflict, []).append(f"{config.lake.namespace}.{spec.name}")
    except Exception as error:  # reported by the code that needs the table or catalog
        return PromotedCheck(unchecked=str(error) or type(error).__name__)
    names = {item.column for item in extra}
    return PromotedCheck(
        tuple(conflict.explain(tables) for conflict, tables in found.items() if conflict.column in names)
    )


def _is_unpartitioned(table: Table, spec: TableSpec) -> bool:
    """Returns whether an older version created the table without partitions. Its files stay unpartitioned,
    and their rows have no tenant: only tables that allow such rows can be partitioned later.
    """
    return spec.has_unowned_rows and bool(spec.partition_by) and table.spec().is_unpartitioned()


def _check_partitions(table: Table, have: Schema, spec: TableSpec) -> None:
    """Raises ConfigError if the table's partitions are not the spec's, which all data files follow."""
    found = [(field.source_id, str(field.transform)) for field in table.spec().fields]
    wanted = [(field.source_id, str(field.transform)) for field in partition_spec(spec, have).fields]
    if found != wanted:
        raise ConfigError(
            f"{full_name(table)} is partitioned by {table.spec()}, but frazil writes "
            f"{', '.join(spec.partition_by) or 'no partitions'}; restore the table's partition spec"
        )


def _shape(field: NestedField) -> str:
    """Returns the type without field ids."""
    return re.sub(r"\b[0-9]+: ", "", str(field.field_type))
