"""The lake's files on a local disk, durable before a write returns."""

from __future__ import annotations

import builtins
import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from frazil.durable import DurableFolders, fsync_file, fsync_folder, write_synced
from frazil.errors import StoreUnavailable
from frazil.lake.place import FoundFile, Listing
from frazil.stopwatch import timed, timed_listing

_ATTEMPTS_MAX = 3
# A process's umask can take more away. On a cluster's executors it may leave more.
_FILE_MODE = 0o640


class Disk:
    """Paths are absolute. Nothing is kept but which folders are durable, so one serves all."""

    def __init__(self) -> None:
        self._folders = DurableFolders()

    @timed("lake", "put")
    def write(self, path: str, data: memoryview, *, overwrite: bool) -> None:
        target = Path(path)
        temporary = _beside(target)
        with _failures(path):
            for attempt in range(1, _ATTEMPTS_MAX + 1):
                try:
                    self._publish(temporary, target, data, overwrite=overwrite)
                    return
                except FileNotFoundError:  # somebody else deleted the folder meanwhile
                    self._folders.forget(target.parent)
                    if attempt == _ATTEMPTS_MAX:
                        raise StoreUnavailable(f"{target.parent} vanishes whenever it is made") from None
                finally:
                    with contextlib.suppress(OSError):
                        temporary.unlink()

    def _publish(self, temporary: Path, target: Path, data: memoryview, *, overwrite: bool) -> None:
        self._folders.make(target.parent)
        write_synced(temporary, data, _FILE_MODE)
        if overwrite:
            os.replace(temporary, target)
        else:
            os.link(temporary, target)
        fsync_folder(target.parent)

    def temporary(self, path: str) -> Path:
        with _failures(path):
            self._folders.make(Path(path).parent)
        return _beside(Path(path))

    @timed("lake", "put")
    def publish(self, path: str, local_file: Path, storage_class: str | None = None) -> None:
        target = Path(path)
        with _failures(path):
            try:
                os.chmod(local_file, stat.S_IMODE(os.stat(local_file).st_mode) & _FILE_MODE)
                fsync_file(local_file)
                os.link(local_file, target)
            finally:
                with contextlib.suppress(OSError):
                    local_file.unlink()
            fsync_folder(target.parent)

    def local(self, path: str) -> contextlib.nullcontext[Path]:
        return contextlib.nullcontext(Path(path))

    @timed("lake", "get")
    def open(self, path: str) -> pa.NativeFile:
        with _failures(path):
            return pa.OSFile(path)

    @timed("lake", "head")
    def size(self, path: str) -> int:
        with _failures(path):
            return os.stat(path).st_size

    @timed("lake", "delete")
    def delete(self, path: str) -> None:
        """Not synced: what a power loss brings back is an orphan, and harms nobody."""
        with _failures(path), contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def delete_all(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.delete(path)

    @timed_listing("lake")
    def walk(self, path: str) -> Iterator[FoundFile]:
        waiting = [path]
        while waiting:
            folder = waiting.pop()
            with _failures(folder):
                found = self._files(folder, waiting)
            yield from found

    def _files(self, folder: str, folders: builtins.list[str]) -> builtins.list[FoundFile]:
        """Those directly in it; the folders are added to `folders`. What goes meanwhile is left out."""
        found = []
        with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    with contextlib.suppress(FileNotFoundError):
                        about = entry.stat(follow_symlinks=False)
                        # One that was moved here keeps its old time of modification.
                        modified = max(about.st_mtime, about.st_ctime)
                        found.append(FoundFile(entry.path, about.st_size, modified))
        return found

    def now(self, folder: str) -> float:
        path = Path(folder) / f"clock.{secrets.token_hex(8)}.tmp"
        with _failures(folder):
            try:
                path.touch(exist_ok=False)
                return path.stat().st_mtime
            finally:
                path.unlink(missing_ok=True)

    def remove_empty_folders(self, path: str, unchanged_since: float) -> int:
        """A writer whose folder goes just now makes it again: see `write`."""
        removed = 0
        with _failures(path):
            # Their times are those from before anything below them went, so only the lowest go at a time.
            for folder in [entry.path for entry in _folders(path)]:
                removed += self.remove_empty_folders(folder, unchanged_since)
                with contextlib.suppress(OSError):  # not empty, or gone
                    about = os.stat(folder)
                    if max(about.st_mtime, about.st_ctime) < unchanged_since:
                        os.rmdir(folder)
                        removed += 1
        return removed

    @timed("lake", "list")
    def list(self, path: str) -> Listing:
        with _failures(path):
            try:
                with os.scandir(path) as found:
                    entries = sorted(found, key=lambda entry: entry.name)
            except FileNotFoundError:
                return Listing((), ())
            return Listing(
                folders=tuple(entry.name for entry in entries if entry.is_dir()),
                files=tuple(entry.name for entry in entries if entry.is_file()),
            )


def _beside(target: Path) -> Path:
    """Not hidden: a leftover of a killed writer is removed as an orphan."""
    return target.with_name(f"{target.name}.{secrets.token_hex(8)}.tmp")


def _folders(path: str) -> list[os.DirEntry[str]]:
    with contextlib.suppress(FileNotFoundError), os.scandir(path) as entries:
        return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    return []


@contextlib.contextmanager
def _failures(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
    except FileExistsError:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
    except OSError as error:
        raise StoreUnavailable(f"{path}: {error.strerror or error}") from error
