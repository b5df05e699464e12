"""Retention of one table."""

from __future__ import annotations

import time

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from frazil.config import Config
from frazil.errors import ConfigError
from frazil.pipeline.maintain.report import TaskReport
from frazil.pipeline.maintain.retain.check import unknown_table
from frazil.pipeline.maintain.retain.rules import RetentionRun, rules_of
from frazil.pipeline.maintain.retain.set_aside import retain_set_aside
from frazil.pipeline.runner import Runner
from frazil.tables import table_specs
from frazil.tables.promoted import promoted


def retain(config: Config, catalog: Catalog, runner: Runner, table: Table, run: RetentionRun) -> TaskReport:
    """Applies the rules to one table. Files that another process replaces during the round are left for
    the next round.

    A round that would remove a large share of the table, or whose clock is far ahead of the time known to the
    table, removes nothing unless it is confirmed: `held` has the reason.

    Raises ConfigError if a condition is invalid; then nothing is changed. Also if a condition fails on some
    row; then all other rules are applied.
    """
    begin = time.monotonic()
    name = table.name()[-1]
    spec = table_specs(promoted(config)).get(name)
    if spec is not None and spec.retained == "age":
        return retain_set_aside(config, catalog, table, run)
    for rule in config.maintain.retention.rules:
        if problem := unknown_table(config, rule):
            raise ConfigError(f"maintain.retention.rules: {problem}")
    rules = [] if spec is None else rules_of(spec, config.maintain.retention.rules)
    if spec is None or spec.retained == "no" or not rules:
        return TaskReport("retention", name, run.dry_run, seconds=time.monotonic() - begin)
    # Imports DuckDB, which a table without rules does not need.
    from frazil.pipeline.maintain.retain.rows import Retention

    return Retention(config, catalog, runner, table, spec, rules).run(run, begin)
