"""A data folder whose every file operation can be struck, and a process that works in it."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

import pytest

from tests.components.fullness import CHANGES, OPERATIONS, FaultControl
from tests.components.memory import memory_folder
from tests.support.fault.forks import Forks
from tests.support.fault.land_process import Outcome

STRUCK = {
    "killed": CHANGES,
    "killed after": CHANGES,
    "killed halfway": ("write",),
    "disk full": ("create", "write", "mkdir", "link"),
    "disk failing": OPERATIONS,
}
Arm = Callable[[FaultControl, tuple[str, ...], int], None]
ARMS: dict[str, Arm] = {
    "killed": lambda faults, of, n: faults.kill_at(of, n, "before"),
    "killed after": lambda faults, of, n: faults.kill_at(of, n, "after"),
    "killed halfway": lambda faults, of, n: faults.kill_at(of, n, "halfway"),
    "disk full": lambda faults, of, n: faults.fail_at(of, n, errno.ENOSPC),
    "disk failing": lambda faults, of, n: faults.fail_at(of, n, errno.EIO),
}
P = TypeVar("P", bound=Forks)


class FaultyDisk(Generic[P]):
    """A data folder that is put back as it was before each attempt. Tables know their absolute paths, so it
    is always the same folder.
    """

    def __init__(self, folder: Path, faults: FaultControl, process: P) -> None:
        self.data_dir = folder / "disk" / "data"
        self._kept = folder / "kept"
        self.faults = faults
        self.process = process

    def keep(self) -> None:
        shutil.copytree(self.data_dir, self._kept)

    def remove(self) -> None:
        for folder in (self.data_dir, self._kept):
            shutil.rmtree(folder, ignore_errors=True)

    def put_back(self) -> None:
        shutil.rmtree(self.data_dir)
        shutil.copytree(self._kept, self.data_dir)

    def operations(self, how: str, run: Callable[[], Outcome]) -> int:
        """How many an undisturbed run does that can be struck so."""
        self.put_back()
        before = self.faults.seen(STRUCK[how])
        outcome = run()
        assert outcome.returncode == 0, outcome
        return self.faults.seen(STRUCK[how]) - before

    def disturb(self, how: str, n: int, run: Callable[[], Outcome]) -> tuple[Outcome, bool]:
        """The run with its n-th operation struck, and whether that happened."""
        self.put_back()
        ARMS[how](self.faults, STRUCK[how], n)
        outcome = run()
        fired = self.faults.fired
        self.faults.clear()
        return outcome, fired


@contextlib.contextmanager
def faulty_process(
    process: type[P], tmp_path_factory: pytest.TempPathFactory, shim: Path
) -> Iterator[tuple[Path, FaultControl, P]]:
    """In memory. One for all tests of a module: it takes seconds to start."""
    log = tmp_path_factory.mktemp("struck") / "process.log"
    with (
        memory_folder() as folder,
        FaultControl(folder / "faults", under=folder / "disk", shim=shim) as faults,
        process(log, environment=faults.environment()) as started,
    ):
        yield folder, faults, started


def points(count: int, step: int) -> range:
    """The points of a sweep: each `step`-th of `count`; all with FRAZIL_SWEEP_ALL set (`make soak`)."""
    return range(1, count + 1, 1 if os.environ.get("FRAZIL_SWEEP_ALL") else step)
