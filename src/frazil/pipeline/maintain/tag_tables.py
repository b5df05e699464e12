"""A name for all tables at one moment: an incident can be looked at for as long as the name is kept."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

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
    """`tags` has one for each table; `missing` have none, as when its making was interrupted."""

    name: str
    tags: Sequence[Tag]
    missing: Sequence[str]


def create_cut(config: Config, catalog: Catalog, runner: Runner, metrics: Metrics, name: str) -> TaggedTables:
    """Lands what is durable now and pins each table where it then stands, under the name.

    What is received while that goes on may be in one table and not yet in another; what was acked before is
    in all. Raises Refused, and leaves nothing behind, if the name cannot be had.
    """
    _check(name)
    known = {cut.name for cut in list_cuts(config, catalog)}
    if name in known:
        raise Refused(
            f"there is a tag {name} already; `frazil tag delete {name}` first, or take another name"
        )
    land_all(config, catalog, runner, metrics)
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
    log.info("tagged", tag=name, tables=[table.name()[-1] for table in made])
    return next(cut for cut in list_cuts(config, catalog) if cut.name == name)


def list_cuts(config: Config, catalog: Catalog) -> list[TaggedTables]:
    """Those that people made, by name."""
    tables = _tables(config, catalog)
    found: dict[str, list[Tag]] = {}
    for table in tables:
        for tag in list_tags(table):
            if is_incident(tag.name):
                found.setdefault(tag.name, []).append(tag)
    # Other tables may be younger than a tag.
    names = [name for table in tables if (name := table.name()[-1]) in SIGNALS]
    return [
        TaggedTables(name, tags, [each for each in names if each not in {tag.table for tag in tags}])
        for name, tags in sorted(found.items())
    ]


def delete_cut(config: Config, catalog: Catalog, name: str) -> int:
    """From how many tables it was taken. What only it has kept goes with the next expiry."""
    known = [cut.name for cut in list_cuts(config, catalog)]
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
        raise Refused(f"{name!r} cannot name a tag: 1 to 63 of A-Z a-z 0-9 . _ -, such as incident-42")
    if not is_incident(name):
        raise Refused(f"{name} is a name that frazil uses itself; take another, such as incident-42")


def _tables(config: Config, catalog: Catalog) -> list[Table]:
    with catalog_errors():
        found = [
            table_or_none(catalog, config.lake.namespace, name)
            for name, spec in table_specs().items()
            if spec.tagged
        ]
    return [table for table in found if table is not None]
