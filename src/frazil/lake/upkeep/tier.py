"""The second storage location of a table, for files of old days.

Each table has a folder there with its UUID in the path, so that two lakes can share a location without
deleting each other's files as orphans. A table records each folder in a property before the first file is
written, so that all files of the table are found even after the configuration has changed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from itertools import groupby

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from frazil.config.maintain import DAY_SECONDS, CompactConfig, TierConfig
from frazil.errors import Refused
from frazil.lake.commits.metadata_commit import set_properties
from frazil.lake.live_files import FileFacts
from frazil.lake.upkeep.choose import closed_at, due, small_bytes
from frazil.tables.columns import TableSpec

_PROPERTY_PREFIX = "frazil.tier."
"""One property per folder, so that two concurrent processes do not overwrite each other's."""


def tier_folder(table: Table, location: str) -> str:
    """Returns the folder of a table in a tier location. Raises Refused if the location is not usable."""
    root = re.sub(r"^s3[an]://", "s3://", re.sub(r"^file:(//)?", "", table.location().rstrip("/")))
    if location.startswith("s3://") != root.startswith("s3://"):
        raise Refused(
            f"maintain.tier.location {location} must be of the same kind (local or S3) as the table's "
            f"location {root}"
        )
    if f"{location}/".startswith(f"{root}/") or f"{root}/".startswith(f"{location}/"):
        raise Refused(f"maintain.tier.location {location} overlaps the table's location {root}")
    return f"{location}/{'/'.join(table.name())}/{table.metadata.table_uuid}/data"


def tier_folders(metadata: TableMetadata) -> tuple[str, ...]:
    """Returns the folders that the table has recorded. Ignores a folder without the table's UUID:
    unreferenced files in these folders are deleted.
    """
    own = f"/{metadata.table_uuid}/data"
    return tuple(
        value
        for name, value in sorted(metadata.properties.items())
        if name.startswith(_PROPERTY_PREFIX) and value.endswith(own)
    )


def data_folders(table: Table) -> tuple[str, ...]:
    """Returns all folders that may contain data files of a table."""
    return f"{table.location().rstrip('/')}/data", *tier_folders(table.metadata)


def record_folder(catalog: Catalog, table: Table, folder: str) -> None:
    """Records the folder. Call it before the first file is written there."""
    name = _PROPERTY_PREFIX + hashlib.sha256(folder.encode()).hexdigest()[:16]
    set_properties(catalog, table, {name: folder})


def choose_tier(
    files: Iterable[FileFacts],
    folder: str,
    tier: TierConfig,
    compact: CompactConfig,
    now_seconds: float,
    spec: TableSpec | None = None,
) -> list[FileFacts]:
    """Returns the files to move in one round, oldest day first, up to `round_bytes_max`, but at least one.

    Only days are moved that have no files left to merge, and no recent small file. Derived tables require
    `spec`.
    """
    files = list(files)
    groups = due(files, compact, now_seconds, spec) if compact.enabled else []
    busy = {(group.tenant, group.day) for group in groups}
    found: list[FileFacts] = []
    for (tenant, day), part in groupby(sorted(files, key=_order), key=lambda each: (each.tenant, each.day)):
        if day is None or (day + 1) * DAY_SECONDS + tier.after_seconds > now_seconds or (tenant, day) in busy:
            continue
        here = [file for file in part if not file.path.startswith(f"{folder}/")]
        small = [file for file in here if file.bytes < small_bytes(compact)]
        if not compact.enabled or closed_at(day, small, compact) <= now_seconds:
            found += here
    return _bounded(found, tier.round_bytes_max)


def _order(file: FileFacts) -> tuple[bool, int, bool, str, str]:
    return file.day is None, file.day or 0, file.tenant is None, file.tenant or "", file.path


def _bounded(files: Sequence[FileFacts], bytes_max: int) -> list[FileFacts]:
    taken, left = list(files[:1]), bytes_max - sum(file.bytes for file in files[:1])
    for file in files[1:]:
        if file.bytes > left:
            break
        taken.append(file)
        left -= file.bytes
    return taken
