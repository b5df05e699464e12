"""A store on a local file system: temporary file, fsync, link, fsync of the folder."""

from __future__ import annotations

import contextlib
import errno
import heapq
import os
import secrets
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, cast

import pyarrow as pa

from frazil.errors import StoreUnavailable
from frazil.storage.base import Entry, Listing, StoreName
from frazil.storage.durable import DurableFolders, fsync_file, fsync_folder, nearest_existing, write_synced
from frazil.storage.metrics import timed, timed_listing

_INCOMING = ".incoming"
_ABANDONED_SECONDS = 3600.0
_LINK_ATTEMPTS_MAX = 3
_LISTED_AT_ONCE_MAX = 50_000
# A stricter umask removes more. On a cluster's executors the umask may be looser.
_FILE_MODE = 0o640


class LocalStore:
    """A store in local folders. Its conditional write is `link`, which fails atomically if the name exists;
    `rename` would overwrite.

    Without a root, paths are absolute and a temporary file is written to the folder of its target. It is not
    hidden, so that the search for orphans removes it if its writer was killed. With a root, temporary files
    have their own folder, and names that begin with a dot are not part of the store.
    """

    def __init__(self, root: Path | None, free_bytes_min: int = 0, name: StoreName = "wal") -> None:
        self.name: StoreName = name
        self.root = Path("/") if root is None else root
        self._incoming = None if root is None else root / _INCOMING
        self._free_bytes_min = free_bytes_min
        self._folders = DurableFolders()

    def describe(self) -> str:
        return str(self.root)

    @timed("put")
    def create(self, path: str, data: bytes | memoryview, *, overwrite: bool = False) -> None:
        target = self.root / path
        temporary = self._temporary(target)
        taken = False
        with self._writing(target):
            self._check_room(len(data))
            try:
                try:
                    self._link(temporary, target, data, overwrite=overwrite)
                except FileExistsError:
                    taken = target.read_bytes() != data
                fsync_folder(target.parent)
            finally:
                with contextlib.suppress(OSError):
                    temporary.unlink()
        if taken:
            raise _taken(target)

    def _link(self, temporary: Path, target: Path, data: bytes | memoryview, *, overwrite: bool) -> None:
        """Raises FileExistsError only if the target exists. Creates a folder again that clean-up has
        removed during the write.
        """
        for _ in range(_LINK_ATTEMPTS_MAX):
            with contextlib.suppress(FileNotFoundError):
                self._folders.make(temporary.parent)
                self._folders.make(target.parent)
                write_synced(temporary, data, _FILE_MODE)
                return os.replace(temporary, target) if overwrite else os.link(temporary, target)
            self._folders.forget(target.parent)
            temporary.unlink(missing_ok=True)
        raise StoreUnavailable(
            f"{target.parent} was removed by another process {_LINK_ATTEMPTS_MAX} times after its creation"
        )

    def _temporary(self, target: Path) -> Path:
        if self._incoming is not None:
            return self._incoming / f"{secrets.token_hex(16)}.tmp"
        return target.with_name(f"{target.name}.{secrets.token_hex(8)}.tmp")

    def _check_room(self, size: int) -> None:
        if not self._free_bytes_min:
            return
        usage = os.statvfs(nearest_existing(self.root))
        free = usage.f_bavail * usage.f_frsize
        if free - size < self._free_bytes_min:
            raise StoreUnavailable(
                f"only {free // 2**20} MiB are free at {self.root}, but wal.local.free_bytes_min reserves "
                f"{self._free_bytes_min // 2**20} MiB; free some space",
                retry_after_seconds=5,
            )

    def temporary(self, path: str) -> Path:
        target = self.root / path
        temporary = self._temporary(target)
        with self._writing(target):
            self._folders.make(temporary.parent)
            self._folders.make(target.parent)
        return temporary

    @timed("put")
    def publish(self, path: str, local_file: Path, storage_class: str | None = None) -> None:
        target = self.root / path
        taken = False
        with self._writing(target):
            try:
                os.chmod(local_file, stat.S_IMODE(os.stat(local_file).st_mode) & _FILE_MODE)
                fsync_file(local_file)
                os.link(local_file, target)
            except FileExistsError:
                taken = True
            finally:
                with contextlib.suppress(OSError):
                    local_file.unlink()
            fsync_folder(target.parent)
        if taken:
            raise _taken(target)

    @timed("get")
    def read(self, path: str) -> bytes:
        with self._failures(path, "read"):
            return (self.root / path).read_bytes()

    @timed("get")
    def open(self, path: str) -> IO[bytes]:
        with self._failures(path, "read"):
            return cast(IO[bytes], pa.OSFile(str(self.root / path)))

    def local(self, path: str) -> contextlib.nullcontext[Path]:
        return contextlib.nullcontext(self.root / path)

    @timed("head")
    def size(self, path: str) -> int:
        with self._failures(path, "read"):
            return os.stat(self.root / path).st_size

    @timed_listing
    def list(self, folder: str, after: str | None = None) -> Iterator[Entry]:
        return self._below(_prefix(folder), after or "")

    def _below(self, prefix: str, after: str) -> Iterator[Entry]:
        """Reads a folder with too many names for memory several times, a part at a time."""
        last, is_left = "", True
        while is_left:
            # The key of a folder ends with a slash, so that keys sort like paths.
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
                elif path > after and (entry := self._entry(path)) is not None:
                    yield entry
            last = keys[-1] if keys else last

    def _entry(self, path: str) -> Entry | None:
        """Returns None if the path is not a file, or was deleted after it was listed."""
        with contextlib.suppress(FileNotFoundError), self._failures(path, "listed"):
            status = os.lstat(os.path.join(self.root, path))
            if stat.S_ISREG(status.st_mode):
                # A data file that was moved here counts as new, so that it is not deleted as an orphan. A
                # segment of a restored log keeps its age.
                is_segment = self.name == "wal"
                changed = status.st_mtime if is_segment else max(status.st_mtime, status.st_ctime)
                return Entry(path, status.st_size, changed)
        return None

    def _keys(self, prefix: str) -> Iterator[str]:
        """Yields the names in a folder, in no order. Names of folders end with a slash."""
        with self._scanned(prefix) as found:
            for child in found:
                yield child.name + "/" * child.is_dir(follow_symlinks=False)

    @timed("list")
    def children(self, folder: str) -> Listing:
        with self._scanned(folder) as found:
            children = sorted(found, key=lambda child: child.name)
            return Listing(
                folders=tuple(child.name for child in children if child.is_dir()),
                files=tuple(child.name for child in children if child.is_file()),
            )

    @contextlib.contextmanager
    def _scanned(self, folder: str) -> Iterator[Iterator[os.DirEntry[str]]]:
        """Treats a missing folder as empty, but raises for an unreadable one."""
        skips_hidden = self._incoming is not None
        with self._failures(folder, "listed"), contextlib.ExitStack() as closing:
            found: Iterator[os.DirEntry[str]] = iter(())
            with contextlib.suppress(FileNotFoundError):
                found = closing.enter_context(os.scandir(self.root / folder))
            yield (child for child in found if not (skips_hidden and child.name.startswith(".")))

    def delete(self, path: str) -> None:
        self.delete_all([path])

    @timed("delete")
    def delete_all(self, paths: Sequence[str]) -> None:
        """Syncs each folder once, not once per file."""
        targets = [self.root / path for path in paths]
        with self._failures(None, "deleted"):
            for target in targets:
                target.unlink(missing_ok=True)
            for folder in {target.parent for target in targets}:
                with contextlib.suppress(FileNotFoundError):
                    fsync_folder(folder)

    def remove_folder(self, path: str) -> None:
        folder = self.root / path
        with contextlib.suppress(FileNotFoundError), self._failures(path, "removed"):
            self._remove_empty(folder)
            fsync_folder(folder.parent)  # even if it did not exist: see DurableFolders

    def _remove_empty(self, folder: Path) -> None:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            fsync_folder(folder)

    def remove_empty_folders(self, path: str, unchanged_since: float) -> int:
        removed = 0
        # Removing a folder updates its parent's time, so one call removes only the lowest folders.
        for key in [key for key in self._keys(_prefix(path)) if key.endswith("/")]:
            folder = f"{_prefix(path)}{key}"
            removed += self.remove_empty_folders(folder, unchanged_since)
            with contextlib.suppress(OSError):  # not empty, or gone
                status = os.stat(self.root / folder)
                if max(status.st_mtime, status.st_ctime) < unchanged_since:
                    os.rmdir(self.root / folder)
                    removed += 1
        return removed

    def now(self, folder: str | None = None) -> float:
        """Returns the time of a new file: on a network file system, the server's clock."""
        parent = self._incoming if folder is None else self.root / folder
        assert parent is not None, "without a root there is no folder for temporary files"  # noqa: S101
        path = parent / f"clock.{secrets.token_hex(8)}.tmp"
        with self._writing(path):
            if folder is None:
                self._folders.make(parent)
            try:
                path.touch(exist_ok=False)
                return path.stat().st_mtime
            finally:
                path.unlink(missing_ok=True)

    def remove_abandoned(self, now_seconds: float | None = None) -> int:
        """Deletes old temporary files of killed writers. Young ones may be in use."""
        now = time.time() if now_seconds is None else now_seconds
        removed = 0
        for path in (self.root / _INCOMING).glob("*.tmp"):
            with contextlib.suppress(OSError):  # already deleted, or no permission: no reason to fail
                if now - path.stat().st_mtime > _ABANDONED_SECONDS:
                    path.unlink()
                    removed += 1
        return removed

    @contextlib.contextmanager
    def _writing(self, target: Path) -> Iterator[None]:
        """Turns every OSError into StoreUnavailable, including the FileExistsError if a file has a
        folder's name, which must not look like a competing writer's object.
        """
        try:
            yield
        except OSError as error:
            where = target.parent if self._incoming is None else self.root
            raise StoreUnavailable(f"cannot write to {where}: {error.strerror or error}") from error

    @contextlib.contextmanager
    def _failures(self, path: str | None, done: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            target = error.filename if path is None else str(self.root / path)
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), target) from None
        except OSError as error:
            target = (error.filename or self.root) if path is None else self.root / path
            raise StoreUnavailable(f"{target} cannot be {done}: {error.strerror or error}") from error


def _prefix(folder: str) -> str:
    return f"{folder.rstrip('/')}/" if folder else ""


def _taken(target: Path) -> FileExistsError:
    return FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
