"""Local data folders: write checks, permissions, file systems, and temporary folders."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import structlog

from frazil.config import Config
from frazil.errors import SetupFault
from frazil.storage.durable import nearest_existing

_FULL = (errno.ENOSPC, errno.EDQUOT)
_LOCK = ".lock"
_NO_OTHERS = 0o027
"""As umask: files 0640, folders 0750."""

log = structlog.get_logger("frazil")


def private_folders(config: Config) -> Iterator[tuple[str, Path]]:
    """Yield the key and path of each local folder with telemetry, except subfolders of data_dir."""
    found = {"data_dir": config.data_dir}
    if config.wal.type == "local":
        found["wal.local.path"] = config.wal_dir
    if not config.warehouse.startswith("s3://"):
        found["lake.warehouse"] = Path(config.warehouse)
    if config.tier_location is not None and not config.tier_location.startswith("s3://"):
        found["maintain.tier.location"] = Path(config.tier_location)
    data_dir = config.data_dir.absolute()
    for key, folder in found.items():
        if key == "data_dir" or not folder.absolute().is_relative_to(data_dir):
            yield key, folder


def keep_private(config: Config) -> None:
    """Make files of this process and its children unreadable for other users, create the data folder, and
    remove other users' access to existing folders. Group access does not change.
    """
    os.umask(os.umask(_NO_OTHERS) | _NO_OTHERS)
    with contextlib.suppress(OSError):  # the first use of the folder reports the error
        config.data_dir.parent.mkdir(parents=True, exist_ok=True)
        config.data_dir.mkdir(mode=0o700)
    if os.geteuid() == 0 and (owner := _owner(config.data_dir)) not in (0, None):
        log.warning(
            "data folder owned by another user",
            folder=str(config.data_dir),
            owner=owner,
            fix="run frazil as the owner of the folder: files that root writes are unreadable for the owner",
        )
    for key, folder in private_folders(config):
        _close_to_others(key, folder)


def _owner(path: Path) -> int | None:
    try:
        return path.stat().st_uid
    except OSError:
        return None


def _close_to_others(key: str, folder: Path) -> None:
    try:
        about = folder.stat()
        is_shared = about.st_mode & stat.S_ISVTX  # like /tmp: not used by frazil alone
        if about.st_uid != os.geteuid() or is_shared or not about.st_mode & stat.S_IRWXO:
            return
        mode = stat.S_IMODE(about.st_mode) & ~stat.S_IRWXO
        folder.chmod(mode)
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("folder left open to other users", setting=key, folder=str(folder), reason=str(error))
    else:
        log.info("folder closed to other users", setting=key, folder=str(folder), mode=f"{mode:04o}")


def is_open_to_others(path: Path) -> bool:
    """Return whether users other than owner and group can read or list `path`."""
    path = path.absolute()
    try:
        is_reachable = all(parent.stat().st_mode & stat.S_IXOTH for parent in path.parents)
        return is_reachable and bool(path.stat().st_mode & stat.S_IRWXO)
    except OSError:
        return False


class OwnFolder:
    """A folder for temporary files of this process, private to this user. Deletes folders that killed
    processes left: they contain rows of tenants.
    """

    def __init__(self, parent: Path | None, prefix: str) -> None:
        self._parent = Path(tempfile.gettempdir()) if parent is None else parent
        self._prefix = prefix
        self._path: Path | None = None
        self._lock: int | None = None

    def take(self) -> Path:
        self._parent.mkdir(parents=True, exist_ok=True)
        self._clear()
        self._path = Path(tempfile.mkdtemp(prefix=self._prefix, dir=self._parent))
        self._lock = os.open(self._path / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return self._path

    def give_back(self) -> None:
        if self._path is None or self._lock is None:
            return
        shutil.rmtree(self._path, ignore_errors=True)
        os.close(self._lock)
        self._path = self._lock = None

    def _clear(self) -> None:
        for folder in self._parent.glob(f"{self._prefix}*"):
            with contextlib.suppress(OSError):  # in use, being created, or owned by another user
                lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
                finally:
                    os.close(lock)


def try_to_write(folder: Path) -> Path:
    """Write to the folder, or to its nearest existing parent, and clean up. Raises OSError."""
    nearest = nearest_existing(folder)
    if not nearest.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "it is a file, not a folder", str(nearest))
    with tempfile.TemporaryDirectory(prefix=".frazil-", dir=nearest):
        return nearest


def check_writable(key: str, folder: Path, *, may_be_full: bool = True) -> None:
    """Raise SetupFault if the folder is not writable. A full disk is allowed by default: the receiver refuses
    requests until there is space.
    """
    try:
        try_to_write(folder)
    except NotADirectoryError as error:
        found = f"{error.filename} is a file, not a folder"
        raise SetupFault(found, f"move it away, or set {key} to another path") from None
    except OSError as error:
        is_full = error.errno in _FULL
        if is_full and may_be_full:
            return
        found = f"{nearest_existing(folder)} is not writable: {error.strerror}"
        permission = f"give this user write permission, or set {key} to another path"
        raise SetupFault(found, "free disk space" if is_full else permission) from None


def segment_write_seconds(scratch: Path) -> float:
    """Return the seconds to write a segment as the local store does, best of three. Raises OSError if the
    file system does not support it.
    """
    best = float("inf")
    for attempt in range(3):
        start = time.perf_counter()
        written, segment = scratch / f"{attempt}.tmp", scratch / f"{attempt}.parquet"
        with written.open("wb") as file:
            file.write(b"frazil" * 1000)
            file.flush()
            os.fsync(file.fileno())
        os.link(written, segment)
        folder = os.open(scratch, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        best = min(best, time.perf_counter() - start)
        try:
            os.link(written, segment)
        except FileExistsError:
            continue
        raise OSError(0, "link replaced an existing file")
    return best


def file_system_type(folder: Path) -> str | None:
    """Returns the type of the file system that `folder` is on; None if unknown."""
    path = nearest_existing(folder).resolve()
    mounts = [
        mount for mount in psutil.disk_partitions(all=True) if path.is_relative_to(mount.mountpoint)
    ]  # of several mounts on one folder the last is visible
    return max(reversed(mounts), key=lambda mount: len(mount.mountpoint)).fstype if mounts else None
