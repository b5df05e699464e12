"""A lake with views, whose SQL runs in this process and not on Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from frazil.lake.views import load_views
from frazil.tables import forget_views
from tests.support.derived_lake import DerivedLake

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
        self.folder.mkdir(exist_ok=True)
        super().__init__(data_dir, views=self.written(views), **settings)

    def written(self, views: dict[str, str]) -> dict[str, Any]:
        for name, sql in views.items():
            (self.folder / f"{name}.sql").write_text(sql)
        return {name: {"sql": str(self.folder / f"{name}.sql")} for name in views}

    def configure(self, views: dict[str, str]) -> None:
        """As after a restart of the pipeline with these views."""
        known = type(self.config).model_validate(
            self.config.model_dump() | {"views": self.written(views)}
        )
        self.config = known
        self.derivers.clear()
        forget_views()
        load_views(self.catalog, self.config.lake.namespace)

    def close(self) -> None:
        super().close()
        forget_views()
