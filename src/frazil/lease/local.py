"""A lease on one machine: a file lock."""

from __future__ import annotations

import contextlib
import fcntl
import os
import weakref
from pathlib import Path

from frazil.errors import StoreUnavailable
from frazil.lease.base import this_process

_held: weakref.WeakSet[LocalLease] = weakref.WeakSet()


def _close_in_child() -> None:
    """Closes the lock files: a forked child would keep its parent's lock after the parent's death."""
    for lease in list(_held):
        lease.close()


os.register_at_fork(after_in_child=_close_in_child)


class LocalLease:
    """A file lock, which ends when its holder ends. The file names the holder."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / f"{name}.lock"
        self._descriptor: int | None = None
        # Always empty: when the lock is free, its holder and the holder's Spark application have ended.
        self.applications: tuple[str, ...] = ()
        self.lost = ""

    def acquire(self) -> bool:
        if self.renew():
            return True
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise StoreUnavailable(f"{self._path} cannot be opened: {error.strerror or error}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # another process holds it
            os.close(descriptor)
            return False
        self._descriptor, self.lost = descriptor, ""
        _held.add(self)
        with contextlib.suppress(OSError):  # on a full disk the lock works without the holder's name
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, f"{this_process()}\n".encode(), 0)
        return self.renew()

    def renew(self) -> bool:
        """Checks the lease, which is lost if its file was removed or replaced: another process can lock the
        new file.
        """
        if self._descriptor is None:
            return False
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(self._descriptor), self._path.stat()):
                return True
        self.lost = f"{self._path} was removed or replaced"
        self.release()
        return False

    def release(self) -> None:
        """Releases the lock and keeps the file: another process may have opened the file to lock it."""
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self.close()

    def close(self) -> None:
        """Closes the file without unlocking it: a forked process may share the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        _held.discard(self)
