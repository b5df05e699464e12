"""SIGKILL and I/O errors at every file operation of an expiry and of the removal of orphans after it.

Whenever it ends, every snapshot that the table has reads as it did when it was made; another run finishes the
job, and nothing is left that nobody needs.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from frazil.config import Config
from frazil.lake.catalog import ensure_namespace, open_catalog
from frazil.lake.tags import create_tag
from frazil.lake.upkeep.orphans import find_orphans
from tests.components.fullness import CHANGES, OPERATIONS, FaultControl
from tests.support.fault.expire_process import DAY, ExpireProcess
from tests.support.fault.sweep import faulty_process, points
from tests.support.lake.history import History

pytestmark = pytest.mark.timeout(3000)


class Scene:
    """A table with a past, put back as it was before each attempt."""

    def __init__(self, folder: Path, faults: FaultControl, process: ExpireProcess) -> None:
        self.data_dir, self._kept = folder / "disk" / "data", folder / "kept"
        self.faults, self.process = faults, process
        with self._catalog() as catalog:
            ensure_namespace(catalog, "otel")
            self.history = history = History(catalog)
            for _ in range(3):
                history.land()
            history.rewrite()
            create_tag(catalog, history.table, "incident-1", history.land())
            history.rewrite()
            history.land("never committed", write_only=True)
            history.lose_rows()
            self.last = history.land()
        shutil.copytree(self.data_dir, self._kept)

    @contextlib.contextmanager
    def _catalog(self) -> Iterator:  # type: ignore[type-arg]
        config = Config.model_validate({"data_dir": self.data_dir})
        with contextlib.closing(open_catalog(config)) as catalog:
            yield catalog

    def put_back(self) -> None:
        shutil.rmtree(self.data_dir)
        shutil.copytree(self._kept, self.data_dir)

    def operations(self) -> int:
        self.put_back()
        before = self.faults.seen(CHANGES)
        assert self.process.run(self.data_dir) == 0
        self.check_done()
        return self.faults.seen(CHANGES) - before

    def check_whole(self) -> None:
        """As it is in the middle: nothing that is needed lacks, and what is not is found."""
        with self._catalog() as catalog:
            seen = self.history.through(catalog)
            assert seen.main == self.last
            seen.assert_kept_are_whole()
            orphans = find_orphans(seen.table, 0, time.time() + DAY)
            found = {orphan.path.rsplit("/", 1)[-1] for orphan in orphans}
            assert found == seen.names() - seen.needed() - seen.versions()

    def check_done(self) -> None:
        with self._catalog() as catalog:
            seen = self.history.through(catalog)
            seen.assert_kept_are_whole()
            assert "incident-1" in seen.table.metadata.refs
            assert seen.names() == seen.needed() | seen.versions()


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, fault_shim: Path) -> Iterator[Scene]:
    with faulty_process(ExpireProcess, tmp_path_factory, fault_shim) as started:
        yield Scene(*started)


def strike(scene: Scene, how: str, n: int) -> None:
    scene.put_back()
    if how == "killed":
        scene.faults.kill_at(CHANGES, n, "before")
    elif how == "killed halfway":
        scene.faults.kill_at(("write",), n, "halfway")
    else:
        scene.faults.fail_at(OPERATIONS, n, errno.EIO)
    code, fired = scene.process.run(scene.data_dir), scene.faults.fired
    scene.faults.clear()
    if fired and how.startswith("killed"):
        assert code == -9, n
    scene.check_whole()
    assert scene.process.run(scene.data_dir) == 0
    scene.check_done()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "killed halfway", "disk failing"])
def test_an_expiry_that_ends_anywhere_loses_nothing_and_is_finished_by_the_next(
    how: str, scene: Scene
) -> None:
    count = scene.operations()
    assert count > 20
    for n in points(count, 2):
        strike(scene, how, n)
        if how == "killed halfway" and not scene.faults.fired:
            break


def test_an_expiry_that_is_killed_is_finished_by_the_next(scene: Scene) -> None:
    """A few points of the sweep above."""
    count = scene.operations()
    for n in (count // 3, count * 2 // 3, count - 1):
        strike(scene, "killed", n)
