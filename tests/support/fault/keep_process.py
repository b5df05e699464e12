"""Erasure and retention in processes that can be killed; `KeepProcess` controls them.

Everything is the real thing but Spark: the very functions that its tasks run are called here, in the child.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import structlog

from tests.support.fault.forks import Forks, say_facts, serve
from tests.support.fault.land_process import Outcome
from tests.support.known_lake import KnownLake

RULES = [
    {"after_seconds": "7d", "where": "severity_number < 9", "table": "logs"},
    {"after_seconds": "30d", "tenant": "acme"},
]


class KeepProcess(Forks):
    module = "tests.support.fault.keep_process"

    def erase(self, data_dir: Path, where: str, **options: Any) -> Outcome:
        return self._run("erase", data_dir, where=where, **options)

    def retain(self, data_dir: Path, table: str = "logs") -> Outcome:
        return self._run("retain", data_dir, table=table)

    def _run(self, what: str, data_dir: Path, **settings: Any) -> Outcome:
        self.say(json.dumps({"what": what, "data_dir": str(data_dir), "settings": settings}))
        said = self.facts()
        return Outcome(said["returncode"], error=said.get("error", ""), facts=said)


def kept(data_dir: Path) -> KnownLake:
    return KnownLake(data_dir, maintain={"retention": {"rules": RULES}})


def _work(what: str, data_dir: str, settings: dict[str, Any]) -> None:
    lake = kept(Path(data_dir))
    try:
        if what == "erase":
            report = lake.erase(**settings)
            say_facts(rows=report.rows_removed, proven=report.is_proven, nothing=report.found_nothing)
        else:
            say_facts(rows=lake.retain(**settings).rows_removed)
    except Exception as error:
        say_facts(error=repr(error))
        raise


def main() -> None:
    # Once, here, and not in every child.
    import duckdb  # noqa: F401
    import pyiceberg.avro.decoder_fast  # noqa: F401
    import sqlalchemy.dialects.sqlite  # noqa: F401

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    serve(_work)


if __name__ == "__main__":
    main()
