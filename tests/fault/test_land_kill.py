"""SIGKILL and I/O errors at the file operations of landing, from the first until there is none left.

After each, landing is started again: every row is in the table exactly once, and the ledger balances.

With FRAZIL_SWEEP_ALL set (`make soak`), at every one of them; else at each third or fifth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.components.fullness import FaultControl
from tests.support.fault.land_process import LandProcess, Outcome
from tests.support.fault.land_wal import (
    STREAMS,
    Content,
    assert_landed,
    damage,
    expected,
    set_aside_sources,
    table_content,
    write_segments,
    write_tombstone,
)
from tests.support.fault.sweep import FaultyDisk, faulty_process, points

pytestmark = pytest.mark.timeout(3000)


class Scene(FaultyDisk[LandProcess]):
    """And the rows that must be in its tables in the end."""

    def __init__(self, folder: Path, faults: FaultControl, process: LandProcess) -> None:
        super().__init__(folder, faults, process)
        self.content: Content = Content()

    def write(self, stream: str, *sequences: int) -> None:
        self.content += write_segments(self.data_dir, stream, sequences)


@pytest.fixture(scope="module")
def struck(
    tmp_path_factory: pytest.TempPathFactory, fault_shim: Path
) -> Iterator[tuple[Path, FaultControl, LandProcess]]:
    with faulty_process(LandProcess, tmp_path_factory, fault_shim) as started:
        yield started


@pytest.fixture
def scene(struck: tuple[Path, FaultControl, LandProcess]) -> Iterator[Scene]:
    scene = Scene(*struck)
    yield scene
    scene.faults.clear()
    scene.remove()


def land_of(scene: Scene) -> Callable[[], Outcome]:
    return lambda: scene.process.land(scene.data_dir)


def first_landing(scene: Scene) -> Callable[[], Outcome]:
    scene.write(STREAMS[0], 0, 1)
    scene.write(STREAMS[1], 0)
    return land_of(scene)


def second_landing(scene: Scene) -> Callable[[], Outcome]:
    scene.write(STREAMS[0], 0)
    assert scene.process.land(scene.data_dir).steps == ("landed", "idle")
    scene.write(STREAMS[0], 1)
    scene.write(STREAMS[1], 0)
    return land_of(scene)


def landing_with_a_corrupt_segment(scene: Scene) -> Callable[[], Outcome]:
    scene.write(STREAMS[0], 0, 1, 2)
    damage(scene.data_dir, STREAMS[0], 1)
    scene.content -= expected(STREAMS[0], 1)
    return land_of(scene)


def upkeep(scene: Scene) -> Callable[[], Outcome]:
    """One stream has ended and goes, one falls silent and is closed, and something lands in between."""
    scene.write(STREAMS[0], 0, 1)
    write_tombstone(scene.data_dir, STREAMS[0], 2)
    scene.write(STREAMS[1], 0)
    assert scene.process.land(scene.data_dir).steps == ("landed", "idle")
    scene.write(STREAMS[2], 0)
    return lambda: scene.process.keep_up(scene.data_dir)


SCENES = {
    "the first landing": first_landing,
    "a second landing": second_landing,
    "landing with a corrupt segment": landing_with_a_corrupt_segment,
    "upkeep": upkeep,
}


def step(where: str, how: str) -> int:
    """Of what the first landing does, landing with a corrupt segment does all too."""
    return 5 if where == "the first landing" or how in ("disk full", "disk failing") else 3


def check(scene: Scene, where: str, run: Callable[[], Outcome]) -> None:
    """Undisturbed, it comes to its end from whatever is there."""
    assert table_content(scene.data_dir) - scene.content == Content()
    assert run().returncode == 0
    assert_landed(scene.data_dir, scene.content)
    if where == "landing with a corrupt segment":
        assert set_aside_sources(scene.data_dir) == [f"{STREAMS[0]}/1"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "killed halfway"])
@pytest.mark.parametrize("where", SCENES)
def test_landing_that_is_killed_anywhere_lands_every_row_once_when_it_is_started_again(
    where: str, how: str, scene: Scene
) -> None:
    run = SCENES[where](scene)
    scene.keep()
    count = scene.operations(how, run)
    assert count > 10
    last = 0
    for n in points(count, step(where, how)):
        outcome, struck = scene.disturb(how, n, run)
        last = n if struck else last
        assert outcome.returncode == (-9 if struck else 0), (n, outcome)
        check(scene, where, run)
    assert last > count - 2 - points(count, step(where, how)).step  # one more or less, as SQLite sees fit
    if how == "killed":  # and when all of it is done
        outcome, struck = scene.disturb("killed after", last, run)
        assert struck
        assert outcome.returncode == -9
        check(scene, where, run)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["disk full", "disk failing"])
@pytest.mark.parametrize("where", SCENES)
def test_landing_that_meets_an_error_anywhere_raises_or_is_not_harmed_and_continues_afterwards(
    where: str, how: str, scene: Scene
) -> None:
    run = SCENES[where](scene)
    scene.keep()
    for n in points(scene.operations(how, run), step(where, how)):
        outcome, struck = scene.disturb(how, n, run)
        if not struck:
            break
        assert outcome.returncode in (0, 1), (n, outcome)
        if outcome.returncode == 1:
            assert "No space left" in outcome.error or "nput/output error" in outcome.error or said(outcome)
        else:  # what failed was not needed: a temporary file stays, or old metadata
            assert_landed(scene.data_dir, scene.content)
        check(scene, where, run)


def said(outcome: Outcome) -> bool:
    """SQLite has its own words for a disk that is full or fails."""
    return any(word in outcome.error for word in ("disk I/O error", "disk is full", "unable to open"))


@pytest.mark.parametrize("where", SCENES)
def test_landing_that_is_killed_lands_every_row_once_when_it_is_started_again(
    where: str, scene: Scene
) -> None:
    """A few points of the sweep above."""
    run = SCENES[where](scene)
    scene.keep()
    count = scene.operations("killed", run)
    for n in (count // 2, count * 4 // 5):
        outcome, struck = scene.disturb("killed", n, run)
        assert struck
        assert outcome.returncode == -9
        check(scene, where, run)
