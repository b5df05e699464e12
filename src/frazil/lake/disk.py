"""The lake's files on a local disk, durable before a write returns."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from frazil.durable import DurableFolders, fsync_folder, write_synced
from frazil.errors import StoreUnavailable
from frazil.lake.place import Listing

_ATTEMPTS_MAX = 3
# Other engines read the tables too: the process's umask decides which users may.
_FILE_MODE = 0o666


class Disk:
    """Paths are absolute. Nothing is kept but which folders are durable, so one serves all."""

    def __init__(self) -> None:
        self._folders = DurableFolders()

    def write(self, path: str, data: memoryview, *, overwrite: bool) -> None:
        target = Path(path)
        # Beside the target, and not hidden: a leftover of a killed writer is removed as an orphan.
        temporary = target.with_name(f"{target.name}.{secrets.token_hex(8)}.tmp")
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

    def open(self, path: str) -> pa.NativeFile:
        with _failures(path):
            return pa.OSFile(path)

    def size(self, path: str) -> int:
        with _failures(path):
            return os.stat(path).st_size

    def delete(self, path: str) -> None:
        """Not synced: what a power loss brings back is an orphan, and harms nobody."""
        with _failures(path), contextlib.suppress(FileNotFoundError):
            os.unlink(path)

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
