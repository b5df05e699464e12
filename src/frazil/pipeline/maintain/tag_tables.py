"""Tags of all tables under one name, for time-travel queries: the data of an incident stays until the tag is
deleted.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from frazil.config import Config
from frazil.errors import Refused
from frazil.lake.catalog import catalog_errors, table_or_none
from frazil.lake.commits.commit import read_checkpoint
from frazil.lake.tags import Tag, create_tag, delete_tag, is_incident, list_tags
from frazil.pipeline.land.flush import land_all
from frazil.pipeline.metrics import Metrics
from frazil.pipeline.runner import Runner
from frazil.tables import SIGNALS, table_specs

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

log = structlog.get_logger("frazil.maintain")


@dataclass(frozen=True)
class TaggedTables:
    """One name and its tags, one per table. `missing` are tables without the tag: its creation was
    interrupted.
    """

    name: str
    tags: Sequence[Tag]
    missing: Sequence[str]

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "tables": [dataclasses.asdict(tag) for tag in self.tags],
            "missing": list(self.missing),
        }


def tag_tables(
    config: Config,
    catalog: Catalog,
    runner: Runner,
    metrics: Metrics,
    name: str,
    *,
    say: Callable[[str], None] = lambda _: None,
) -> TaggedTables:
    """Lands all durable data and tags each table. All data acknowledged before the call is included; data
    received during the call may be in one table and not in another. Raises Refused if the name is invalid or
    taken; then nothing is tagged.
    """
    _check(name)
    if any(each.name == name for each in list_tagged(config, catalog)):
        raise Refused(f"the tag {name} exists already; run `frazil tag delete {name}`, or use another name")
    say("landing the write-ahead log")
    land_all(config, catalog, runner, metrics)
    say("tagging the tables")
    made: list[Table] = []
    try:
        for table in _tables(config, catalog):
            with catalog_errors():
                checkpoint = read_checkpoint(catalog, table.name())
                create_tag(catalog, checkpoint.table, name, checkpoint.landed)
            made.append(checkpoint.table)
    except BaseException:
        for table in made:
            delete_tag(catalog, table, name)
        raise
    log.info("tables tagged", tag=name, tables=[table.name()[-1] for table in made])
    return next(each for each in list_tagged(config, catalog) if each.name == name)


def list_tagged(config: Config, catalog: Catalog) -> list[TaggedTables]:
    """Returns the tags that users created, sorted by name."""
    tables = _tables(config, catalog)
    found: dict[str, list[Tag]] = {}
    for table in tables:
        for tag in list_tags(table):
            if is_incident(tag.name):
                found.setdefault(tag.name, []).append(tag)
    # Other tables may be created after the tag.
    names = [name for table in tables if (name := table.name()[-1]) in SIGNALS]
    return [
        TaggedTables(name, tags, [each for each in names if each not in {tag.table for tag in tags}])
        for name, tags in sorted(found.items())
    ]


def untag_tables(config: Config, catalog: Catalog, name: str) -> int:
    """Deletes the tag from all tables. Returns their number. Raises Refused if there is no such tag."""
    known = [each.name for each in list_tagged(config, catalog)]
    if name not in known:
        raise Refused(f"there is no tag {name}; there are: {', '.join(known) or 'none'}")
    deleted = 0
    for table in _tables(config, catalog):
        if any(tag.name == name for tag in list_tags(table)):
            with catalog_errors():
                delete_tag(catalog, table, name)
            deleted += 1
    return deleted


def _check(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise Refused(
            f"{name!r} is not a valid tag name: use 1 to 63 of A-Z a-z 0-9 . _ -, such as incident-42"
        )
    if not is_incident(name):
        raise Refused(f"{name} is reserved; use another name, such as incident-42")


def _tables(config: Config, catalog: Catalog) -> list[Table]:
    with catalog_errors():
        found = [
            table_or_none(catalog, config.lake.namespace, name)
            for name, spec in table_specs().items()
            if spec.tagged
        ]
    return [table for table in found if table is not None]
