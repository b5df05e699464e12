"""Random questions over small tables, with whatever conditions are followed through or stop at."""

from __future__ import annotations

import datetime
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Columns = dict[str, str]
"""Their types by name: time, text, integer, other."""

TABLES: dict[str, Columns] = {
    "logs": {
        "time": "time",
        "service_name": "text",
        "trace_id": "text",
        "severity_number": "integer",
        "event_name": "text",
    },
    "spans": {
        "time": "time",
        "service_name": "text",
        "trace_id": "text",
        "name": "text",
        "kind": "integer",
        "duration_nano": "integer",
    },
}
COPIES = 6
"""Of each table there are so many with the same rows, so that each use can lose its own."""


def copy_of(table: str, number: int) -> str:
    return f"{table}_{number}" if number else table


SQL_TYPES = {"time": "TIMESTAMPTZ", "text": "VARCHAR", "integer": "BIGINT"}
TEXTS = ("a", "ab", "05")
INTEGERS = (0, 1, 5)
DAYS = 3
_ALIASES = ("l", "s", "q", "logs", "spans", "x")
_NAMES = ("time", "service_name", "trace_id", "name", "kind", "severity_number", "k", "t", "time_1")
_CTES = ("c", "d", "logs", "spans", "events", "C")


def random_time(rng: random.Random, today: datetime.datetime) -> datetime.datetime:
    hours = rng.choice((0, 24 * rng.randrange(DAYS), 24 * rng.randrange(DAYS) + 6))
    return today - datetime.timedelta(hours=hours)


def random_rows(
    rng: random.Random, columns: Columns, today: datetime.datetime, rows_max: int = 16
) -> list[tuple[Any, ...]]:
    def value(type_: str) -> Any:
        if rng.random() < 0.15:
            return None
        if type_ == "time":
            return random_time(rng, today)
        return rng.choice(TEXTS) if type_ == "text" else rng.choice(INTEGERS)

    return [tuple(value(type_) for type_ in columns.values()) for _ in range(rng.randrange(rows_max))]


@dataclass
class Scope:
    """What can be named at a place: aliases with their columns, and how many of the aliases are in reach."""

    sources: list[tuple[str, Columns]] = field(default_factory=list)
    outer: Scope | None = None

    def columns(self) -> list[tuple[str, str, str]]:
        return [(alias, name, type_) for alias, found in self.sources for name, type_ in found.items()]


