"""Checks that the SQL of a view has the one shape that can be derived incrementally: one source, a row-local
WHERE, GROUP BY, and aggregates that merge. Needs no Spark; `declare` then asks Spark for the types.

The SQL is read twice: sqlglot's syntax tree says what the parts are, and the texts of the parts are those of
the file, so that Spark computes what the user wrote.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokenizer_core import TokenType

from frazil.pipeline.derive.views.functions import AGGREGATES, REFUSED, SCALARS
from frazil.pipeline.derive.views.text import Tokens, ViewInvalid, ViewText
from frazil.tables import SIGNALS, TableSpec
from frazil.tables.columns import RECEIVED, RESOLUTION, TENANT, TIME
from frazil.tables.derived.view import ViewColumn, ViewQuery

_COLUMNS_MAX = 64
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}\Z")
_RESERVED = frozenset({TENANT, RESOLUTION, RECEIVED})
_UNITS = frozenset({"microsecond", "millisecond", "second", "minute", "hour", "day", "dd"})
"""The units of `date_trunc` that keep a time within its day."""
_CLOCK_WORDS = frozenset({"now", "today", "yesterday", "tomorrow"})
_TIME_HINT = f"add date_trunc('minute', {TIME}) AS {TIME}"
_CLAUSES: dict[TokenType, str] = {
    TokenType.WITH: "a view has one SELECT without WITH",
    TokenType.HAVING: "filter rows with WHERE, and results in the query",
    TokenType.ORDER_BY: "sort in the query",
    TokenType.SORT_BY: "sort in the query",
    TokenType.CLUSTER_BY: "sort in the query",
    TokenType.DISTRIBUTE_BY: "sort in the query",
    TokenType.LIMIT: "limit in the query",
    TokenType.OFFSET: "limit in the query",
    TokenType.FETCH: "limit in the query",
    TokenType.UNION: "declare two views",
    TokenType.INTERSECT: "declare two views",
    TokenType.EXCEPT: "declare two views",
    TokenType.JOIN: "a view has one source: join in the query",
    TokenType.LATERAL: "a row must stay one row: select a value, such as attributes['key']",
    TokenType.QUALIFY: "a row must not depend on others",
    TokenType.WINDOW: "a row must not depend on others",
    TokenType.PIVOT: "pivot in the query",
    TokenType.UNPIVOT: "pivot in the query",
    TokenType.TABLE_SAMPLE: "a row must give the same result whenever it is derived",
}
_NOT_CALLS = frozenset(
    [
        "and",
        "or",
        "not",
        "in",
        "when",
        "then",
        "else",
        "case",
        "between",
        "like",
        "rlike",
        "ilike",
        "regexp",
        "where",
        "select",
        "distinct",
        "is",
        "as",
        "from",
        "escape",
        "div",
        "decimal",
        "dec",
        "numeric",
        "varchar",
        "char",
        "by",
        "group_by",
        "on",
        "values",
    ]
)
"""Words that may come before a parenthesis without being a function."""
_FORBIDDEN: dict[TokenType, tuple[str, str]] = {
    TokenType.ARROW: (
        "a function with -> is not supported",
        "use attributes['key'], or a function of one value",
    ),
    TokenType.PLACEHOLDER: ("parameters are not supported", "write the value"),
    TokenType.PARAMETER: ("parameters are not supported", "write the value"),
    TokenType.COLON: ("parameters are not supported", "write the value; for a map attributes['key']"),
    TokenType.OVER: ("a window function depends on other rows", "compute it in the query"),
}


@dataclass(frozen=True)
class _Clauses:
    items: Sequence[Tokens]
    source: Tokens
    where: Tokens | None
    group: Tokens


def checked(text: ViewText, sources: Mapping[str, TableSpec], others: Iterable[str] = ()) -> ViewQuery:
    """Returns the query, without types. `sources` are the signals' tables; `others` are the names of derived
    tables and views. Raises ViewInvalid, which names the place and says what to write.
    """
    tokens = text.tokens
    try:
        return _Checking(text, tokens, sources, frozenset(others)).query()
    except RecursionError:
        raise text.problem(0, "is nested too deeply", "simplify the expressions") from None


class _Checking:
    def __init__(
        self, text: ViewText, tokens: Tokens, sources: Mapping[str, TableSpec], others: frozenset[str]
    ) -> None:
        self._text = text
        self._tokens = tokens
        self._sources = sources
        self._others = others
        self._reads: set[str] = set()

    def query(self) -> ViewQuery:
        tree = self._tree()
        clauses = self._clauses()
        spec, alias = self._source(tree, clauses.source)
        self._check_words()
        if len(tree.expressions) != len(clauses.items):  # the texts would not be those that were checked
            raise self._tokens.problem("cannot be read as a list of columns", "see docs/views.md")
        pairs = list(zip(tree.expressions, clauses.items, strict=True))
        columns = [self._column(node, item, spec, alias) for node, item in pairs]
        self._check_names(columns, clauses.items)
        columns = [each for each in columns if each.name != TENANT]
        where = ""
        if clauses.where is not None:
            self._check_row(tree.args["where"].this, clauses.where, spec, alias, "WHERE")
            where = clauses.where.as_text()
        self._check_group(clauses.group, columns, clauses.items)
        reads = tuple(column.name for column in spec.columns if column.name in self._reads - {TENANT})
        return ViewQuery(spec.name, alias, reads, tuple(columns), where)

    # The statement

    def _tree(self) -> exp.Select:
        if not len(self._tokens):
            raise self._text.problem(0, "is empty", "see docs/views.md for an example")
        try:
            found = [each for each in sqlglot.parse(self._text.sql, dialect="spark") if each is not None]
        except (ParseError, TokenError) as error:
            raise self._text.unreadable(error) from None
        except RecursionError:
            raise
        except Exception as error:
            raise self._tokens.problem(
                f"cannot be read as SQL: {type(error).__name__}", "see docs/views.md"
            ) from None
        if len(found) > 1:
            raise self._tokens.problem(
                "has several statements", "a view is one SELECT; declare a view for each"
            )
        if not found or not isinstance(found[0], exp.Select):
            hint = self._clause_hint() or "a view is one SELECT … FROM … GROUP BY"
            raise self._tokens.problem("is not a SELECT", hint)
        return found[0]

    def _clause_hint(self) -> str:
        kinds = (_CLAUSES.get(token.token_type) for token in self._tokens.tokens)
        return next((hint for hint in kinds if hint), "")

    def _clauses(self) -> _Clauses:
        """Splits the statement at its clauses. Refuses those that a view cannot have."""
        tokens, places = self._tokens, {}
        for at, depth in tokens.depths:
            kind = tokens.kind(at)
            if kind in _CLAUSES and not _is_name(tokens, at):
                word = tokens.tokens[at].text.upper()
                raise tokens.part(at, at + 1).problem(f"{word} is not supported", _CLAUSES[kind])
            if depth or kind not in (TokenType.SELECT, TokenType.FROM, TokenType.WHERE, TokenType.GROUP_BY):
                if kind == TokenType.SELECT:
                    raise tokens.part(at, at + 1).problem(
                        "a subquery is not supported", "a view reads one source, row by row"
                    )
                continue
            if kind == TokenType.FROM and tokens.kind(at - 1) == TokenType.DISTINCT:
                continue  # IS DISTINCT FROM
            if kind in places:
                raise tokens.part(at, at + 1).problem("has this clause twice", "a view is one SELECT")
            places[kind] = at
        if TokenType.FROM not in places:
            raise tokens.problem("has no FROM", f"read one of {', '.join(SIGNALS)}")
        if TokenType.GROUP_BY not in places:
            raise tokens.problem("has no GROUP BY", "add GROUP BY ALL at the end")
        order = [TokenType.SELECT, TokenType.FROM, TokenType.WHERE, TokenType.GROUP_BY]
        found = [places[each] for each in order if each in places]
        if found != sorted(found) or found[0] != 0:
            raise tokens.problem("has its clauses in another order", "SELECT … FROM … WHERE … GROUP BY …")
        items = tokens.part(1, places[TokenType.FROM])
        if items.kind(0) == TokenType.DISTINCT:
            raise items.problem("DISTINCT is not supported", "GROUP BY gives each key once")
        where_at, group_at = places.get(TokenType.WHERE), places[TokenType.GROUP_BY]
        where = None if where_at is None else tokens.part(where_at + 1, group_at)
        source = tokens.part(places[TokenType.FROM] + 1, group_at if where_at is None else where_at)
        return _Clauses(items.split(TokenType.COMMA), source, where, tokens.part(group_at + 1, len(tokens)))

    def _source(self, tree: exp.Select, tokens: Tokens) -> tuple[TableSpec, str]:
        """Returns the source and the name by which the query calls it."""
        names = f"read one of {', '.join(SIGNALS)}"
        kept = {"expressions", "from_", "where", "group"}
        others = sorted(name for name, value in tree.args.items() if value and name not in kept)
        table = tree.args["from_"].this if tree.args.get("from_") else None
        if others or not isinstance(table, exp.Table) or not isinstance(table.this, exp.Identifier):
            raise tokens.problem("must be one table", names)
        if any(value for name, value in table.args.items() if name not in ("this", "alias")):
            raise tokens.problem("must be the plain name of a table", names)
        name, alias = table.name.lower(), (table.alias or table.name)
        if name in self._others:
            raise tokens.problem(
                f"{name} is a derived table or a view, which a view cannot read (so views form no cycle)",
                f"read the table that it is derived from: one of {', '.join(SIGNALS)}",
            )
        if name == "events":
            raise tokens.problem("events is a view of logs", "FROM logs WHERE event_name IS NOT NULL")
        if name not in self._sources:
            close = difflib.get_close_matches(name, [*self._sources], 1)
            raise tokens.problem(f"there is no table {name}", f"did you mean {close[0]}?" if close else names)
        if not _NAME.match(alias.lower()) or (
            alias.lower() in (TENANT, *self._sources) and alias.lower() != name
        ):
            raise tokens.problem(f"{alias} cannot be the name of the source", f"leave it out: FROM {name}")
        return self._sources[name], alias.lower()

    # Words

    def _check_words(self) -> None:
        """Refuses every function that is not known to be one of a row, or an aggregate that merges."""
        tokens = self._tokens
        for at, token in enumerate(tokens.tokens):
            place = tokens.part(at, at + 1)
            if token.token_type in _FORBIDDEN:
                raise place.problem(*_FORBIDDEN[token.token_type])
            word = token.text.lower()
            if token.token_type.name.startswith("CURRENT_") or token.token_type == TokenType.LOCALTIMESTAMP:
                raise place.problem(f"{word} is not supported", REFUSED["now"])
            is_typed = tokens.kind(at - 1) in _TYPED_LITERALS and token.token_type == TokenType.STRING
            if is_typed and word.strip() in _CLOCK_WORDS:
                raise place.problem(f"'{token.text}' depends on the clock", REFUSED["now"])
            if tokens.kind(at + 1) == TokenType.L_PAREN and _is_word(token.text, token.token_type):
                self._check_call(place, word, tokens.kind(at - 1))

    def _check_call(self, place: Tokens, word: str, before: TokenType | None) -> None:
        if word == "filter" and before == TokenType.R_PAREN:
            return
        if before == TokenType.DOT:
            raise place.problem(f"{word}: functions of a schema are not supported", "use a function of Spark")
        if word in ("all", "any", "some") and before in (TokenType.LIKE, TokenType.ILIKE):
            return
        if word in SCALARS or word in AGGREGATES or (word in _NOT_CALLS and before != TokenType.ALIAS):
            return
        if place.kind(0) in _TYPES_WITH_SIZE:
            return
        if word in REFUSED:
            raise place.problem(f"{word}() is not supported", REFUSED[word])
        if word == "exists":
            raise place.problem("a subquery is not supported", "a view reads one source, row by row")
        close = difflib.get_close_matches(word, sorted({*SCALARS, *AGGREGATES}), 1)
        hint = f"did you mean {close[0]}?" if close else "see docs/views.md for the functions"
        raise place.problem(f"{word}() is not a function that a view can use", hint)

    # Columns

    def _column(self, node: exp.Expression, item: Tokens, spec: TableSpec, alias: str) -> ViewColumn:
        if not len(item):
            raise self._tokens.problem("has an empty column", "remove the comma")
        inner = node.this if isinstance(node, exp.Alias) else node
        body = item
        if isinstance(node, exp.Alias):
            body = item.part(0, len(item) - (2 if item.kind(len(item) - 2) == TokenType.ALIAS else 1))
        elif not isinstance(node, exp.Column):
            if isinstance(node, exp.Star) or any(
                token.token_type == TokenType.STAR for token in item.tokens[:1]
            ):
                raise item.problem("* is not supported", "name the columns")
            raise item.problem("has no name", "add AS and a name")
        name = (node.alias_or_name or "").lower()
        if not len(body) or not _NAME.match(name):
            raise item.problem(
                f"{node.alias_or_name or 'this'} cannot be the name of a column",
                "names have 1 to 63 characters of a-z 0-9 _ and start with a letter",
            )
        if (isinstance(inner, (exp.Filter, exp.AggFunc)) or body.tokens[0].text.lower() in AGGREGATES) and (
            found := self._aggregate(name, inner, body, spec, alias)
        ):
            return found
        self._check_row(inner, body, spec, alias, "a key")
        if name == TENANT and not (isinstance(inner, exp.Column) and inner.name.lower() == TENANT):
            raise item.problem(
                f"{TENANT} is always part of the key, and has the tenant of the row",
                "give the column another name",
            )
        if name in _RESERVED - {TENANT}:
            raise item.problem(f"{name} cannot be the name of a column", "give the column another name")
        if name == TIME:
            self._check_time(inner, body)
        return ViewColumn(name, "key", body.as_text())

    def _aggregate(
        self, name: str, node: exp.Expression, body: Tokens, spec: TableSpec, alias: str
    ) -> ViewColumn | None:
        """Returns the column of an aggregate; None if the text is no call, such as a column named `count`."""
        word = body.tokens[0].text.lower()
        if word not in AGGREGATES or body.kind(1) != TokenType.L_PAREN:
            return None
        closing = body.closing(1)
        arguments, rest = body.part(2, closing), body.part(closing + 1, len(body))
        condition = ""
        if len(rest):
            is_filter = rest.tokens[0].text.lower() == "filter" and rest.kind(1) == TokenType.L_PAREN
            if not is_filter or rest.kind(2) != TokenType.WHERE or rest.closing(1) != len(rest) - 1:
                raise rest.problem(
                    "an expression of aggregates is not supported",
                    "select the aggregates, and compute with them in the query",
                )
            inside = rest.part(3, len(rest) - 1)
            self._check_row(node, inside, spec, alias, "FILTER")
            condition = inside.as_text()
        if name in _RESERVED or name == TIME:
            raise body.problem(f"{name} cannot be the name of an aggregate", "give it another name")
        if arguments.kind(0) == TokenType.DISTINCT:
            raise arguments.problem(f"{word}(DISTINCT …) is not supported", REFUSED["approx_count_distinct"])
        self._check_row(node, arguments, spec, alias, f"{word}()")
        if not len(arguments) or len(arguments.split(TokenType.COMMA)) > 1:
            raise body.problem(f"{word}() needs one argument", "for example sum(duration_nano)")
        function, rule = AGGREGATES[word]
        return ViewColumn(name, rule, body.as_text(), function, arguments.as_text(), condition)

    def _check_row(
        self, node: exp.Expression, tokens: Tokens, spec: TableSpec, alias: str, where: str
    ) -> None:
        """Checks an expression of one row, and notes the columns that it reads."""
        if not len(tokens):
            raise self._tokens.problem(f"{where} is empty", "remove it")
        for at, token in enumerate(tokens.tokens):
            is_call = tokens.kind(at + 1) == TokenType.L_PAREN
            if is_call and token.text.lower() in AGGREGATES and not _is_quantified(tokens, at):
                raise tokens.part(at, at + 1).problem(
                    f"the aggregate {token.text} is not possible in {where}",
                    "an aggregate must be a column of its own: select it, and compute with it in the query",
                )
        if node.find(exp.Window, exp.Subquery, exp.Select, exp.Lambda):
            raise tokens.problem(f"{where} must depend on one row", "compute it in the query")
        for column in node.find_all(exp.Column):
            self._note_column(column, tokens, spec, alias)

    def _note_column(self, column: exp.Column, tokens: Tokens, spec: TableSpec, alias: str) -> None:
        if isinstance(column.this, exp.Star):
            return  # of count(*)
        names = [part.name for part in column.parts]
        place = next((at for at, each in enumerate(tokens.tokens) if each.text == names[0]), 0)
        at = tokens.part(place, place + 1)
        known = {each.name for each in spec.sql_columns}
        if len(names) > 1:
            if names[0].lower() != alias:
                attribute = ".".join(names[1:])
                raise at.problem(
                    f"there is no table {names[0]}",
                    f"for a value of a map write {names[0]}['{attribute}']"
                    if names[0] in known
                    else f"use {alias}",
                )
            names = names[1:]
        name = names[0].lower()
        if name in known and len(names) > 1:
            field = ".".join(names[1:])
            raise at.problem(
                f"{names[0]} has no column {field}", f"for a value of a map write {names[0]}['{field}']"
            )
        if name not in known:
            close = difflib.get_close_matches(name, sorted(known), 1)
            hint = (
                f"did you mean {close[0]}?" if close else f"attributes are in maps: attributes['{names[0]}']"
            )
            raise at.problem(f"{spec.name} has no column {names[0]}", hint)
        self._reads.add(name)

    def _check_time(self, node: exp.Expression, body: Tokens) -> None:
        used = {column.name.lower() for column in node.find_all(exp.Column)}
        if used != {TIME}:
            others = ", ".join(sorted(used - {TIME})) or "no column"
            raise body.problem(
                f"{TIME} must be computed from the source's {TIME} alone, not from {others}", _TIME_HINT
            )
        words = [token.text.lower() for token in body.tokens]
        if (
            words[0] == "date_trunc"
            and len(words) > 2
            and body.kind(2) == TokenType.STRING
            and words[2] not in _UNITS
        ):
            raise body.problem(
                f"{TIME} must stay within its day (UTC), but {words[2]} is longer",
                f"use date_trunc('day', {TIME}), and group by {words[2]} in the query",
            )

    def _check_names(self, columns: Sequence[ViewColumn], items: Sequence[Tokens]) -> None:
        if len(columns) > _COLUMNS_MAX:
            raise items[_COLUMNS_MAX].problem(f"has more than {_COLUMNS_MAX} columns", "declare two views")
        seen: set[str] = set()
        for column, item in zip(columns, items, strict=True):
            if column.name in seen:
                raise item.problem(f"has the column {column.name} twice", "give one of them another name")
            seen.add(column.name)
        if TIME not in seen:
            raise items[0].problem(f"no column is named {TIME}: views are partitioned by it", _TIME_HINT)
        if all(column.rule == "key" for column in columns):
            raise items[0].problem("has no aggregate", "add one, such as count(*) AS rows")

    def _check_group(self, group: Tokens, columns: Sequence[ViewColumn], items: Sequence[Tokens]) -> None:
        """Refuses a GROUP BY whose keys are not the selected ones."""
        if [token.text.lower() for token in group.tokens] == ["all"]:
            return
        texts = {column.expression.lower(): column for column in columns if column.rule == "key"}
        names = {column.name: column for column in columns if column.rule == "key"}
        found: set[str] = set()
        for part in group.split(TokenType.COMMA):
            text = part.as_text().lower()
            if not text:
                raise self._tokens.problem("GROUP BY is empty", "write GROUP BY ALL")
            if text == TENANT:
                continue
            column = names.get(text) or texts.get(text)
            if column is None and text.isdecimal() and 0 < int(text) <= len(items):
                wanted = items[int(text) - 1].as_text().lower()
                column = next((each for each in names.values() if _selects(wanted, each)), None)
            if column is None:
                raise part.problem(f"{part.as_text()[:60]} is not a selected column", "write GROUP BY ALL")
            found.add(column.name)
        if missing := [name for name in names if name not in found]:
            raise group.problem(f"GROUP BY lacks {', '.join(missing)}", "write GROUP BY ALL")


_TYPED_LITERALS = {
    TokenType.DATE,
    TokenType.TIMESTAMP,
    TokenType.TIMESTAMPTZ,
    TokenType.TIMESTAMPLTZ,
    TokenType.TIMESTAMPNTZ,
}
_TYPES_WITH_SIZE = {TokenType.DECIMAL, TokenType.VARCHAR, TokenType.CHAR, TokenType.NCHAR, TokenType.NVARCHAR}


def _is_word(text: str, kind: TokenType) -> bool:
    return kind == TokenType.IDENTIFIER or (
        re.fullmatch(r"[^\W\d]\w*", text) is not None and kind != TokenType.STRING
    )


def _is_name(tokens: Tokens, at: int) -> bool:
    """Returns whether a word that could begin a clause is a column's name here, such as `window`."""
    return tokens.kind(at - 1) in (TokenType.ALIAS, TokenType.DOT)


def _is_quantified(tokens: Tokens, at: int) -> bool:
    return tokens.kind(at - 1) in (TokenType.LIKE, TokenType.ILIKE)


def _selects(item: str, column: ViewColumn) -> bool:
    return item == column.name or item.startswith(column.expression.lower())


__all__ = ["ViewInvalid", "checked"]
