"""A lease between machines: each heartbeat is a new epoch, added only if the previous one is the newest.

A process that has seen the same newest epoch for `lease_seconds` takes the lease by adding the next one. A
holder whose next epoch exists has lost the lease. Clocks of different machines are never compared.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import structlog

from frazil.errors import StoreUnavailable
from frazil.storage import Store
from frazil.wal.clock import Clock

log = structlog.get_logger("frazil.lease")


class Epochs(Protocol):
    """The epochs of one lease, numbered from 0. Every method may raise StoreUnavailable."""

    where: str

    def newest(self) -> int:
        """Returns the number of the newest epoch; -1 if there is none."""
        ...

    def read(self, epoch: int) -> bytes:
        """Returns an epoch's data; empty if a newer epoch has replaced it."""
        ...

    def add(self, epoch: int, data: bytes) -> bool:
        """Adds an epoch. Returns True also if it exists with the same data: an earlier attempt whose response
        was lost. Returns False if another process has added this epoch or a later one.
        """
        ...


class StoreEpochs:
    """Epochs as objects in a store, created with a conditional write. The newest is never deleted, so a
    process that creates an epoch and sees no later one holds the newest.
    """

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._old: list[int] = []
        self.where = f"lease/{name}/"

    def newest(self) -> int:
        self._old = self._epochs()
        return self._old[-1] if self._old else -1

    def read(self, epoch: int) -> bytes:
        try:
            return self._store.read(self._path(epoch))
        except FileNotFoundError:
            return b""

    def add(self, epoch: int, data: bytes) -> bool:
        path = self._path(epoch)
        try:
            self._store.create(path, data)
        except FileExistsError:
            return False
        if self._epochs(after=path):
            self._store.delete(path)
            return False
        with contextlib.suppress(StoreUnavailable):  # deleted at the next heartbeat
            self._store.delete_all([self._path(old) for old in self._old if old < epoch])
            self._old = []
        self._old.append(epoch)
        return True

    def _path(self, epoch: int) -> str:
        return f"{self.where}{epoch:020d}.json"

    def _epochs(self, after: str | None = None) -> list[int]:
        paths = (Path(entry.path) for entry in self._store.list(self.where, after))
        return sorted(int(path.stem) for path in paths if path.suffix == ".json" and path.stem.isdecimal())


@dataclass(frozen=True)
class _Heartbeat:
    """A heartbeat. While its outcome is unknown, it is sent again with the same bytes."""

    epoch: int
    data: bytes


@dataclass(frozen=True)
class _Holder:
    """The newest epoch of another process, and since when (this process's clock) it has been the newest."""

    epoch: int
    since: float
    released: bool
    applications: tuple[str, ...]


class EpochLease:
    def __init__(self, epochs: Epochs, lease_seconds: float, clock: Clock, holder: str) -> None:
        self._epochs = epochs
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._holder = holder
        self._epoch: int | None = None  # of the last heartbeat; None while the lease is not held
        self._renewed = 0.0  # when that heartbeat was begun
        self._unsettled: _Heartbeat | None = None
        self._other: _Holder | None = None
        self.applications: tuple[str, ...] = ()
        self.lost = ""

    def acquire(self) -> bool:
        if self._epoch is not None:
            return self.renew()
        return self._contend()

    def renew(self) -> bool:
        """While the store is unavailable, the lease is held until another process may have taken it."""
        if self._epoch is None:
            return False
        begun = self._clock()
        if begun - self._renewed < self._lease_seconds / 3:
            return True
        beat = self._unsettled = self._unsettled or self._heartbeat(self._epoch + 1)
        try:
            if not self._epochs.add(beat.epoch, beat.data):
                return self._lose("another process has taken it")
        except StoreUnavailable as error:
            if self._clock() - self._renewed >= self._lease_seconds:
                return self._lose(str(error))
            return True
        self._hold(beat.epoch, begun)
        return True

    def release(self) -> None:
        """Adds a last epoch marked as released, so that other processes need not wait for `lease_seconds`."""
        if self._epoch is None:
            return
        last = self._heartbeat(self._epoch + 1, released=True)
        self._epoch = self._unsettled = None
        with contextlib.suppress(StoreUnavailable):  # other processes then wait
            self._epochs.add(last.epoch, last.data)

    def _contend(self) -> bool:
        requested = self._clock()
        newest = self._epochs.newest()
        if self._other is None or self._other.epoch != newest:
            facts = self._facts(newest)
            released = newest < 0 or facts.get("released") is True
            applications = tuple(map(str, facts.get("applications", ())))
            # Since now, not since `requested`: the epoch may have been added during the request.
            self._other = _Holder(newest, self._clock(), released, applications)
        if not self._other.released and requested - self._other.since < self._lease_seconds:
            return False
        begun = self._clock()
        # Published again with the first heartbeat: this process may end before it has stopped them.
        self.applications = self._other.applications
        beat = self._heartbeat(newest + 1)
        if not self._epochs.add(beat.epoch, beat.data):
            return False
        self._other, self.lost = None, ""
        self._hold(beat.epoch, begun)
        log.info("lease acquired", lease=self._epochs.where, epoch=beat.epoch)
        return True

    def _hold(self, epoch: int, begun: float) -> None:
        self._epoch, self._renewed, self._unsettled = epoch, begun, None

    def _lose(self, reason: str) -> bool:
        log.warning("lease lost", lease=self._epochs.where, epoch=self._epoch, reason=reason)
        self._epoch = self._unsettled = None
        self.lost = reason
        return False

    def _heartbeat(self, epoch: int, *, released: bool = False) -> _Heartbeat:
        facts = {
            "holder": self._holder,
            "released": released,
            "applications": self.applications,
            "nonce": secrets.token_hex(16),
        }
        return _Heartbeat(epoch, json.dumps(facts).encode())

    def _facts(self, epoch: int) -> dict[str, Any]:
        """Returns an empty dictionary for an epoch that a newer one has replaced, or that is not JSON."""
        try:
            facts = json.loads(self._epochs.read(epoch) or b"{}")
        except ValueError:
            return {}
        return facts if isinstance(facts, dict) else {}
