"""A folder as the WAL's store: temporary file, fsync, link, fsync of the folder."""

from __future__ import annotations

import contextlib
import errno
import heapq
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from frazil.durable import DurableFolders, fsync_folder, write_synced
from frazil.errors import StoreUnavailable
from frazil.stopwatch import timed, timed_listing
from frazil.wal.store import Entry

_INCOMING = ".incoming"
_ABANDONED_SECONDS = 3600.0
_LINK_ATTEMPTS_MAX = 3
_LISTED_AT_ONCE_MAX = 50_000


class LocalStore:
    """`link` fails if the name exists, atomically, which `rename` does not: it is the conditional write."""

    def __init__(self, root: Path, free_bytes_min: int = 0) -> None:
        self.root = root
        self._free_bytes_min = free_bytes_min
        self._folders = DurableFolders()

    def describe(self) -> str:
        return str(self.root)

    @timed("wal", "put")
    def create(self, path: str, data: bytes) -> None:
        target = self.root / path
        temporary = self.root / _INCOMING / f"{secrets.token_hex(16)}.tmp"
        try:
            self._check_room(len(data))
            self._folders.make(temporary.parent)
            self._folders.make(target.parent)
            write_synced(temporary, data)
            taken = False
            try:
                self._link(temporary, target)
            except FileExistsError:
                taken = target.read_bytes() != data
            fsync_folder(target.parent)
        except OSError as error:  # also where a file stands in a folder's place: that is no rival's segment
            raise StoreUnavailable(f"{self.root} cannot take data: {error.strerror or error}") from error
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()
        if taken:
            raise FileExistsError(path)

    def _link(self, temporary: Path, target: Path) -> None:
        """Clean-up may remove the folder of a stream at any moment: it is made again then."""
        for _ in range(_LINK_ATTEMPTS_MAX - 1):
            with contextlib.suppress(FileNotFoundError):
                return os.link(temporary, target)
            self._folders.make(target.parent)
        return os.link(temporary, target)

    def _check_room(self, size: int) -> None:
        if not self._free_bytes_min:
            return
        place = self.root
        while not place.exists():
            place = place.parent
        usage = os.statvfs(place)
        free = usage.f_bavail * usage.f_frsize
        if free - size < self._free_bytes_min:
            raise StoreUnavailable(
                f"only {free // 2**20} MiB are free at {self.root}, and wal.local.free_bytes_min keeps "
                f"{self._free_bytes_min // 2**20} MiB; free some space",
                retry_after_seconds=5,
            )

    def now(self) -> float:
        """The time that the file system gives a new file: on a network file system, the server's."""
        place = self.root / _INCOMING / f"clock.{secrets.token_hex(8)}.tmp"
        try:
            self._folders.make(place.parent)
            try:
                place.touch(exist_ok=False)
                return place.stat().st_mtime
            finally:
                place.unlink(missing_ok=True)
        except OSError as error:
            raise StoreUnavailable(f"{self.root} cannot take data: {error.strerror or error}") from error

    @timed("wal", "get")
    def read(self, path: str) -> bytes:
        try:
            return (self.root / path).read_bytes()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StoreUnavailable(f"{self.root / path} cannot be read: {error.strerror or error}") from error

    @timed_listing("wal")
    def list(self, prefix: str, after: str | None = None) -> Iterator[Entry]:
        return self._below(prefix, after or "")

    def _below(self, prefix: str, after: str) -> Iterator[Entry]:
        """A folder that holds more than can be kept in memory is read again for each part of it."""
        last, is_left = "", True
        while is_left:
            # A folder's key ends with a slash: so keys sort as paths do.
            wanted = (
                key
                for key in self._keys(prefix)
                if key > last and (f"{prefix}{key}" > after or after.startswith(f"{prefix}{key}"))
            )
            keys = heapq.nsmallest(_LISTED_AT_ONCE_MAX, wanted)
            is_left = len(keys) == _LISTED_AT_ONCE_MAX
            for key in keys:
                path = f"{prefix}{key}"
                if key.endswith("/"):
                    yield from self._below(path, after)
                elif path > after:
                    with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                        about = os.stat(f"{self.root}/{path}")
                        yield Entry(path, about.st_size, about.st_mtime)
            last = keys[-1] if keys else last

    @timed("wal", "list")
    def children(self, prefix: str) -> Sequence[str]:
        return sorted(key[:-1] for key in self._keys(prefix) if key.endswith("/"))

    def _keys(self, prefix: str) -> Iterator[str]:
        """The names in a folder, in no order; those of folders end with a slash.

        What was deleted meanwhile is not there; a folder that cannot be read must not look empty.
        """
        try:
            with os.scandir(self.root / prefix) as found:
                for child in found:
                    if not child.name.startswith("."):
                        yield child.name + "/" * child.is_dir(follow_symlinks=False)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreUnavailable(
                f"{self.root / prefix} cannot be listed: {error.strerror or error}"
            ) from error

    def delete(self, path: str) -> None:
        self.delete_all([path])

    @timed("wal", "delete")
    def delete_all(self, paths: Sequence[str]) -> None:
        """One fsync for each folder, and not for each file."""
        targets = [self.root / path for path in paths]
        try:
            for target in targets:
                target.unlink(missing_ok=True)
            for folder in {target.parent for target in targets}:
                with contextlib.suppress(FileNotFoundError):
                    fsync_folder(folder)
        except OSError as error:
            raise StoreUnavailable(
                f"{error.filename or self.root} cannot be deleted: {error.strerror or error}"
            ) from error

    def remove_folder(self, path: str) -> None:
        """A writer that is about to create something in it makes it again."""
        folder = self.root / path
        try:
            with contextlib.suppress(FileNotFoundError):
                self._remove_empty(folder)
                fsync_folder(folder.parent)  # also when it was gone: see DurableFolders
        except OSError as error:
            raise StoreUnavailable(f"{folder} cannot be removed: {error.strerror or error}") from error

    def _remove_empty(self, folder: Path) -> None:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            fsync_folder(folder)

    def remove_abandoned(self, now_seconds: float | None = None) -> int:
        """Deletes temporary files that a killed writer left behind; the young ones may be in use."""
        now = time.time() if now_seconds is None else now_seconds
        removed = 0
        for place in (self.root / _INCOMING).glob("*.tmp"):
            with contextlib.suppress(OSError):  # gone already, or not to be removed: no reason to fail
                if now - place.stat().st_mtime > _ABANDONED_SECONDS:
                    place.unlink()
                    removed += 1
        return removed
