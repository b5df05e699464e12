"""Expiry and the search for orphans in processes that can be killed; `ExpireProcess` controls them."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path

import structlog

from frazil.config import Config
from frazil.config.maintain import ExpireConfig
from frazil.lake.catalog import open_catalog
from frazil.lake.upkeep.expire import expire_old
from frazil.lake.upkeep.orphans import remove_orphans
from tests.support.fault.forks import Forks, say_facts, serve
from tests.support.lake.history import IDENTIFIER

DAY = 86_400.0


class ExpireProcess(Forks):
    module = "tests.support.fault.expire_process"

    def run(self, data_dir: Path) -> int:
        """Expires all that may go but one snapshot, then removes all orphans. The exit code."""
        self.say(json.dumps({"data_dir": str(data_dir)}))
        return int(self.facts()["returncode"])


def work(data_dir: str) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    config = ExpireConfig(snapshots_kept=1, kept_seconds=0, hourly_tags=2)
    with contextlib.closing(open_catalog(Config.model_validate({"data_dir": data_dir}))) as catalog:
        later = time.time() + 3600
        gone = expire_old(catalog, catalog.load_table(IDENTIFIER), config, clock=lambda: later)
        orphans = remove_orphans(catalog.load_table(IDENTIFIER), DAY, time.time() + 2 * DAY)
        say_facts(files=len(gone.files), orphans=len(orphans))


if __name__ == "__main__":
    serve(work)
