"""Checks the configuration of derived tables. Imports neither Spark nor Iceberg, so that `frazil config
--check` is fast.
"""

from __future__ import annotations

import difflib
from dataclasses import replace

from frazil.config import Config
from frazil.tables import SIGNALS, TableSpec, derived_specs, reserved_names, table_specs
from frazil.tables.derived.view import ViewQuery
from frazil.tables.promoted import promoted

LEASES = "leases"
"""The table of leases: `frazil.lake.catalog` imports Iceberg."""


def checked_views(config: Config) -> tuple[dict[str, ViewQuery], dict[str, str]]:
    """Reads the SQL of the configured views. Returns the queries of those that are valid, and the problems of
    the others, which name the file and line.
    """
    queries: dict[str, ViewQuery] = {}
    problems: dict[str, str] = {}
    if not config.views:
        return queries, problems
    # Imports sqlglot, which a configuration without views does not need.
    from frazil.pipeline.derive.views.shape import checked
    from frazil.pipeline.derive.views.text import ViewInvalid, ViewText

    reserved = reserved_names()
    derived = {spec.name for spec in derived_specs()} | {*config.views}
    for name, view in config.views.items():
        if name in reserved or name == LEASES:
            problems[name] = f"views.{name}: {name} is the name of another table\n    choose another name"
            continue
        try:
            query = checked(ViewText.read(name, view.sql), _sources(config), derived)
        except ViewInvalid as error:
            problems[name] = str(error)
        else:
            queries[name] = replace(query, kept_days=view.kept_days)
    return queries, problems


def _sources(config: Config) -> dict[str, TableSpec]:
    specs = table_specs(promoted(config))
    return {signal: specs[signal] for signal in SIGNALS}


def check_tables(config: Config) -> list[str]:
    """Returns the problems of the section `derive`, with a remedy."""
    known = [*dict.fromkeys([*(spec.name for spec in derived_specs()), *config.views])]
    return [
        f"derive.disabled_tables: there is no derived table {name}; {_hint(name, known)}"
        for name in config.derive.disabled_tables
        if name not in known
    ]


def _hint(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f"did you mean {close[0]}?" if close else f"there are: {', '.join(known)}"
