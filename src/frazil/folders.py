"""Folders that data goes to: whether they can be written to, and a clear word where not."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path

from frazil.errors import ConfigError

_FULL = (errno.ENOSPC, errno.EDQUOT)


def nearest_existing(folder: Path) -> Path:
    """The folder or its nearest ancestor that exists."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return folder


def try_to_write(folder: Path) -> Path:
    """Writes to the folder, or to the one it would be made in, and leaves nothing. OSError says why not."""
    nearest = nearest_existing(folder)
    if not nearest.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "it is a file, not a folder", str(nearest))
    with tempfile.TemporaryDirectory(prefix=".frazil-", dir=nearest):
        return nearest


def check_writable(key: str, folder: Path) -> None:
    """A full disk is no reason to refuse: room may come, and until then requests are refused."""
    try:
        try_to_write(folder)
    except NotADirectoryError as error:
        raise ConfigError(
            f"{error.filename} is a file, not a folder: move it away, or set {key} elsewhere"
        ) from None
    except OSError as error:
        if error.errno not in _FULL:
            nearest = nearest_existing(folder)
            raise ConfigError(
                f"{nearest} cannot be written to: {error.strerror}. Give this user the right to, or set "
                f"{key} elsewhere"
            ) from None
