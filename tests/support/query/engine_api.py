"""The API as the dashboard's pages ask it, answered in this process: SQL runs in DuckDB over telemetry of
the test, with the derived tables. Traces and counts of logs are empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import orjson
import pyarrow as pa
from urllib3.response import HTTPResponse

from frazil.dashboard.api_client import ApiClient, ApiError
from frazil.sql.functions import TABLE_FUNCTIONS
from frazil.tables.specs import derived_specs
from tests.support.query.read_engine import Engine


class EngineApi(ApiClient):
    def __init__(self, engine: Engine) -> None:
        super().__init__("http://127.0.0.1:1")
        self.engine = engine
        self.facts: dict[str, dict[str, Any]] = {}
        """What `GET /api/v1/tables` says of derived tables, other than that all is derived."""
        self.missing: Sequence[str] = ()
        """Why rows are missing in results from derived tables."""
        self.error: ApiError | None = None
        self.asked: list[str] = []
        """Paths of requests, and SQL."""

    def request(
        self,
        method: str,
        path: str,
        key: str | None,
        body: bytes | None = None,
        accept: str = "application/json",
        seconds_max: float | None = None,
    ) -> HTTPResponse:
        if self.error is not None:
            raise self.error
        name = urlsplit(path).path.removeprefix("/api/v1/")
        if name == "sql" and body is not None:
            return self._sql(orjson.loads(body))
        self.asked.append(name)
        answers: dict[str, Any] = {
            "tables": {"tables": self._tables()},
            "traces": {"traces": [], "complete": True},
            "logs/counts": {"series": []},
        }
        return HTTPResponse(orjson.dumps(answers[name]), status=200)

    def _sql(self, query: dict[str, Any]) -> HTTPResponse:
        self.asked.append(query["sql"])
        table, _ = self.engine.run_sql(query["sql"], query["params"])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        derived = (*(spec.name for spec in derived_specs()), *(each.name for each in TABLE_FUNCTIONS))
        is_derived = any(name in query["sql"] for name in derived)
        stats = {"missing": list(self.missing) if is_derived else []}
        headers = {"X-Frazil-Stats": orjson.dumps(stats).decode()}
        return HTTPResponse(sink.getvalue().to_pybytes(), headers, 200)

    @property
    def queries(self) -> list[str]:
        """What has been asked besides the list of tables."""
        return [asked for asked in self.asked if asked != "tables"]

    def _tables(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = []
        for signal, rows in self.engine.rows.items():
            count = sum(len(each) for each in rows)
            first = min((each["time"].to_pylist()[0].isoformat() for each in rows), default=None)
            listed.append(
                {"name": signal, "rows": count, "tail_rows": 0, "first_time": first, "derived": None}
            )
        for spec in derived_specs():
            assert spec.derived is not None
            derived = {"source": spec.derived.source, "enabled": True, "days_left": 0, "lag_seconds": 0.0}
            derived |= self.facts.get(spec.name, {})
            listed.append(
                {"name": spec.name, "rows": 1, "tail_rows": 0, "first_time": None, "derived": derived}
            )
        return listed
