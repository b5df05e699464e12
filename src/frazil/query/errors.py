"""Maps errors that query workers report to frazil's errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from frazil.config import QueryConfig
from frazil.errors import FrazilError, LimitReached, QueryInvalid, QueryRefused

log = structlog.get_logger("frazil.query")


class FilesUnreadable(Exception):
    """DuckDB could not read data files of the plan. `files` are those that its message names."""

    def __init__(self, reason: str, files: Sequence[str]) -> None:
        self.reason = reason
        self.files = files


def worker_died() -> LimitReached:
    return LimitReached(
        "the query's worker process died, most likely because the query needed too much memory "
        "(query.memory_bytes_max): select fewer columns or a shorter time range",
        limit="query.memory_bytes_max",
    )


def query_error(event: Mapping[str, Any], query: QueryConfig) -> FrazilError:
    kind, message, position = event["kind"], event["message"], event.get("position")
    if kind == "refused":
        return QueryRefused("a query can only read the tables: " + message, position=position)
    if kind in ("memory", "temp", "limit"):
        limit = {"memory": "memory_bytes_max", "temp": "temp_bytes_max"}.get(kind) or event["limit"]
        what = {
            "memory_bytes_max": f"the query needs more than {query.memory_bytes_max:,} bytes of memory",
            "temp_bytes_max": f"the query needs more than {query.temp_bytes_max:,} bytes of temporary files",
            "rows_max": f"the result has more than {query.rows_max:,} rows",
            "result_bytes_max": f"the result is larger than {query.result_bytes_max:,} bytes",
        }[limit]
        hint = "aggregate, add a LIMIT, or select fewer columns or a shorter time range"
        return LimitReached(f"{what} (query.{limit}): {hint}", limit=f"query.{limit}")
    if kind == "defect":
        log.error("DuckDB internal error", reason=message[:300])
        return QueryInvalid("DuckDB cannot run this query: " + message, position=position)
    return QueryInvalid(message, position=position)
