"""The other place of a table, for files of days that are long over.

A folder for each table, with the table's UUID in its name: two lakes may share a place, and what is nobody's
in one is not the other's. A table notes its folders before anything is written there, so that whoever looks
for all files of a table finds them, whatever the configuration says by then.
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
from frazil.lake.facts import FileFacts
from frazil.lake.properties import set_properties
from frazil.lake.upkeep.choose import closed_at, due, small_bytes

_NOTED = "frazil.tier."
"""A property for each folder: of two that note one at the same time, none is lost."""


def tier_folder(table: Table, location: str) -> str:
    """Where files of a table are at a location. Raises Refused if that cannot be."""
    root = re.sub(r"^s3[an]://", "s3://", re.sub(r"^file:(//)?", "", table.location().rstrip("/")))
    if location.startswith("s3://") != root.startswith("s3://"):
        raise Refused(
            f"maintain.tier.location {location} must be of the same kind as {root}, where the table is"
        )
    if f"{location}/".startswith(f"{root}/") or f"{root}/".startswith(f"{location}/"):
        raise Refused(f"maintain.tier.location {location} and the table's {root} are one within the other")
    return f"{location}/{'/'.join(table.name())}/{table.metadata.table_uuid}/data"


def tier_folders(metadata: TableMetadata) -> tuple[str, ...]:
    """All that the table notes. One that is not its own, whoever wrote it there, is left out: what nobody
    needs in these is deleted.
    """
    own = f"/{metadata.table_uuid}/data"
    return tuple(
        value
        for name, value in sorted(metadata.properties.items())
        if name.startswith(_NOTED) and value.endswith(own)
    )


def data_folders(table: Table) -> tuple[str, ...]:
    """Wherever data files of a table may be."""
    return f"{table.location().rstrip('/')}/data", *tier_folders(table.metadata)


def note_folder(catalog: Catalog, table: Table, folder: str) -> None:
    """Before the first file is written to it."""
    set_properties(catalog, table, {_NOTED + hashlib.sha256(folder.encode()).hexdigest()[:16]: folder})


def choose_tier(
    files: Iterable[FileFacts], folder: str, tier: TierConfig, compact: CompactConfig, now_seconds: float
) -> list[FileFacts]:
    """What one round should move, the oldest day first, up to `round_bytes_max`, but one file at least.

    Only days that are done: nothing is to be merged in them, and no small file has come for a while.
    """
    files = list(files)
    groups = due(files, compact, now_seconds) if compact.enabled else []
    busy = {(group.tenant, group.day) for group in groups}
    found: list[FileFacts] = []
    for (tenant, day), part in groupby(sorted(files, key=_place), key=lambda each: (each.tenant, each.day)):
        if day is None or (day + 1) * DAY_SECONDS + tier.after_seconds > now_seconds or (tenant, day) in busy:
            continue
        here = [file for file in part if not file.path.startswith(f"{folder}/")]
        small = [file for file in here if file.bytes < small_bytes(compact)]
        if not compact.enabled or closed_at(day, small, compact) <= now_seconds:
            found += here
    return _bounded(found, tier.round_bytes_max)


def _place(file: FileFacts) -> tuple[bool, int, bool, str, str]:
    return file.day is None, file.day or 0, file.tenant is None, file.tenant or "", file.path


def _bounded(files: Sequence[FileFacts], bytes_max: int) -> list[FileFacts]:
    taken, left = list(files[:1]), bytes_max - sum(file.bytes for file in files[:1])
    for file in files[1:]:
        if file.bytes > left:
            break
        taken.append(file)
        left -= file.bytes
    return taken
