"""A catalog that points to what cannot be read, or that is lost: both can be mended from the warehouse."""

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
_WHAT_NOW = "see that the warehouse is mounted and whole, or restore it"
# What a file that is torn, empty or gone raises. That the store does not answer is no reason to fall back.
_UNREADABLE = (FileNotFoundError, ValueError, EOFError, BadGzipFile, zlib.error, ValidationError)


@dataclass(frozen=True)
class Recovered:
    """A table whose catalog entry was set back from one metadata file to an earlier one."""

    table: str
    unreadable: str
    used: str


def recover_tables(catalog: Catalog, namespace: str | None = None) -> list[Recovered]:
    """Sets every entry (of the namespace) that points to unreadable metadata back to the newest before it
    that can be read.

    What the lost metadata had committed is not in the table then: landing goes on from the older position.
    Raises DataLost, after all others are mended, for a table of which nothing can be read. A REST catalog
    looks after its own.
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
                lost.append(
                    DataLost(table, f"{location} is unreadable, and so is all beside it; {_WHAT_NOW}")
                )
                log.error("table_lost", table=table, metadata=location)
            elif _set_back(catalog, entry, used):
                recovered.append(Recovered(table, location, used))
                log.error("table_set_back", table=table, unreadable=location, used=used)
    if lost:
        raise lost[0]
    return recovered


def rebuild_catalog(config: Config) -> list[str]:
    """Registers every table found below the warehouse in an empty SQL catalog; returns their names.

    A table that was dropped but whose files were kept comes back, as nothing else knows that it was dropped.
    """
    if config.lake.catalog.type == "rest":
        raise ConfigError("a REST catalog cannot be rebuilt from here; use its own tools, or its backup")
    files = open_files(config)
    with contextlib.closing(open_catalog(config)) as catalog, catalog_errors():
        assert isinstance(catalog, SqlCatalog)  # the two other types  # noqa: S101
        if known := _entries(catalog):
            raise ConfigError(
                f"the catalog knows {len(known)} tables already, and only an empty one is rebuilt; "
                "move it away first, or use another lake.catalog.name"
            )
        tables = []
        for parts, metadata in _tables_below(files, config.warehouse):
            ensure_namespace(catalog, ".".join(parts[:-1]))
            catalog.register_table(parts, metadata)
            tables.append(".".join(parts))
            log.warning("table_registered", table=tables[-1], metadata=metadata)
        return tables


def _entries(catalog: SqlCatalog) -> list[IcebergTables]:
    is_table = or_(IcebergTables.iceberg_type == ICEBERG_TABLE_TYPE, IcebergTables.iceberg_type.is_(None))
    with Session(catalog.engine) as session:
        query = select(IcebergTables).where(IcebergTables.catalog_name == catalog.name, is_table)
        return list(session.scalars(query))


def _set_back(catalog: SqlCatalog, entry: IcebergTables, used: str) -> bool:
    """Only if the entry is still what was found unreadable: another process may be mending it too."""
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
    """The one before, which was committed for certain; else the newest that can be read."""
    previous = entry.previous_metadata_location
    if previous is not None and _read(files, previous) is not None:
        return previous
    return _newest_metadata(files, str(entry.metadata_location).rsplit("/", 1)[0])


def _newest_metadata(files: LakeFileIO, folder: str) -> str | None:
    """Of the highest version that can be read; of several, the one written last.

    Two of one version mean that a commit was lost to another just before the end: which one, nobody knows.
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
            log.warning("metadata_version_twice", version=version, files=[place for _, place in readable])
        if readable:
            return max(readable)[1]
    return None


def _tables_below(
    files: LakeFileIO, folder: str, parts: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], str]]:
    """A table is a folder with a metadata folder in it; those around it are its namespace."""
    folders = files.list(folder).folders
    metadata = _newest_metadata(files, f"{folder}/metadata") if "metadata" in folders else None
    if metadata is not None:
        if len(parts) < 2:
            log.warning("table_without_namespace", metadata=metadata)
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
