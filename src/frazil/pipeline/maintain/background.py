"""Maintenance as a step of the pipeline."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping

from frazil.config import Config
from frazil.errors import StoreUnavailable
from frazil.lake.catalog import open_catalog
from frazil.lake.views import load_views
from frazil.lease import Lease, LeaseRenewer, open_lease
from frazil.pipeline.maintain.maintainer import Maintainer, MaintenanceState
from frazil.pipeline.maintain.metrics import MaintainMetrics
from frazil.pipeline.runner import Runner
from frazil.pipeline.steps import Step

LEASE = "maintain"
_POLL_SECONDS = 5.0
_WAIT_SECONDS = 0.5


class MaintainStep(Step):
    """Runs maintenance rounds. Each round takes and releases a lease, so that commands can run in between.

    The lease only avoids wasted work: two maintainers at once are safe.
    """

    part = "maintenance"
    pool = "maintain"

    def __init__(
        self,
        config: Config,
        make_runner: Callable[..., Runner],
        metrics: MaintainMetrics,
        is_command_running: Callable[[], bool] = lambda: False,
    ) -> None:
        """While a command runs in this pipeline, no task begins."""
        super().__init__()
        self._is_command_running = is_command_running
        self._config = config
        self._make_runner = make_runner
        self._metrics = metrics
        self._state = MaintenanceState()
        self._lease = open_lease(config, LEASE)
        self._opened = contextlib.ExitStack()
        self._maintainer: Maintainer | None = None

    @property
    def waiting(self) -> Mapping[str, str]:
        """Tables whose retention waits for a confirmation, with the reason."""
        return {f"retention of {table}": why for table, why in dict(self._state.held).items()}

    def run(self) -> float:
        maintainer = self._maintainer or self._open()
        self.check_cancelled()
        # Acquiring the lease may write to the catalog, so it is done only if a task is due. If it is not
        # free, a command or another pipeline maintains the tables.
        if self._is_command_running():
            return _WAIT_SECONDS
        if maintainer.is_anything_due() and self._lease.acquire():
            with hold_lease(self._lease, self._config.pipeline.lease_seconds):
                maintainer.round(self._is_command_running)
        return min(_POLL_SECONDS, self._config.maintain.compact.interval_seconds)

    def _open(self) -> Maintainer:
        catalog = self._opened.enter_context(contextlib.closing(open_catalog(self._config)))
        load_views(catalog, self._config.lake.namespace)
        runner = self._make_runner(self.pool, self._config.maintain.compact.parallel_tasks)
        self._maintainer = Maintainer(self._config, catalog, runner, self._metrics, state=self._state)
        return self._maintainer

    def reset(self) -> None:
        self._maintainer = None
        self._opened.close()

    def cancel(self) -> None:
        """Cancels the running Spark jobs. Finishes the current commit."""
        super().cancel()
        if (maintainer := self._maintainer) is not None:
            maintainer.stop()


def wait_for_lease(
    lease: Lease, say: Callable[[str], None], sleep: Callable[[float], None] = time.sleep
) -> None:
    """Acquires the lease for a command. Waits for it, and says why."""
    said = ""
    while True:
        try:
            if lease.acquire():
                return
            reason = "maintenance is running; waiting for the end of its current task"
        except StoreUnavailable as error:
            reason = f"the maintenance lease cannot be acquired: {error}; retrying"
        if reason != said:
            say(reason)
            said = reason
        sleep(_WAIT_SECONDS)


@contextlib.contextmanager
def hold_lease(lease: Lease, lease_seconds: float) -> Iterator[None]:
    """Renews the lease while the block runs, and releases it at the end. Losing the lease is harmless."""
    renewer = LeaseRenewer(lease, lease_seconds / 3)
    renewer.start()
    try:
        yield
    finally:
        renewer.stop()
        lease.release()
