"""Local files that survive a power loss: data, name and every new folder are fsynced."""

from __future__ import annotations

import os
from pathlib import Path

_FOLDERS_KNOWN_MAX = 10_000


def write_synced(path: Path, data: bytes | memoryview, mode: int = 0o640) -> None:
    """Creates `path`, which must not exist. Its name is durable only after `fsync_folder`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_folder(folder: Path) -> None:
    """Makes the names in `folder` durable, as they are now."""
    fsync_file(folder, os.O_DIRECTORY)


def fsync_file(path: Path, flags: int = 0) -> None:
    """Makes what others wrote to `path` durable. Its name is durable only after `fsync_folder`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class DurableFolders:
    """Makes folders and remembers which are durable, so that the way up to the mount is synced once.

    A folder that another process has deleted is made, and synced, again.
    """

    def __init__(self) -> None:
        self._durable: set[Path] = set()

    def make(self, folder: Path) -> None:
        """Makes `folder` and its ancestors; each name is durable in its parent when this returns."""
        if folder in self._durable and folder.is_dir():
            return
        self._make(folder.resolve())
        self._remember(folder)

    def forget(self, folder: Path) -> None:
        """Called when `folder` turned out to be gone: a process that makes it again may not sync it."""
        self._durable -= {folder, folder.resolve()}

    def _make(self, folder: Path) -> None:
        if (folder in self._durable and folder.is_dir()) or folder.is_mount():
            return
        self._make(folder.parent)
        try:
            folder.mkdir()
            made = True
        except FileExistsError:
            made = False
        try:
            fsync_folder(folder.parent)  # also if it existed: its maker may not have got this far
        except PermissionError:
            if made:
                raise
            # Else none of us has made anything in there.
        self._remember(folder)

    def _remember(self, folder: Path) -> None:
        if len(self._durable) >= _FOLDERS_KNOWN_MAX:
            self._durable.clear()
        self._durable.add(folder)


def nearest_existing(folder: Path) -> Path:
    """Returns the folder or its nearest ancestor that exists."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return folder
