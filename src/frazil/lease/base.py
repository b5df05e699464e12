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
    """Returns the lease of a job on the write-ahead log. It is kept where all processes meet that read the
    same log: on this machine's disk for a local log, in the bucket for one on S3, with the tables for Kafka.
    """
    if config.wal.type == "s3":
        from frazil.lease.epochs import EpochLease, StoreEpochs
        from frazil.wal.store import open_bucket

        seconds = config.pipeline.lease_seconds
        # A sign of life that does not get through must not block its holder for the whole lease.
        epochs = StoreEpochs(open_bucket(config.wal.s3, seconds / 3), name)
        return EpochLease(epochs, seconds, boot_seconds, holder=this_process())
    if config.wal.type == "local":
        return _local_lease(config, name)
    return open_lake_lease(config, name)


def open_lake_lease(config: Config, name: str) -> Lease:
    """Returns the lease of a job on the lake, kept where its catalog is: on this machine's disk, or in a
    table that all machines see.
    """
    if config.lake.catalog.type == "sqlite":
        return _local_lease(config, name)
    from frazil.lease.epochs import EpochLease
    from frazil.lease.table import TableEpochs

    seconds = config.pipeline.lease_seconds
    return EpochLease(TableEpochs(config, name), seconds, boot_seconds, holder=this_process())


def _local_lease(config: Config, name: str) -> Lease:
    from frazil.lease.local import LocalLease

    return LocalLease(config.data_dir / "lease", name)


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
