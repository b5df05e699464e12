"""Moving files in processes that can be killed; `TierProcess` controls them. It lands too."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import Any

import structlog

from frazil.config import Config
from frazil.lake.catalog import open_catalog
from frazil.lake.state.recover import recover_tables
from frazil.pipeline.maintain.maintainer import Maintainer
from frazil.pipeline.maintain.metrics import MaintainMetrics
from frazil.pipeline.metrics import Metrics
from tests.support.fault import land_process
from tests.support.fault.forks import say_facts, serve
from tests.support.fault.land_process import LandProcess, Outcome
from tests.support.local_runner import LocalRunner

DAY = 86_400.0
TIER = "tier"


class TierProcess(LandProcess):
    module = "tests.support.fault.tier_process"

    def move(self, data_dir: Path) -> Outcome:
        """All files of the logs, to `cold_of`."""
        return self._run(TIER, data_dir, {})


def cold_of(data_dir: Path) -> Path:
    return data_dir / "cold"


def config_of(data_dir: Path) -> Config:
    tier = {"location": str(cold_of(data_dir)), "after_seconds": "1d"}
    maintain = {"tier": tier, "compact": {"enabled": False}}
    land = {"commit_deadline_seconds": 20}
    return Config.model_validate({"data_dir": data_dir, "land": land, "maintain": maintain})


def _work(what: str, data_dir: str, settings: dict[str, Any]) -> None:
    if what != TIER:
        land_process._work(what, data_dir, settings)
        return
    try:
        with contextlib.closing(open_catalog(config_of(Path(data_dir)))) as catalog:
            recover_tables(catalog)
            maintainer = Maintainer(
                config_of(Path(data_dir)),
                catalog,
                LocalRunner(),
                MaintainMetrics(Metrics().registry),
                clock=lambda: time.time() + 30 * DAY,
            )
            report = maintainer.run("tier", "logs")
    except Exception as error:
        say_facts(error=repr(error))
        raise
    say_facts(steps=[], files=report.files_in)


def main() -> None:
    # Once, here, and not in every child.
    import pyiceberg.avro.decoder_fast  # noqa: F401
    import sqlalchemy.dialects.sqlite  # noqa: F401

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    serve(_work)


if __name__ == "__main__":
    main()
