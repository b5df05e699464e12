"""Checks the retention rules. Imports neither Spark nor Iceberg, so that `frazil config --check` is fast,
unless a rule names a table that only the lake may know.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import structlog

from frazil.config import Config, RetentionRule
from frazil.errors import QueryInvalid, QueryRefused
from frazil.tables import TableSpec, table_specs
from frazil.tables.promoted import promoted

log = structlog.get_logger("frazil.retain")


def check_rules(config: Config) -> list[str]:
    """Returns the problems of the rules, numbered from 1, with a remedy: unknown tables and invalid
    conditions. Loading the configuration does not check these, because the loader uses neither table
    specs nor DuckDB.

    A rule may name a view that was removed from the configuration: its table is still retained. The lake
    tells which there are. If it cannot be read, unknown tables are not reported here but by the first round.
    """
    rules = config.maintain.retention.rules
    are_views_known = not any(unknown_table(config, rule) for rule in rules) or _find_views(config)
    return [
        f"maintain.retention.rules: rule {number}, {problem}"
        for number, rule in enumerate(rules, 1)
        if are_views_known or not unknown_table(config, rule)
        for problem in _problems(config, rule)
    ]


def _find_views(config: Config) -> bool:
    """Makes the views of the lake known to this process. Returns False if the lake could not be read."""
    from frazil.lake.catalog import open_existing_catalog
    from frazil.lake.views import load_views

    try:
        catalog = open_existing_catalog(config)
        if catalog is not None:
            with contextlib.closing(catalog):
                load_views(catalog, config.lake.namespace)
    except Exception as error:  # the code that needs the catalog reports it
        log.warning("tables of retention rules not checked", reason=str(error) or type(error).__name__)
        return False
    return True


def concerns(rule: RetentionRule, spec: TableSpec) -> bool:
    """Returns whether a rule of the configuration applies to a table. Rules without `table` do not apply to
    derived tables, which outlive the rows that they were derived from.
    """
    return rule.table == spec.name or (rule.table is None and spec.derived is None)


def unknown_table(config: Config, rule: RetentionRule) -> str:
    known = [name for name, spec in table_specs(promoted(config)).items() if spec.retained == "rules"]
    known += [name for name in config.views if name not in known]
    if rule.table is None or rule.table in known:
        return ""
    return (
        f"`table`: there is no table {rule.table} with retention rules; there are: {', '.join(known)}. If "
        f"{rule.table} was a view and its table was dropped, remove the rule"
    )


def _problems(config: Config, rule: RetentionRule) -> Iterator[str]:
    if problem := unknown_table(config, rule):
        yield problem
    if problem or rule.where is None:
        return
    # Imports DuckDB, which a pipeline without conditions does not need.
    from frazil.pipeline.maintain.predicates.match import parse_predicate

    for table, spec in table_specs(promoted(config)).items():
        if spec.retained != "rules" or not concerns(rule, spec):
            continue
        try:
            predicate = parse_predicate(rule.where, spec)
        except (QueryInvalid, QueryRefused) as error:
            at = "" if error.position is None else f" (at character {error.position + 1})"
            hint = (
                ""
                if rule.table
                else ". A rule without `table` applies to all tables that are not derived: set `table`"
            )
            yield f"`where` for {table}: {error}{at}{hint}"
            continue
        if predicate.is_constant:
            yield (
                f"`where` for {table}: it names no column, so it matches all rows or none: remove `where` to "
                "remove all rows"
            )
            return
