"""What workers say went wrong, as errors of frazil's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from frazil.config import QueryConfig
from frazil.errors import FrazilError, LimitReached, QueryInvalid, QueryRefused

log = structlog.get_logger("frazil.query")


class Unreadable(Exception):
    def __init__(self, reason: str, files: Sequence[str]) -> None:
        self.reason = reason
        self.files = files


def died() -> LimitReached:
    return LimitReached(
        "the query's process was ended, most likely because it needed too much memory "
        "(query.memory_bytes_max): ask for fewer columns or a shorter time range",
        limit="query.memory_bytes_max",
    )


def failure(event: Mapping[str, Any], query: QueryConfig) -> FrazilError:
    """What a worker says went wrong, as an error of ours."""
    kind, message, position = event["kind"], event["message"], event.get("position")
    if kind == "refused":
        return QueryRefused("a query can read the tables and nothing else: " + message, position=position)
    if kind in ("memory", "temp", "limit"):
        limit = {"memory": "memory_bytes_max", "temp": "temp_bytes_max"}.get(kind) or event["limit"]
        what = {
            "memory_bytes_max": f"the query needs more than {query.memory_bytes_max:,} bytes of memory",
            "temp_bytes_max": f"the query needs more than {query.temp_bytes_max:,} bytes of temporary files",
            "rows_max": f"the result has more than {query.rows_max:,} rows",
            "result_bytes_max": f"the result is larger than {query.result_bytes_max:,} bytes",
        }[limit]
        hint = "aggregate, add a LIMIT, or ask for fewer columns or a shorter time range"
        return LimitReached(f"{what} (query.{limit}): {hint}", limit=f"query.{limit}")
    if kind == "defect":
        log.error("DuckDB failed inside", reason=message[:300])
        return QueryInvalid("DuckDB cannot run this: " + message, position=position)
    return QueryInvalid(message, position=position)
