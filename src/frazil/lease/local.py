"""A lease on one machine: a lock on a file."""

from __future__ import annotations

import contextlib
import fcntl
import os
import weakref
from pathlib import Path

from frazil.errors import StoreUnavailable
from frazil.lease.base import this_process

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
            os.pwrite(descriptor, f"{this_process()}\n".encode(), 0)
        return self.keep()

    def keep(self) -> bool:
        """The lease is lost if its file was removed or replaced: another process can lock the new file."""
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