class Questions:
    def __init__(self, rng: random.Random, today: datetime.datetime) -> None:
        self._rng = rng
        self._today = today
        self._aliases = 0
        self._uses = dict.fromkeys(TABLES, 0)
        self.params: list[Any] = []

    def question(self) -> str:
        sql, columns = self.query(self._rng.choice((1, 2, 2, 3)), {}, None)
        if self._maybe(0.3):
            return sql
        prefix = f"FROM ({sql}) q0"
        if self._maybe(0.4):
            prefix = f"WITH c0 AS ({sql}) FROM c0 q0"
            if columns and self._maybe(0.5):
                columns = self._renamed(columns)
                prefix = f"WITH c0({', '.join(columns)}) AS ({sql}) FROM c0 q0"
        return f"{prefix} WHERE {self._condition(Scope([('q0', columns)]), 0, {})}"

    def _maybe(self, share: float) -> bool:
        return self._rng.random() < share

    def _own(self, table: str) -> str:
        self._uses[table] = (self._uses[table] + 1) % COPIES
        return copy_of(table, self._uses[table])

    # Queries

    def query(self, depth: int, ctes: dict[str, Columns], outer: Scope | None) -> tuple[str, Columns]:
        prefix, ctes = self._with(depth, ctes) if depth > 0 and self._maybe(0.25) else ("", ctes)
        if depth > 0 and self._maybe(0.15):
            sql, columns = self._set_operation(depth, ctes, outer)
        else:
            sql, columns = self._select(depth, ctes, outer)
        if self._maybe(0.1):
            sql += f" ORDER BY ALL LIMIT {self._rng.randrange(1, 5)}"
            if self._maybe(0.3):
                sql += f" OFFSET {self._rng.randrange(3)}"
        return prefix + sql, columns

    def _with(self, depth: int, ctes: dict[str, Columns]) -> tuple[str, dict[str, Columns]]:
        parts, known = [], dict(ctes)
        recursive = self._maybe(0.15)
        taken: set[str] = set()
        for _ in range(self._rng.choice((1, 1, 2))):
            name = self._rng.choice([each for each in _CTES if each.lower() not in taken])
            taken.add(name.lower())
            if recursive and self._maybe(0.7):
                body = (
                    f"{name}(kind, service_name) AS (SELECT kind, service_name FROM main_spans "
                    f"WHERE {self._condition(Scope([('main_spans', TABLES['spans'])]), 0, known)} UNION "
                    f"SELECT kind + 1, service_name FROM {name} WHERE kind < 3)"
                ).replace("main_spans", self._own("spans"))
                columns: Columns = {"kind": "integer", "service_name": "text"}
            else:
                sql, columns = self.query(depth - 1, known, None)
                renamed = ""
                if self._maybe(0.3):
                    columns = self._renamed(columns)
                    renamed = f"({', '.join(columns)})" if columns else ""
                materialized = self._rng.choice(("", "", "MATERIALIZED ", "NOT MATERIALIZED "))
                body = f"{name}{renamed} AS {materialized}({sql})"
            parts.append(body)
            known[name.lower()] = columns
        return f"WITH {'RECURSIVE ' if recursive else ''}{', '.join(parts)} ", known

    def _renamed(self, columns: Columns) -> Columns:
        names = self._rng.sample(_NAMES, k=min(len(columns), len(_NAMES)))
        if self._maybe(0.5):
            names = list(columns)
            self._rng.shuffle(names)
        return dict(zip(names, list(columns.values())[: len(names)], strict=False))

    def _set_operation(
        self, depth: int, ctes: dict[str, Columns], outer: Scope | None
    ) -> tuple[str, Columns]:
        kind = self._rng.choice(
            (
                "UNION ALL",
                "UNION ALL",
                "UNION",
                "UNION ALL BY NAME",
                "UNION BY NAME",
                "EXCEPT",
                "INTERSECT",
                "EXCEPT ALL",
            )
        )
        types = [self._rng.choice(("time", "text", "integer")) for _ in range(self._rng.randrange(1, 4))]
        sides, columns = [], {}
        for number in range(self._rng.choice((2, 2, 3))):
            sql, found = self._select(depth - 1, ctes, outer, types)
            sides.append(f"({sql})" if self._maybe(0.3) else sql)
            columns = found if number == 0 else ({**found, **columns} if "BY NAME" in kind else columns)
        return f" {kind} ".join(sides), columns

    def _select(
        self,
        depth: int,
        ctes: dict[str, Columns],
        outer: Scope | None,
        types: Sequence[str] | None = None,
    ) -> tuple[str, Columns]:
        scope = Scope(outer=outer)
        from_ = self._from(depth, ctes, scope)
        where = f" WHERE {self._condition(scope, 1, ctes, depth)}" if self._maybe(0.6) else ""
        if types is None and self._maybe(0.2):
            return self._aggregated(scope, from_, where)
        distinct = "DISTINCT " if self._maybe(0.1) else ""
        items, columns = self._items(scope, types)
        tail = ""
        if types is None and self._maybe(0.08) and (refs := self._refs(scope)):
            items += f", count(*) OVER (PARTITION BY {refs[0]}) AS k"
            columns["k"] = "integer"
            if self._maybe(0.4):
                tail = " QUALIFY k > 1"
        elif self._maybe(0.06) and (refs := self._refs(scope)):
            tail = f" QUALIFY rank() OVER (ORDER BY {refs[0]}) <= 2"
        elif not distinct and types is None and self._maybe(0.05) and columns:
            distinct, tail = f"DISTINCT ON ({self._rng.choice(list(columns))}) ", " ORDER BY ALL"
            return f"SELECT {distinct}{items} {from_}{where}{tail} LIMIT 100", columns
        if items == "*" and not distinct and self._maybe(0.2):
            return f"{from_}{where}{tail}", columns
        return f"SELECT {distinct}{items} {from_}{where}{tail}", columns

    def _refs(self, scope: Scope) -> list[str]:
        found = [self._ref(alias, name, scope) for alias, name, _ in scope.columns()]
        self._rng.shuffle(found)
        return found

    def _ref(self, alias: str, name: str, scope: Scope) -> str:
        same = [1 for _, other, _ in scope.columns() if other == name]
        if self._maybe(0.6 if len(same) == 1 else 0.03):
            return name if '"' in name or self._maybe(0.9) else f'"{name.upper()}"'
        return f"{alias}.{name}"

    def _aggregated(self, scope: Scope, from_: str, where: str) -> tuple[str, Columns]:
        found = scope.columns()
        keys = self._rng.sample(found, k=min(len(found), self._rng.randrange(3)))
        columns: Columns = {}
        items, groups = [], []
        for alias, name, type_ in keys:
            ref = self._ref(alias, name, scope)
            groups.append(ref)
            as_ = self._rng.choice(_NAMES) if self._maybe(0.3) else name
            items.append(ref if as_ == name else f"{ref} AS {as_}")
            columns.setdefault(as_, type_)
        if found and self._maybe(0.5):
            alias, name, type_ = self._rng.choice(found)
            as_ = self._rng.choice(_NAMES)
            items.append(f"{self._rng.choice(('min', 'max'))}({self._ref(alias, name, scope)}) AS {as_}")
            columns.setdefault(as_, type_)
        items.append("count(*) AS n")
        columns["n"] = "integer"
        by = ""
        if groups:
            listed = ", ".join(groups)
            by = " GROUP BY " + self._rng.choice(
                (
                    listed,
                    listed,
                    "ALL",
                    f"ROLLUP ({listed})",
                    f"CUBE ({listed})",
                    f"GROUPING SETS (({listed}))",
                )
            )
        having = " HAVING count(*) > 1" if self._maybe(0.1) else ""
        return f"SELECT {', '.join(items)} {from_}{where}{by}{having}", columns

    def _items(self, scope: Scope, types: Sequence[str] | None) -> tuple[str, Columns]:
        found = scope.columns()
        if types is None and (self._maybe(0.35) or not found):
            return self._star(scope)
        columns: Columns = {}
        items = []
        for number in range(len(types) if types is not None else self._rng.randrange(1, 5)):
            fitting = [each for each in found if types is None or each[2] == types[number]]
            if fitting and self._maybe(0.9):
                alias, name, type_ = self._rng.choice(fitting)
                ref = self._ref(alias, name, scope)
                if self._maybe(0.12):
                    ref = {"text": f"upper({ref})", "integer": f"{ref} + 1"}.get(
                        type_, f"{ref} + INTERVAL 1 DAY"
                    )
                    name = ""
            else:
                type_ = types[number] if types is not None else self._rng.choice(tuple(SQL_TYPES))
                ref, name = self._constant(type_), ""
            if not name or self._maybe(0.3):
                name = self._rng.choice((*_NAMES, "current_date") if type_ == "time" else _NAMES)
                ref = f"{ref} AS {name}"
            items.append(ref)
            columns.setdefault(name, type_)
        return ", ".join(items), columns

    def _star(self, scope: Scope) -> tuple[str, Columns]:
        columns: Columns = {}
        for _, name, type_ in scope.columns():
            columns.setdefault(name, type_)
        if scope.sources and self._maybe(0.25):
            alias, own = self._rng.choice(scope.sources)
            return f"{alias}.*", dict(own)
        if columns and self._maybe(0.3):
            name = self._rng.choice(list(columns))
            other = self._rng.choice(list(columns))
            kind = self._rng.randrange(4)
            if kind == 0:
                return f"* EXCLUDE ({name})", {key: columns[key] for key in columns if key != name}
            if kind == 1:
                return f"* REPLACE ({other} AS {name})", {**columns, name: columns[other]}
            if kind == 2:
                renamed = self._rng.choice(_NAMES)
                return f"* RENAME ({name} AS {renamed})", {
                    (renamed if key == name else key): columns[key] for key in columns
                }
            return "COLUMNS(c -> c NOT LIKE 'k%')", {key: columns[key] for key in columns if key[0] != "k"}
        if self._maybe(0.2):
            as_ = self._rng.choice(_NAMES)
            return f"*, {self._constant('integer')} AS {as_}", {"k": "other", **columns}
        return "*", columns

    # FROM

    def _from(self, depth: int, ctes: dict[str, Columns], scope: Scope) -> str:
        first, second = self._rng.random(), self._rng.random()
        sql = self._table(depth, ctes, scope)
        if first < 0.4:
            sql = self._joined(sql, depth, ctes, scope)
            if second < 0.25:
                sql = self._joined(sql, depth - 1, ctes, scope)
        return f"FROM {sql}"

    def _joined(self, sql: str, depth: int, ctes: dict[str, Columns], scope: Scope) -> str:
        left = Scope(list(scope.sources), scope.outer)
        right_scope = Scope(outer=scope.outer)
        if self._maybe(0.1):
            self._aliases += 1
            alias = f"v{self._aliases}"
            lateral, columns = self._select(0, ctes, left)
            scope.sources.append((alias, columns))
            return f"{sql}, LATERAL ({lateral}) {alias}"
        right = self._table(depth, ctes, right_scope)
        if self._maybe(0.1) and depth > 0:
            right = f"({self._joined(right, depth - 1, ctes, right_scope)})"
        join = self._rng.choice(
            (
                "JOIN",
                "JOIN",
                "LEFT JOIN",
                "LEFT JOIN",
                "RIGHT JOIN",
                "FULL JOIN",
                "SEMI JOIN",
                "ANTI JOIN",
                ",",
                "ASOF JOIN",
            )
        )
        own = right_scope.sources[0][1]
        if join == "ASOF JOIN" and not {"service_name", "time", "trace_id"} <= {*own}.intersection(
            left.sources[0][1]
        ):
            join = "JOIN"
        seen = Scope([*left.sources, *right_scope.sources], scope.outer)
        shared = [
            name
            for name, type_ in (left.sources[0][1] if left.sources else {}).items()
            if right_scope.sources and right_scope.sources[0][1].get(name) == type_
        ]
        if join not in ("SEMI JOIN", "ANTI JOIN") or self._maybe(0.05):
            scope.sources.extend(right_scope.sources)
        if join == ",":
            return f"{sql}, {right}"
        if join == "ASOF JOIN":
            kind = self._rng.choice(("ASOF JOIN", "ASOF LEFT JOIN"))
            one, other = left.sources[0][0], right_scope.sources[0][0]
            return (
                f"{sql} {kind} (SELECT service_name, time, max(trace_id) AS trace_id FROM {right} "
                f"GROUP BY ALL) {other} ON {one}.service_name = {other}.service_name "
                f"AND {one}.time >= {other}.time"
            )
        if shared and self._maybe(0.3):
            names = self._rng.sample(shared, k=min(len(shared), self._rng.choice((1, 1, 2))))
            return f"{sql} {join} {right} USING ({', '.join(names)})"
        if shared and self._maybe(0.08):
            return f"{sql} NATURAL {join} {right}"
        return f"{sql} {join} {right} ON {self._on(left, right_scope, seen, ctes)}"

    def _on(self, left: Scope, right: Scope, seen: Scope, ctes: dict[str, Columns]) -> str:
        pairs = [
            (one, other)
            for one in left.columns()
            for other in right.columns()
            if one[2] == other[2] != "other"
        ]
        parts = []
        if pairs and self._maybe(0.85):
            one, other = self._rng.choice(pairs)
            parts.append(f"{one[0]}.{one[1]} = {other[0]}.{other[1]}")
        if not parts or self._maybe(0.4):
            parts.append(f"({self._condition(seen, 1, ctes)})")
        return " AND ".join(parts)

    def _table(self, depth: int, ctes: dict[str, Columns], scope: Scope) -> str:
        self._aliases += 1
        unique = f"{self._rng.choice(_ALIASES)}{self._aliases}"
        alias = self._rng.choice(_ALIASES) if self._maybe(0.1) else unique
        kind = self._rng.random()
        if ctes and kind < 0.4:
            name = self._rng.choice(list(ctes))
            columns = ctes[name]
            sql = name
        elif depth > 0 and kind < 0.65:
            body, columns = self.query(depth - 1, ctes, None)
            if columns and self._maybe(0.1):
                columns = self._renamed(columns)
                scope.sources.append((alias, columns))
                return f"({body}) AS {alias}({', '.join(columns)})"
            sql = f"({body})"
        elif kind < 0.67:
            scope.sources.append((alias, {"kind": "integer", "service_name": "text"}))
            return f"(VALUES (1, 'a'), (2, '05')) AS {alias}(kind, service_name)"
        elif kind < 0.69:
            pivot = "ON severity_number IN (1, 2) USING count(*) GROUP BY service_name"
            sql = f"(PIVOT {self._own('logs')} {pivot})"
            columns = {"service_name": "text", '"1"': "integer"}
        elif kind < 0.71:
            sql = (
                f"(UNPIVOT {self._own('spans')} ON kind, duration_nano INTO NAME name VALUE severity_number)"
            )
            columns = {"time": "time", "name": "text", "severity_number": "integer"}
        else:
            table = self._rng.choice(("logs", "spans"))
            columns = TABLES[table]
            sql = self._own(table)
            if self._maybe(0.15):
                sql = self._rng.choice(("logs", "events", "LOGS"))
                columns = ctes.get(sql.lower(), TABLES["logs"])
        scope.sources.append((alias, dict(columns)))
        return f"{sql} {alias}" if self._maybe(0.5) else f"{sql} AS {alias}"

    # Conditions

    def _condition(self, scope: Scope, depth: int, ctes: dict[str, Columns], queries: int = 0) -> str:
        if depth > 0 and self._maybe(0.45):
            word = self._rng.choice((" AND ", " AND ", " OR "))
            parts = [
                self._condition(scope, depth - 1, ctes, queries) for _ in range(self._rng.choice((2, 2, 3)))
            ]
            return f"({word.join(parts)})"
        if self._maybe(0.06):
            return f"NOT ({self._condition(scope, depth - 1, ctes, queries)})"
        if queries > 0 and self._maybe(0.1):
            return self._subquery_condition(scope, queries - 1, ctes)
        reach = scope.outer if scope.outer is not None and self._maybe(0.25) else scope
        found = [each for each in reach.columns() if each[2] != "other"]
        if not found:
            return "true"
        alias, name, type_ = self._rng.choice(found)
        return self._comparison(self._ref(alias, name, scope), type_, scope)

    def _subquery_condition(self, scope: Scope, depth: int, ctes: dict[str, Columns]) -> str:
        found = [each for each in scope.columns() if each[2] != "other"]
        body, columns = self._select(depth, ctes, scope)
        if not found or self._maybe(0.5):
            return f"{self._rng.choice(('', 'NOT '))}EXISTS ({body})"
        alias, name, type_ = self._rng.choice(found)
        fitting = [column for column in columns if columns[column] == type_]
        if not fitting:
            return f"EXISTS ({body})"
        ref = self._ref(alias, name, scope)
        if self._maybe(0.3):
            return f"{ref} >= (SELECT max({fitting[0]}) FROM ({body}))"
        return f"{ref} {self._rng.choice(('IN', 'IN', 'NOT IN'))} (SELECT {fitting[0]} FROM ({body}))"

    def _comparison(self, ref: str, type_: str, scope: Scope) -> str:
        operator = self._rng.choice(("=", "=", "<", "<=", ">", ">=", ">=", "<>", "IS NOT DISTINCT FROM"))
        kind = self._rng.random()
        others = [each for each in scope.columns() if each[2] == type_]
        if kind < 0.08:
            return f"{ref} IS {self._rng.choice(('NULL', 'NOT NULL'))}"
        if kind < 0.18:
            items = ", ".join(self._constant(type_) for _ in range(self._rng.randrange(1, 4)))
            return f"{ref} {self._rng.choice(('IN', 'IN', 'NOT IN'))} ({items})"
        if kind < 0.28:
            return f"{ref} BETWEEN {self._constant(type_)} AND {self._constant(type_)}"
        if kind < 0.38 and others:
            alias, name, _ = self._rng.choice(others)
            return f"{ref} {operator} {self._ref(alias, name, scope)}"
        if type_ == "text" and kind < 0.5:
            return self._rng.choice(
                (
                    f"{ref} LIKE 'a%'",
                    f"{ref} LIKE '_b'",
                    f"starts_with({ref}, 'a')",
                    f"{ref} LIKE 'a'",
                    f"{ref} ^@ '0'",
                )
            )
        if type_ == "time" and kind < 0.5:
            ref = f"{ref}::DATE"
        if self._maybe(0.2):
            return f"{self._constant(type_)} {operator} {ref}"
        return f"{ref} {operator} {self._constant(type_)}"

    def _constant(self, type_: str) -> str:
        if type_ == "text":
            value: Any = self._rng.choice(TEXTS)
            sql = f"'{value}'"
        elif type_ == "integer":
            value = self._rng.choice(INTEGERS)
            sql = self._rng.choice((str(value), str(value), f"{value}.5", f"{value}::DOUBLE"))
        else:
            value = random_time(self._rng, self._today).strftime("%Y-%m-%d %H:%M:%S")
            days = self._rng.randrange(DAYS)
            sql = self._rng.choice(
                (
                    f"'{value}'",
                    f"'{value}+00'",
                    f"TIMESTAMP '{value}'",
                    f"TIMESTAMP '{value}-07'",
                    f"TIMESTAMPTZ '{value}+02'",
                    f"DATE '{value[:10]}'",
                    f"now() - INTERVAL {days} DAY",
                    f"current_timestamp - INTERVAL '{days} days 3 hours'",
                    "current_date",
                    f"today() - INTERVAL {days} DAYS",
                    f"date_trunc('day', TIMESTAMPTZ '{value}')",
                )
            )
        if self._maybe(0.1):
            self.params.append(value)
            return f"${len(self.params)}"
        return sql
