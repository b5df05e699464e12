"""A folder as the WAL's store: temporary file, fsync, link, fsync of the folder."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from frazil.errors import StoreUnavailable
from frazil.wal.store import Entry

_INCOMING = ".incoming"
_ABANDONED_SECONDS = 3600.0


class LocalStore:
    """`link` fails if the name exists, atomically, which `rename` does not: it is the conditional write."""

    def __init__(self, root: Path, free_bytes_min: int = 0) -> None:
        self.root = root
        self._free_bytes_min = free_bytes_min
        self._durable_folders: set[Path] = set()

    def describe(self) -> str:
        return str(self.root)

    def create(self, path: str, data: bytes) -> None:
        target = self.root / path
        temporary = self.root / _INCOMING / f"{secrets.token_hex(16)}.tmp"
        try:
            self._check_room(len(data))
            self._make_durable_folder(temporary.parent)
            self._make_durable_folder(target.parent)
            self._write(temporary, data)
            taken = False
            try:
                os.link(temporary, target)
            except FileExistsError:
                taken = target.read_bytes() != data
            _fsync_folder(target.parent)
        except OSError as error:  # also where a file stands in a folder's place: that is no rival's segment
            raise StoreUnavailable(f"{self.root} cannot take data: {error.strerror or error}") from error
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()
        if taken:
            raise FileExistsError(path)

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

    def _write(self, path: Path, data: bytes) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _make_durable_folder(self, folder: Path) -> None:
        """Makes `folder` and its ancestors; each new name is made durable in its parent."""
        if folder in self._durable_folders and folder.is_dir():
            return
        if folder != self.root:
            self._make_durable_folder(folder.parent)
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
            _fsync_folder(folder.parent)  # also when it existed: whoever made it may not have got this far
        else:
            folder.mkdir(parents=True, exist_ok=True)
            for place in folder.resolve().parents:
                with contextlib.suppress(PermissionError):  # then none of us has made anything in there
                    _fsync_folder(place)
                if place.is_mount():
                    break
        self._durable_folders.add(folder)

    def read(self, path: str) -> bytes:
        try:
            return (self.root / path).read_bytes()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StoreUnavailable(f"{self.root / path} cannot be read: {error.strerror or error}") from error

    def list(self, prefix: str) -> Iterator[Entry]:
        top = self.root / prefix
        for folder, folders, files in os.walk(top, onerror=self._unreadable):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(files):
                place = Path(folder, name)
                with contextlib.suppress(FileNotFoundError):
                    yield Entry(place.relative_to(self.root).as_posix(), place.stat().st_size)

    def _unreadable(self, error: OSError) -> None:
        """What was deleted meanwhile is not there; a folder that cannot be read must not look empty."""
        if not isinstance(error, FileNotFoundError):
            raise StoreUnavailable(f"{error.filename} cannot be listed: {error.strerror or error}") from error

    def delete(self, path: str) -> None:
        target = self.root / path
        try:
            target.unlink(missing_ok=True)
            if target.parent.is_dir():
                _fsync_folder(target.parent)
        except OSError as error:
            raise StoreUnavailable(f"{target} cannot be deleted: {error.strerror or error}") from error

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


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
