"""Retention of one table, whichever it is."""

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
    """Applies the rules to one table. What another process has replaced meanwhile is left for the next time.

    A round that would remove a large share of the table, or by a clock that is far ahead of what the table
    knows, removes nothing and says so in `held`, unless it is confirmed.

    ConfigError if a rule has a condition that cannot be used; nothing is changed then. So too if one cannot
    be told of some row; all other rules are applied then.
    """
    begin = time.monotonic()
    name = table.name()[-1]
    spec = table_specs(promoted(config)).get(name)
    if spec is not None and spec.retained == "age":
        return retain_set_aside(config, catalog, table, run)
    rules = rules_of(name, config.maintain.retention.rules)
    for rule in config.maintain.retention.rules:
        if problem := unknown_table(config, rule):
            raise ConfigError(f"maintain.retention.rules: {problem}")
    if spec is None or spec.retained == "no" or not rules:
        return TaskReport("retention", name, run.dry_run, seconds=time.monotonic() - begin)
    # DuckDB comes with it, which a pipeline without rules can do without.
    from frazil.pipeline.maintain.retain.rows import Retention

    return Retention(config, catalog, runner, table, spec, rules).run(run, begin)
