"""The table function `metric_steps` over points, which are derived as the pipeline derives them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa

from frazil.sql.functions import FUNCTIONS, TABLE_FUNCTIONS
from frazil.sql.merging import merging_select
from frazil.tables import table_spec
from frazil.tables.derived.combine import rolled_up
from frazil.tables.derived.metric_rollups import METRIC_ROLLUPS, metric_rollup_rows

Row = dict[str, Any]
SCHEMA = table_spec("metrics").arrow_schema
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
        **given,
    }


@cache
def _engine() -> duckdb.DuckDBPyConnection:
    engine = duckdb.connect(config={"threads": 1})
    engine.execute("SET TimeZone='UTC'")
    for function in FUNCTIONS:
        engine.execute(function.sql)
    engine.register("partial", METRIC_ROLLUPS.arrow_schema.empty_table())
    engine.execute(f"CREATE VIEW metric_rollups AS {merging_select(METRIC_ROLLUPS, 'duckdb', 'partial')}")
    for function in TABLE_FUNCTIONS:
        engine.execute(function.sql)
    return engine


def partial_rows(landings: Iterable[Sequence[Row]]) -> pa.Table:
    """Partial rows, made from each landing by itself."""
    made = [METRIC_ROLLUPS.arrow_schema.empty_table()]
    for rows in landings:
        points = pa.table(
            {
                name: pa.array([row.get(name) for row in rows], SCHEMA.field(name).type)
                for name in SCHEMA.names
            }
        )
        made.append(rolled_up(metric_rollup_rows(points), METRIC_ROLLUPS).cast(METRIC_ROLLUPS.arrow_schema))
    return pa.concat_tables(made)


def query(sql: str, *landings: Sequence[Row]) -> list[Row]:
    """The rows of a query over what was derived from the landings."""
    engine = _engine()
    engine.register("partial", partial_rows(landings))
    found: list[Row] = engine.execute(sql).to_arrow_table().to_pylist()
    return found


def steps(
    *landings: Sequence[Row], step: int = 60, begin: int = 0, end: int = 3600, metric: str = "orders"
) -> list[Row]:
    """The rows of `metric_steps`, in order of time and series. `time` is in seconds from BEGIN."""
    times = ", ".join(f"to_timestamp({BEGIN + each})" for each in (begin, end))
    sql = f"SELECT * FROM metric_steps('{metric}', to_seconds({step}), {times}) ORDER BY time, series_id"
    return [{**row, "time": round(row["time"].timestamp()) - BEGIN} for row in query(sql, *landings)]
