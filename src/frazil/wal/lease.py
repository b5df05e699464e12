"""Of several pipelines one works: who does, is settled by a lease.

A lease saves work and nothing else. Correctness rests on the catalog's compare-and-swap: a holder that was
stopped and wakes up may do something once more before it learns that it has lost.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import socket
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import structlog

from frazil.config import Config
from frazil.errors import StoreUnavailable
from frazil.storage import Store
from frazil.wal.clock import Clock, boot_seconds
from frazil.wal.store import open_bucket

log = structlog.get_logger("frazil.wal")


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
    """With Kafka there is no store that could hold one: it covers the pipelines of this machine then."""
    if config.wal.type != "s3":
        return LocalLease(config.data_dir / "lease", name)
    lease_seconds = config.pipeline.lease_seconds
    # A sign of life that does not get through must not block its holder for the whole lease.
    store = open_bucket(config.wal.s3, lease_seconds / 3)
    return StoreLease(store, name, lease_seconds, boot_seconds, holder=_this_process())


def _this_process() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


_held: weakref.WeakSet[LocalLease] = weakref.WeakSet()


def _forget_in_child() -> None:
    """A forked child would keep its parent's lease alive after the parent's death."""
    for lease in list(_held):
        lease.close()


os.register_at_fork(after_in_child=_forget_in_child)


class LocalLease:
    """A lock on a file, which ends with its holder, however that dies. The file says who holds it."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / f"{name}.lock"
        self._descriptor: int | None = None
        # A lock is free only when its holder has ended, and its Spark application with it.
        self.applications: tuple[str, ...] = ()
        self.lost = ""

    def acquire(self) -> bool:
        if self.keep():
            return True
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise StoreUnavailable(f"{self._path} cannot be opened: {error.strerror or error}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # another holds it
            os.close(descriptor)
            return False
        self._descriptor, self.lost = descriptor, ""
        _held.add(self)
        with contextlib.suppress(OSError):  # a full disk: people learn less, the lock holds
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, f"{_this_process()}\n".encode(), 0)
        return self.keep()

    def keep(self) -> bool:
        """A lock on a file that somebody has removed or replaced keeps nobody else away: it is lost."""
        if self._descriptor is None:
            return False
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(self._descriptor), self._path.stat()):
                return True
        self.lost = f"{self._path} was removed or replaced"
        self.release()
        return False

    def release(self) -> None:
        """The file stays: who removes it takes the name from under a contender that has it open."""
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self.close()

    def close(self) -> None:
        """Lets go of the file without unlocking what another process may share."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        _held.discard(self)


@dataclass(frozen=True)
class _Sign:
    """A sign of life. While its outcome is unknown it is given again with the same bytes."""

    epoch: int
    data: bytes


@dataclass(frozen=True)
class _Rival:
    """The newest epoch of somebody else, and since when it has been the newest by our clock."""

    epoch: int
    since: float
    released: bool
    applications: tuple[str, ...]


class StoreLease:
    """Each sign of life is a new object, created only if absent, whose name is a higher epoch.

    A contender that has seen the same newest epoch for `lease_seconds` creates the next one; a holder that
    finds its next one taken has lost. Each clock is compared with itself only. The newest epoch is never
    deleted: whoever creates one and then sees none above it was not overtaken while it slept.
    """

    def __init__(self, store: Store, name: str, lease_seconds: float, clock: Clock, holder: str) -> None:
        self._store = store
        self._folder = f"lease/{name}/"
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._holder = holder
        self._epoch: int | None = None  # of our last sign of life; None while we do not hold the lease
        self._alive = 0.0  # when that sign was begun
        self._unsettled: _Sign | None = None
        self._old: list[int] = []
        self._rival: _Rival | None = None
        self.applications: tuple[str, ...] = ()
        self.lost = ""

    def acquire(self) -> bool:
        if self._epoch is not None:
            return self.keep()
        return self._contend()

    def keep(self) -> bool:
        """While the store does not answer, it is kept until another may have taken it."""
        if self._epoch is None:
            return False
        begun = self._clock()
        if begun - self._alive < self._lease_seconds / 3:
            return True
        sign = self._unsettled = self._unsettled or self._sign(self._epoch + 1)
        try:
            if not self._give(sign):
                return self._lose("another process has taken it")
        except StoreUnavailable as error:
            if self._clock() - self._alive >= self._lease_seconds:
                return self._lose(str(error))
            return True
        self._old.append(self._epoch)
        self._hold(sign.epoch, begun)
        return True

    def release(self) -> None:
        """Says so in a last epoch, so that others need not wait until they are sure."""
        if self._epoch is None:
            return
        last = self._sign(self._epoch + 1, released=True)
        self._epoch = self._unsettled = None
        with contextlib.suppress(StoreUnavailable, FileExistsError):  # then they wait
            self._store.create(self._path(last.epoch), last.data)

    def _contend(self) -> bool:
        asked = self._clock()
        epochs = self._epochs()
        newest = epochs[-1] if epochs else -1
        if self._rival is None or self._rival.epoch != newest:
            facts = self._facts(newest)
            released = newest < 0 or facts.get("released") is True
            applications = tuple(map(str, facts.get("applications", ())))
            # Since now, not since `asked`: it may have been created while we asked.
            self._rival = _Rival(newest, self._clock(), released, applications)
        if not self._rival.released and asked - self._rival.since < self._lease_seconds:
            return False
        begun = self._clock()
        # Published again with the first sign: this process may end before it has removed them.
        self.applications = self._rival.applications
        if not self._give(self._sign(newest + 1)):
            return False
        self._rival, self.lost = None, ""
        self._old = epochs
        self._hold(newest + 1, begun)
        log.info("lease acquired", lease=self._folder, epoch=newest + 1)
        return True

    def _give(self, sign: _Sign) -> bool:
        """False if another was faster, or has come further already and cleaned up behind itself."""
        path = self._path(sign.epoch)
        try:
            self._store.create(path, sign.data)
        except FileExistsError:
            return False
        if self._epochs(after=path):
            self._store.delete(path)
            return False
        return True

    def _hold(self, epoch: int, begun: float) -> None:
        self._epoch, self._alive, self._unsettled = epoch, begun, None
        with contextlib.suppress(StoreUnavailable):  # the next time, then
            self._store.delete_all([self._path(old) for old in self._old])
            self._old = []

    def _lose(self, reason: str) -> bool:
        log.warning("lease lost", lease=self._folder, epoch=self._epoch, reason=reason)
        self._epoch = self._unsettled = None
        self.lost = reason
        return False

    def _sign(self, epoch: int, *, released: bool = False) -> _Sign:
        facts = {
            "holder": self._holder,
            "released": released,
            "applications": self.applications,
            "nonce": secrets.token_hex(16),
        }
        return _Sign(epoch, json.dumps(facts).encode())

    def _facts(self, epoch: int) -> dict[str, Any]:
        """Returns an empty dictionary for an epoch that was overtaken meanwhile, or is none of ours."""
        try:
            facts = json.loads(self._store.read(self._path(epoch)))
        except (FileNotFoundError, ValueError):
            return {}
        return facts if isinstance(facts, dict) else {}

    def _path(self, epoch: int) -> str:
        return f"{self._folder}{epoch:020d}.json"

    def _epochs(self, after: str | None = None) -> list[int]:
        paths = (Path(entry.path) for entry in self._store.list(self._folder, after))
        return sorted(int(path.stem) for path in paths if path.suffix == ".json" and path.stem.isdecimal())


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
