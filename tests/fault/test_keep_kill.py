"""SIGKILL and I/O errors at the file operations of erasure and of retention, until there is none left.

After each, it is done again: what was to go is in no file, all else is there exactly once, and the ledger
balances. With FRAZIL_SWEEP_ALL set, no point is left out: see `points`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from frazil.ledger import balance
from tests.components.fullness import OPERATIONS, FaultControl
from tests.components.memory import memory_folder
from tests.fault.keep_process import KeepProcess, kept
from tests.fault.land_process import Outcome
from tests.kept_lake import Kept, holding

pytestmark = pytest.mark.timeout(6000)

CHANGES = tuple(operation for operation in OPERATIONS if operation != "fsync")
STRUCK = {"killed": CHANGES, "killed halfway": ("write",), "disk failing": OPERATIONS}
MARKER = "zanzibar"
WHERE = "attributes['user.id'] = 'u42'"
GONE = [("acme", f"u42 {MARKER} {number}", 9, float(number % 2)) for number in range(4)]
STAY = [("acme", f"u{number} stays", 9, float(number % 2)) for number in range(4)]
OTHERS = [("globex", f"u42 of globex {number}", 9, float(number % 2)) for number in range(2)]
AGED = [
    ("acme", "old debug", 5, 10.0),
    ("acme", "old error", 17, 10.0),
    ("acme", "ancient error", 17, 40.0),
    ("acme", "new debug", 5, 1.0),
    ("globex", "ancient error of globex", 17, 40.0),
    ("globex", "ancient debug of globex", 5, 40.0),
]
AGED_LEFT = Counter(["old error", "new debug", "ancient error of globex"])


@dataclass
class Scene:
    """A data folder that is put back as it was before each attempt."""

    folder: Path
    faults: FaultControl
    process: KeepProcess

    @property
    def data_dir(self) -> Path:
        return self.folder / "disk" / "data"

    def made(self, fill: Callable[[Kept], None]) -> None:
        with contextlib.closing(kept(self.data_dir)) as lake:
            fill(lake)
        shutil.copytree(self.data_dir, self.folder / "kept")

    def put_back(self) -> None:
        shutil.rmtree(self.data_dir)
        shutil.copytree(self.folder / "kept", self.data_dir)

    def remove(self) -> None:
        for folder in (self.data_dir, self.folder / "kept"):
            shutil.rmtree(folder, ignore_errors=True)

    def operations(self, how: str, run: Callable[[], Outcome]) -> int:
        self.put_back()
        before = self.faults.seen(STRUCK[how])
        outcome = run()
        assert outcome.returncode == 0, outcome
        return self.faults.seen(STRUCK[how]) - before

    def disturb(self, how: str, n: int, run: Callable[[], Outcome]) -> tuple[Outcome, bool]:
        self.put_back()
        if how == "disk failing":
            self.faults.fail_at(STRUCK[how], n, errno.EIO)
        else:
            self.faults.kill_at(STRUCK[how], n, "before" if how == "killed" else "halfway")
        outcome = run()
        fired = self.faults.fired
        self.faults.clear()
        return outcome, fired


@pytest.fixture(scope="module")
def struck(
    tmp_path_factory: pytest.TempPathFactory, fault_shim: Path
) -> Iterator[tuple[Path, FaultControl, KeepProcess]]:
    log = tmp_path_factory.mktemp("struck") / "keep.log"
    with (
        memory_folder() as folder,
        FaultControl(folder / "faults", under=folder / "disk", shim=fault_shim) as faults,
        KeepProcess(log, environment=faults.environment()) as process,
    ):
        yield folder, faults, process


@pytest.fixture
def scene(struck: tuple[Path, FaultControl, KeepProcess]) -> Iterator[Scene]:
    scene = Scene(*struck)
    yield scene
    scene.faults.clear()
    scene.remove()


def erasing(scene: Scene) -> tuple[Callable[[], Outcome], Callable[[], None]]:
    """Landed in two commits, and some not yet; other tables are there."""

    def fill(lake: Kept) -> None:
        lake.fill([*GONE[:1], *STAY[:2], *OTHERS], [*GONE[1:3], *STAY[2:3]])
        lake.erase("attributes['user.id'] = 'nobody'")  # makes the other tables, and sweeps the log
        lake.write([*GONE[3:], *STAY[3:]])

    scene.made(fill)
    left = Counter(body for _, body, _, _ in (*STAY, *OTHERS))

    def check() -> None:
        assert holding(scene.data_dir, MARKER) == []
        assert_content(scene, left)

    return lambda: scene.process.erase(scene.data_dir, where=WHERE), check


def retaining(scene: Scene) -> tuple[Callable[[], Outcome], Callable[[], None]]:
    scene.made(lambda lake: lake.fill(AGED[:3], AGED[3:]))
    return lambda: scene.process.retain(scene.data_dir), lambda: assert_content(scene, AGED_LEFT)


SCENES = {"erasure": erasing, "retention": retaining}


def assert_content(scene: Scene, wanted: Counter[str]) -> None:
    with contextlib.closing(kept(scene.data_dir)) as lake:
        assert lake.bodies() == wanted
        assert balance(lake.config).problems == []


STRIDES = {"killed": 13, "killed halfway": 29, "disk failing": 41}


def points(how: str, count: int) -> range:
    """Of some hundreds of points, each taking seconds; which ones changes with every change of the code."""
    return range(1, count + 1, 1 if os.environ.get("FRAZIL_SWEEP_ALL") else STRIDES[how])


@pytest.mark.slow
@pytest.mark.parametrize("how", STRUCK)
@pytest.mark.parametrize("where", SCENES)
def test_what_is_struck_anywhere_is_whole_when_it_is_done_again(where: str, how: str, scene: Scene) -> None:
    run, check = SCENES[where](scene)
    count = scene.operations(how, run)
    check()
    assert count > 10
    for n in points(how, count):
        outcome, fired = scene.disturb(how, n, run)
        if not fired:
            break
        assert outcome.returncode in ((0, 1) if how == "disk failing" else (-9,)), (n, outcome)
        again = run()
        assert again.returncode == 0, (n, again)
        try:
            check()
        except AssertionError as error:
            raise AssertionError(f"struck at {n} of {count}") from error


@pytest.mark.parametrize("where", SCENES)
def test_what_is_killed_is_whole_when_it_is_done_again(where: str, scene: Scene) -> None:
    """A few points of the sweep above."""
    run, check = SCENES[where](scene)
    count = scene.operations("killed", run)
    check()
    for n in (count // 3, count * 2 // 3, count - 5):
        outcome, fired = scene.disturb("killed", n, run)
        assert fired
        assert outcome.returncode == -9
        assert run().returncode == 0
        check()
