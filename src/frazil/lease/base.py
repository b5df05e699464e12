"""The protocol of a lease, where each deployment keeps its leases, and the thread that keeps one."""

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
    """Used from one thread at a time; `applications` may be set from any.

    `applications`: ids of Spark applications, published with the signs of life. After `acquire` they are
    those of the previous holder, which may still hold a cluster's cores.
    `lost`: why the lease was lost, as far as this process knows; empty if it was not.
    """

    applications: tuple[str, ...]
    lost: str

    def acquire(self) -> bool:
        """Tries once, without waiting. Returns True also if the lease is held already, and False if another
        process holds it. Raises StoreUnavailable if that cannot be found out now.
        """
        ...

    def keep(self) -> bool:
        """Gives signs of life; to be called more often than every third of the lease. False: it is lost."""
        ...

    def release(self) -> None:
        """Safe when it is not held."""
        ...


def open_lease(config: Config, name: str = "pipeline") -> Lease:
    """Returns the lease of a job. It is kept where all processes meet that read the same log and write the
    same tables: on this machine's disk, in the log's bucket, or in a table of the catalog.
    """
    kind, catalog = config.wal.type, config.lake.catalog.type
    if kind == "local" or (kind == "kafka" and catalog == "sqlite"):
        from frazil.lease.local import LocalLease

        return LocalLease(config.data_dir / "lease", name)
    from frazil.lease.epochs import EpochLease, Epochs, StoreEpochs

    seconds = config.pipeline.lease_seconds
    epochs: Epochs
    if kind == "s3":
        # A sign of life that does not get through must not block its holder for the whole lease.
        epochs = StoreEpochs(open_bucket(config.wal.s3, seconds / 3), name)
    else:
        from frazil.lease.table import TableEpochs

        epochs = TableEpochs(config, name)
    return EpochLease(epochs, seconds, boot_seconds, holder=this_process())


def this_process() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


class Keeper:
    """Gives the lease's signs of life while another thread works. `on_lost` is called, from the keeper's
    thread, when the lease is lost.
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
                if self._lease.keep():
                    continue
            except Exception as error:
                log.warning("sign of life failed", reason=str(error))
                continue
            self.held = False
            self._on_lost()
            return
