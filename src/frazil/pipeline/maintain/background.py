"""Maintenance beside landing: a thread of the pipeline that does what is due, round after round."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import structlog
from pyspark.sql import SparkSession

from frazil.config import Config
from frazil.errors import reason_of
from frazil.lake.catalog import open_catalog
from frazil.pipeline.maintain.maintainer import Maintainer, Memory
from frazil.pipeline.maintain.metrics import MaintainMetrics
from frazil.pipeline.runner import SparkRunner
from frazil.wal.lease import Keeper, Lease, open_lease

LEASE = "maintain"
_LOOK_SECONDS = 5.0
_STOP_SECONDS = 10.0

log = structlog.get_logger("frazil.maintain")


class Background:
    """A round at a time, each under a lease, so that a command on the same lake finds its turn in between.

    The lease saves work and nothing else: two maintainers at once do no harm.
    """

    def __init__(
        self, config: Config, start_spark: Callable[[], SparkSession], metrics: MaintainMetrics
    ) -> None:
        self._config = config
        self._start_spark = start_spark
        self._metrics = metrics
        self._stopping = threading.Event()
        self._memory = Memory()
        self._said = ""
        self._maintainer: Maintainer | None = None
        self._thread = threading.Thread(target=self._run, name="maintain", daemon=True)

    def start(self) -> None:
        if self._config.maintain.enabled:
            self._thread.start()

    def stop(self) -> None:
        """Calls off what runs on Spark; a commit that is under way is finished."""
        self._stopping.set()
        if self._maintainer is not None:
            self._maintainer.stop()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)

    @property
    def held(self) -> dict[str, str]:
        """Why retention waits for a confirmation, by table."""
        return {f"retention of {table}": why for table, why in dict(self._memory.held).items()}

    def _run(self) -> None:
        compact = self._config.maintain.compact
        pause = min(_LOOK_SECONDS, compact.interval_seconds)
        lease = open_lease(self._config, LEASE)
        while not self._stopping.wait(pause):
            try:
                with contextlib.closing(open_catalog(self._config)) as catalog:
                    runner = SparkRunner(self._start_spark, "maintain", compact.parallel_tasks)
                    self._maintainer = Maintainer(
                        self._config, catalog, runner, self._metrics, memory=self._memory
                    )
                    self._rounds(lease, self._maintainer, pause)
            except Exception as error:
                if (reason := reason_of(error)) != self._said:  # every few seconds it would bury the rest
                    log.warning("maintenance failed; trying again", reason=reason)
                self._said = reason
                log.debug("maintenance failed", exc_info=error)

    def _rounds(self, lease: Lease, maintainer: Maintainer, pause: float) -> None:
        while not self._stopping.wait(pause):
            if not lease.acquire():
                continue  # a command, or another machine's pipeline, is at it
            with kept(lease, self._config.pipeline.lease_seconds):
                maintainer.round()
            self._said = ""


@contextlib.contextmanager
def kept(lease: Lease, lease_seconds: float) -> Iterator[None]:
    """Gives signs of life while the block runs, and gives it back at the end. A lease that is lost meanwhile
    does no harm.
    """
    keeper = Keeper(lease, lease_seconds / 3)
    keeper.start()
    try:
        yield
    finally:
        keeper.stop()
        lease.release()
