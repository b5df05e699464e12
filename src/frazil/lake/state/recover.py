"""Repairs a catalog from the warehouse: entries whose metadata is unreadable, or a catalog that is lost."""

from __future__ import annotations

import contextlib
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from gzip import BadGzipFile
from itertools import groupby

import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import ICEBERG_TABLE_TYPE, IcebergTables, SqlCatalog
from pyiceberg.exceptions import ValidationError
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.metadata import TableMetadata
from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session

from frazil.config import Config
from frazil.errors import ConfigError, DataLost
from frazil.lake.catalog import catalog_errors, ensure_namespace, open_catalog
from frazil.lake.files import LakeFileIO, open_files

log = structlog.get_logger("frazil.lake")

_METADATA_NAME = re.compile(r"v?(\d+)(-.*)?\.metadata\.json(\.gz)?")
_DEPTH_MAX = 8
# What a truncated, empty or missing file raises. An unavailable store is no reason to fall back.
_UNREADABLE = (FileNotFoundError, ValueError, EOFError, BadGzipFile, zlib.error, ValidationError)


@dataclass(frozen=True)
class Recovered:
    """A table whose catalog entry was reset from unreadable metadata to an earlier version."""

    table: str
    unreadable: str
    used: str


def recover_tables(catalog: Catalog, namespace: str | None = None) -> list[Recovered]:
    """Resets every catalog entry (of the namespace) with unreadable metadata to the newest readable version.

    The table then lacks what the lost versions committed, and landing resumes from the older position. Raises
    DataLost for a table without any readable version, after the other tables are repaired. Does nothing for a
    REST catalog.
    """
    if not isinstance(catalog, SqlCatalog):
        return []
    files = LakeFileIO(catalog.properties)
    recovered, lost = [], []
    with catalog_errors():
        for entry in _entries(catalog):
            if namespace is not None and entry.table_namespace != namespace:
                continue
            table, location = f"{entry.table_namespace}.{entry.table_name}", str(entry.metadata_location)
            if _read(files, location) is not None:
                continue
            used = _earlier(files, entry)
            if used is None:
                reason = (
                    f"{location} and all other metadata in its folder are unreadable; check that the "
                    "warehouse is mounted and complete, or restore it from a backup"
                )
                lost.append(DataLost(table, reason))
                log.error("table lost", table=table, metadata=location)
            elif _reset(catalog, entry, used):
                recovered.append(Recovered(table, location, used))
                log.error("table reset to earlier metadata", table=table, unreadable=location, used=used)
    if lost:
        raise lost[0]
    return recovered


def rebuild_catalog(config: Config) -> list[str]:
    """Registers every table found in the warehouse in an empty SQL catalog. Returns their names.

    A dropped table whose files still exist is registered again: only the lost catalog knew that it was
    dropped.
    """
    if config.lake.catalog.type == "rest":
        raise ConfigError("frazil cannot rebuild a REST catalog; use the catalog's own tools or its backup")
    files = open_files(config)
    with contextlib.closing(open_catalog(config)) as catalog, catalog_errors():
        assert isinstance(catalog, SqlCatalog)  # the other two types  # noqa: S101
        if known := _entries(catalog):
            raise ConfigError(
                f"the catalog already has {len(known)} tables, but only an empty catalog can be rebuilt; "
                "move it away first, or use another lake.catalog.name"
            )
        tables = []
        for parts, metadata in _tables_below(files, config.warehouse):
            ensure_namespace(catalog, ".".join(parts[:-1]))
            catalog.register_table(parts, metadata)
            tables.append(".".join(parts))
            log.warning("table registered", table=tables[-1], metadata=metadata)
        return tables


def _entries(catalog: SqlCatalog) -> list[IcebergTables]:
    is_table = or_(IcebergTables.iceberg_type == ICEBERG_TABLE_TYPE, IcebergTables.iceberg_type.is_(None))
    with Session(catalog.engine) as session:
        query = select(IcebergTables).where(IcebergTables.catalog_name == catalog.name, is_table)
        return list(session.scalars(query))


def _reset(catalog: SqlCatalog, entry: IcebergTables, used: str) -> bool:
    """Resets the entry if it is unchanged: another process may have repaired it. Returns whether it did."""
    with Session(catalog.engine) as session:
        changed = session.execute(
            update(IcebergTables)
            .where(
                IcebergTables.catalog_name == catalog.name,
                IcebergTables.table_namespace == entry.table_namespace,
                IcebergTables.table_name == entry.table_name,
                IcebergTables.metadata_location == entry.metadata_location,
            )
            .values(metadata_location=used, previous_metadata_location=None)
            .returning(IcebergTables.table_name)
        ).all()
        session.commit()
    return len(changed) == 1


def _earlier(files: LakeFileIO, entry: IcebergTables) -> str | None:
    """Returns the previous version, which is known to be committed; else the newest readable one."""
    previous = entry.previous_metadata_location
    if previous is not None and _read(files, previous) is not None:
        return previous
    return _newest_metadata(files, str(entry.metadata_location).rsplit("/", 1)[0])


def _newest_metadata(files: LakeFileIO, folder: str) -> str | None:
    """Returns the highest readable version; if two files have that version, the one written last.

    Two files of one version mean that one of two concurrent commits failed; the files do not show which one.
    """
    versions = [
        (int(match[1]), f"{folder}/{match[0]}")
        for name in files.list(folder).files
        if (match := _METADATA_NAME.fullmatch(name))
    ]
    for version, group in groupby(sorted(versions, reverse=True), key=lambda pair: pair[0]):
        readable = [
            (metadata.last_updated_ms, location)
            for _, location in group
            if (metadata := _read(files, location)) is not None
        ]
        if len(readable) > 1:
            log.warning("metadata version found twice", version=version, files=[path for _, path in readable])
        if readable:
            return max(readable)[1]
    return None


def _tables_below(
    files: LakeFileIO, folder: str, parts: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yields name and metadata of each table: a folder that contains a metadata folder. The folders above it
    are its namespace.
    """
    folders = files.list(folder).folders
    metadata = _newest_metadata(files, f"{folder}/metadata") if "metadata" in folders else None
    if metadata is not None:
        if len(parts) < 2:
            log.warning("table without namespace skipped", metadata=metadata)
        else:
            yield parts, metadata
    elif len(parts) < _DEPTH_MAX:
        for name in folders:
            yield from _tables_below(files, f"{folder}/{name}", (*parts, name))


def _read(files: LakeFileIO, location: str) -> TableMetadata | None:
    try:
        return FromInputFile.table_metadata(files.new_input(location))
    except _UNREADABLE:
        return None
