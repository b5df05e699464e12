"""Whether the conditions of the retention's rules are conditions on the tables that they are for.

Reading the configuration does not say so: it knows neither the tables nor DuckDB.
"""

from __future__ import annotations

from collections.abc import Iterator

from frazil.config import Config, RetentionRule
from frazil.errors import QueryInvalid, QueryRefused
from frazil.pipeline.maintain.predicates.match import parse_predicate
from frazil.tables import SIGNALS, landed_spec
from frazil.wal.journal import promoted


def check_rules(config: Config) -> list[str]:
    """What is wrong with each rule, counted from 1, and what to write instead. Empty: nothing."""
    return [
        f"maintain.retention.rules: rule {number}, `where` for {table}: {reason}"
        for number, rule in enumerate(config.maintain.retention.rules, 1)
        for table, reason in _problems(config, rule)
    ]


def _problems(config: Config, rule: RetentionRule) -> Iterator[tuple[str, str]]:
    if rule.where is None:
        return
    for signal in SIGNALS:
        if rule.table not in (None, signal):
            continue
        try:
            predicate = parse_predicate(rule.where, landed_spec(signal, promoted(config)))
        except (QueryInvalid, QueryRefused) as error:
            at = "" if error.position is None else f" (at character {error.position + 1})"
            hint = "" if rule.table else ". A rule without `table` is for all of them: give it one"
            yield signal, f"{error}{at}{hint}"
            continue
        if predicate.is_constant:
            yield signal, "it names no column, so all rows go or none: leave `where` out if all are to go"
            return
