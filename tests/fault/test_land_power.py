"""Power losses at every point of landing and upkeep: what was synced is enough to land every row once.

Three disks: one that loses all that was not synced, one that keeps names and loses bytes, and one that keeps
deletions only.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.components.memory import memory_folder
from tests.support.fault.land_power import Disk, Event, make, states
from tests.support.fault.land_process import LandProcess
from tests.support.fault.land_wal import (
    STREAMS,
    Content,
    assert_landed,
    config_of,
    damage,
    expected,
    set_aside_sources,
    write_segments,
    write_tombstone,
)

pytestmark = pytest.mark.timeout(3000)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LandProcess]:
    with LandProcess(tmp_path_factory.mktemp("power") / "land.log", environment={}) as process:
        yield process


class Scene:
    """A log of which some has landed, and what a pipeline then does: it lands more, sets one segment aside,
    deletes what has landed, closes a stream and forgets one that has ended.
    """

    def __init__(self, folder: Path, process: LandProcess) -> None:
        self.data_dir = folder / "data"
        self._process = process
        self.content: Content = write_segments(self.data_dir, STREAMS[0], [0])
        assert process.land(self.data_dir).returncode == 0
        self.content += write_segments(self.data_dir, STREAMS[0], [1])
        write_tombstone(self.data_dir, STREAMS[0], 2)
        self.content += write_segments(self.data_dir, STREAMS[1], [0, 1, 2]) - expected(STREAMS[1], 1)
        damage(self.data_dir, STREAMS[1], 1)
        catalog_file = config_of(self.data_dir).catalog_file
        self.disk = Disk(self.data_dir, catalog_file)
        assert process.trace(self.data_dir, folder / "events").returncode == 0
        self.events: list[Event] = pickle.loads((folder / "events").read_bytes())

    def check(self, where: str, state: dict[str, bytes | None]) -> None:
        make(self.data_dir, state)
        outcome = self._process.keep_up(self.data_dir)
        assert outcome.returncode == 0, (where, outcome)
        assert outcome.facts["recovered"] == [], where  # nothing that the catalog points to was lost
        assert_landed(self.data_dir, self.content)
        assert set_aside_sources(self.data_dir) == [f"{STREAMS[1]}/1"], where


@pytest.fixture
def scene(process: LandProcess) -> Iterator[Scene]:
    """In memory: what a sync is good for, the record says and not the disk."""
    with memory_folder() as folder:
        yield Scene(folder, process)


def test_the_record_is_complete(scene: Scene) -> None:
    """What it says was done is what is there: no operation went by another way."""
    for event in scene.events:
        scene.disk.apply(event)
    there = {
        str(path.relative_to(scene.data_dir)): None if path.is_dir() else path.read_bytes()
        for path in scene.data_dir.rglob("*")
    }
    left = scene.disk.left(None)
    assert sorted(left) == sorted(there)
    assert left == there
    kinds = {event[0] for event in scene.events}
    assert kinds == {
        "create",
        "write",
        "fsync",
        "link",
        "unlink",
        "mkdir",
        "rmdir",
        "catalog",
        "sync",
        "rename",
    }


def test_all_that_the_catalog_points_to_is_synced_before_it_does(scene: Scene) -> None:
    """At each commit, every file of the warehouse that was begun is whole on the disk under its name."""
    commits = 0
    for event in scene.events:
        scene.disk.apply(event)
        if event[0] != "catalog":
            continue
        commits += 1
        now, after = scene.disk.left(None), scene.disk.left("all that was not synced")
        for path, data in now.items():
            if path.startswith("warehouse/") and not path.endswith(".tmp"):
                assert after.get(path) == data, path
    assert commits >= 4


def test_segments_are_deleted_only_after_a_commit_and_a_sync_of_the_file_system(scene: Scene) -> None:
    order = [
        event[0]
        for event in scene.events
        if event[0] in ("catalog", "sync") or (event[0] == "unlink" and event[1].startswith("wal/logs/"))
    ]
    assert order.count("unlink") >= 5
    for at, kind in enumerate(order):
        if kind == "unlink":
            before = [each for each in order[:at] if each != "unlink"]
            assert before[-1] == "sync"
            assert "catalog" in before


@pytest.mark.slow
def test_a_power_loss_at_any_point_loses_no_row_and_doubles_none(scene: Scene) -> None:
    checked = 0
    for where, state in states(scene.disk, scene.events):
        scene.check(where, state)
        checked += 1
    assert checked > 60


def test_a_power_loss_right_after_a_commit_or_a_deletion_loses_no_row_and_doubles_none(scene: Scene) -> None:
    """A few points of the sweep above."""
    points = [
        (where, state)
        for where, state in states(scene.disk, scene.events)
        if where.startswith("all that was not synced") and ("'catalog'" in where or "'rmdir'" in where)
    ]
    assert len(points) >= 3
    for where, state in (points[0], points[len(points) // 2], points[-1]):
        scene.check(where, state)
