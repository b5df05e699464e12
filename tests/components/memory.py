"""A folder in memory, for tests that sync thousands of times and do not ask what a sync is good for."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
FREE_BYTES_MIN = 256 << 20


@contextlib.contextmanager
def memory_folder() -> Iterator[Path]:
    """Gone with the block. On the disk where the machine has no such place, or not enough of it."""
    with tempfile.TemporaryDirectory(prefix="frazil-tests-", dir=_place()) as folder:
        yield Path(folder).resolve()


def _place() -> Path | None:
    if not os.access(SHARED_MEMORY, os.W_OK) or shutil.disk_usage(SHARED_MEMORY).free < FREE_BYTES_MIN:
        return None
    return SHARED_MEMORY
