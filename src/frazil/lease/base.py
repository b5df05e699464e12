"""The protocol of a lease, the choice of its implementation, and the thread that renews it."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from typing import Protocol

import structlog

from frazil.config import Config
from frazil.wal.clock import boot_seconds
from frazil.wal.store import open_bucket

log = structlog.get_logger("frazil.lease")


class Lease(Protocol):
    """A lease. Used from one thread at a time, but `applications` may be set from any.

    `applications`: ids of the holder's Spark applications, published with each heartbeat. After `acquire`
    they are those of the previous holder, which may still occupy a cluster's cores. `lost`: why this process
    lost the lease; empty if it has not.
    """

    applications: tuple[str, ...]
    lost: str

    def acquire(self) -> bool:
        """Tries once, without waiting. Returns True if this process holds the lease, False if another does.
        Raises StoreUnavailable if neither is known.
        """
        ...

    def renew(self) -> bool:
        """Sends a heartbeat. Call it more often than every third of the lease time. Returns False if the
        lease is lost.
        """
        ...

    def release(self) -> None:
        """Releases the lease, if this process holds it."""
        ...


def open_lease(config: Config, name: str = "pipeline") -> Lease:
    """Returns the lease of a job. It is stored where all processes that share the log and the tables see it:
    on the local disk, in the log's bucket, or in a table of the catalog.
    """
    kind, catalog = config.wal.type, config.lake.catalog.type
    if kind == "local" or (kind == "kafka" and catalog == "sqlite"):
        from frazil.lease.local import LocalLease

        return LocalLease(config.data_dir / "lease", name)
    from frazil.lease.epochs import EpochLease, Epochs, StoreEpochs

    seconds = config.pipeline.lease_seconds
    epochs: Epochs
    if kind == "s3":
        # A heartbeat that fails must not block its holder for the whole lease time.
        epochs = StoreEpochs(open_bucket(config.wal.s3, seconds / 3), name)
    else:
        from frazil.lease.table import TableEpochs

        epochs = TableEpochs(config, name)
    return EpochLease(epochs, seconds, boot_seconds, holder=this_process())


def this_process() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


class LeaseRenewer:
    """A thread that renews a lease while another thread works. Calls `on_lost` from its thread when the lease
    is lost.
    """

    def __init__(
        self, lease: Lease, interval_seconds: float, on_lost: Callable[[], None] = lambda: None
    ) -> None:
        self._lease = lease
        self._interval = interval_seconds
        self._on_lost = on_lost
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self.held = True

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._interval):
            try:
                if self._lease.renew():
                    continue
            except Exception as error:
                log.warning("lease heartbeat failed", reason=str(error))
                continue
            self.held = False
            self._on_lost()
            return
