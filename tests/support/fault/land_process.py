"""Landing in processes that can be killed; `LandProcess` controls them.

Everything is the real thing but Spark: the very function that its tasks run is called here, in the child.
"""

from __future__ import annotations

import contextlib
import json
import select
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from frazil.config import Config
from frazil.lake.catalog import ensure_namespace, open_catalog
from frazil.lake.state.recover import recover_tables
from frazil.pipeline.land.lander import Lander
from frazil.pipeline.land.segments import SegmentSource
from frazil.pipeline.metrics import Metrics
from frazil.wal.reader import WalReader
from frazil.wal.store import open_store
from tests.support.fault.forks import Forks, say_facts, serve
from tests.support.fault.land_power import recorded
from tests.support.local_runner import LocalRunner
from tests.support.upkeep import Upkeep
from tests.support.wal_stores import HandClock

_STEPS_MAX = 30
_ROUNDS = 5


@dataclass(frozen=True)
class Outcome:
    """`returncode` is the child's: -9 after SIGKILL, 1 after an error. `steps` is what `Lander.step` said."""

    returncode: int
    steps: tuple[str, ...] = ()
    error: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


class LandProcess(Forks):
    module = "tests.support.fault.land_process"

    def land(self, data_dir: Path, **settings: Any) -> Outcome:
        """A pipeline's start, then steps until the table is idle. `settings` are of `land`."""
        return self._run("land", data_dir, settings)

    def keep_up(self, data_dir: Path, **settings: Any) -> Outcome:
        """Landing with upkeep after it, round after round: streams end, their segments go, the position
        forgets them.
        """
        return self._run("keep up", data_dir, settings)

    def trace(self, data_dir: Path, into: Path, **settings: Any) -> Outcome:
        """As `keep_up`, with every file operation recorded: see land_power.py."""
        return self._run("trace", data_dir, {"into": str(into), **settings})

    def begin_landing(self, data_dir: Path, **settings: Any) -> None:
        """As `land`, for tests that do something meanwhile; `ended` waits for it."""
        self._begin("land", data_dir, settings)

    def has_ended(self) -> bool:
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], 0)[0])

    def ended(self) -> Outcome:
        said = self.facts()
        return Outcome(said["returncode"], tuple(said.get("steps", ())), said.get("error", ""), said)

    def _run(self, what: str, data_dir: Path, settings: Mapping[str, Any]) -> Outcome:
        self._begin(what, data_dir, settings)
        return self.ended()

    def _begin(self, what: str, data_dir: Path, settings: Mapping[str, Any]) -> None:
        self.say(json.dumps({"what": what, "data_dir": str(data_dir), "settings": settings}))


class Pipeline:
    """What `frazil.pipeline.run` puts together, for the table of logs."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.catalog = open_catalog(config)
        ensure_namespace(self.catalog, config.lake.namespace)
        self.recovered = recover_tables(self.catalog)
        self.store = open_store(config)
        self.clock = HandClock()
        self.metrics = Metrics()
        reader = WalReader(self.store)
        source = SegmentSource(config, "logs", reader)
        self.lander = Lander(config, "logs", self.catalog, source, LocalRunner(), self.metrics, reader=reader)
        self.upkeep = Upkeep(config, self.store, self.metrics, clock=self.clock)

    def land(self) -> list[str]:
        steps: list[str] = []
        while not steps or steps[-1] != "idle":
            assert len(steps) < _STEPS_MAX, steps
            steps.append(self.lander.step(now_due=True))
        return steps

    def keep_up(self) -> list[str]:
        steps = []
        for _ in range(_ROUNDS):
            steps += self.land()
            gone = self.upkeep.round("logs", self.lander.checkpoint().table.metadata)
            self.lander.drop_streams(gone)
            self.clock.seconds += self.config.land.stream_idle_seconds
        return steps


def _work(what: str, data_dir: str, settings: dict[str, Any]) -> None:
    trace = settings.pop("into", None)
    land = {"wal_grace_seconds": 0, "commit_deadline_seconds": 20, **settings}
    config = Config.model_validate({"data_dir": data_dir, "land": land})
    with contextlib.ExitStack() as stack:
        if trace is not None:
            stack.enter_context(recorded(Path(data_dir), config.catalog_file, Path(trace)))
        try:
            pipeline = Pipeline(config)
            steps = pipeline.land() if what == "land" else pipeline.keep_up()
        except Exception as error:
            say_facts(error=repr(error))
            raise
    say_facts(steps=steps, recovered=[item.unreadable for item in pipeline.recovered])


def main() -> None:
    # Once, here, and not in every child.
    import pyiceberg.avro.decoder_fast  # noqa: F401
    import sqlalchemy.dialects.sqlite  # noqa: F401

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    serve(_work)


if __name__ == "__main__":
    main()
