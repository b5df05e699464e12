"""What is built once per machine and kept: one folder per name and version."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path


class ComponentMissingError(Exception):
    """A component cannot be had on this machine; says what to install."""

    def __init__(self, component: str, needs: str) -> None:
        super().__init__(f"{component} cannot be had here: {needs}")
        self.component = component
        self.needs = needs


def run(component: str, command: Sequence[str], *, seconds_max: float, folder: Path | None = None) -> None:
    """What it takes to get `component`, which cannot be had where this fails."""
    ended = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds_max,
    )
    if ended.returncode != 0:
        raise ComponentMissingError(component, f"`{' '.join(command)}` to work:\n{ended.stdout[-1000:]}")


def cache_folder() -> Path:
    """`FRAZIL_TEST_CACHE`, else ~/.cache/frazil-tests."""
    return Path(os.environ.get("FRAZIL_TEST_CACHE") or Path.home() / ".cache" / "frazil-tests")


def built_once(
    key: str, file_name: str, build: Callable[[Path], None], *, folder: Path | None = None
) -> Path:
    """The path of `file_name` in the cache; `build(into)` makes it in a scratch folder if need be.

    Whoever comes second waits for the first; a build that dies leaves nothing behind that looks finished.
    """
    root = folder or cache_folder()
    finished = root / key / file_name
    if finished.exists():
        return finished
    root.mkdir(parents=True, exist_ok=True)
    with open(root / f"{key}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if finished.exists():
            return finished
        with tempfile.TemporaryDirectory(prefix=f"{key}.building-", dir=root) as scratch:
            build(Path(scratch))
            if not (Path(scratch) / file_name).exists():
                raise ComponentMissingError(key, f"its build ended well but made no {file_name}")
            finished.parent.mkdir(exist_ok=True)
            shutil.move(Path(scratch) / file_name, finished)
    return finished
