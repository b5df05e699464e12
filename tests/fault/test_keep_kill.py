"""SIGKILL and I/O errors at the file operations of erasure and of retention, until there is none left.

After each, it is done again: what was to go is in no file, all else is there exactly once, and the ledger
balances. With FRAZIL_SWEEP_ALL set, no point is left out: see `points`.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from frazil.ledger import balance
from tests.components.fullness import FaultControl
from tests.support.fault.keep_process import KeepProcess, kept
from tests.support.fault.land_process import Outcome
from tests.support.fault.sweep import FaultyDisk, faulty_process, points
from tests.support.known_lake import KnownLake, holding

pytestmark = pytest.mark.timeout(6000)

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


class Scene(FaultyDisk[KeepProcess]):
    def made(self, fill: Callable[[KnownLake], None]) -> None:
        with contextlib.closing(kept(self.data_dir)) as lake:
            fill(lake)
        self.keep()


@pytest.fixture(scope="module")
def struck(
    tmp_path_factory: pytest.TempPathFactory, fault_shim: Path
) -> Iterator[tuple[Path, FaultControl, KeepProcess]]:
    with faulty_process(KeepProcess, tmp_path_factory, fault_shim) as started:
        yield started


@pytest.fixture
def scene(struck: tuple[Path, FaultControl, KeepProcess]) -> Iterator[Scene]:
    scene = Scene(*struck)
    yield scene
    scene.faults.clear()
    scene.remove()


def erasing(scene: Scene) -> tuple[Callable[[], Outcome], Callable[[], None]]:
    """Landed in two commits, and some not yet; other tables are there."""

    def fill(lake: KnownLake) -> None:
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


STEPS = {"killed": 47, "killed halfway": 97, "disk failing": 131}
"""Of some hundreds of points, each taking seconds; which ones changes with every change of the code."""


@pytest.mark.slow
@pytest.mark.parametrize("how", STEPS)
@pytest.mark.parametrize("where", SCENES)
def test_a_failed_operation_anywhere_is_completed_by_the_next_run(where: str, how: str, scene: Scene) -> None:
    run, check = SCENES[where](scene)
    count = scene.operations(how, run)
    check()
    assert count > 10
    for n in points(count, STEPS[how]):
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
def test_a_killed_run_is_completed_by_the_next_run(where: str, scene: Scene) -> None:
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
