"""The audit log of queries: caller, SQL, time and outcome. Constants of the SQL and results are left out."""

from __future__ import annotations

import datetime
import hashlib
import os
from pathlib import Path

import orjson
import structlog

from frazil.query.model import Query, Stats

log = structlog.get_logger("frazil.audit")


class AuditLog:
    """Writes one JSON object per line to a file, or one event per query to frazil's own log."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def record(self, query: Query, sql: str, outcome: str, stats: Stats) -> None:
        """Record one query. `sql` has no constants; `outcome` is `ok` or the kind of error."""
        facts = {
            "id": stats.id,
            "tenant": query.tenant,
            "who": query.who,
            "sql": sql,
            "sha256": hashlib.sha256(query.sql.encode(errors="surrogateescape")).hexdigest(),
            "outcome": outcome,
            "rows": stats.rows,
            "files": stats.files,
            "bytes": stats.bytes,
            "seconds": None if stats.seconds is None else round(stats.seconds, 4),
            "cached": stats.cached,
        }
        if self._path is None:
            log.info("query finished", **facts)
            return
        line = orjson.dumps({"time": datetime.datetime.now(datetime.UTC).isoformat(), **facts}) + b"\n"
        try:
            self._append(line)
        except OSError as error:
            log.error("audit record not written", reason=str(error), **facts)

    def _append(self, line: bytes) -> None:
        assert self._path is not None  # noqa: S101
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, line)
        finally:
            os.close(file)
