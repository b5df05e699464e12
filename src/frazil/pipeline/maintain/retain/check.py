"""Whether the rules of retention are for tables that there are, with conditions on their columns.

Reading the configuration does not say so: it knows neither the tables nor DuckDB.
"""

from __future__ import annotations

from collections.abc import Iterator

from frazil.config import Config, RetentionRule
from frazil.errors import QueryInvalid, QueryRefused
from frazil.tables import table_specs
from frazil.tables.promoted import promoted


def check_rules(config: Config) -> list[str]:
    """What is wrong with each rule, counted from 1, and what to write instead. Empty: nothing."""
    return [
        f"maintain.retention.rules: rule {number}, {problem}"
        for number, rule in enumerate(config.maintain.retention.rules, 1)
        for problem in _problems(config, rule)
    ]


def unknown_table(config: Config, rule: RetentionRule) -> str:
    """Why the rule is for no table; empty if it is for some."""
    known = [name for name, spec in table_specs(promoted(config)).items() if spec.retained == "rules"]
    if rule.table is None or rule.table in known:
        return ""
    return f"`table`: {rule.table} is no table that rules are for; there are: {', '.join(known)}"


def _problems(config: Config, rule: RetentionRule) -> Iterator[str]:
    if problem := unknown_table(config, rule):
        yield problem
    if problem or rule.where is None:
        return
    # DuckDB comes with it, which a pipeline without conditions can do without.
    from frazil.pipeline.maintain.predicates.match import parse_predicate

    for table, spec in table_specs(promoted(config)).items():
        if spec.retained != "rules" or rule.table not in (None, table):
            continue
        try:
            predicate = parse_predicate(rule.where, spec)
        except (QueryInvalid, QueryRefused) as error:
            at = "" if error.position is None else f" (at character {error.position + 1})"
            hint = "" if rule.table else ". A rule without `table` is for all of them: give it one"
            yield f"`where` for {table}: {error}{at}{hint}"
            continue
        if predicate.is_constant:
            yield (
                f"`where` for {table}: it names no column, so all rows go or none: leave `where` out if all "
                "are to go"
            )
            return
