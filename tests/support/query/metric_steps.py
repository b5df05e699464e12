"""The table function `metric_steps` over points, which are derived as the pipeline derives them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa

from frazil.sql.functions import FUNCTIONS, TABLE_FUNCTIONS
from frazil.sql.merging import merging_select
from frazil.tables import TableSpec, table_spec
from frazil.tables.derived.combine import rolled_up
from frazil.tables.derived.metric_rollups import METRIC_ROLLUPS
from frazil.tables.derived.series import SERIES

Row = dict[str, Any]
SCHEMA = table_spec("metrics").arrow_schema
DERIVED = (METRIC_ROLLUPS, SERIES)
SECOND = 1_000_000
BEGIN = 1_790_000_000 // 86_400 * 86_400
"""A midnight, in seconds since 1970. The times of points are seconds from here."""


def point(seconds: float, value: float | None = None, **given: Any) -> Row:
    """A point of a cumulative counter without a start time, unless it says otherwise. `began`: its start."""
    began = given.pop("began", None)
    micros = round((BEGIN + seconds) * SECOND)
    return {
        "tenant_id": "acme",
        "time": micros,
        "time_unix_nano": micros * 1000,
        "metric_name": "orders",
        "metric_type": "sum",
        "series_id": 1,
        "service_name": "shop",
        "aggregation_temporality": 2,
        "is_monotonic": True,
        "value_double": value,
        "start_time_unix_nano": None if began is None else round((BEGIN + began) * SECOND) * 1000,
        "flags": 0,
        "attributes": [],
        "resource_attributes": [],
        **given,
    }


@cache
def _engine() -> duckdb.DuckDBPyConnection:
    engine = duckdb.connect(config={"threads": 1})
    engine.execute("SET TimeZone='UTC'")
    for function in FUNCTIONS:
        engine.execute(function.sql)
    for spec in DERIVED:
        engine.register(f"partial_{spec.name}", spec.arrow_schema.empty_table())
        view = merging_select(spec, "duckdb", f"partial_{spec.name}")
        engine.execute(f"CREATE VIEW {spec.name} AS {view}")
    for function in TABLE_FUNCTIONS:
        engine.execute(function.sql)
    return engine


def points_table(rows: Sequence[Row]) -> pa.Table:
    columns = {name: [row.get(name) for row in rows] for name in SCHEMA.names}
    return pa.table({name: pa.array(each, SCHEMA.field(name).type) for name, each in columns.items()})


def partial_rows(spec: TableSpec, landings: Iterable[Sequence[Row]]) -> pa.Table:
    """Partial rows, made from each landing by itself."""
    assert spec.derived is not None
    made = [rolled_up(spec.derived.derive(points_table(rows)), spec) for rows in landings]
    empty = spec.arrow_schema.empty_table()
    return pa.concat_tables([empty, *(each.cast(spec.arrow_schema) for each in made)])


@dataclass(frozen=True)
class Landed:
    """Points, and what was derived from them, by table."""

    tables: dict[str, pa.Table]

    @classmethod
    def of(cls, *landings: Sequence[Row], specs: Sequence[TableSpec] = DERIVED) -> Landed:
        derived = {f"partial_{spec.name}": partial_rows(spec, landings) for spec in specs}
        return cls({"metrics": points_table([row for rows in landings for row in rows]), **derived})


def over(sql: str, landed: Landed, params: Sequence[Any] = ()) -> list[Row]:
    """The rows of a query."""
    engine = _engine()
    for name, table in landed.tables.items():
        engine.register(name, table)
    found: list[Row] = engine.execute(sql, list(params)).to_arrow_table().to_pylist()
    return found


def query(sql: str, *landings: Sequence[Row]) -> list[Row]:
    """The rows of a query over rollups of the landings."""
    return over(sql, Landed.of(*landings, specs=(METRIC_ROLLUPS,)))


def steps(
    *landings: Sequence[Row], step: int = 60, begin: int = 0, end: int = 3600, metric: str = "orders"
) -> list[Row]:
    """The rows of `metric_steps`, in order of time and series. `time` is in seconds from BEGIN."""
    times = ", ".join(f"to_timestamp({BEGIN + each})" for each in (begin, end))
    sql = f"SELECT * FROM metric_steps('{metric}', to_seconds({step}), {times}) ORDER BY time, series_id"
    return [{**row, "time": round(row["time"].timestamp()) - BEGIN} for row in query(sql, *landings)]
