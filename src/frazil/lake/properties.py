"""Small facts kept with a table, where every process and engine finds them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import SetPropertiesUpdate

from frazil.lake.commits.metadata_commit import Step, change

MAINTENANCE = "frazil.maintenance"
"""When each task last ran, and what only a look at all files tells."""


def json_property(metadata: TableMetadata, name: str) -> dict[str, Any]:
    """Empty if it is not there, or somebody has written something else into it."""
    try:
        found = json.loads(metadata.properties.get(name, "{}"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def set_properties(catalog: Catalog, table: Table, wanted: Mapping[str, str]) -> None:
    """Whatever else was committed meanwhile stays."""

    def step(now: Table) -> Step | None:
        if all(now.metadata.properties.get(key) == value for key, value in wanted.items()):
            return None
        return Step((), (SetPropertiesUpdate(updates=dict(wanted)),))

    change(catalog, table, step)


def noted(metadata: TableMetadata, **facts: Any) -> dict[str, str]:
    """The property with more in it."""
    known = json_property(metadata, MAINTENANCE) | facts
    return {MAINTENANCE: json.dumps(known, sort_keys=True)}
