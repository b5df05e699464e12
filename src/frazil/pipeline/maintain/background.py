"""Maintenance as a step of the pipeline."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

from frazil.config import Config
from frazil.lake.catalog import open_catalog
from frazil.lease import Lease, LeaseRenewer, open_lease
from frazil.pipeline.maintain.maintainer import Maintainer, Memory
from frazil.pipeline.maintain.metrics import MaintainMetrics
from frazil.pipeline.runner import Runner
from frazil.pipeline.steps import Step

LEASE = "maintain"
_LOOK_SECONDS = 5.0


class MaintainStep(Step):
    """A round at a time, each under a lease, so that a command on the same lake finds its turn in between.

    The lease saves work and nothing else: two maintainers at once do no harm.
    """

    part = "maintenance"
    pool = "maintain"

    def __init__(self, config: Config, make_runner: Callable[..., Runner], metrics: MaintainMetrics) -> None:
        super().__init__()
        self._config = config
        self._make_runner = make_runner
        self._metrics = metrics
        self._memory = Memory()
        self._lease = open_lease(config, LEASE)
        self._opened = contextlib.ExitStack()
        self._maintainer: Maintainer | None = None

    @property
    def waiting(self) -> Mapping[str, str]:
        """Why retention waits for a confirmation, by table."""
        return {f"retention of {table}": why for table, why in dict(self._memory.held).items()}

    def run(self) -> float:
        maintainer = self._maintainer or self._open()
        self.check_cancelled()
        # If the lease is not free, a command or another machine's pipeline maintains the tables. Acquiring it
        # may write to the catalog: only for work.
        if maintainer.is_anything_due() and self._lease.acquire():
            with kept(self._lease, self._config.pipeline.lease_seconds):
                maintainer.round()
        return min(_LOOK_SECONDS, self._config.maintain.compact.interval_seconds)

    def _open(self) -> Maintainer:
        catalog = self._opened.enter_context(contextlib.closing(open_catalog(self._config)))
        runner = self._make_runner(self.pool, self._config.maintain.compact.parallel_tasks)
        self._maintainer = Maintainer(self._config, catalog, runner, self._metrics, memory=self._memory)
        return self._maintainer

    def reset(self) -> None:
        self._maintainer = None
        self._opened.close()

    def cancel(self) -> None:
        """Calls off what runs on Spark; a commit that is under way is finished."""
        super().cancel()
        if (maintainer := self._maintainer) is not None:
            maintainer.stop()


@contextlib.contextmanager
def kept(lease: Lease, lease_seconds: float) -> Iterator[None]:
    """Renews the lease while the block runs, and releases it at the end. Losing it meanwhile is harmless."""
    renewer = LeaseRenewer(lease, lease_seconds / 3)
    renewer.start()
    try:
        yield
    finally:
        renewer.stop()
        lease.release()
