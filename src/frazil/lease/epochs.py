"""A lease between machines: each sign of life is a new epoch, added only if the one before is the newest.

A contender that has seen the same newest epoch for `lease_seconds` adds the next one; a holder that finds its
next one taken has lost. Each clock is compared with itself only.
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
        """Returns an epoch's data; nothing if it was overtaken meanwhile."""
        ...

    def add(self, epoch: int, data: bytes) -> bool:
        """Adds an epoch. Returns True also if it exists with the same data: an earlier attempt whose answer
        was lost. Returns False if another process has added it, or has come further already.
        """
        ...


class StoreEpochs:
    """Each epoch is an object, created only if absent. The newest is never deleted: a process that creates
    one and then sees none above it was not overtaken while it slept.
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
        with contextlib.suppress(StoreUnavailable):  # the next time, then
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
class _Sign:
    """A sign of life. While its outcome is unknown it is given again with the same bytes."""

    epoch: int
    data: bytes


@dataclass(frozen=True)
class _Rival:
    """The newest epoch of another process, and since when it has been the newest by our clock."""

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
        self._epoch: int | None = None  # of our last sign of life; None while we do not hold the lease
        self._alive = 0.0  # when that sign was begun
        self._unsettled: _Sign | None = None
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
            if not self._epochs.add(sign.epoch, sign.data):
                return self._lose("another process has taken it")
        except StoreUnavailable as error:
            if self._clock() - self._alive >= self._lease_seconds:
                return self._lose(str(error))
            return True
        self._hold(sign.epoch, begun)
        return True

    def release(self) -> None:
        """Says so in a last epoch, so that others need not wait until they are sure."""
        if self._epoch is None:
            return
        last = self._sign(self._epoch + 1, released=True)
        self._epoch = self._unsettled = None
        with contextlib.suppress(StoreUnavailable):  # then they wait
            self._epochs.add(last.epoch, last.data)

    def _contend(self) -> bool:
        asked = self._clock()
        newest = self._epochs.newest()
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
        sign = self._sign(newest + 1)
        if not self._epochs.add(sign.epoch, sign.data):
            return False
        self._rival, self.lost = None, ""
        self._hold(sign.epoch, begun)
        log.info("lease acquired", lease=self._epochs.where, epoch=sign.epoch)
        return True

    def _hold(self, epoch: int, begun: float) -> None:
        self._epoch, self._alive, self._unsettled = epoch, begun, None

    def _lose(self, reason: str) -> bool:
        log.warning("lease lost", lease=self._epochs.where, epoch=self._epoch, reason=reason)
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
            facts = json.loads(self._epochs.read(epoch) or b"{}")
        except ValueError:
            return {}
        return facts if isinstance(facts, dict) else {}
