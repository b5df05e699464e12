"""Writes local files that survive a power loss: syncs the data, the name and every new folder."""

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
    """Makes the current names in `folder` durable."""
    fsync_file(folder, os.O_DIRECTORY)


def fsync_file(path: Path, flags: int = 0) -> None:
    """Makes the content of `path` durable. Its name is durable only after `fsync_folder`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class DurableFolders:
    """Creates folders and remembers which are durable, so that each ancestor up to the mount is synced once.

    Creates and syncs a folder again if another process has deleted it.
    """

    def __init__(self) -> None:
        self._durable: set[Path] = set()

    def make(self, folder: Path) -> None:
        """Creates `folder` and its ancestors: durable when it returns."""
        if folder in self._durable and folder.is_dir():
            return
        self._make(folder.resolve())
        self._remember(folder)

    def forget(self, folder: Path) -> None:
        """Call this if `folder` was deleted: another process may create it again without a sync."""
        self._durable -= {folder, folder.resolve()}

    def _make(self, folder: Path) -> None:
        if (folder in self._durable and folder.is_dir()) or folder.is_mount():
            return
        self._make(folder.parent)
        try:
            folder.mkdir()
            created = True
        except FileExistsError:
            created = False
        try:
            fsync_folder(folder.parent)  # even if it existed: its creator may have died before the sync
        except PermissionError:
            if created:
                raise
            # Otherwise no frazil process can have created a folder in there.
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
