"""DuckDB in the test's own process, with the query service's SQL functions, over rows that came as OTLP, and
over the tables that are derived from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, cast

import duckdb
import pyarrow as pa
from google.protobuf.message import Message

from frazil.otlp.decode import Decoder, conform
from frazil.query.reads.statement import Read, Statement
from frazil.sql.functions import FUNCTIONS, TABLE_FUNCTIONS
from frazil.sql.merging import merging_select
from frazil.tables import SIGNALS, Signal, TableSpec, table_spec
from frazil.tables.derived.combine import rolled_up
from frazil.tables.specs import derived_specs

T = TypeVar("T")
_DECODERS: dict[Signal, Decoder] = {signal: Decoder(signal) for signal in SIGNALS}


class Engine:
    def __init__(self) -> None:
        self.rows: dict[Signal, list[pa.Table]] = {signal: [] for signal in SIGNALS}
        self._connection = duckdb.connect(config={"threads": 1})
        self._connection.execute("SET TimeZone='UTC'")
        for function in FUNCTIONS:
            self._connection.execute(function.sql)

    def add(self, signal: Signal, request: Message, tenant: str = "default", received: int = 1) -> None:
        decoded = _DECODERS[signal].decode([request.SerializeToString()], [tenant], [received * 10**9])
        assert decoded.rejected.sum() == 0, decoded.reasons
        self.rows[signal].append(conform(decoded.table, table_spec(signal)))

    def rows_of(self, signal: Signal, tenant: str = "default") -> pa.Table:
        tables = [rows.filter(pa.compute.equal(rows["tenant_id"], tenant)) for rows in self.rows[signal]]
        return pa.concat_tables([*tables, table_spec(signal).arrow_schema.empty_table()])

    def derived(self, spec: TableSpec, tenant: str = "default") -> pa.Table:
        """Partial rows, as one landing for each request would have made them."""
        assert spec.derived is not None
        found = [spec.arrow_schema.empty_table()]
        for rows in self.rows[cast("Signal", spec.derived.source)]:
            own = rows.filter(pa.compute.equal(rows["tenant_id"], tenant))
            found.append(rolled_up(spec.derived.derive(own), spec).cast(spec.arrow_schema))
        return pa.concat_tables(found)

    def run_sql(
        self, sql: str, params: Sequence[Any] = (), tenant: str = "default"
    ) -> tuple[pa.Table, list[str]]:
        """The result, and DuckDB's names of its columns' types."""
        with self._connection.cursor() as cursor:
            for signal in SIGNALS:
                if signal in sql:
                    cursor.register(signal, self.rows_of(signal, tenant))
            functions = [function for function in TABLE_FUNCTIONS if function.name in sql]
            read = {function.table for function in functions}
            for spec in derived_specs():
                if spec.name in sql or spec.name in read:
                    cursor.register(f"partial_{spec.name}", self.derived(spec, tenant))
                    view = merging_select(spec, "duckdb", f"partial_{spec.name}")
                    cursor.execute(f"CREATE TEMP VIEW {spec.name} AS {view}")
            for function in functions:
                temporary = function.sql.replace("CREATE MACRO", "CREATE TEMP MACRO", 1)
                cursor.execute(temporary.replace(f"main.{function.table}", function.table))
            cursor.execute(sql, list(params))
            types = [str(column[1]) for column in cursor.description or ()]
            return cursor.to_arrow_table(), types

    def records(self, statement: Statement) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.run_sql(statement.sql, statement.params)[0].to_pylist()
        return found

    def run(self, read: Read[T]) -> T:
        """The result of a read of several statements."""
        try:
            statement = next(read)
            while True:
                statement = read.send(self.run_sql(statement.sql, statement.params)[0])
        except StopIteration as end:
            found: T = end.value
            return found
