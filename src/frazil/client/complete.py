"""SQL completion: keywords, functions, tables, and the columns of the tables in the statement."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from frazil.query.model import TableInfo
from frazil.sql.functions import FUNCTIONS, TABLE_FUNCTIONS

KEYWORDS = """
SELECT FROM WHERE AND OR NOT IN IS NULL LIKE ILIKE BETWEEN GROUP BY ALL ORDER ASC DESC LIMIT OFFSET HAVING
DISTINCT AS JOIN LEFT RIGHT FULL OUTER INNER CROSS ON USING UNION EXCEPT INTERSECT WITH CASE WHEN THEN ELSE
END CAST INTERVAL QUALIFY OVER PARTITION FILTER EXPLAIN TRUE FALSE
"""
DUCKDB_FUNCTIONS = """
abs approx_count_distinct arg_max arg_min avg coalesce count date_trunc epoch_ms first greatest last least
length list lower map_contains map_keys max median min now nullif quantile_cont regexp_extract regexp_matches
replace round row_number strftime sum time_bucket to_timestamp trim unnest upper
"""
COMMANDS = {
    "\\d": "list tables, or the columns of one table",
    "\\format": "set the output format: table, json or csv",
    "\\timing": "show or hide the statistics below results",
    "\\asof": "query the tables as of a time, snapshot:ID or tag:NAME; `\\asof now` resets it",
    "\\q": "quit",
    "\\?": "show this list",
}
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*$")
_NAMES = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TABLE_NEXT = re.compile(r"\b(?:FROM|JOIN)\s+(?:otel\.)?\w*$", re.IGNORECASE)


class SqlCompleter(Completer):
    """Completes SQL and commands. `tables` can be set later."""

    def __init__(self, tables: Sequence[TableInfo] = ()) -> None:
        self.tables: Sequence[TableInfo] = tables

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        before = document.text_before_cursor
        if before.startswith("\\"):
            yield from self._commands(before)
            return
        match = _WORD.search(before)
        word = match[0] if match else ""
        table_next = _TABLE_NEXT.search(before) is not None
        if not word and not table_next:
            return
        for text, meta in self._tables() if table_next else self._identifiers(document.text, word):
            if text.lower().startswith(word.lower()):
                yield Completion(text, start_position=-len(word), display_meta=meta)

    def _commands(self, before: str) -> Iterator[Completion]:
        command, space, rest = before.partition(" ")
        if not space:
            for name, meta in COMMANDS.items():
                if name.startswith(command):
                    yield Completion(name, start_position=-len(command), display_meta=meta)
            return
        choices = {
            "\\d": [t.name for t in self.tables],
            "\\format": ["table", "json", "csv"],
            "\\asof": ["now"],
        }
        for name in choices.get(command, ()):
            if name.startswith(rest):
                yield Completion(name, start_position=-len(rest))

    def _tables(self) -> Iterator[tuple[str, str]]:
        for table in self.tables:
            yield table.name, table.doc
        yield from ((function.name, function.doc) for function in TABLE_FUNCTIONS)

    def _identifiers(self, statement: str, word: str) -> Iterator[tuple[str, str]]:
        named = {name.lower() for name in _NAMES.findall(statement)}
        used = [table for table in self.tables if table.name in named] or self.tables
        columns = {column.name: column.type for table in used for column in table.columns}
        yield from columns.items()
        yield from ((table.name, "table") for table in self.tables)
        yield from ((function.name, function.doc) for function in FUNCTIONS)
        yield from ((name, "function") for name in DUCKDB_FUNCTIONS.split())
        upper = not word.islower()
        yield from ((name if upper else name.lower(), "") for name in KEYWORDS.split())
