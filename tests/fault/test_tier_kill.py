"""SIGKILL and I/O errors at every file operation of whoever moves files to another place.

After each, every row is in the table once, wherever its file is, and the ledger agrees. What was left behind
is found in both places, and moving again comes to its end.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyiceberg.table import Table

from frazil.lake.catalog import open_catalog
from frazil.lake.live_files import live_files
from frazil.lake.upkeep.orphans import find_orphans, remove_orphans
from tests.components.fullness import FaultControl
from tests.fault.test_land_kill import Scene, said
from tests.support.fault.land_process import Outcome
from tests.support.fault.land_wal import STREAMS, assert_landed, expected
from tests.support.fault.sweep import faulty_process, points
from tests.support.fault.tier_process import DAY, TierProcess, cold_of, config_of

pytestmark = pytest.mark.timeout(3000)


@pytest.fixture(scope="module")
def struck(
    tmp_path_factory: pytest.TempPathFactory, fault_shim: Path
) -> Iterator[tuple[Path, FaultControl, TierProcess]]:
    with faulty_process(TierProcess, tmp_path_factory, fault_shim) as started:
        yield started


@pytest.fixture
def scene(struck: tuple[Path, FaultControl, TierProcess]) -> Iterator[Scene]:
    """Two landings, of two tenants each."""
    scene = Scene(*struck)
    for stream in STREAMS[:2]:
        scene.write(stream, 0)
        assert scene.process.land(scene.data_dir).returncode == 0
    cold_of(scene.data_dir).mkdir()
    scene.keep()
    yield scene
    scene.faults.clear()
    scene.remove()


def move_of(scene: Scene) -> Callable[[], Outcome]:
    process = scene.process
    assert isinstance(process, TierProcess)
    return lambda: process.move(scene.data_dir)


@contextlib.contextmanager
def logs(scene: Scene) -> Iterator[Table]:
    with contextlib.closing(open_catalog(config_of(scene.data_dir))) as catalog:
        yield catalog.load_table("otel.logs")


def on_disk(scene: Scene) -> set[str]:
    folders = (scene.data_dir / "warehouse" / "otel" / "logs" / "data", cold_of(scene.data_dir))
    return {str(path) for folder in folders for path in folder.rglob("*") if path.is_file()}


def needed(table: Table) -> set[str]:
    return {
        entry.data_file.file_path
        for snapshot in table.metadata.snapshots
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io)
    }


def check(scene: Scene, run: Callable[[], Outcome]) -> None:
    """From whatever is there, moving comes to its end, and nothing stays that nobody needs."""
    later = time.time() + DAY
    assert_landed(scene.data_dir, scene.content)
    with logs(scene) as table:
        found = {orphan.path for orphan in find_orphans(table, 0, later) if "/metadata/" not in orphan.path}
        assert needed(table) <= on_disk(scene)
        assert found == on_disk(scene) - needed(table)
    assert run().returncode == 0
    assert_landed(scene.data_dir, scene.content)
    with logs(scene) as table:
        live = {each.file.file_path for each in live_files(table)}
        assert len(live) == 4
        assert all(path.startswith(f"{cold_of(scene.data_dir)}/") for path in live)
        remove_orphans(table, 0, later)
        assert on_disk(scene) == needed(table)
    assert_landed(scene.data_dir, scene.content)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "killed halfway"])
def test_a_move_that_is_killed_anywhere_loses_nothing_and_is_finished_by_the_next(
    how: str, scene: Scene
) -> None:
    run, last = move_of(scene), 0
    count = scene.operations(how, run)
    assert count > 10
    swept = points(count, 3)
    for n in swept:
        outcome, struck = scene.disturb(how, n, run)
        if not struck:
            break
        assert outcome.returncode == -9
        check(scene, run)
        last = n
    assert last > count - 2 - swept.step  # one more or less, as SQLite sees fit
    if how == "killed":  # and when all of it is done
        outcome, struck = scene.disturb("killed after", last, run)
        assert (outcome.returncode, struck) == (-9, True)
        check(scene, run)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["disk full", "disk failing"])
def test_a_move_that_meets_an_error_anywhere_raises_or_is_made(how: str, scene: Scene) -> None:
    run = move_of(scene)
    for n in points(scene.operations(how, run), 4):
        outcome, struck = scene.disturb(how, n, run)
        if not struck:
            break
        assert outcome.returncode in (0, 1), (n, outcome)
        if outcome.returncode == 1:
            assert "No space left" in outcome.error or "nput/output error" in outcome.error or said(outcome)
        check(scene, run)


def test_a_move_that_is_killed_is_finished_by_the_next_and_landing_continues(scene: Scene) -> None:
    """A few points of the sweep above."""
    run = move_of(scene)
    count = scene.operations("killed", run)
    for n in (count // 4, count // 2, count - 4):
        outcome, struck = scene.disturb("killed", n, run)
        assert struck
        assert outcome.returncode == -9
        check(scene, run)
    scene.write(STREAMS[2], 0)
    assert scene.process.land(scene.data_dir).steps == ("landed", "idle")
    assert_landed(scene.data_dir, scene.content)
    assert expected(STREAMS[2], 0) <= scene.content
