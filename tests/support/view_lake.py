"""A lake with views, whose SQL runs in this process and not on Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from frazil.lake.views import load_views
from frazil.pipeline.derive.task import columns_of
from frazil.pipeline.derive.views.task import rows_schema, sql_of
from frazil.tables import forget_views, table_specs
from frazil.tables.derived.combine import combine, completed
from tests.support.derived_lake import DerivedLake, rows_of

OTHERS = ("log_patterns", "log_rollups")
"""The other derived tables of logs, which take time in each round."""
BY_SERVICE = """
SELECT date_trunc('minute', time) AS time, service_name, count(*) AS records,
       sum(severity_number) AS severities, max(severity_number) AS worst,
       count_if(severity_number >= 17) AS errors, bool_or(severity_number >= 17) AS has_errors
FROM logs GROUP BY ALL
"""


class ViewLake(DerivedLake):
    """Views are given as SQL by name; the others of `settings` are of the configuration."""

    def __init__(self, data_dir: Path, views: dict[str, str], **settings: Any) -> None:
        forget_views()
        self.folder = data_dir / "views"
        self.folder.mkdir(parents=True, exist_ok=True)
        derive = {"disabled_tables": list(OTHERS), **settings.pop("derive", {})}
        super().__init__(data_dir, views=self.written(views), derive=derive, **settings)
        self.counted_sql = 0
        """Jobs that ran SQL."""
        run_sql = self.runner.run_sql

        def counting(*arguments: Any) -> Any:
            self.counted_sql += 1
            return run_sql(*arguments)

        self.runner.run_sql = counting  # type: ignore[method-assign]

    def written(self, views: dict[str, str]) -> dict[str, Any]:
        for name, sql in views.items():
            (self.folder / f"{name}.sql").write_text(sql)
        return {name: {"sql": str(self.folder / f"{name}.sql")} for name in views}

    def configure(self, views: dict[str, str]) -> None:
        """As after a restart of the pipeline with these views."""
        known = type(self.config).model_validate(self.config.model_dump() | {"views": self.written(views)})
        self.config = known
        self.derivers.clear()
        forget_views()
        load_views(self.catalog, self.config.lake.namespace)

    def close(self) -> None:
        super().close()
        forget_views()

    def expected(self, table: str) -> list[tuple[Any, ...]]:
        """The result of the view's SQL in a single pass over all rows of the source."""
        spec = table_specs()[table]
        if spec.derived is None or spec.derived.view is None:
            return super().expected(table)
        source = columns_of(spec.derived.columns, table_specs()[spec.derived.source])
        schema = rows_schema(source)
        rows = self.table(spec.derived.source).scan().to_arrow()
        plain = [rows.column(name).cast(source.column(name).type) for name in schema.names[:-1]]
        whole = pa.table([*plain, pa.nulls(rows.num_rows, pa.binary())], schema=schema)
        found = self.runner.run_sql(
            lambda _: whole.to_batches(), [0], schema, sql_of(spec.derived.view), lambda batches: [*batches]
        )
        result = pa.Table.from_batches([batch for batches in found for batch in batches])
        return rows_of(combine(completed(result, spec), spec), spec)
